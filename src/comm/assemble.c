/* SPDX-License-Identifier: MIT */
/* How the ranks of a communicator come together. */
#include "base/deadline.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "base/invariant.h"
#include "base/log.h"
#include "base/point.h"
#include "bootstrap/host.h"
#include "bootstrap/links.h"
#include "bootstrap/meet.h"
#include "comm/comm.h"
#include "comm/comm_setup.h"
#include "comm/hierarchy_internal.h"
#include "comm/options.h"
#include "ipc/channel.h"
#include "store/status_agree.h"
#include "store/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The data that an assembly needs until its end. */
struct workspace {
    const struct comm_assembly *how;
    struct channel *channel; /* listens; NULL: this rank cannot, or the group has it */
    char not_listening[512]; /* why */
    struct meeting meeting;  /* where the ranks meet, or have met */
    struct gather by_store;  /* if how->gather is NULL */
    struct gather *gather;   /* before the ranks' arenas are open */
    struct tutti_exchanger exchanger;
    char prefix[COMM_NAME_BYTES + 40];            /* of its keys */
    struct channel_address addresses[NODE_RANKS]; /* of the ranks of one host */
    struct hosts hosts;
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
    const struct host_threads threads = {comm->parallel, comm->parallel_context,
                                         comm->config.threads};
    status = host_record_make(&comm->config, comm->world_size, &address, &threads, &work->own);
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
    struct peers_config config = {
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
    if (comm->part_of)
        hierarchy_adapt(comm->part_of, &config);
    return peers_open(&config, comm->peers);
}

/* What the communicator's links and settings allow; the same on all ranks. The paths are set. */
static enum tutti_status rules_make(struct tutti_comm *comm)
{
    const struct backend *backend = comm->backend;
    const enum tutti_status status = forced_check(comm);
    const char *kernel = comm->config.kernel;
    enum tutti_algo algo;
    comm->rules.topology = comm->topology.kind;
    comm->rules.forced = (enum tutti_algo)comm->config.algo;
    /* A CPU communicator may be made of a CUDA communicator's ranks, with its configuration. */
    comm->rules.kernel =
        *kernel && backend->kernel_find ? backend->kernel_find(kernel, &algo, &kernel) : 0;
    comm->rules.strict = comm->config.strict;
    comm->rules.buffer_size = (size_t)comm->config.buffer_size;
    return status;
}

/* What a group's opening reads of all ranks. */
struct ranks_read {
    const struct backend_record *parts[NODE_RANKS];
    int processes[NODE_RANKS];
};

static struct backend_opening opening_make(struct tutti_comm *comm, struct workspace *work,
                                           struct ranks_read *ranks)
{
    invariant(comm->world_size <= NODE_RANKS);
    host_parts(work->records, comm->world_size, ranks->parts);
    host_processes(work->records, comm->world_size, ranks->processes);
    return (struct backend_opening){
        .peers = comm->peers,
        .rank = comm->rank,
        .size = comm->world_size,
        .order = comm->config.leaf_order,
        .topology = &comm->topology,
        .rules = &comm->rules,
        .setup = work->setup,
        .records = ranks->parts,
        .processes = ranks->processes,
        .arena_bytes = (size_t)comm->config.arena_bytes,
        .oversubscribed = comm->crowded,
        .isa = comm->isa,
        .parallel = comm->parallel,
        .parallel_context = comm->parallel_context,
        .threads = comm->threads,
        .parts = comm->parts,
        .parts_crowded = comm->parts_crowded,
        .transient_streams = comm->transient_streams,
        .programmatic = comm->programmatic,
        .max_blocks = comm->max_blocks,
        .direct = (enum tutti_direct)comm->config.direct,
        .default_timeout_ms = comm->timeout_ms,
        .marked = comm->recorder.pattern != NULL,
        .recorder_fd = comm->recorder.fd,
        .gather = work->gather,
        .interrupt = work->how->interrupt,
    };
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
    struct backend_arenas arenas = {.reach = rank_set_all(size)};
    struct ranks_read ranks;
    struct backend_opening opening = opening_make(comm, work, &ranks);
    if (how->parent)
        opening.gather = &by_peers;
    host_addresses(work->records, size, work->addresses);
    choice_paths_make(&comm->topology, comm->config.leaf_order, comm->backend->enqueues,
                      &comm->rules.paths);
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

bool comm_threads_exceed_cores;

/* A rank's share of the cores, if all ranks ask for more threads than there are cores: a part whose
 * thread waits for a core holds up all ranks (2 ranks of 2 threads on 2 cores: 5 ms an all-reduce,
 * of one thread 30 us). */
static int threads_of(const struct tutti_comm *comm, int asked, int all)
{
    if (all > comm->cores && !comm_threads_exceed_cores)
        asked = comm->crowded ? 1 : asked * comm->cores / all;
    return asked > 1 ? asked : 1;
}

/* Cuts long operations into as many parts as the rank with the most threads has. */
static void threads_count(struct tutti_comm *comm, const struct host_record *records)
{
    int asked = 0, all = 0, most = 1;
    for (int r = 0; r < comm->world_size; r++)
        asked += records[r].config.threads > 1 ? records[r].config.threads : 1;
    for (int r = 0; r < comm->world_size; r++) {
        const int threads = threads_of(comm, records[r].config.threads, asked);
        if (r == comm->rank)
            comm->threads = threads;
        all += threads;
        most = threads > most ? threads : most;
    }
    comm->parts = most > 1 ? most : 0;
    comm->parts_crowded = all > comm->cores || comm->crowded;
}

/* The ranks have met. Compares their records. */
static enum tutti_status records_take(struct tutti_comm *comm, struct workspace *work)
{
    const struct tutti_comm *parent = work->how->parent;
    const int size = comm->world_size;
    int processes[WORLD_RANKS];
    work->records[comm->rank] = work->own;
    comm->cores = host_cores(work->records, size);
    comm->crowded = size > comm->cores || (parent && parent->crowded);
    comm->shared = parent ? parent->shared : host_processes(work->records, size, processes);
    threads_count(comm, work->records);
    comm->table_hash = work->own.part.table_hash;
    comm->generation = work->meeting.generation;
    memcpy(comm->nonce, work->meeting.nonce, sizeof comm->nonce);
    const enum tutti_status status =
        comm->setup ? comm_setup_met(comm->setup, work->records) : TUTTI_OK;
    return status == TUTTI_OK ? comm_records_check(comm, work->records, &work->hosts) : status;
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

/* All ranks run on this host. */
static enum tutti_status host_open(struct tutti_comm *comm, struct workspace *work)
{
    const struct links links = comm_links_of(comm);
    const enum tutti_status status = links_agree(
        &links, work->records, work->how->parent ? NULL : &work->exchanger, work->how->deadline);
    return status == TUTTI_OK ? group_open(comm, work) : status;
}

/* The devices' group, once the hosts have joined. It runs no operations on the peers. */
static enum tutti_status devices_join(struct tutti_comm *comm, struct workspace *work)
{
    struct backend_arenas arenas = {.bytes = 0};
    struct ranks_read ranks;
    struct backend_opening opening = opening_make(comm, work, &ranks);
    opening.hosts = comm->hosts;
    enum tutti_status status = rules_make(comm);
    if (status == TUTTI_OK)
        status = comm->backend->prepare(&opening, &arenas);
    opening.timeout_ms = deadline_timeout_ms(work->how->deadline);
    if (status == TUTTI_OK)
        status = comm->backend->open(&opening, &comm->group);
    if (status == TUTTI_OK)
        return TUTTI_OK;
    comm->hosts.backend->close(comm->hosts.group, NULL);
    comm->hosts.group = NULL;
    peers_close(comm->peers);
    return status;
}

static enum tutti_status hosts_join(struct tutti_comm *comm, struct workspace *work)
{
    const struct comm_meeting met = {
        .how = work->how, .hosts = &work->hosts, .gather = work->gather, .meeting = &work->meeting};
    channel_close(work->channel); /* the node has its own */
    work->channel = NULL;
    if (!work->how->join_hosts)
        return error_set(TUTTI_ERR_DECLINED, "the ranks that are left run on %d hosts",
                         work->hosts.count);
    const enum tutti_status status = work->how->join_hosts(comm, &met);
    return status == TUTTI_OK && comm->backend->enqueues ? devices_join(comm, work) : status;
}

enum tutti_status comm_assemble(struct tutti_comm *comm, const struct comm_assembly *how)
{
    struct workspace *work;
    enum tutti_status status = workspace_create(comm, how, &work);
    if (status == TUTTI_OK && how->parent)
        status = channel_inherit(comm, work);
    if (status == TUTTI_OK)
        status = records_get(comm, work);
    const bool has_met = status == TUTTI_OK;
    if (status == TUTTI_OK)
        status = records_take(comm, work);
    if (status == TUTTI_OK && work->hosts.count > 1)
        status = hosts_join(comm, work);
    else if (status == TUTTI_OK)
        status = host_open(comm, work);
    if (status == TUTTI_OK)
        ready_set(comm);
    if (has_met && how->store)
        store_leave(comm, work, status);
    workspace_destroy(work);
    return status;
}
