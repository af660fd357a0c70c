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
#include "cuda/runtime/group.h"
#include "cuda/runtime/table.h"
#include "ipc/channel.h"
#include "ipc/fork.h"
#include "store/status_agree.h"
#include "store/store.h"

#include <inttypes.h>
#include <stdarg.h>
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
    made->host = cpu_group_create();
    snprintf(made->name, sizeof made->name, "%s", name);
    list_add(made);
    status = made->host ? recorder_open(&made->recorder, name, rank, world_size, device)
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

/* The data that a rendezvous needs until its end. */
struct workspace {
    const struct comm_origin *origin; /* NULL: the ranks meet on a store */
    struct channel *channel;          /* listens; NULL: this rank cannot, or the group has it */
    char not_listening[512];          /* why */
    char prefix[COMM_NAME_BYTES + 40];
    struct channel_address addresses[TUTTI_MAX_RANKS];
    struct host_record own;
    struct cuda_device device; /* CUDA only, as are the next two */
    struct cuda_device devices[CUDA_RANKS];
    struct cuda_table table;
    struct host_record records[]; /* of all ranks */
};

/* Reads the current device and the tuning table, before the first use of the store, and makes this
 * rank's record. */
static enum tutti_status record_make(const struct tutti_comm *comm, struct workspace *work)
{
    const bool cuda = comm->config.device == TUTTI_DEVICE_CUDA;
    struct channel_address address;
    enum tutti_status status = cuda ? cuda_device_current(&work->device) : TUTTI_OK;
    if (status == TUTTI_OK && cuda)
        status = cuda_table_load(&work->table);
    if (status != TUTTI_OK)
        return status;
    if (work->origin)
        address = channel_address_own();
    else if (channel_listen(NULL, &work->channel, &address) != TUTTI_OK)
        snprintf(work->not_listening, sizeof work->not_listening, "%.*s",
                 (int)sizeof work->not_listening - 1, tutti_last_error());
    return host_record_make(&comm->config, comm->world_size, &address, cuda ? &work->device : NULL,
                            cuda ? &work->table : NULL, &work->own);
}

/* Kernels of several processes take turns of milliseconds on a device, so kernels that wait for
 * each other do not run there: a host thread stages all operations. So a forced algorithm, which
 * needs kernels, is declined. All ranks read the same records, so all ranks return the same. */
static enum tutti_status sharing_check(const struct tutti_comm *comm,
                                       const struct host_record *records)
{
    const enum tutti_algo algo = (enum tutti_algo)comm->config.algo;
    int low, high;
    if (algo == TUTTI_ALGO_NONE || algo == TUTTI_ALGO_HOST_STAGED ||
        !host_processes_overlap(records, comm->world_size, &low, &high))
        return TUTTI_OK;
    return error_set(
        TUTTI_ERR_DECLINED,
        "algorithm %d (%s) is forced by the options or TUTTI_ALGO, but ranks %d and %d "
        "are processes that share a device, %.63s, where a host thread stages all "
        "operations: force none or host_staged, give each rank a device of its own, "
        "or have ranks that share a device be threads of one process",
        (int)algo, tutti_algo_name(algo), low, high, records[high].device.name);
}

/* Chooses the place of the arenas. Kernels of threads that share a device run at the same time;
 * those of processes do not: sharing_check(). */
static enum cuda_place place_choose(const struct tutti_comm *comm,
                                    const struct host_record *records, const char **why)
{
    const enum tutti_algo algo = (enum tutti_algo)comm->config.algo;
    int low, high;
    if (host_processes_overlap(records, comm->world_size, &low, &high)) {
        *why = "processes share a device";
        return CUDA_PLACE_PROXY;
    }
    *why = algo == TUTTI_ALGO_HOST_STAGED ? "asked for" : "ranks share a device";
    if (algo == TUTTI_ALGO_HOST_STAGED ||
        (algo == TUTTI_ALGO_NONE && host_devices_overlap(records, comm->world_size)))
        return CUDA_PLACE_HOST;
    return algo == TUTTI_ALGO_NONE ? CUDA_PLACE_FOUND : CUDA_PLACE_DEVICE;
}

