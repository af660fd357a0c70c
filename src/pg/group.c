/* SPDX-License-Identifier: MIT */
/* Creation and destruction of a group. */
#include "cuda/comm/group.h"
#include "base/deadline.h"
#include "base/error.h"
#include "base/options.h"
#include "base/order.h"
#include "base/thread.h"
#include "base/wait.h"
#include "comm/hierarchy_internal.h"
#include "cpu/group.h"
#include "ipc/fork.h"
#include "peers/segments.h"
#include "pg/members.h"
#include "pg/pg.h"
#include "pg/wire.h"

#include <stdio.h>
#include <stdlib.h>

enum { STOP_MS = 1100 }; /* within which the group's thread should end by itself */

static const char call[] = "tutti_pg_create";

static enum tutti_status comm_check(struct tutti_comm *comm)
{
    enum tutti_status status = comm_check_met(comm, call, COMM_MEET_FIRST);
    if (status != TUTTI_OK)
        return status;
    if (comm->hosts.group && !comm->fabric->ops->threads(comm->fabric))
        return error_set(
            TUTTI_ERR_DECLINED,
            "%s: the ranks of communicator \"%s\" run on several hosts, and the group's "
            "thread may not use its fabric, %s: initialise MPI with "
            "MPI_THREAD_MULTIPLE",
            call, comm->name, comm->fabric->description);
    if (comm->hosts.link)
        return error_set(
            TUTTI_ERR_DECLINED,
            "%s: the ranks of communicator \"%s\" run on several hosts, and a process group moves "
            "packets in the hosts' memory, which its fabric, %s, does not: open mpi:",
            call, comm->name, comm->fabric->description);
    if (comm->config.strict)
        return error_set(
            TUTTI_ERR_DECLINED,
            "%s: communicator \"%s\" is in strict mode, which a process group does not "
            "support: switch it off",
            call, comm->name);
    return tutti_comm_status(comm, NULL);
}

/* The default is half of the cores that a rank has to itself, at most THREADS_MOST. */
static int threads_of(const struct tutti_comm *comm, int asked)
{
    enum { THREADS_MOST = 8 };
    int spare = comm->cores / comm->world_size / 2;
    return asked ? asked : spare < THREADS_MOST ? spare : THREADS_MOST;
}

static enum tutti_status pg_make(struct tutti_comm *comm, bool owns_comm,
                                 const struct tutti_pg_options *options, struct tutti_pg **pg)
{
    struct tutti_pg *made = calloc(1, sizeof *made);
    if (!made)
        return error_errno("%s: calloc of a group", call);
    made->comm = comm;
    made->owns_comm = owns_comm;
    made->epoch = comm->epoch;
    made->next_deadline = DEADLINE_NEVER;
    made->timeout_ms = options->timeout_ms ? options->timeout_ms : comm->timeout_ms;
    made->threads = threads_of(comm, options->threads);
    made->control.spare_cores = threads_of(comm, 0) > 1;
    made->crowded = peers_ranks(comm->peers)->polls == 1;
    made->control.rank = comm->rank;
    made->control.size = comm->world_size;
    const struct hierarchy *hierarchy = comm->hosts.group;
    enum tutti_status status = hierarchy ? pg_wire_open(comm, &made->control) : TUTTI_OK;
    for (int r = 0; r < comm->world_size && !hierarchy; r++)
        made->control.rings[r] = &peers_arena(comm->peers, r)->control_ring;
    made->control.own = made->control.rings[comm->rank];
    made->widened = malloc(pg_widened_bytes(comm->world_size));
    made->worker.isa = comm->isa;
    made->share = pg_share_create(comm);
    made->references = 1;
    made->arena = peers_arena(comm->peers, hierarchy ? hierarchy->local : comm->rank);
    segments_hold(made->arena);
    snprintf(made->list, sizeof made->list, "%s", owns_comm ? comm->name : "");
    if (comm->rank == 0)
        made->leader = pg_leader_create(&made->control);
    if (status == TUTTI_OK)
        status = cuda_stage_create(&made->stage);
    pthread_mutex_init(&made->lock, NULL);
    *pg = made;
    if (status == TUTTI_OK && made->widened && made->share && (made->leader || comm->rank != 0))
        return TUTTI_OK;
    return status == TUTTI_OK || status == TUTTI_ERR_NO_MEMORY
               ? error_set(TUTTI_ERR_NO_MEMORY, "%s: no memory for a group", call)
               : error_context(status, "%s", call);
}

/* Close everything but what works use. There are no operations any more. */
static void pg_close(struct tutti_pg *pg)
{
    struct pg_key *key;
    pg_messages_close(pg);
    pg_messages_drop(pg);
    while ((key = pg_map_take_any(&pg->tags)))
        free(key); /* the first member of struct pg_tag */
    pg_map_clear(&pg->tags);
    pg_map_clear(&pg->announced);
    if (!pg->control.wire) {
        cpu_team_destroy(*cpu_group_team(pg->comm->group));
        *cpu_group_team(pg->comm->group) = NULL;
    }
    pg_leader_destroy(pg->leader);
    pg_share_destroy(pg->share);
    cuda_result_give(pg->stage, pg->buffer);
    cuda_stage_close(pg->stage);
    sparse_memory_fini(&pg->worker.scratch);
    free(pg->widened);
    while (pg->idle_count)
        sparse_memory_fini(&pg->idle[--pg->idle_count]);
}

