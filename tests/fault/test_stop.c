/* SPDX-License-Identifier: MIT */
/* A rank that stops (SIGSTOP) at a point of an operation: the others time out and name it. Once it
 * goes on it learns the same. */
#include "faults.h"

#include "device.h"

#include <signal.h>

/* A rank that is late, since others have its core, is blamed like one that stands still. Kernels
 * that run on the CPU are late more often. */
enum { PATIENCE_MS = 400, PATIENCE_CUDA_MS = 4000 };

static void stop(struct faults_rank *self)
{
    faults_happened(self->ranks);
    raise(SIGSTOP);
}

/* The victim's life: it may still succeed in what the others had given their part to. */
static int stumble(struct faults_rank *self)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    enum tutti_status status = TUTTI_OK;
    faults_arm(self, stop);
    for (int i = 0; i < FAULT_AT + 2 && status == TUTTI_OK; i++)
        status = faults_call(self, RANKS_TIMEOUT_MS);
    RANKS_CHECK(status == TUTTI_ERR_TIMEOUT);
    RANKS_CHECK(tutti_comm_status(self->comm, &fault) == TUTTI_ERR_TIMEOUT && fault.peer == rank);
    return 0;
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct faults_rank self;
    int failed = faults_open(&self, ranks, rank, store);
    if (failed)
        return failed;
    if (rank == self.scenario->victim) {
        failed = stumble(&self);
    } else {
        failed = faults_suffer(&self, TUTTI_ERR_TIMEOUT, faults_first(&self), faults_last(&self),
                               device_is_cuda() ? PATIENCE_CUDA_MS : PATIENCE_MS);
        /* The last one to have seen it wakes the victim. */
        ranks_raise(ranks, 0);
        if (!failed)
            RANKS_CHECK(ranks_await(ranks, 0, (uint32_t)ranks->size - 1));
        kill(ranks->pids[self.scenario->victim], SIGCONT);
        if (!failed)
            failed = faults_survive(&self, TUTTI_ERR_TIMEOUT);
    }
    faults_close(&self);
    return failed;
}

int main(void)
{
    int skip = ranks_skip(2);
    if (skip)
        return skip;
    return faults_run_all("stop", true, 3, live, faults_all);
}
