/* SPDX-License-Identifier: MIT */
/* SIGKILL of a rank at every point of an operation: the others get PEER_DEAD, which names it, at
 * once; what it had already given its part to succeeds. */
#include "faults.h"

#include "base/deadline.h"

#include <signal.h>

static void die(struct faults_rank *self)
{
    faults_happened(self->ranks);
    raise(SIGKILL);
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct faults_rank self;
    const struct faults_shared *shared = (const struct faults_shared *)(void *)ranks->shared;
    int failed = faults_open(&self, ranks, rank, store);
    if (failed)
        return failed;
    if (rank == self.scenario->victim) {
        faults_arm(&self, die);
        for (int i = 0; i < FAULT_AT; i++)
            RANKS_CHECK(faults_call(&self, RANKS_TIMEOUT_MS) == TUTTI_OK);
        RANKS_CHECK(!"passed its point alive");
    }
    failed = faults_suffer(&self, TUTTI_ERR_PEER_DEAD, faults_first(&self), faults_last(&self),
                           RANKS_TIMEOUT_MS);
    if (!failed)
        failed = faults_survive(&self, TUTTI_ERR_PEER_DEAD);
    RANKS_CHECK(failed || shared->noticed_ns < (int64_t)FAULT_SOON_MS * 1000000);
    faults_close(&self);
    return failed;
}

int main(void)
{
    int skip = ranks_skip(2);
    if (skip)
        return skip;
    return faults_run_all("kill", true, 5, live, faults_all);
}
