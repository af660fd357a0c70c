/* SPDX-License-Identifier: MIT */
/*
 * tutti_comm_shrink() makes a communicator of the ranks that are left. The code in bootstrap/ lets
 * the ranks agree on the members; comm.c puts the communicator together.
 *
 * - The caller gives the store. A communicator keeps none after it has met, and the store may have
 *   ended with the rank that served it.
 * - The new communicator has the caller's choices (name, device, options, time-out). Cores, links,
 *   distances, grids and topology are determined again. A matrix from a file loses rows and
 *   columns. All ranks ignore a forced algorithm that the remaining links do not allow.
 * - The last completed operation: a CPU rank knows whether its last operation failed. On CUDA the
 *   kernels get 0.1 s to end, then `stop` ends them. Then the rows of state say which operation
 *   began last, and `failed` whether it ended well.
 * - The old communicator is aborted when the new one is complete, not before: a rank may still be
 *   in an operation that needs no other rank. Its memory stays until it is destroyed.
 */
#include "tutti/recovery.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/log.h"
#include "base/options.h"
#include "base/order.h"
#include "base/point.h"
#include "base/text.h"
#include "bootstrap/agree.h"
#include "comm/hierarchy.h"
#include "store/store.h"

#include <string.h>

static const char call[] = "tutti_comm_shrink";

/* ---- checks ---------------------------------------------------------------------------------- */

static enum tutti_status comm_check(const struct tutti_comm *comm, const tutti_store_t *store)
{
    if (!comm || !store)
        return error_set(TUTTI_ERR_INVALID, "%s: %s is NULL", call, comm ? "store" : "comm");
    return comm_check_met(comm, call, ": create another one of fewer ranks");
}

static enum tutti_status excluded_read(const struct tutti_comm *comm,
                                       const struct tutti_shrink_options *options,
                                       struct rank_set *excluded)
{
    *excluded = rank_set_none;
    if (options->exclude_count < 0 || (options->exclude_count && !options->exclude))
        return error_set(TUTTI_ERR_INVALID,
                         "%s: %d ranks to exclude at %p: expected NULL and 0, or that many ranks",
                         call, options->exclude_count, (const void *)options->exclude);
    for (int i = 0; i < options->exclude_count; i++) {
        int rank = options->exclude[i];
        if (rank < 0 || rank >= comm->world_size || rank == comm->rank)
            return error_set(TUTTI_ERR_INVALID,
                             "%s: exclude[%d] is %d: expected ranks from 0 to %d other than the "
                             "caller's, %d: a rank that leaves destroys its communicator",
                             call, i, rank, comm->world_size - 1, comm->rank);
        rank_set_add(excluded, rank);
    }
    return TUTTI_OK;
}

static enum tutti_status enter(struct tutti_comm *comm)
{
    enum tutti_status status = comm_enter_alone(comm, call);
    if (status != TUTTI_OK)
        return status;
    status = comm_check_finalized(comm, call); /* another thread may have finalized it meanwhile */
    if (status == TUTTI_OK && comm->shrunk)
        status = error_set(TUTTI_ERR_INVALID,
                           "%s: communicator \"%s\" has shrunk already: shrink the new one", call,
                           comm->name);
    if (status != TUTTI_OK)
        comm_leave_alone(comm);
    return status;
}

/* ---- the old communicator -------------------------------------------------------------------- */

/* End its operations on this rank. *completed: the last that ended well. */
static enum tutti_status retire(struct tutti_comm *comm, uint64_t *completed)
{
    (void)tutti_comm_status(comm, NULL); /* makes a known exit a fault for all operations */
    *completed = comm->backend->sequence(comm->group) - comm->unfinished;
    return comm->backend->retire ? comm->backend->retire(comm->group, completed) : TUTTI_OK;
}

/* Aborts the old communicator, also for a rank that was left out and still runs. */
static void invalidate(struct tutti_comm *comm)
{
    comm->shrunk = true;
    comm->service = COMM_FREE; /* later calls report the abort instead of a former process group */
    peers_abort(comm->peers);
    if (comm->backend->invalidate)
        comm->backend->invalidate(comm->group);
}

/* ---- the members ----------------------------------------------------------------------------- */

