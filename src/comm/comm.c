/* SPDX-License-Identifier: MIT */
/* A communicator's life: create, meet, tell, end. */
#include "comm/comm.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/fork_mutex.h"
#include "base/interrupt.h"
#include "base/invariant.h"
#include "base/log.h"
#include "base/options.h"
#include "base/order.h"
#include "base/point.h"
#include "base/thread.h"
#include "bootstrap/agree.h"
#include "bootstrap/host.h"
#include "bootstrap/links.h"
#include "bootstrap/meet.h"
#include "comm/comm_setup.h"
#include "comm/options.h"
#include "comm/work.h"
#include "cuda/kernels/rows.h"
#include "ipc/channel.h"
#include "ipc/fork.h"
#include "store/status_agree.h"
#include "store/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void recorders_forget(void);

/* Each communicator counts its own calls, so that the hot path shares no counter; here is their
 * sum. */
static struct fork_mutex list_lock = FORK_MUTEX(recorders_forget);
static struct tutti_comm *list;
static uint64_t other_calls; /* of destroyed communicators, and refused ones */

static void recorders_forget(void)
{
    for (struct tutti_comm *comm = list; comm; comm = comm->next)
        recorder_forget(&comm->recorder);
}

static void list_add(struct tutti_comm *comm)
{
    fork_mutex_lock(&list_lock);
    comm->next = list;
    list = comm;
    fork_mutex_unlock(&list_lock);
}

static void list_remove(struct tutti_comm *comm)
{
    fork_mutex_lock(&list_lock);
    for (struct tutti_comm **link = &list; *link; link = &(*link)->next) {
        if (*link != comm)
            continue;
        *link = comm->next;
        order_fetch_add_relaxed_u64(&other_calls, comm->calls);
        break;
    }
    fork_mutex_unlock(&list_lock);
}

void comm_count_refused(void)
{
    order_fetch_add_relaxed_u64(&other_calls, 1);
}

uint64_t comm_call_count(void)
{
    fork_mutex_lock(&list_lock);
    uint64_t count = order_load_relaxed_u64(&other_calls);
    for (struct tutti_comm *comm = list; comm; comm = comm->next)
        count += order_load_relaxed_u64(&comm->calls);
    fork_mutex_unlock(&list_lock);
    return count;
}

/* An empty communicator, in the process's list, to be destroyed with tutti_comm_destroy(). Returns
 * NO_MEMORY, SYSTEM. */
static enum tutti_status comm_alloc(const char *name, int rank, int world_size, int32_t device,
                                    struct tutti_comm **comm)
{
    uint32_t epoch;
    enum tutti_status status = fork_epoch(&epoch);
    if (status != TUTTI_OK)
        return status;
    const size_t bytes = (sizeof **comm + LAYOUT_LINE - 1) / LAYOUT_LINE * LAYOUT_LINE;
    struct tutti_comm *made = aligned_alloc(LAYOUT_LINE, bytes);
    if (!made)
        return error_set(TUTTI_ERR_NO_MEMORY, "no memory for %zu bytes", bytes);
    memset(made, 0, sizeof *made);
    made->epoch = epoch;
    made->rank = rank;
    made->world_size = world_size;
    made->config.device = device;
    made->isa = reduce_isa_best();
    made->recorder.fd = -1;
    made->backend = comm_backend_of((enum tutti_device)device);
    made->peers = made->backend->create();
    snprintf(made->name, sizeof made->name, "%s", name);
    list_add(made);
    status = made->peers ? recorder_open(&made->recorder, name, rank, world_size, device)
                         : error_set(TUTTI_ERR_NO_MEMORY, "no memory for a communicator");
    if (status == TUTTI_OK)
        status = work_pool_create(made, &made->works);
    if (status != TUTTI_OK) {
        tutti_comm_destroy(made);
        return status;
    }
    *comm = made;
    return TUTTI_OK;
}

enum tutti_status comm_derive(const struct tutti_comm *from, const int *ranks, int size, int rank,
                              const char *name, struct tutti_comm **comm)
{
    struct tutti_comm *made;
    *comm = NULL;
    enum tutti_status status = comm_alloc(name, rank, size, from->config.device, &made);
    if (status != TUTTI_OK)
        return status;
    made->config = from->config;
    made->config.topology_size = 0;
    memset(made->config.leaf_order, 0, sizeof made->config.leaf_order);
    made->timeout_ms = from->timeout_ms;
    made->timeout_source = from->timeout_source;
    made->programmatic = from->programmatic;
    made->max_blocks = from->max_blocks;
    made->is_derived = true;
    const struct links links = comm_links_of(made);
    status = links_inherit(&links, &from->config, from->links, ranks);
    if (status != TUTTI_OK) {
        tutti_comm_destroy(made);
        return status;
    }
    *comm = made;
    return TUTTI_OK;
}

