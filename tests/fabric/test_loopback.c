/* SPDX-License-Identifier: MIT */
/* The fabric of the tests does what any fabric must, and what its control says. */
#include "loopback_fabric.h"
#include "pattern.h"

#include "../ranks.h"
#include "base/deadline.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct loopback *loopback;

static int exchange(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_fabric_t *fabric;
    struct fabric_link *link, *other;
    RANKS_CHECK(loopback_open(loopback, rank, &fabric) == TUTTI_OK);
    RANKS_CHECK(pattern_connect(store, fabric, "a", rank, ranks->size, &link));
    RANKS_CHECK(pattern_connect(store, fabric, "b", ranks->size - 1 - rank, ranks->size, &other));
    RANKS_CHECK(pattern_all(link, ranks_short() ? 65536 : 1 << 20));
    RANKS_CHECK(pattern_exchange(other, 100, 2, true, false));
    tutti_fabric_close(fabric); /* the links keep it */
    RANKS_CHECK(pattern_exchange(link, 100, 2, true, false));
    RANKS_CHECK(ranks_meet(ranks, 0));
    RANKS_CHECK(fabric_disconnect(link, 0) && fabric_disconnect(other, 0));
    return 0;
}

/* Rank 0 sends rank 1 a message, which takes as long as the control says. */
static int control(struct ranks *ranks, int rank, tutti_store_t *store)
{
    char byte = 0;
    struct fabric_transfer transfer = {!rank, 0, !rank, &byte, 1};
    struct fabric_batch *batch;
    tutti_fabric_t *fabric;
    struct fabric_link *link;
    bool done;
    RANKS_CHECK(loopback_open(loopback, rank, &fabric) == TUTTI_OK);
    RANKS_CHECK(pattern_connect(store, fabric, "c", rank, 2, &link));
    const int64_t before = deadline_now();
    loopback_set(loopback->delay_us, 20000);
    RANKS_CHECK(ranks_meet(ranks, 1));
    RANKS_CHECK(fabric_start(link, &transfer, 1, &batch) == TUTTI_OK);
    RANKS_CHECK(pattern_wait(link, batch) == TUTTI_OK);
    RANKS_CHECK(rank == 0 || deadline_now() - before >= 20000000);
    RANKS_CHECK(ranks_meet(ranks, 2));
    RANKS_CHECK(loopback_get(loopback->bytes[0][1]) == 1 && !loopback_get(loopback->bytes[1][0]));
    loopback_cut_hosts(loopback, 1, LOOPBACK_SILENT);
    RANKS_CHECK(fabric_start(link, &transfer, 1, &batch) == TUTTI_OK);
    for (int i = 0; i < 20; i++, usleep(1000))
        RANKS_CHECK(fabric_test(link, batch, &done) == TUTTI_OK && !done);
    RANKS_CHECK(ranks_meet(ranks, 3));
    loopback_cut_hosts(loopback, 1, LOOPBACK_WHOLE);
    RANKS_CHECK(pattern_wait(link, batch) == TUTTI_OK);
    RANKS_CHECK(ranks_meet(ranks, 4));
    loopback_cut_hosts(loopback, 1, LOOPBACK_BROKEN);
    RANKS_CHECK(fabric_start(link, &transfer, 1, &batch) == TUTTI_ERR_SYSTEM);
    RANKS_CHECK(fabric_disconnect(link, 0));
    tutti_fabric_close(fabric);
    return 0;
}

static int faults(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_fabric_t *fabric;
    struct fabric_link *link, *other;
    RANKS_CHECK(loopback_open(loopback, rank, &fabric) == TUTTI_OK);
    RANKS_CHECK(pattern_connect(store, fabric, "d", rank, ranks->size, &link));
    RANKS_CHECK(pattern_connect(store, fabric, "e", rank, ranks->size, &other));
    RANKS_CHECK(pattern_abort(link) && pattern_mismatch(other, 4));
    RANKS_CHECK(ranks_meet(ranks, 5));
    RANKS_CHECK(!fabric_disconnect(link, 0) && fabric_disconnect(other, 0) == (rank != 0));
    tutti_fabric_close(fabric);
    return 0;
}

int main(int argc, char **argv)
{
    const bool threads = argc > 1 && strcmp(argv[1], "threads") == 0;
    const struct {
        ranks_fn *fn;
        int size;
    } parts[] = {{exchange, 3}, {exchange, 5}, {control, 2}, {faults, 2}, {faults, 3}};
    int failed = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        loopback = loopback_create();
        struct ranks *ranks = ranks_create(parts[i].size, threads ? 0 : parts[i].size, 0);
        failed += ranks_run(ranks, parts[i].fn);
        ranks_destroy(ranks);
    }
    return failed != 0;
}
