/* SPDX-License-Identifier: MIT */
/*
 * Who is to blame: a rank that tells of its end and leaves between a waiter's look at what the
 * others tell and its look at who has left. The waiter says what the rank told, not that it is
 * gone.
 */
#include "point.h"
#include "ranks.h"

#include <string.h>

enum { LOOKING = 1, LEFT };

void (*point_hook)(const char *name);

static _Thread_local struct ranks *waiter;

/* The other rank ends and leaves while this one stands here. */
static void hook(const char *name)
{
    struct ranks *ranks = waiter;
    if (!ranks || strcmp(name, "look.told") != 0)
        return;
    waiter = NULL;
    ranks_raise(ranks, LOOKING);
    (void)ranks_await(ranks, LEFT, 1);
}

static int blame(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_fault fault = {.struct_size = sizeof fault};
    tutti_comm_t *comm;
    float x = 1;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    if (rank == 0) {
        waiter = ranks;
        RANKS_CHECK(tutti_all_reduce(&x, &x, 1, TUTTI_FLOAT32, TUTTI_SUM, comm, 0) ==
                    TUTTI_ERR_ABORTED);
        RANKS_CHECK(tutti_comm_status(comm, &fault) == TUTTI_ERR_ABORTED && fault.peer == 1);
    } else {
        RANKS_CHECK(ranks_await(ranks, LOOKING, 1));
        tutti_comm_abort(comm);
    }
    tutti_comm_destroy(comm);
    ranks_raise(ranks, LEFT);
    return 0;
}

int main(int argc, char **argv)
{
    bool processes = argc == 2 && strcmp(argv[1], "processes") == 0;
    point_hook = hook;
    struct ranks *ranks = ranks_create(2, processes ? 2 : 0, 0);
    int failed = ranks_run(ranks, blame);
    ranks_destroy(ranks);
    return failed;
}