enum tutti_status comm_create_plain(tutti_store_t *store, const char *name, int rank,
                                    int world_size, struct tutti_comm **comm)
{
    enum tutti_status status = comm_alloc(name, rank, world_size, TUTTI_DEVICE_CPU, comm);
    if (status != TUTTI_OK)
        return status;
    (*comm)->store = store;
    (*comm)->timeout_source = TIMEOUT_OF_CALL;
    (*comm)->config.buffer_size = TUTTI_DEFAULT_BUFFER_SIZE;
    (*comm)->config.arena_bytes = 0; /* the fewest */
    return comm_leaf_order_read(NULL, world_size, (*comm)->config.leaf_order);
}

/* Creates a communicator from checked arguments, if the environment and the machine allow it. */
static enum tutti_status create(tutti_store_t *store, int rank, int world_size,
                                const struct tutti_comm_options *options, struct tutti_comm **comm)
{
    struct tutti_comm *created;
    enum tutti_status status = comm_alloc(options->name ? options->name : "default", rank,
                                          world_size, (int32_t)options->device, &created);
    if (status != TUTTI_OK)
        return status;
    created->store = store;
    status = comm_config_read(options, created);
    if (status != TUTTI_OK) {
        tutti_comm_destroy(created);
        return status;
    }
    *comm = created;
    return TUTTI_OK;
}

enum tutti_status tutti_comm_create(tutti_store_t *store, int rank, int world_size,
                                    const struct tutti_comm_options *given, tutti_comm_t **comm)
{
    static const char call[] = "tutti_comm_create";
    struct tutti_comm_options options = {.struct_size = sizeof options};
    struct tutti_comm *created;
    if (!comm)
        return error_set(TUTTI_ERR_INVALID, "%s: comm is NULL", call);
    *comm = NULL;
    if (!store)
        return error_set(TUTTI_ERR_INVALID, "%s: store is NULL: open one with tutti_store_open()",
                         call);
    enum tutti_status status = store_check(store, call);
    if (status == TUTTI_OK && given)
        status = options_copy(call, "tutti_comm_options", given, &options, sizeof options);
    if (status != TUTTI_OK)
        return status;

    status = comm_arguments_check(rank, world_size, &options);
    if (status == TUTTI_OK)
        status = comm_host_check(options.device, world_size);
    if (status == TUTTI_OK)
        status = create(store, rank, world_size, &options, &created);
    if (status != TUTTI_OK)
        return error_context(status, "%s", call);
    if (!options.defer)
        status = tutti_comm_rendezvous(created);
    if (status != TUTTI_OK) {
        tutti_comm_destroy(created);
        return status;
    }
    *comm = created;
    return TUTTI_OK;
}

/* The data that an assembly needs until its end. */
struct workspace {
    const struct comm_assembly *how;
    struct channel *channel; /* listens; NULL: this rank cannot, or the group has it */
    char not_listening[512]; /* why */
    struct meeting meeting;  /* where the ranks meet, or have met */
    struct gather by_store;  /* if how->gather is NULL */
    struct gather *gather;   /* before the ranks' arenas are open */
    struct tutti_exchanger exchanger;
    char prefix[COMM_NAME_BYTES + 40]; /* of its keys */
    struct channel_address addresses[TUTTI_MAX_RANKS];
    struct host_record own;
    void *setup;                  /* the back end's, behind the records */
    void *rows;                   /* of a gather, behind that */
    struct host_record records[]; /* of all ranks */
};

/* Looks at the machine, before the first use of the store, and makes this rank's record. */
static enum tutti_status record_make(const struct tutti_comm *comm, struct workspace *work)
{
    const struct backend *backend = comm->backend;
    struct backend_record part = {.table_hash = 0};
    struct channel_address address;
    enum tutti_status status = TUTTI_OK;
    if (backend->record_make)
        status = backend->record_make(comm->config.overlapping, work->setup, &part);
    if (status != TUTTI_OK)
        return status;
    if (work->how->parent)
        address = channel_address_own();
    else if (channel_listen(NULL, &work->channel, &address) != TUTTI_OK)
        snprintf(work->not_listening, sizeof work->not_listening, "%.*s",
                 (int)sizeof work->not_listening - 1, tutti_last_error());
    status = host_record_make(&comm->config, comm->world_size, &address, &work->own);
    work->own.part = part;
    return status;
}

