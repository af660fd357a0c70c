/* SPDX-License-Identifier: MIT */
/* A rank with two streams and some ones to reduce, for the tests of streams. */
#ifndef TESTS_CUDA_STREAMS_H
#define TESTS_CUDA_STREAMS_H

#include "device.h"

#include <stdio.h>

enum { COUNT = 1000 };

struct rank {
    struct ranks *ranks;
    int rank;
    tutti_comm_t *comm;
    CUstream a, b;
    int32_t *data;
};

static inline int open_rank_on(struct rank *self, struct ranks *ranks, int rank,
                               tutti_store_t *store, int device)
{
    const struct tutti_comm_options options = {.struct_size = sizeof options,
                                               .device = TUTTI_DEVICE_CUDA};
    *self = (struct rank){.ranks = ranks, .rank = rank};
    RANKS_CHECK(device_enter(device));
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &self->comm) == TUTTI_OK);
    RANKS_CHECK(cuStreamCreateWithPriority(&self->a, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamCreateWithPriority(&self->b, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    self->data = device_alloc(COUNT * sizeof *self->data);
    for (int i = 0; i < COUNT; i++)
        self->data[i] = 1;
    return 0;
}

static inline int open_rank(struct rank *self, struct ranks *ranks, int rank, tutti_store_t *store)
{
    return open_rank_on(self, ranks, rank, store, rank);
}

static inline void close_rank(struct rank *self)
{
    tutti_comm_destroy(self->comm);
    cuStreamDestroy_v2(self->a);
    cuStreamDestroy_v2(self->b);
    device_free(self->data);
}

struct streams_part {
    const char *name;
    ranks_fn *fn;
};

/* A main(): runs each part with two ranks, threads of this process, and checks that nothing is
 * left. */
static inline int streams_main(const struct streams_part *parts, size_t count)
{
    int failures = 0;
    device_setup();
    for (size_t i = 0; i < count; i++) {
        struct ranks *ranks = ranks_create(2, 0, 0);
        int failed = ranks_run(ranks, parts[i].fn);
        ranks_destroy(ranks);
        if (device_left() != 0)
            failed++;
        if (failed)
            fprintf(stderr, "%s failed\n", parts[i].name);
        failures += failed;
    }
    return failures ? 1 : 0;
}

#endif