/* Create the group on a communicator that only the group uses from now on. */
static enum tutti_status pg_start(struct tutti_comm *comm, struct tutti_comm *direct,
                                  bool owns_comm, const struct tutti_pg_options *options,
                                  struct tutti_pg **pg)
{
    struct tutti_pg *made = NULL;
    enum tutti_status status = pg_make(comm, owns_comm, options, &made);
    if (status == TUTTI_OK && direct) {
        made->direct = direct;
        made->device = cuda_group_device(direct->group);
        status = cuda_stage_open(made->stage, made->device);
        /* Now, since an allocation may wait for kernels. */
        if (status == TUTTI_OK)
            status = cuda_result_take(made->stage, made->device, PG_BUFFER_BYTES, &made->buffer);
    } else if (status == TUTTI_OK) {
        cuda_stage_open_current(made->stage);
    }
    if (status == TUTTI_OK) {
        pg_messages_open(made);
        status = thread_start(&made->thread, pg_engine, made)
                     ? TUTTI_OK
                     : error_errno("%s: pthread_create", call);
    }
    if (status == TUTTI_OK) {
        comm->service = COMM_SERVES;
        /* The engine waits, not the caller. */
        comm->progress = NULL;
        if (!made->control.wire)
            peers_set_progress(comm->peers, NULL, NULL);
        *pg = made;
        return TUTTI_OK;
    }
    if (made) {
        pg_close(made);
        pg_release(made);
    }
    return status;
}

static enum tutti_status create_on(struct tutti_comm *comm, const struct tutti_pg_options *options,
                                   struct tutti_pg **pg)
{
    /* C1; given back only after a failure */
    if (!order_compare_exchange_u32(&comm->busy, 0, COMM_HELD))
        return error_set(TUTTI_ERR_CONCURRENT,
                         "%s: communicator \"%s\" is in use, or has or had a process group: make a "
                         "communicator for each group, or list the group's ranks in options->ranks",
                         call, comm->name);
    enum tutti_status status = pg_start(comm, NULL, false, options, pg);
    if (status != TUTTI_OK)
        order_store_release_u32(&comm->busy, 0); /* C1 */
    return status;
}

static enum tutti_status create_with_own_comm(struct tutti_comm *comm,
                                              const struct tutti_pg_options *options,
                                              const struct pg_members *members,
                                              struct tutti_pg **pg)
{
    struct tutti_comm *own, *direct;
    bool pushed = false;
    if (!options->store)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: options->store is NULL: the members of a group of %s meet on a "
                         "store: give the one on which communicator \"%s\" has met",
                         call, members->listed ? "listed ranks" : "a CUDA communicator",
                         comm->name);
    int64_t timeout_ms = options->timeout_ms ? options->timeout_ms : comm->timeout_ms;
    enum tutti_status status = /* the context of `direct` */
        backend_enter(comm->backend, comm->group, &pushed);
    if (status != TUTTI_OK)
        return status;
    status = pg_members_meet(comm, options->store, members, timeout_ms, &own, &direct);
    if (status == TUTTI_OK)
        status = pg_start(own, direct, true, options, pg);
    if (status != TUTTI_OK) {
        tutti_comm_destroy(direct);
        tutti_comm_destroy(own);
    }
    backend_leave(comm->backend, comm->group, pushed);
    return status;
}

enum tutti_status tutti_pg_create(tutti_comm_t *comm, const struct tutti_pg_options *given,
                                  tutti_pg_t **pg)
{
    struct tutti_pg_options options = {.struct_size = sizeof options};
    struct pg_members members;
    if (!pg)
        return error_set(TUTTI_ERR_INVALID, "%s: pg is NULL", call);
    *pg = NULL;
    enum tutti_status status = comm_check(comm);
    if (status == TUTTI_OK && given)
        status = options_copy(call, "tutti_pg_options", given, &options, sizeof options);
    if (status == TUTTI_OK && (options.threads < 0 || options.threads > CPU_TEAM_MOST))
        status = error_set(TUTTI_ERR_INVALID, "%s: options->threads is %d: expected 0 to %d", call,
                           options.threads, CPU_TEAM_MOST);
    if (status == TUTTI_OK && options.max_blocks < 0)
        status = error_set(TUTTI_ERR_INVALID, "%s: options->max_blocks is %d: expected 0 or more",
                           call, options.max_blocks);
    if (status == TUTTI_OK)
        status = pg_members_read(comm, &options, &members);
    if (status != TUTTI_OK)
        return status;
    return members.listed || comm->backend->enqueues
               ? create_with_own_comm(comm, &options, &members, pg)
               : create_on(comm, &options, pg);
}

static bool has_joined(void *context)
{
    const struct tutti_pg *pg = context;
    return pthread_tryjoin_np(pg->thread, NULL) == 0;
}

void tutti_pg_destroy(tutti_pg_t *pg)
{
    /* The child of a fork() has neither the thread nor the segments, and no lock that it may
     * take. */
    if (!pg || fork_detected(pg->epoch))
        return;
    struct tutti_comm *own = pg->owns_comm ? pg->comm : NULL;
    pthread_mutex_lock(&pg->lock);
    pg->stopping = true;
    pthread_mutex_unlock(&pg->lock);
    pg_control_notify(pg->control.own);
    if (!wait_napping(has_joined, pg, deadline_after(STOP_MS), WAIT_LONG_NAP_NS)) {
        tutti_comm_abort(pg->comm); /* a thread is inside an operation whose peers do not come */
        pthread_join(pg->thread, NULL);
    }
    pg->comm->service = COMM_SERVED;
    tutti_comm_destroy(pg->direct); /* before pg_close(): it last used a stream of pg->stage */
    pg_close(pg);
    pg_release(pg);
    tutti_comm_destroy(own);
}