/* Checks the algorithm that is forced for all calls. In a communicator made of another one's ranks,
 * the links may not allow it. Then all ranks use the measured choice. */
static enum tutti_status forced_check(struct tutti_comm *comm)
{
    enum tutti_algo algo = (enum tutti_algo)comm->config.algo;
    enum tutti_status status = choice_check(&comm->rules.paths, &comm->topology, algo);
    if (status == TUTTI_OK || !comm->is_derived)
        return status;
    log_write(TUTTI_LOG_WARN, comm->rank,
              "the forced algorithm %s needs links that the %d remaining ranks do not have: the "
              "measured choice replaces it",
              tutti_algo_name(algo), comm->world_size);
    comm->config.algo = TUTTI_ALGO_NONE;
    return TUTTI_OK;
}

/* Opens the ranks with arenas as the back end needs them. */
static enum tutti_status ranks_open(struct tutti_comm *comm, struct workspace *work,
                                    const struct backend_arenas *arenas)
{
    const struct comm_assembly *how = work->how;
    const struct peers_config config = {
        .rank = comm->rank,
        .size = comm->world_size,
        .arenas = arenas,
        .remote = host_remote_ranks(work->records, comm->rank, comm->world_size),
        .shared = comm->shared,
        .channel = &work->channel,
        .connected = how->parent != NULL,
        .addresses = work->addresses,
        .oversubscribed = comm->crowded,
        .nonce = comm->nonce,
        .gather = work->gather,
        .interrupt = how->interrupt,
        .timeout_ms = deadline_timeout_ms(how->deadline),
        .record = comm->recorder.page,
        .on_failure = comm_dump_failure,
        .context = comm,
    };
    return peers_open(&config, comm->peers);
}

/* What the communicator's links and settings allow; the same on all ranks. */
static enum tutti_status rules_make(struct tutti_comm *comm)
{
    choice_paths_make(&comm->topology, comm->config.leaf_order, comm->backend->enqueues,
                      &comm->rules.paths);
    const enum tutti_status status = forced_check(comm);
    comm->rules.topology = comm->topology.kind;
    comm->rules.forced = (enum tutti_algo)comm->config.algo;
    comm->rules.kernel = *comm->config.kernel ? 1 + (int)cuda_kernel_find(comm->config.kernel) : 0;
    comm->rules.strict = comm->config.strict;
    comm->rules.buffer_size = (size_t)comm->config.buffer_size;
    return status;
}

/* The ranks of a parent exchange over their own arenas, once these are open. */
static enum tutti_status group_open(struct tutti_comm *comm, struct workspace *work)
{
    const struct comm_assembly *how = work->how;
    const int rank = comm->rank, size = comm->world_size;
    struct gather by_peers = {.run = peers_gather,
                              .context = comm->peers,
                              .rank = rank,
                              .size = size,
                              .rows = work->rows};
    const struct backend_record *parts[TUTTI_MAX_RANKS];
    int processes[TUTTI_MAX_RANKS];
    struct backend_arenas arenas = {.reach = rank_set_all(TUTTI_MAX_RANKS)};
    host_addresses(work->records, size, work->addresses);
    host_parts(work->records, size, parts);
    host_processes(work->records, size, processes);
    struct backend_opening opening = {
        .peers = comm->peers,
        .rank = rank,
        .size = size,
        .order = comm->config.leaf_order,
        .topology = &comm->topology,
        .rules = &comm->rules,
        .setup = work->setup,
        .records = parts,
        .processes = processes,
        .arena_bytes = (size_t)comm->config.arena_bytes,
        .oversubscribed = comm->crowded,
        .isa = comm->isa,
        .programmatic = comm->programmatic,
        .max_blocks = comm->max_blocks,
        .default_timeout_ms = comm->timeout_ms,
        .marked = comm->recorder.pattern != NULL,
        .recorder_fd = comm->recorder.fd,
        .gather = how->parent ? &by_peers : work->gather,
        .interrupt = how->interrupt,
    };
    enum tutti_status status = rules_make(comm);
    if (status == TUTTI_OK)
        status = host_channels_check(work->records, rank, size, work->not_listening);
    if (status == TUTTI_OK)
        status = comm->backend->prepare(&opening, &arenas);
    if (status == TUTTI_OK)
        status = ranks_open(comm, work, &arenas);
    if (status != TUTTI_OK)
        return status;
    opening.timeout_ms = deadline_timeout_ms(how->deadline);
    status = comm->backend->open(&opening, &comm->group);
    peers_set_progress(comm->peers, comm->progress, comm->progress_context);
    if (status != TUTTI_OK) {
        interrupt_tell(how->interrupt, status);
        peers_close(comm->peers);
    }
    return status;
}

