/* SPDX-License-Identifier: MIT */
/*
 * Two-shot operations whose results are pulled, which otherwise need five ranks with a core each:
 * all-reduces, and long reduces, whose result the root alone collects. The reduce's bits are the
 * all-reduce's, and these are those of the pushed all-reduce. Then short reduces, whose root
 * prefetches what has arrived if each rank has a core.
 *
 * usage: test_pulled processes|threads RANKS
 */
#include "comm/comm.h"
#include "cpu/transport/group.h"
#include "ranks.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 300000, ROUNDS = 4 };

static const size_t counts[] = {4, 3077, 4096, 33333, 131072, MOST};
static const size_t short_counts[] = {8, 9, 64, 100, 512, 4000};

struct life {
    float *send, *pushed, *pulled;
};

/* Values whose sum depends on the order. */
static void fill(float *values, size_t count, int rank, int round)
{
    for (size_t i = 0; i < count; i++)
        values[i] = (float)((i * 7919 + (size_t)rank * 104729 + (size_t)round) % 10007) * 1.001f;
}

static int check(struct ranks *ranks, int rank, tutti_comm_t *comm, const struct life *life)
{
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (int round = 0; round < ROUNDS; round++) {
            const size_t count = counts[c], bytes = count * sizeof(float);
            const int root = (round + (int)c) % ranks->size;
            const bool in_place = round % 2;
            float *out = in_place ? life->pulled : life->send;
            fill(life->send, count, rank, round);
            cpu_group_of(comm->peers)->limits.pushes = true;
            RANKS_CHECK(tutti_all_reduce(life->send, life->pushed, count, TUTTI_FLOAT32, TUTTI_SUM,
                                         comm, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
            cpu_group_of(comm->peers)->limits.pushes = false;
            memcpy(life->pulled, life->send, bytes);
            RANKS_CHECK(tutti_all_reduce(out, life->pulled, count, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                         TUTTI_STREAM_DEFAULT) == TUTTI_OK);
            RANKS_CHECK(memcmp(life->pulled, life->pushed, bytes) == 0);
            fill(life->pulled, count, rank, round);
            RANKS_CHECK(tutti_reduce(out, rank == root ? life->pulled : NULL, count, TUTTI_FLOAT32,
                                     TUTTI_SUM, root, comm, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
            if (rank != root)
                fill(life->pushed, count, rank, round);
            RANKS_CHECK(memcmp(life->pulled, life->pushed, bytes) == 0);
        }
    return 0;
}

/* The roots take turns, so each one waits for the last one while the other pieces are there. */
static int check_short(struct ranks *ranks, int rank, tutti_comm_t *comm, const struct life *life)
{
    for (size_t c = 0; c < sizeof short_counts / sizeof *short_counts; c++)
        for (int round = 0; round < 2 * ranks->size; round++) {
            const size_t count = short_counts[c];
            const int root = round % ranks->size;
            fill(life->send, count, rank, round);
            RANKS_CHECK(tutti_all_reduce(life->send, life->pushed, count, TUTTI_FLOAT32, TUTTI_SUM,
                                         comm, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
            cpu_group_of(comm->peers)->limits.pushes = true; /* no two-shot */
            cpu_group_of(comm->peers)->peers.oversubscribed = false;
            for (int turn = 0; turn < ranks->size; turn++) {
                const bool is_root = rank == (root + turn) % ranks->size;
                RANKS_CHECK(tutti_reduce(life->send, is_root ? life->pulled : NULL, count,
                                         TUTTI_FLOAT32, TUTTI_SUM, (root + turn) % ranks->size,
                                         comm, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
            }
            RANKS_CHECK(memcmp(life->pulled, life->pushed, count * sizeof(float)) == 0);
        }
    return 0;
}

static int rank_main(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    const size_t bytes = MOST * sizeof(float);
    const struct life life = {malloc(bytes), malloc(bytes), malloc(bytes)};
    RANKS_CHECK(life.send && life.pushed && life.pulled);
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    RANKS_CHECK(cpu_group_of(comm->peers)->limits.pushes); /* the exchange area is there */
    const bool crowded = cpu_group_of(comm->peers)->peers.oversubscribed;
    int line = check(ranks, rank, comm, &life);
    if (!line)
        line = check_short(ranks, rank, comm, &life);
    cpu_group_of(comm->peers)->peers.oversubscribed = crowded;
    tutti_comm_destroy(comm);
    free(life.send);
    free(life.pushed);
    free(life.pulled);
    return line;
}

int main(int argc, char **argv)
{
    const int skip = ranks_skip_cuda("pieces of the CPU's arenas");
    if (skip)
        return skip;
    const int size = argc == 3 ? atoi(argv[2]) : 0;
    if (size < 3 || size > TUTTI_MAX_RANKS)
        return 2;
    ranks_share_cores(); /* so that the arenas have an exchange area */
    struct ranks *ranks = ranks_create(size, strcmp(argv[1], "threads") == 0 ? 0 : size, 0);
    const int failed = ranks_run(ranks, rank_main);
    ranks_destroy(ranks);
    return failed ? 1 : 0;
}
