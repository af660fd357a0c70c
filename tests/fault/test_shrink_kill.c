/* SPDX-License-Identifier: MIT */
/*
 * tutti_comm_shrink() after SIGKILL or an abort at every point of an operation: those who are left
 * agree, also on which operation was the last, and go on.
 */
#include "faults.h"

#include "device.h"
#include "shrink.h"

#include <signal.h>
#include <stdio.h>

static void die(struct faults_rank *self)
{
    faults_happened(self->ranks);
    raise(SIGKILL);
}

static void interrupt(struct faults_rank *self)
{
    faults_happened(self->ranks);
    tutti_comm_abort(self->comm);
}

/* What this rank has completed, against what the result says of all. */
static int check_last(const struct faults_rank *self, tutti_comm_t *shrunk, uint64_t completed,
                      const struct tutti_shrink_result *result)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    const uint64_t numbers = faults_numbers(self);
    uint64_t least, most;
    RANKS_CHECK(tutti_all_reduce(&completed, &least, 1, TUTTI_UINT64, TUTTI_MIN, shrunk,
                                 TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(tutti_all_reduce(&completed, &most, 1, TUTTI_UINT64, TUTTI_MAX, shrunk,
                                 TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(most - least <= numbers);
    /* A call of a test on a GPU also fails if its operation ended well before the fault came, a
     * group of calls if only its message failed, which has no number. */
    const uint64_t more = numbers > 1 ? numbers : device_is_cuda();
    char text[128];
    snprintf(text, sizeof text, "completed by all %d, by any %d; the ranks say %d to %d",
             (int)result->completed_by_all, (int)result->completed_by_any, (int)least, (int)most);
    const bool good = result->completed_by_all >= least &&
                      result->completed_by_all <= least + more &&
                      result->completed_by_any >= most && result->completed_by_any <= most + more;
    return good ? 0 : ranks_fail(ranks, rank, __FILE__, __LINE__, text);
}

/* The new communicator works. */
static int succeed(struct faults_rank *self, uint64_t members, uint64_t completed)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    struct tutti_shrink_result result;
    tutti_comm_t *shrunk;
    RANKS_CHECK(shrink_without(self->comm, self->store, -1, &shrunk, &result) == TUTTI_OK);
    RANKS_CHECK(shrink_is(&result, shrunk, rank, members));
    int failed = check_last(self, shrunk, completed, &result);
    if (failed)
        return failed;
    tutti_comm_destroy(self->comm);
    self->comm = NULL;
    RANKS_CHECK(shrink_check(shrunk, ranks->size == 4 ? SHRINK_MANY : SHRINK_FEW));
    tutti_comm_destroy(shrunk);
    return 0;
}

/* Calls until one fails; the numbers of the order that those took that did not. */
static uint64_t suffer(struct faults_rank *self, enum tutti_status *status)
{
    uint64_t completed = 0;
    *status = TUTTI_OK;
    for (int i = 0; i < FAULT_AT + 3 && !(*status = faults_call(self, RANKS_TIMEOUT_MS)); i++)
        completed += faults_numbers(self);
    return completed;
}

static int live_kill(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct faults_rank self;
    enum tutti_status status;
    int failed = faults_open(&self, ranks, rank, store);
    if (failed)
        return failed;
    if (rank == self.scenario->victim)
        faults_arm(&self, die);
    ranks_raise(ranks, FAULTS_FLAG); /* nobody is early or late on a GPU */
    uint64_t completed = suffer(&self, &status);
    RANKS_CHECK(rank != self.scenario->victim);
    if (faults_numbers(&self))
        RANKS_CHECK(status == TUTTI_ERR_PEER_DEAD);
    uint64_t all = (UINT64_C(1) << ranks->size) - 1;
    failed = succeed(&self, all & ~(UINT64_C(1) << self.scenario->victim), completed);
    faults_close(&self);
    return failed;
}

static int live_abort(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct faults_rank self;
    enum tutti_status status;
    int failed = faults_open(&self, ranks, rank, store);
    if (failed)
        return failed;
    if (rank == self.scenario->victim)
        faults_arm(&self, interrupt);
    ranks_raise(ranks, FAULTS_FLAG);
    uint64_t completed = suffer(&self, &status);
    failed = succeed(&self, (UINT64_C(1) << ranks->size) - 1, completed);
    faults_close(&self);
    return failed;
}

int main(void)
{
    int skip = ranks_skip(2);
    if (skip)
        return skip;
    bool (*takes)(const struct faults_point *) = ranks_short() ? faults_first_of_call : faults_all;
    int failed = faults_run_all("kill, then shrink", true, 4, live_kill, takes);
    return faults_run_all("abort, then shrink", true, 3, live_abort, takes) || failed;
}
