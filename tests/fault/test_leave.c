/* SPDX-License-Identifier: MIT */
/*
 * A rank that destroys its communicator while the others need it, one that never comes, and one
 * that comes late.
 *
 * usage: test_leave threads|processes
 */
#include "faults.h"

#include "base/deadline.h"

#include <string.h>
#include <unistd.h>

enum { PATIENCE_MS = 400, LATE_US = 100000 };

/* The calls before, and then nothing. */
static int until_fault(struct faults_rank *self)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    for (int i = 1; i < FAULT_AT; i++)
        RANKS_CHECK(faults_call(self, RANKS_TIMEOUT_MS) == TUTTI_OK);
    faults_happened(ranks);
    return 0;
}

static int live_destroy(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct faults_rank self;
    int failed = faults_open(&self, ranks, rank, store);
    if (failed)
        return failed;
    if (rank == self.scenario->victim) {
        failed = until_fault(&self);
        int64_t start = deadline_now();
        faults_close(&self);
        RANKS_CHECK(deadline_now() - start < (int64_t)FAULT_SOON_MS * 1000000);
        return failed;
    }
    failed = faults_suffer(&self, TUTTI_ERR_PEER_DEAD, FAULT_AT, FAULT_AT, RANKS_TIMEOUT_MS);
    if (!failed)
        failed = faults_survive(&self, TUTTI_ERR_PEER_DEAD);
    faults_close(&self);
    return failed;
}

static int live_absent(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct faults_rank self;
    int failed = faults_open(&self, ranks, rank, store);
    if (failed)
        return failed;
    if (rank == self.scenario->victim) {
        failed = until_fault(&self);
        RANKS_CHECK(ranks_await(ranks, 0, (uint32_t)ranks->size - 1));
        /* When it comes after all it is told. */
        RANKS_CHECK(tutti_comm_status(self.comm, NULL) == TUTTI_ERR_TIMEOUT);
        RANKS_CHECK(faults_call(&self, RANKS_TIMEOUT_MS) == TUTTI_ERR_TIMEOUT);
    } else {
        failed = faults_suffer(&self, TUTTI_ERR_TIMEOUT, FAULT_AT, FAULT_AT, PATIENCE_MS);
        ranks_raise(ranks, 0);
        if (!failed)
            failed = faults_survive(&self, TUTTI_ERR_TIMEOUT);
    }
    faults_close(&self);
    return failed;
}

static int live_late(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct faults_rank self;
    int failed = faults_open(&self, ranks, rank, store);
    if (failed)
        return failed;
    faults_happened(ranks);
    for (int i = 0; i < FAULT_AT; i++) {
        if (rank == self.scenario->victim)
            usleep(LATE_US);
        RANKS_CHECK(faults_call(&self, RANKS_TIMEOUT_MS) == TUTTI_OK);
    }
    RANKS_CHECK(tutti_comm_status(self.comm, NULL) == TUTTI_OK);
    RANKS_CHECK(tutti_barrier(self.comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    faults_close(&self);
    return 0;
}

int main(int argc, char **argv)
{
    int skip = ranks_skip(2);
    if (skip)
        return skip;
    bool processes = argc == 2 && strcmp(argv[1], "processes") == 0;
    int failures = faults_run_all("destroy", processes, 5, live_destroy, faults_first_of_call);
    failures += faults_run_all("absent", processes, 3, live_absent, faults_first_of_call);
    failures += faults_run_all("late", processes, 3, live_late, faults_first_of_call);
    return failures ? 1 : 0;
}
