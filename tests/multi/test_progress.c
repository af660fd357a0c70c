/* SPDX-License-Identifier: MIT */
/*
 * The application's progress function: a waiting operation calls it, also while it sleeps, and a
 * result other than 0 ends the operation on all ranks.
 *
 * usage: test_progress threads|processes
 */
#include "ranks.h"

#include <string.h>

enum { CALLS = 35 }; /* on two cores a wait calls about 30 times before it first sleeps */

struct watch {
    struct ranks *ranks;
    int calls;
    int raise_at; /* the call that lets the peer come; 0: none does */
    int end_at;   /* the call that ends the operation; 0: none does */
};

static int progress(void *context)
{
    struct watch *watch = context;
    if (++watch->calls == watch->raise_at)
        ranks_raise(watch->ranks, 0);
    return watch->end_at && watch->calls >= watch->end_at;
}

static enum tutti_status sum(tutti_comm_t *comm)
{
    float one = 1;
    return tutti_all_reduce(&one, &one, 1, TUTTI_FLOAT32, TUTTI_SUM, comm, TUTTI_STREAM_DEFAULT);
}

static enum tutti_status join(const struct ranks *ranks, int rank, tutti_store_t *store,
                              struct watch *watch, tutti_comm_t **comm)
{
    const struct tutti_comm_options options = {
        .struct_size = sizeof options, .progress = progress, .progress_context = watch};
    return ranks_join(ranks, rank, store, rank == 0 ? &options : NULL, comm);
}

/* Rank 1 comes only after rank 0's wait has called the function. */
static int goes_on(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct watch watch = {.ranks = ranks, .raise_at = CALLS};
    tutti_comm_t *comm;
    RANKS_CHECK(join(ranks, rank, store, &watch, &comm) == TUTTI_OK);
    RANKS_CHECK(watch.calls == 0);
    if (rank == 1)
        RANKS_CHECK(ranks_await(ranks, 0, 1));
    RANKS_CHECK(sum(comm) == TUTTI_OK);
    RANKS_CHECK(rank == 1 || watch.calls >= CALLS);
    tutti_comm_destroy(comm);
    return 0;
}

static int ends(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct watch watch = {.ranks = ranks};
    struct tutti_fault fault = {.struct_size = sizeof fault};
    tutti_comm_t *comm;
    RANKS_CHECK(join(ranks, rank, store, &watch, &comm) == TUTTI_OK);
    RANKS_CHECK(sum(comm) == TUTTI_OK);
    watch.end_at = watch.calls + 3;
    if (rank == 1) {
        RANKS_CHECK(ranks_await(ranks, 1, 1));
        sum(comm); /* may find all that it needs of rank 0 */
    }
    RANKS_CHECK(sum(comm) == TUTTI_ERR_ABORTED);
    RANKS_CHECK(tutti_comm_status(comm, &fault) == TUTTI_ERR_ABORTED && fault.peer == 0);
    ranks_raise(ranks, 1);
    tutti_comm_destroy(comm);
    return 0;
}

int main(int argc, char **argv)
{
    static ranks_fn *const parts[] = {goes_on, ends};
    int failures = 0;
    if (argc != 2)
        return 2;
    int skip = ranks_skip_cuda("operations on a stream do not wait on the host");
    if (skip)
        return skip;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        struct ranks *ranks = ranks_create(2, strcmp(argv[1], "threads") == 0 ? 0 : 2, 0);
        failures += ranks_run(ranks, parts[i]);
        ranks_destroy(ranks);
    }
    return failures ? 1 : 0;
}