/* Returns the error of a rank that is no member. */
static enum tutti_status left_out(const struct agree *agree)
{
    char ranks[300];
    text_ranks(agree->decision.members, ranks, sizeof ranks);
    return error_set(TUTTI_ERR_DECLINED,
                     "rank %d was excluded from communicator \"%s\": another rank excluded it, or "
                     "found that it had exited; the members that go on: %s",
                     agree->rank, agree->name, *ranks ? ranks : "none");
}

/* The round was decided before this call. *open: its members are still at work, and this rank is
 * one. */
static enum tutti_status catch_up(struct agree *agree, bool *open)
{
    struct agree_result result;
    bool found = false;
    *open = false;
    if (agree->decision.report.status != TUTTI_OK)
        return TUTTI_OK; /* the round has failed: look at the next one */
    enum tutti_status status = agree_result_look(agree, &result, &found);
    if (status != TUTTI_OK)
        return status;
    if (found && result.report.status != TUTTI_OK)
        return rank_set_empty(result.dead) || agree_exclude(agree, result.dead) ? TUTTI_OK
                                                                                : left_out(agree);
    if (found || !rank_set_has(agree->decision.members, agree->rank))
        return left_out(agree);
    *open = true;
    return TUTTI_OK;
}

/* Take part in the next open round until it has members and this rank is one of them. */
static enum tutti_status members_agree(struct agree *agree)
{
    for (;; agree->round++) {
        bool decided = false, open = false;
        enum tutti_status status = agree_decision_look(agree, &agree->decision, &decided);
        if (status == TUTTI_OK && decided)
            status = catch_up(agree, &open);
        if (status != TUTTI_OK || open)
            return status;
        if (decided)
            continue;
        status = agree_join(agree);
        if (status != TUTTI_OK)
            return status;
        return rank_set_has(agree->decision.members, agree->rank) ? TUTTI_OK : left_out(agree);
    }
}

/* ---- the new communicator -------------------------------------------------------------------- */

/* Keeps the old leaf order for the members. */
static void leaf_order_inherit(struct tutti_comm *made, const struct tutti_comm *from,
                               struct rank_set members)
{
    int leaf = 0;
    for (int old = 0; old < from->world_size; old++) {
        int rank = from->config.leaf_order_given ? from->config.leaf_order[old] : old;
        if (rank_set_has(members, rank))
            made->config.leaf_order[leaf++] = (uint8_t)agree_new_rank(members, rank);
    }
}

static enum tutti_status child_make(const struct tutti_comm *from, struct rank_set members,
                                    struct tutti_comm **made)
{
    int ranks[WORLD_RANKS], size = 0;
    for (int r = rank_set_next(members, -1); r >= 0; r = rank_set_next(members, r))
        ranks[size++] = r;
    enum tutti_status status =
        comm_derive(from, ranks, size, agree_new_rank(members, from->rank), from->name, made);
    if (status != TUTTI_OK)
        return status;
    leaf_order_inherit(*made, from, members);
    (*made)->progress = from->progress;
    (*made)->progress_context = from->progress_context;
    return TUTTI_OK;
}

/* Agree and make the communicator, round by round. */
static enum tutti_status shrink(const struct tutti_comm *comm, struct agree *agree,
                                struct tutti_comm **shrunk)
{
    for (;;) {
        struct tutti_comm *made = NULL;
        bool again;
        enum tutti_status status = members_agree(agree);
        if (status != TUTTI_OK)
            return status;
        POINT("shrink.agreed");
        status = child_make(comm, agree->decision.members, &made);
        if (status == TUTTI_OK)
            status = comm_assemble_agreed(made, agree, 0);
        if (status == TUTTI_OK)
            POINT("shrink.assembled");
        status = agree_conclude(agree, status, &again);
        if (status == TUTTI_OK) {
            *shrunk = made;
            return TUTTI_OK;
        }
        tutti_comm_destroy(made);
        if (!again)
            return status;
        log_write(TUTTI_LOG_WARN, comm->rank, "once more: %s", tutti_last_error());
    }
}

static void result_fill(const struct agree *agree, const struct tutti_comm *made,
                        struct tutti_shrink_result *result)
{
    const struct agree_decision *decision = &agree->decision;
    result->rounds = agree->rounds_joined;
    for (int old = 0; old < result->capacity; old++)
        if (old < WORLD_RANKS && rank_set_has(decision->absent, old) && !made)
            result->new_ranks[old] = TUTTI_SHRINK_ABSENT;
    if (!made)
        return;
    result->rank = made->rank;
    result->world_size = made->world_size;
    result->completed_by_all = decision->completed_all;
    result->completed_by_any = decision->completed_any;
    for (int old = 0; old < WORLD_RANKS && result->new_ranks; old++)
        if (rank_set_has(decision->members, old))
            result->new_ranks[old] = agree_new_rank(decision->members, old);
}

