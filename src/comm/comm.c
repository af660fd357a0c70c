/* SPDX-License-Identifier: MIT */
/* A communicator's life: what it is made of, what it tells, its end. */
#include "comm/comm.h"

#include "base/error.h"
#include "base/fork_mutex.h"
#include "base/log.h"
#include "base/options.h"
#include "base/order.h"
#include "base/thread.h"
#include "bootstrap/links.h"
#include "comm/options.h"
#include "comm/work.h"
#include "ipc/fork.h"

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

enum tutti_status kept_store_make(struct kept_store **made)
{
    struct kept_store *kept = calloc(1, sizeof *kept);
    if (!kept)
        return error_set(TUTTI_ERR_NO_MEMORY, "no memory for a store");
    kept->uses = 1;
    *made = kept;
    return TUTTI_OK;
}

void kept_store_release(struct kept_store *kept)
{
    if (!kept || order_fetch_add_u32(&kept->uses, UINT32_MAX) != 1) /* N1; the last one: N1a */
        return;
    tutti_store_close(kept->store);
    free(kept);
}

enum tutti_status comm_alloc(const char *name, int rank, int world_size, int32_t device,
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
    made->fabric = from->fabric;
    if (from->kept)
        order_fetch_add_u32(&from->kept->uses, 1); /* N1 needs no order here: `from` has a use */
    made->kept = from->kept;
    made->parallel = from->parallel;
    made->parallel_context = from->parallel_context;
    made->transient_streams = from->transient_streams;
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

void comm_use_hosts(struct tutti_comm *made)
{
    free(made->links);
    made->links = NULL;
    made->backend = &cpu_backend;
    made->config.device = TUTTI_DEVICE_CPU;
    made->config.algo = TUTTI_ALGO_NONE;
    made->config.topology_size = 0;
    made->programmatic = TUTTI_PROGRAMMATIC_AUTO;
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
    (*comm)->config.direct = TUTTI_DIRECT_OFF;
    return comm_leaf_order_read(NULL, world_size, (*comm)->config.leaf_order);
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
        if (comm->hosts.group && comm->hosts.group != comm->group)
            comm->hosts.backend->close(comm->hosts.group, NULL);
        peers_close(comm->peers);
        work_pool_end(comm->works, &fault);
    }
    kept_store_release(comm->kept);
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