/* Meets the others, unless the ranks have agreed on a meeting, and gets their records. */
static enum tutti_status records_get(struct tutti_comm *comm, struct workspace *work)
{
    const struct comm_assembly *how = work->how;
    const int64_t timeout_ms = deadline_timeout_ms(how->deadline);
    const struct meet_call call = {
        .store = how->store,
        .name = comm->name,
        .rank = comm->rank,
        .size = comm->world_size,
        .timeout_ms = timeout_ms,
        .record = &work->own,
        .record_bytes = sizeof work->own,
        .records = work->records,
    };
    enum tutti_status status = how->agreed ? TUTTI_OK : meet(&call, &work->meeting);
    snprintf(work->prefix, sizeof work->prefix, "tutti/%s/%" PRId64, comm->name,
             work->meeting.generation);
    if (how->agreed)
        status = gather_agree(work->gather, TUTTI_OK, &work->own, sizeof work->own, timeout_ms);
    for (int r = 0; r < comm->world_size && how->agreed && status == TUTTI_OK; r++)
        gather_value(work->gather, r, &work->records[r], sizeof work->own);
    return status;
}

/* The ranks have met. Compares their records. */
static enum tutti_status records_take(struct tutti_comm *comm, struct workspace *work)
{
    const struct tutti_comm *parent = work->how->parent;
    const int size = comm->world_size;
    int processes[TUTTI_MAX_RANKS];
    work->records[comm->rank] = work->own;
    comm->cores = host_cores(work->records, size);
    comm->crowded = size > comm->cores || (parent && parent->crowded);
    comm->shared = parent ? parent->shared : host_processes(work->records, size, processes);
    comm->table_hash = work->own.part.table_hash;
    for (int r = 0; r < size && comm->setup; r++)
        comm->setup->processes[r] = work->records[r].identity.address.process;
    comm->generation = work->meeting.generation;
    memcpy(comm->nonce, work->meeting.nonce, sizeof comm->nonce);
    return comm_records_check(comm, work->records);
}

static void ready_set(struct tutti_comm *comm)
{
    (void)channel_interrupt(peers_ranks(comm->peers)->channel, NULL);
    invariant(!comm->ready && comm->declined == TUTTI_OK && comm->group);
    comm->ready = true;
    POINT("comm.ready");
    comm_record_meeting(comm);
    log_write(TUTTI_LOG_INFO, comm->rank,
              "communicator \"%s\" generation %" PRId64 ": %d ranks, %d cores, %s", comm->name,
              comm->generation, comm->world_size, comm->cores, comm->isa->name);
}

static_assert(BACKEND_VALUE_BYTES <= sizeof(struct host_record), "a row has room for a value");

static enum tutti_status workspace_create(const struct tutti_comm *comm,
                                          const struct comm_assembly *how, struct workspace **work)
{
    const size_t size = (size_t)comm->world_size;
    const size_t setup = sizeof **work + size * sizeof(struct host_record);
    const size_t rows = (setup + comm->backend->setup_bytes + 7) / 8 * 8;
    const size_t bytes = rows + size * (sizeof(struct status_report) + sizeof(struct host_record));
    *work = malloc(bytes);
    if (!*work)
        return error_set(TUTTI_ERR_NO_MEMORY, "no memory for %zu bytes", bytes);
    memset(*work, 0, sizeof **work);
    (*work)->how = how;
    (*work)->setup = (char *)*work + setup;
    (*work)->rows = (char *)*work + rows;
    (*work)->exchanger = (struct tutti_exchanger){.struct_size = sizeof(struct tutti_exchanger),
                                                  .store = how->store,
                                                  .prefix = (*work)->prefix,
                                                  .rank = comm->rank,
                                                  .size = comm->world_size};
    (*work)->by_store = gather_by_store(&(*work)->exchanger, (*work)->rows);
    (*work)->gather = how->gather ? how->gather : &(*work)->by_store;
    if (how->agreed)
        (*work)->meeting = *how->agreed;
    return record_make(comm, *work);
}