/* `gather`: how the ranks exchange values; NULL: over the arenas of the hosts. */
static enum tutti_status device_open(struct tutti_comm *comm, struct workspace *work,
                                     const struct cpu_group_config *host, enum cuda_place place,
                                     const char *why, const struct gather *gather, int64_t deadline)
{
    const struct gather by_hosts = {cpu_group_gather, comm->host, comm->rank, comm->world_size};
    for (int r = 0; r < comm->world_size; r++)
        work->devices[r] = work->records[r].device;
    struct cuda_group_config config = {
        .rank = comm->rank,
        .size = comm->world_size,
        .order = host->order,
        .programmatic = comm->programmatic,
        .default_timeout_ms = comm->timeout_ms,
        .devices = work->devices,
        .place = place,
        .why = why,
        .table = &work->table,
        .rules = &comm->rules,
        .ring = topology_ring_role(&comm->topology, comm->rank),
        .host = comm->host,
        .marked = comm->recorder.pattern != NULL,
        .recorder_fd = comm->recorder.fd,
        .gather = gather ? gather : &by_hosts,
        .interrupt = host->interrupt,
        .timeout_ms = deadline_timeout_ms(deadline),
    };
    enum tutti_status status = cuda_group_open(&config, &comm->cuda);
    if (status != TUTTI_OK) {
        interrupt_tell(host->interrupt, status);
        cpu_group_close(comm->host);
    } else if (cuda_group_is_staged(comm->cuda)) {
        comm->rules.paths.all = comm->rules.paths.staged = true;
        comm->rules.paths.ring &= place != CUDA_PLACE_PROXY; /* a host thread runs no kernels */
    }
    return status;
}

/* On CPU, ranks that are joined by links exchange data with their neighbours only. On CUDA all
 * ranks share their hosts' memory in any case. */
