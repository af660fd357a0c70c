/* SPDX-License-Identifier: MIT */
/* An all-reduce of more than 2^31 bytes. Skipped where memory is short. */
#include "device.h"
#include "pool.h"
#include "ranks.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static const size_t count = ((size_t)1 << 31) + 4099;

/* Of the machine, in bytes; 0 if it cannot be told. */
static size_t memory_available(void)
{
    char line[128];
    size_t kib = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %zu kB", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return kib * 1024;
}

static int reduce(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct pool *pool = ranks->context;
    tutti_comm_t *comm;
    size_t index;
    void *data = mmap(NULL, count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    RANKS_CHECK(data != MAP_FAILED);
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    for (int algo = TUTTI_ALGO_ONE_SHOT; algo <= TUTTI_ALGO_TWO_SHOT; algo++) {
        struct tutti_call_options options = {.struct_size = sizeof options,
                                             .algo = (enum tutti_algo)algo};
        size_t offset = (size_t)algo * 17;
        if (device_is_cuda() && algo == TUTTI_ALGO_ONE_SHOT) /* which reaches less far there */
            options.algo = TUTTI_ALGO_NONE;
        pool_input(pool, rank, TUTTI_INT8, offset, count, data);
        RANKS_CHECK(tutti_all_reduce_with(data, data, count, TUTTI_INT8, TUTTI_SUM, comm,
                                          TUTTI_STREAM_DEFAULT, &options) == TUTTI_OK);
        RANKS_CHECK(pool_is_result(pool, TUTTI_INT8, TUTTI_SUM, offset, count, data, &index));
    }
    tutti_comm_destroy(comm);
    munmap(data, count);
    return 0;
}

int main(void)
{
    int skip = ranks_skip(2);
    if (skip)
        return skip;
    if (memory_available() < 3 * count) {
        puts("skipped: needs 6 GiB of memory");
        return 77;
    }
    struct pool *pool = pool_create(2, NULL, 5);
    struct ranks *ranks = ranks_create(2, 2, 0);
    ranks->context = pool;
    int failures = ranks_run(ranks, reduce);
    ranks_destroy(ranks);
    pool_destroy(pool);
    return failures ? 1 : 0;
}