static void workspace_destroy(struct workspace *work)
{
    if (work)
        channel_close(work->channel);
    free(work);
}

/* Makes the channel to the members in other processes over the parent's connections. */
static enum tutti_status channel_inherit(const struct tutti_comm *comm, struct workspace *work)
{
    const struct comm_assembly *how = work->how;
    const struct peers_ranks *ranks = peers_ranks(how->parent->peers);
    struct channel_config config = {
        .rank = comm->rank, .size = comm->world_size, .interrupt = how->interrupt};
    for (int r = 0; r < comm->world_size; r++)
        if (rank_set_has(ranks->remote, how->gather->members[r]))
            rank_set_add(&config.peers, r);
    memcpy(config.nonce, how->agreed->nonce, sizeof config.nonce);
    return rank_set_empty(config.peers)
               ? TUTTI_OK
               : channel_split(ranks->channel, how->gather->members, &config, &work->channel);
}

/* Deletes what the meeting has left in the store. */
static void store_leave(const struct tutti_comm *comm, const struct workspace *work,
                        enum tutti_status status)
{
    const struct comm_assembly *how = work->how;
    const struct status_report why = status_report_make(status, comm->rank);
    if (status == TUTTI_OK)
        exchanger_end(&work->exchanger, how->deadline);
    if (!how->agreed)
        meet_end(how->store, comm->name, comm->rank, comm->nonce, status == TUTTI_OK);
    if (status != TUTTI_OK)
        status_report_error(&why, comm->rank);
}

enum tutti_status comm_assemble(struct tutti_comm *comm, const struct comm_assembly *how)
{
    struct workspace *work;
    const struct links links = comm_links_of(comm);
    enum tutti_status status = workspace_create(comm, how, &work);
    if (status == TUTTI_OK && how->parent)
        status = channel_inherit(comm, work);
    if (status == TUTTI_OK)
        status = records_get(comm, work);
    const bool has_met = status == TUTTI_OK;
    if (status == TUTTI_OK)
        status = records_take(comm, work);
    if (status == TUTTI_OK)
        status = links_agree(&links, work->records, how->parent ? NULL : &work->exchanger,
                             how->deadline);
    if (status == TUTTI_OK)
        status = group_open(comm, work);
    if (status == TUTTI_OK)
        ready_set(comm);
    if (has_met && how->store)
        store_leave(comm, work, status);
    workspace_destroy(work);
    return status;
}

enum tutti_status comm_assemble_agreed(struct tutti_comm *comm, const struct agree *agree,
                                       int which)
{
    struct tutti_store store = store_bounded(agree->store, agree->deadline, &agree->interrupt);
    const struct comm_assembly how = {.store = &store,
                                      .agreed = &agree->decision.meetings[which],
                                      .interrupt = &agree->interrupt,
                                      .deadline = agree->deadline};
    char prefix[AGREE_KEY_BYTES]; /* communicators of other agreements may have this name */
    agree_key_make(agree, "meeting", which, prefix);
    enum tutti_status status = store_prefix_add(&store, prefix);
    if (status != TUTTI_OK)
        return status;
    status = comm_assemble(comm, &how);
    free(store.prefix);
    return status;
}

static enum tutti_status rendezvous(struct tutti_comm *comm)
{
    const int64_t deadline = deadline_after(comm->timeout_ms);
    struct comm_setup setup;
    comm_setup_begin(&setup, comm);
    struct tutti_store store = store_bounded(comm->store, deadline, &setup.interrupt);
    const struct comm_assembly how = {
        .store = &store, .interrupt = &setup.interrupt, .deadline = deadline};
    return comm_setup_end(&setup, comm_assemble(comm, &how));
}

enum tutti_status tutti_comm_rendezvous(tutti_comm_t *comm)
{
    static const char call[] = "tutti_comm_rendezvous";
    enum tutti_status status = comm_check_own(comm, call);
    if (status != TUTTI_OK || comm->ready)
        return status;
    if (comm->declined != TUTTI_OK)
        return error_set(comm->declined, "%s", comm->reason);

