/* SPDX-License-Identifier: MIT */
/*
 * A rank whose communicator is complete gets it from create, whatever others do in it by then, and
 * learns of their fault by its first call. Of five ranks the last one stands still before rank 0
 * can hear that it has mapped all arenas. Ranks 1 to 3 have heard it and finish: two of them
 * disagree in a barrier of some ranks, which comes before the first operation of all.
 *
 * usage: test_complete processes|threads
 */
#include "base/point.h"
#include "ranks.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 5, LAST = SIZE - 1, SEEN_MS = 200 };
enum { DISAGREED }; /* flag */

void (*point_hook)(const char *name);

static _Thread_local struct ranks *held;

static void hook(const char *name)
{
    static _Thread_local int told; /* ranks, itself among them */
    struct ranks *ranks = held;
    if (!ranks || strcmp(name, "open.meets") != 0 || ++told < SIZE)
        return;
    held = NULL;
    (void)ranks_await(ranks, DISAGREED, 2);
    usleep(SEEN_MS * 1000); /* rank 0, which waits in its set-up, looks around meanwhile */
}

static int complete(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const int some[] = {1, 2, 3};
    struct tutti_fault fault = {.struct_size = sizeof fault};
    tutti_comm_t *comm;
    float x = 1;
    held = rank == LAST ? ranks : NULL;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    if (rank == 1 || rank == 2) {
        RANKS_CHECK(tutti_barrier(comm, some, rank == 1 ? 3 : 2, 0) == TUTTI_ERR_MISMATCH);
        ranks_raise(ranks, DISAGREED);
    }
    RANKS_CHECK(ranks_await(ranks, DISAGREED, 2));
    RANKS_CHECK(tutti_all_reduce(&x, &x, 1, TUTTI_FLOAT32, TUTTI_SUM, comm, 0) ==
                TUTTI_ERR_MISMATCH);
    RANKS_CHECK(tutti_comm_status(comm, &fault) == TUTTI_ERR_MISMATCH && fault.sequence == 0);
    tutti_comm_destroy(comm);
    return 0;
}

int main(int argc, char **argv)
{
    bool processes = argc == 2 && strcmp(argv[1], "processes") == 0;
    /* Else the set-up goes on with a ping-pong, and tries direct copies, for which ranks wait. */
    ranks_share_cores();
    setenv("TUTTI_DIRECT", "off", 1);
    struct ranks *ranks = ranks_create(SIZE, processes ? SIZE : 0, 0);
    point_hook = hook;
    int failed = ranks_run(ranks, complete);
    ranks_destroy(ranks);
    return failed;
}
