/* SPDX-License-Identifier: MIT */
/*
 * Going on after a crash. The ranks all-reduce in a loop. The last rank kills itself in iteration
 * 1000. Each other rank gets an error that names the dead rank, makes a smaller communicator with
 * the ranks that are left, and finishes the loop in it. No process is started again.
 *
 *     tutti run -n 4 build/examples/survive
 *
 * `tutti run` serves the store, so the store outlives every rank. It ends the survivors of a failed
 * rank after --wait seconds (120 by default); a program that goes on for longer needs more. The
 * exit status of `tutti run` is that of the dead rank: 137, which is 128 + SIGKILL.
 *
 * With the argument "stop" the last rank stops (SIGSTOP) instead, and the others wait for it. Then
 * `tutti dump` and `tutti diagnose` name this rank; SIGCONT lets it go on.
 */
#define _POSIX_C_SOURCE 200809L /* kill(), SIGSTOP */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tutti/recovery.h>
#include <tutti/tutti.h>
#include <unistd.h>

enum { COUNT = 1000, ITERATIONS = 2000, CRASH = 1000 };

static void must(enum tutti_status status)
{
    if (status == TUTTI_OK)
        return;
    fprintf(stderr, "%s\n", tutti_last_error());
    exit(1);
}

/* Rank r contributes r + 1, so that each sum is 1 + 2 + ... + world size. */
static enum tutti_status all_reduce(tutti_comm_t *comm, float *sum)
{
    static float x[COUNT];
    int size = tutti_comm_world_size(comm);
    for (int i = 0; i < COUNT; i++)
        x[i] = (float)(tutti_comm_rank(comm) + 1);
    enum tutti_status status =
        tutti_all_reduce(x, x, COUNT, TUTTI_FLOAT32, TUTTI_SUM, comm, TUTTI_STREAM_DEFAULT);
    for (int i = 0; i < COUNT && status == TUTTI_OK; i++)
        if (x[i] != (float)(size * (size + 1) / 2)) {
            fprintf(stderr, "wrong: element %d is %g\n", i, x[i]);
            exit(1);
        }
    *sum = x[0];
    return status;
}

/* Replaces the communicator with one of the ranks that are left. Returns the number of operations
 * on the old one that all of them have completed. Some ranks may have completed one more; they
 * repeat it with the others. */
static int shrink(tutti_comm_t **comm, tutti_store_t *store)
{
    struct tutti_shrink_result result = {.struct_size = sizeof result};
    tutti_comm_t *smaller = NULL;
    int old_rank = tutti_comm_rank(*comm), old_size = tutti_comm_world_size(*comm);
    must(tutti_comm_shrink(*comm, store, NULL, &smaller, &result));
    printf("rank %d of %d goes on as rank %d of %d, after iteration %d\n", old_rank, old_size,
           result.rank, result.world_size, (int)result.completed_by_all);
    tutti_comm_destroy(*comm);
    *comm = smaller;
    return (int)result.completed_by_all;
}

int main(int argc, char **argv)
{
    struct tutti_launcher me = {.struct_size = sizeof me};
    tutti_store_t *store = NULL;
    tutti_comm_t *comm = NULL;
    float sum = 0;
    int signal_number = argc > 1 && strcmp(argv[1], "stop") == 0 ? SIGSTOP : SIGKILL;
    int completed = 0; /* iterations on communicators that have failed */
    must(tutti_info_launcher(&me));
    must(tutti_store_open("env:", 0, &store));
    must(tutti_comm_create(store, me.rank, me.world_size, NULL, &comm));

    for (int i = 1; i <= ITERATIONS; i++) {
        if (i == CRASH && me.rank > 0 && me.rank == me.world_size - 1)
            kill(getpid(), signal_number); /* the others wait in this iteration's all-reduce */
        enum tutti_status status = all_reduce(comm, &sum);
        if (status == TUTTI_ERR_PEER_DEAD) {
            printf("rank %d: %s\n", me.rank, tutti_last_error());
            completed += shrink(&comm, store);
            i = completed;
        } else {
            must(status);
        }
    }
    printf("rank %d: %d iterations done, the last sum is %g on %d ranks\n", tutti_comm_rank(comm),
           ITERATIONS, sum, tutti_comm_world_size(comm));
    tutti_comm_destroy(comm);
    tutti_store_close(store);
    return 0;
}