    status = rendezvous(comm);
    comm->store = NULL;
    if (status == TUTTI_OK)
        return TUTTI_OK;
    snprintf(comm->reason, sizeof comm->reason, "communicator \"%s\", rank %d: %s", comm->name,
             comm->rank, tutti_last_error());
    comm->declined = status;
    comm_record_meeting(comm);
    comm_dump_failure(comm);
    log_write(TUTTI_LOG_WARN, comm->rank, "%s", comm->reason);
    return error_set(status, "%s", comm->reason);
}

/* Whether this thread has left a call by a jump, such as an exception of the application's progress
 * function, so that the call never gives `busy` back. Relaxed: nobody else stores this thread's
 * number, and only this thread stores its own group of calls in `set`. */
static bool was_left_by_jump(const struct tutti_comm *comm)
{
    return order_load_relaxed_u32(&comm->busy) == thread_number() &&
           order_load_relaxed_u64(&comm->set) == 0;
}

/* Keeps callers out for good. The guards are those that callers take anyway: a call that takes
 * none, such as tutti_comm_status(), is not noticed. */
static enum tutti_status destroy_begin(struct tutti_comm *comm)
{
    static const char call[] = "tutti_comm_destroy";
    if (was_left_by_jump(comm))
        return TUTTI_OK;
    if (comm->setup || order_load_relaxed_u32(&comm->grouping)) /* relaxed: carries nothing */
        return error_set(TUTTI_ERR_CONCURRENT,
                         "%s: another thread is in the rendezvous of communicator \"%s\", or makes "
                         "a process group on it: end that by tutti_comm_abort() first",
                         call, comm->name);
    return comm_enter_alone(comm, call);
}

enum tutti_status tutti_comm_destroy(tutti_comm_t *comm)
{
    struct tutti_fault fault = {.struct_size = sizeof fault, .peer = -1};
    if (!comm)
        return TUTTI_OK;
    const bool is_copy = fork_detected(comm->epoch);
    enum tutti_status status = is_copy ? TUTTI_OK : destroy_begin(comm);
    if (status != TUTTI_OK)
        return status;
    /* A child of fork() has neither arenas nor descriptors, only a copy of the handle. */
    if (is_copy) {
        if (comm->group && comm->backend->forget)
            comm->backend->forget(comm->group);
        work_pool_forget(comm->works);
        recorder_forget(&comm->recorder);
    } else {
        work_pool_suspend(comm->works);
        if (comm->ready && comm->backend->close)
            comm->backend->close(comm->group, &fault);
        peers_close(comm->peers);
        work_pool_end(comm->works, &fault);
    }
    recorder_close(&comm->recorder);
    list_remove(comm);
    free(comm->lists);
    free(comm->links);
    free(comm->norm_scratch);
    peers_free(comm->peers);
    free(comm);
    return TUTTI_OK;
}

void tutti_comm_abort(tutti_comm_t *comm)
{
    if (!comm || fork_detected(comm->epoch))
        return;
    order_fetch_add_u32(&comm->aborts, 1);
    peers_abort(comm->peers);
}

enum tutti_status tutti_comm_status(tutti_comm_t *comm, struct tutti_fault *fault)
{
    static const char call[] = "tutti_comm_status";
    struct tutti_fault found = {.struct_size = sizeof found, .peer = -1};
    enum tutti_status status = comm_check_own(comm, call);
    if (status != TUTTI_OK)
        return status;
    if (options_check_out("tutti_comm_status: fault", "tutti_fault", fault, sizeof *fault))
        return TUTTI_ERR_INVALID;
    status = comm->declined;
    if (comm->ready)
        status = comm->backend->status(comm->group, &found);
    else if (status != TUTTI_OK)
        error_set(status, "%s", comm->reason);
    if (fault) {
        found.status = status;
        found.rank = comm->ready ? found.rank : comm->rank;
        options_copy_out(fault, &found, sizeof found);
    }
    return status;
}

enum tutti_topology tutti_comm_topology(const tutti_comm_t *comm)
{
    return comm && comm->ready ? comm->topology.kind : TUTTI_TOPOLOGY_UNKNOWN;
}

size_t tutti_comm_buffer_size(const tutti_comm_t *comm)
{
    return comm ? (size_t)comm->config.buffer_size : 0;
}

int tutti_comm_rank(const tutti_comm_t *comm)
{
    return comm ? comm->rank : -1;
}

int tutti_comm_world_size(const tutti_comm_t *comm)
{
    return comm ? comm->world_size : 0;
}