/* Read what the caller set. There is no new communicator yet. */
static enum tutti_status result_begin(const struct tutti_shrink_result *given,
                                      struct tutti_shrink_result *result)
{
    enum tutti_status status = options_copy("tutti_comm_shrink: result", "tutti_shrink_result",
                                            given, result, sizeof *result);
    if (status != TUTTI_OK)
        return status;
    *result = (struct tutti_shrink_result){
        .rank = -1, .world_size = -1, .capacity = result->capacity, .new_ranks = result->new_ranks};
    for (int old = 0; result->new_ranks && old < result->capacity; old++)
        result->new_ranks[old] = TUTTI_SHRINK_LEFT_OUT;
    return TUTTI_OK;
}

static enum tutti_status capacity_check(const struct tutti_comm *comm,
                                        const struct tutti_shrink_result *result)
{
    if (result->new_ranks ? result->capacity >= comm->world_size : result->capacity == 0)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID,
                     "%s: result->capacity is %d, new_ranks %p: expected an array of at least %d "
                     "ranks, or 0 and NULL",
                     call, result->capacity, (void *)result->new_ranks, comm->world_size);
}

static enum tutti_status shrink_entered(struct tutti_comm *comm, tutti_store_t *store,
                                        const struct tutti_shrink_options *options,
                                        struct rank_set excluded, struct tutti_comm **shrunk,
                                        struct tutti_shrink_result *result)
{
    struct agree agree = {
        .call = call,
        .name = comm->name,
        .nonce = comm->nonce,
        .peers = comm->peers,
        .left_elsewhere = comm->hosts.group ? hierarchy_left : NULL,
        .hierarchy = comm->hosts.group,
        .aborts = &comm->aborts,
        .aborts_before = order_load_relaxed_u32(&comm->aborts), /* aborts before this call */
        .rank = comm->rank,
        .topic = "shrink",
        .made = 1,
        .subject = "the shrinking",
        .exited_advice = "the other ranks go on without it",
        .late_advice = "look at what it does, or exclude it and call again",
        .deadline = deadline_after(options->timeout_ms ? options->timeout_ms : comm->timeout_ms),
        .ranks = rank_set_all(comm->world_size),
        .excluded = excluded,
    };
    agree_begin(&agree);
    struct tutti_store view = store_bounded(store, agree.deadline, &agree.aborted);
    agree.store = &view;
    enum tutti_status status = retire(comm, &agree.completed);
    if (status == TUTTI_OK)
        status = shrink(comm, &agree, shrunk);
    if (status == TUTTI_OK)
        invalidate(comm);
    result_fill(&agree, *shrunk, result);
    return status;
}

enum tutti_status tutti_comm_shrink(tutti_comm_t *comm, tutti_store_t *store,
                                    const struct tutti_shrink_options *given, tutti_comm_t **shrunk,
                                    struct tutti_shrink_result *result)
{
    struct tutti_shrink_options options = {.struct_size = sizeof options};
    struct tutti_shrink_result found = {.capacity = 0};
    struct rank_set excluded = rank_set_none;
    if (!shrunk)
        return error_set(TUTTI_ERR_INVALID, "%s: shrunk is NULL", call);
    *shrunk = NULL;
    enum tutti_status status = result ? result_begin(result, &found) : TUTTI_OK;
    if (status != TUTTI_OK)
        return status;
    status = comm_check(comm, store);
    if (status == TUTTI_OK)
        status = capacity_check(comm, &found);
    if (status == TUTTI_OK && given)
        status = options_copy(call, "tutti_shrink_options", given, &options, sizeof options);
    if (status == TUTTI_OK)
        status = excluded_read(comm, &options, &excluded);
    if (status == TUTTI_OK)
        status = enter(comm);
    if (status == TUTTI_OK) {
        status = shrink_entered(comm, store, &options, excluded, shrunk, &found);
        comm_leave_alone(comm);
    }
    if (result)
        options_copy_out(result, &found, sizeof found);
    return status;
}
