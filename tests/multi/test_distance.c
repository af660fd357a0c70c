/* SPDX-License-Identifier: MIT */
/*
 * A communicator that runs only collectives with a root goes on to measure the distance between its
 * ranks: the root with each of its partners.
 *
 * usage: test_distance processes|threads
 */
#include "comm/comm.h"
#include "cpu/transport/group.h"
#include "device.h"
#include "ranks.h"

#include "../../tools/collective_call.h"

#include <stdlib.h>
#include <string.h>

enum { SIZE = 4, BYTES = 2 << 20, CALLS = 32 }; /* so many measure both partners */

static const enum tutti_collective which[] = {TUTTI_COLLECTIVE_BROADCAST, TUTTI_COLLECTIVE_REDUCE,
                                              TUTTI_COLLECTIVE_GATHER, TUTTI_COLLECTIVE_SCATTER};

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_call_options options = {.struct_size = sizeof options,
                                               .flags = TUTTI_CALL_NO_ZERO_COPY};
    const size_t count = BYTES;
    tutti_comm_t *comm;
    char *send = calloc(SIZE, BYTES), *recv = malloc((size_t)SIZE * BYTES);
    RANKS_CHECK(send && recv);
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    for (size_t w = 0; w < sizeof which / sizeof *which; w++) {
        const int root = (int)w % SIZE;
        const uint32_t *now = cpu_group_of(comm->peers)->distance.ping_pongs;
        uint32_t before[SIZE];
        memcpy(before, now, sizeof before);
        for (int i = 0; i < CALLS; i++)
            RANKS_CHECK(collective_call(which[w], send, recv, &count, TUTTI_UINT8, TUTTI_SUM, root,
                                        comm, &options) == TUTTI_OK);
        for (int r = 0; r < SIZE; r++) {
            const int with = rank ^ r;
            const bool partners = (with == 1 || with == 2) && (rank == root || r == root);
            RANKS_CHECK((now[r] != before[r]) == partners);
        }
    }
    tutti_comm_destroy(comm);
    free(send);
    free(recv);
    return 0;
}

int main(int argc, char **argv)
{
    const bool processes = argc == 2 && strcmp(argv[1], "processes") == 0;
    const int skip = ranks_skip_cuda("of CPU ranks");
    if (skip)
        return skip;
    struct ranks *ranks = ranks_create(SIZE, processes ? SIZE : 0, 0);
    const int failures = ranks_run(ranks, live);
    ranks_destroy(ranks);
    return failures ? 1 : 0;
}
