/* SPDX-License-Identifier: MIT */
/* NCCL as a fabric, over a stand-in for its library. */
#include "pattern.h"

#include "../ranks.h"
#include "base/deadline.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BYTES = 1000, COUNT = 3 };

static int (*pending)(int rank);
static int *fault, *alive;

/* Messages of all pairs, COUNT in each direction. */
static int exchange(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct fabric_transfer list[2 * COUNT * 8];
    unsigned char memory[2 * COUNT * 8][BYTES];
    tutti_fabric_t *fabric;
    struct fabric_link *link;
    int count = 0;
    bool done = false;
    RANKS_CHECK(tutti_fabric_open("nccl:", &fabric) == TUTTI_OK);
    RANKS_CHECK(strcmp(fabric->description, "nccl (NCCL 2.28.9)") == 0);
    RANKS_CHECK(fabric->ops->device_memory && fabric->ops->threads(fabric));
    RANKS_CHECK(pattern_connect(store, fabric, "nccl", rank, ranks->size, &link));
    for (int i = 0; i < COUNT; i++)
        for (int peer = 0; peer < ranks->size; peer++) {
            if (peer == rank)
                continue;
            memset(memory[count], 16 * rank + peer + i, BYTES);
            list[count] = (struct fabric_transfer){peer, 0, true, memory[count], BYTES};
            count++;
            list[count] = (struct fabric_transfer){peer, 0, false, memory[count], BYTES};
            count++;
        }
    RANKS_CHECK(fabric_enqueue(link, list, count, NULL) == TUTTI_OK);
    RANKS_CHECK(fabric_test(link, NULL, &done) == TUTTI_OK && done);
    while (pending(rank))
        sched_yield();
    for (int i = 0; i < count; i++)
        RANKS_CHECK(list[i].is_send ||
                    memory[i][BYTES - 1] == 16 * list[i].peer + rank + i / 2 / (ranks->size - 1));
    RANKS_CHECK(ranks_meet(ranks, 0));
    RANKS_CHECK(fabric_disconnect(link, deadline_after(RANKS_TIMEOUT_MS)));
    tutti_fabric_close(fabric);
    return 0;
}

/* A watcher aborts; the rank gets ABORTED from then on, and NCCL's communicator is gone. */
static int aborts(struct ranks *ranks, int rank, tutti_store_t *store)
{
    unsigned char byte;
    struct fabric_transfer transfer = {!rank, 0, false, &byte, 1};
    tutti_fabric_t *fabric;
    struct fabric_link *link, *other;
    bool done;
    RANKS_CHECK(tutti_fabric_open("nccl:", &fabric) == TUTTI_OK);
    RANKS_CHECK(pattern_connect(store, fabric, "abort", rank, 2, &link));
    RANKS_CHECK(pattern_connect(store, fabric, "fault", rank, 2, &other));
    RANKS_CHECK(fabric_enqueue(link, &transfer, 1, NULL) == TUTTI_OK);
    RANKS_CHECK(pending(rank) == 1);
    fabric_link_abort(link);
    RANKS_CHECK(fabric_test(link, NULL, &done) == TUTTI_ERR_ABORTED && pending(rank) == 0);
    RANKS_CHECK(fabric_enqueue(link, &transfer, 1, NULL) == TUTTI_ERR_ABORTED);
    RANKS_CHECK(fabric_disconnect(link, 0));
    RANKS_CHECK(ranks_meet(ranks, 1));
    __atomic_store_n(fault, 2, __ATOMIC_SEQ_CST);
    RANKS_CHECK(fabric_test(other, NULL, &done) == TUTTI_ERR_SYSTEM);
    RANKS_CHECK(strstr(tutti_last_error(), "the stand-in's last error"));
    RANKS_CHECK(fabric_enqueue(other, &transfer, 1, NULL) == TUTTI_ERR_SYSTEM);
    RANKS_CHECK(fabric_disconnect(other, 0));
    RANKS_CHECK(ranks_meet(ranks, 2));
    __atomic_store_n(fault, 0, __ATOMIC_SEQ_CST);
    tutti_fabric_close(fabric);
    return 0;
}

/* Rank 1 does not come. */
static int alone(struct ranks *ranks, int rank, tutti_store_t *store)
{
    char addresses[2 * FABRIC_ADDRESS_BYTES] = {0};
    tutti_fabric_t *fabric;
    struct fabric_link *link;
    (void)store;
    if (rank)
        return 0;
    RANKS_CHECK(tutti_fabric_open("nccl:", &fabric) == TUTTI_OK);
    RANKS_CHECK(fabric->ops->address(fabric, 0, addresses) == TUTTI_OK);
    RANKS_CHECK(fabric_connect(fabric, 0, 2, addresses, deadline_after(20), NULL, &link) ==
                TUTTI_ERR_TIMEOUT);
    tutti_fabric_close(fabric);
    return 0;
}

int main(void)
{
    static const struct {
        ranks_fn *fn;
        int size;
    } parts[] = {{exchange, 2}, {exchange, 3}, {aborts, 2}, {alone, 2}};
    tutti_fabric_t *fabric;
    int failed = 0;
    setenv("TUTTI_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
    failed += tutti_fabric_open("nccl:", &fabric) != TUTTI_ERR_DECLINED;
    failed += tutti_fabric_open("nccl:libc.so.6", &fabric) != TUTTI_ERR_DECLINED ||
              !strstr(tutti_last_error(), "has no pncclGetErrorString");
    setenv("TUTTI_NCCL_LIBRARY", STANDIN, 1);
    void *standin = dlopen(STANDIN, RTLD_NOW | RTLD_LOCAL);
    *(void **)&pending = dlsym(standin, "nccl_standin_pending");
    fault = dlsym(standin, "nccl_standin_fault");
    alive = dlsym(standin, "nccl_standin_alive");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        struct ranks *ranks = ranks_create(parts[i].size, 0, 0);
        failed += ranks_run(ranks, parts[i].fn);
        ranks_destroy(ranks);
    }
    failed += *alive != 0;
    return failed != 0;
}
