/* SPDX-License-Identifier: MIT */
/* A rank with two streams and some ones to reduce, for the tests of streams. */
#ifndef TESTS_CUDA_STREAMS_H
#define TESTS_CUDA_STREAMS_H

#include "device.h"

enum { COUNT = 1000 };

struct rank {
    struct ranks *ranks;
    int rank;
    tutti_comm_t *comm;
    CUstream a, b;
    int32_t *data;
};

static inline int open_rank(struct rank *self, struct ranks *ranks, int rank, tutti_store_t *store)
{
    *self = (struct rank){.ranks = ranks, .rank = rank};
    RANKS_CHECK(device_join(ranks, rank, store, NULL, &self->comm) == TUTTI_OK);
    RANKS_CHECK(cuStreamCreateWithPriority(&self->a, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamCreateWithPriority(&self->b, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    self->data = device_alloc(COUNT * sizeof *self->data);
    for (int i = 0; i < COUNT; i++)
        self->data[i] = 1;
    return 0;
}

static inline void close_rank(struct rank *self)
{
    tutti_comm_destroy(self->comm);
    cuStreamDestroy(self->a);
    cuStreamDestroy(self->b);
    device_free(self->data);
}

#endif