static struct cpu_links links_make(const struct tutti_comm *comm, const int *order)
{
    const struct topology *topology = &comm->topology;
    const bool sparse = !comm->rules.paths.all && comm->config.device == TUTTI_DEVICE_CPU;
    struct cpu_links links = {.reach = topology->linked[comm->rank], .sparse = sparse};
    if (!sparse)
        links.reach = rank_set_all(TUTTI_MAX_RANKS);
    if (comm->rules.paths.mesh)
        topology_mesh_role(topology, order, comm->rank, &links.mesh);
    return links;
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

static enum tutti_status agree_by_gather(void *gather, enum tutti_status mine, int64_t timeout_ms)
{
    return status_agree(gather, mine, timeout_ms);
}

static enum tutti_status agree_by_origin(void *context, enum tutti_status mine, int64_t timeout_ms)
{
    const struct comm_origin *origin = context;
    (void)timeout_ms; /* the time-out of the parent applies */
    return origin->exchange(origin->context, mine, NULL, NULL);
}

static enum tutti_status groups_open(struct tutti_comm *comm, struct workspace *work,
                                     const struct interrupt *interrupt, struct gather *gather,
                                     int64_t deadline)
{
    const struct host_record *records = work->records;
    const int rank = comm->rank, size = comm->world_size;
    const struct comm_origin *origin = work->origin;
    host_addresses(records, size, work->addresses);
    int order[TUTTI_MAX_RANKS];
    for (int leaf = 0; leaf < comm->world_size; leaf++)
        order[leaf] = comm->config.leaf_order[leaf];
    const bool cuda = comm->config.device == TUTTI_DEVICE_CUDA;
    choice_paths_make(&comm->topology, order, cuda, &comm->rules.paths);
    enum tutti_status status = forced_check(comm);
    if (status == TUTTI_OK)
        status = host_channels_check(records, rank, size, work->not_listening);
    if (status == TUTTI_OK && cuda)
        status = sharing_check(comm, work->records);
    if (status != TUTTI_OK)
        return status;
    comm->rules.topology = comm->topology.kind;
    comm->rules.forced = (enum tutti_algo)comm->config.algo;
    comm->rules.strict = comm->config.strict;
    comm->rules.buffer_size = (size_t)comm->config.buffer_size;
    const char *why = NULL;
    enum cuda_place place = cuda ? place_choose(comm, work->records, &why) : CUDA_PLACE_FOUND;
    const bool idle = cuda && place != CUDA_PLACE_PROXY;
    const struct cpu_links links = links_make(comm, order);
    struct cpu_group_config config = {
        .rank = comm->rank,
        .size = comm->world_size,
        .order = order,
        .links = &links,
        .rules = cuda ? &choice_rules_free : &comm->rules,
        .arena_bytes = idle ? 0 : (size_t)comm->config.arena_bytes,
        .remote = host_remote_ranks(records, rank, size),
        .shared = comm->shared,
        .channel = &work->channel,
        .connected = origin != NULL,
        .addresses = work->addresses,
        .oversubscribed = comm->crowded,
        .idle = idle,
        .nonce = comm->nonce,
        .isa = comm->isa,
        .agree = origin ? agree_by_origin : agree_by_gather,
        .agree_context = origin ? (void *)(uintptr_t)origin : gather,
        .interrupt = interrupt,
        .timeout_ms = deadline_timeout_ms(deadline),
        .record = comm->recorder.page,
        .on_failure = comm_dump_failure,
        .context = comm,
    };
    status = cpu_group_open(&config, comm->host);
    cpu_group_set_progress(comm->host, comm->progress, comm->progress_context);
    if (status == TUTTI_OK && cuda)
        status = device_open(comm, work, &config, place, why, gather, deadline);
    comm->backend = cuda ? &cuda_backend : &cpu_backend;
    comm->group = cuda ? (void *)comm->cuda : comm->host;
    return status;
}

/* Reads the records of all ranks into the communicator. */
static void records_take(struct tutti_comm *comm, struct workspace *work)
{
    const struct tutti_comm *parent = work->origin ? work->origin->parent : NULL;
    const int size = comm->world_size;
    host_records_take(work->records, &work->own, comm->rank, size);
    comm->cores = host_cores(work->records, size);
    comm->crowded = size > comm->cores || (parent && parent->crowded);
    comm->shared = parent ? parent->shared : host_processes_shared(work->records, size);
    comm->table_hash = work->own.table_hash;
}

/* Meets the others and gets their records. Ranks that have agreed on a meeting need no other
 * meeting. */
static enum tutti_status records_get(struct tutti_comm *comm, struct workspace *work,
                                     struct tutti_exchanger *exchanger, bool agreed,
                                     struct meeting *meeting, int64_t deadline)
{
    const struct meet_call call = {
        .store = exchanger->store,
        .name = comm->name,
        .rank = comm->rank,
        .size = comm->world_size,
        .timeout_ms = deadline_timeout_ms(deadline),
        .record = &work->own,
        .record_bytes = sizeof work->own,
        .records = work->records,
    };
    enum tutti_status status = agreed ? TUTTI_OK : meet(&call, meeting);
    snprintf(work->prefix, sizeof work->prefix, "tutti/%s/%" PRId64, comm->name,
             meeting->generation);
    exchanger->prefix = work->prefix;
    if (agreed)
        status = tutti_exchanger_all_gather(exchanger, call.record, call.record_bytes,
                                            work->records, call.timeout_ms);
    if (status != TUTTI_OK)
        return status;
    records_take(comm, work);
    for (int r = 0; r < comm->world_size && comm->setup; r++)
        comm->setup->processes[r] = work->records[r].identity.address.process;
    comm->generation = meeting->generation;
    memcpy(comm->nonce, meeting->nonce, sizeof comm->nonce);
    return TUTTI_OK;
}

static void ready_set(struct tutti_comm *comm)
{
    channel_settle(cpu_group_ranks(comm->host)->channel);
    invariant(!comm->ready && comm->declined == TUTTI_OK && comm->backend && comm->group);
    comm->ready = true;
    POINT("comm.ready");
    comm_record_meeting(comm);
    log_write(TUTTI_LOG_INFO, comm->rank,
              "communicator \"%s\" generation %" PRId64 ": %d ranks, %d cores, %s", comm->name,
              comm->generation, comm->world_size, comm->cores, comm->isa->name);
}

static enum tutti_status join(struct tutti_comm *comm, struct workspace *work, tutti_store_t *store,
                              const struct meeting *agreed, const struct interrupt *interrupt,
                              int64_t deadline)
{
    struct meeting meeting = agreed ? *agreed : (struct meeting){0};
    struct tutti_exchanger exchanger = {
        .struct_size = sizeof exchanger,
        .store = store,
        .rank = comm->rank,
        .size = comm->world_size,
    };
    struct gather gather = gather_by_store(&exchanger);
    const struct links links = comm_links_of(comm);
    enum tutti_status status =
        records_get(comm, work, &exchanger, agreed != NULL, &meeting, deadline);
    const bool has_met = status == TUTTI_OK && !agreed;
    if (status == TUTTI_OK)
        status = host_records_compare(work->records, comm->rank, comm->world_size);
    if (status == TUTTI_OK)
        status = links_agree(&links, work->records, &exchanger, deadline);
    if (status == TUTTI_OK)
        status = groups_open(comm, work, interrupt, &gather, deadline);
    if (status == TUTTI_OK) {
        ready_set(comm);
        exchanger_end(&exchanger, deadline);
    }
    if (!has_met)
        return status;
    char text[sizeof comm->reason];
    snprintf(text, sizeof text, "%s", tutti_last_error());
    meet_end(store, comm->name, comm->rank, comm->nonce, status == TUTTI_OK);
    return status == TUTTI_OK ? status : error_set(status, "%s", text);
}

static enum tutti_status workspace_create(const struct tutti_comm *comm,
                                          const struct comm_origin *origin, struct workspace **work)
{
    size_t bytes = sizeof **work + (size_t)comm->world_size * sizeof(struct host_record);
    *work = malloc(bytes);
    if (!*work)
        return error_set(TUTTI_ERR_NO_MEMORY, "no memory for %zu bytes", bytes);
    (*work)->channel = NULL;
    (*work)->origin = origin;
    return record_make(comm, *work);
}

static void workspace_destroy(struct workspace *work)
{
    if (work)
        channel_close(work->channel);
    free(work);
}

/* Puts a communicator together. Collective. Uses this view of the store under the generation of
 * `meeting`; NULL: the ranks meet first. The interrupt ends waits without the store. */
static enum tutti_status assemble(struct tutti_comm *comm, tutti_store_t *store,
                                  const struct meeting *meeting, const struct interrupt *interrupt,
                                  int64_t deadline)
{
    struct workspace *work;
    enum tutti_status status = workspace_create(comm, NULL, &work);
    if (status == TUTTI_OK)
        status = join(comm, work, store, meeting, interrupt, deadline);
    workspace_destroy(work);
    return status;
}

/* Makes the channel to the members in other processes over the parent's connections. */
static enum tutti_status channel_inherit(struct tutti_comm *comm, struct workspace *work)
{
    const struct comm_origin *origin = work->origin;
    const struct cpu_ranks *ranks = cpu_group_ranks(origin->parent->host);
    struct channel_config config = {
        .rank = comm->rank, .size = comm->world_size, .interrupt = origin->interrupt};
    for (int r = 0; r < comm->world_size; r++)
        if (rank_set_has(ranks->remote, origin->ranks[r]))
            rank_set_add(&config.peers, r);
    memcpy(config.nonce, comm->nonce, sizeof config.nonce);
    return rank_set_empty(config.peers)
               ? TUTTI_OK
               : channel_split(ranks->channel, origin->ranks, &config, &work->channel);
}

enum tutti_status comm_assemble_split(struct tutti_comm *comm, const struct comm_origin *origin)
{
    struct workspace *work;
    const struct links links = comm_links_of(comm);
    comm->generation = origin->generation;
    memcpy(comm->nonce, origin->nonce, sizeof comm->nonce);
    enum tutti_status status = workspace_create(comm, origin, &work);
    if (status == TUTTI_OK)
        status = channel_inherit(comm, work);
    if (status == TUTTI_OK)
        status = origin->exchange(origin->context, TUTTI_OK, &work->own, work->records);
    if (status == TUTTI_OK) {
        records_take(comm, work);
        status = host_records_compare(work->records, comm->rank, comm->world_size);
    }
    if (status == TUTTI_OK)
        status = links_agree(&links, work->records, NULL, origin->deadline);
    if (status == TUTTI_OK)
        status = groups_open(comm, work, origin->interrupt, NULL, origin->deadline);
    if (status == TUTTI_OK)
        ready_set(comm);
    workspace_destroy(work);
    return status;
}

enum tutti_status comm_assemble_agreed(struct tutti_comm *comm, const struct agree *agree,
                                       int which)
{
    struct tutti_store store = store_bounded(agree->store, agree->deadline, &agree->interrupt);
    return assemble(comm, &store, &agree->decision.meetings[which], &agree->interrupt,
                    agree->deadline);
}

static enum tutti_status rendezvous(struct tutti_comm *comm)
{
    const int64_t deadline = deadline_after(comm->timeout_ms);
    struct comm_setup setup;
    comm_setup_begin(&setup, comm);
    struct tutti_store store = store_bounded(comm->store, deadline, &setup.interrupt);
    return comm_setup_end(&setup, assemble(comm, &store, NULL, &setup.interrupt, deadline));
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
        cuda_group_forget(comm->cuda);
        work_pool_forget(comm->works);
        recorder_forget(&comm->recorder);
    } else {
        work_pool_suspend(comm->works);
        if (comm->ready && comm->backend->close)
            comm->backend->close(comm->group, &fault);
        cpu_group_close(comm->host);
        work_pool_end(comm->works, &fault);
    }
    recorder_close(&comm->recorder);
    list_remove(comm);
    free(comm->links);
    cpu_group_free(comm->host);
    free(comm);
    return TUTTI_OK;
}

void tutti_comm_abort(tutti_comm_t *comm)
{
    if (!comm || fork_detected(comm->epoch))
        return;
    order_fetch_add_u32(&comm->aborts, 1);
    cpu_group_abort(comm->host);
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
