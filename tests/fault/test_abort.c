/* SPDX-License-Identifier: MIT */
/*
 * tutti_comm_abort() at every point of an operation, from a signal handler, and from another thread
 * while all wait: every rank gets ABORTED, which names the one that did it, at once.
 *
 * usage: test_abort threads|processes
 */
#include "faults.h"

#include "device.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static _Thread_local tutti_comm_t *own_comm;

static void on_signal(int number)
{
    (void)number;
    tutti_comm_abort(own_comm);
}

static void interrupt(struct faults_rank *self)
{
    own_comm = self->comm;
    faults_happened(self->ranks);
    raise(SIGUSR1);
}

/* In a handler: what the others had the victim's part of may succeed, and the operation before may
 * fail where they are still in it; on a GPU they are not. */
static int live_signal(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct faults_rank self;
    int failed = faults_open(&self, ranks, rank, store);
    if (failed)
        return failed;
    if (rank == self.scenario->victim)
        faults_arm(&self, interrupt);
    failed = faults_suffer(&self, TUTTI_ERR_ABORTED, FAULT_AT - !device_is_cuda(), FAULT_AT + 1,
                           RANKS_TIMEOUT_MS);
    if (!failed && rank != self.scenario->victim)
        failed = faults_survive(&self, TUTTI_ERR_ABORTED);
    faults_close(&self);
    return failed;
}

static void *abort_soon(void *argument)
{
    struct faults_rank *self = argument;
    ranks_await(self->ranks, FAULTS_FLAG, (uint32_t)self->ranks->size - 1);
    usleep(30000); /* likely, not necessarily, all sleep by now */
    faults_happened(self->ranks);
    tutti_comm_abort(self->comm);
    return NULL;
}

/* From a thread, while the victim sits between two operations. */
static int live_thread(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct faults_rank self;
    pthread_t thread;
    int failed = faults_open(&self, ranks, rank, store);
    if (failed)
        return failed;
    if (rank == self.scenario->victim) {
        for (int i = 1; i < FAULT_AT; i++)
            RANKS_CHECK(faults_call(&self, RANKS_TIMEOUT_MS) == TUTTI_OK);
        RANKS_CHECK(pthread_create(&thread, NULL, abort_soon, &self) == 0);
        pthread_join(thread, NULL);
        RANKS_CHECK(faults_call(&self, RANKS_TIMEOUT_MS) == TUTTI_ERR_ABORTED);
        RANKS_CHECK(tutti_comm_status(self.comm, NULL) == TUTTI_ERR_ABORTED);
    } else {
        failed = faults_suffer(&self, TUTTI_ERR_ABORTED, FAULT_AT, FAULT_AT, RANKS_TIMEOUT_MS);
        if (!failed)
            failed = faults_survive(&self, TUTTI_ERR_ABORTED);
    }
    faults_close(&self);
    return failed;
}

int main(int argc, char **argv)
{
    int skip = ranks_skip(2);
    if (skip)
        return skip;
    bool processes = argc == 2 && strcmp(argv[1], "processes") == 0;
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, NULL);
    int failed = faults_run_all("abort in a handler", processes, 4, live_signal, faults_all);
    return faults_run_all("abort from a thread", processes, 4, live_thread, faults_first_of_call) ||
           failed;
}
