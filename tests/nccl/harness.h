/* SPDX-License-Identifier: MIT */
/* Ranks of the tests of libnccl.so.2: threads, each on a device of the stand-in for libcuda, whose
 * memory the host can read. */
#ifndef TESTS_NCCL_HARNESS_H
#define TESTS_NCCL_HARNESS_H

#include "../cuda/driver_more.h"
#include "nccl.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { RANKS = 3 };

/* A condition that does not hold ends the process, from any thread. */
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s [%s]\n", __FILE__, __LINE__, #condition,                    \
                    ncclGetLastError(NULL));                                                       \
            abort();                                                                               \
        }                                                                                          \
    } while (0)
#define OK(call) CHECK((call) == ncclSuccess)

static inline void harness_setup(void)
{
    setenv("TUTTI_CUDA_LIBRARY", STANDIN, 1);
    setenv("TUTTI_NCCL_LIBRARY", "/nonexistent", 0);
    setenv("TUTTI_DEBUG", "NONE", 0);
}

static inline void device_enter(int device)
{
    CUcontext context;
    CHECK(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS &&
          cuCtxSetCurrent(context) == CUDA_SUCCESS);
}

/* Freed by device_free_all(): cuMemFree() waits for all streams of the device, so while ranks of
 * this process wait for each other no thread may call it. */
static _Thread_local struct memory {
    CUdeviceptr address;
    struct memory *next;
} * memories;

static inline void *device_alloc(size_t bytes)
{
    struct memory *memory = malloc(sizeof *memory);
    CHECK(memory && cuMemAlloc_v2(&memory->address, bytes) == CUDA_SUCCESS);
    memory->next = memories;
    memories = memory;
    memset((void *)(uintptr_t)memory->address, 0, bytes);
    return (void *)(uintptr_t)memory->address;
}

static inline void device_free_all(void)
{
    for (struct memory *memory; (memory = memories);) {
        memories = memory->next;
        CHECK(cuMemFree_v2(memory->address) == CUDA_SUCCESS);
        free(memory);
    }
}

static inline cudaStream_t stream_create(void)
{
    CUstream stream;
    CHECK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    return stream;
}

static inline void stream_wait(cudaStream_t stream)
{
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
}

static inline void nap_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

/* Waits until a communicator that does not block is ready, or has failed. */
static inline ncclResult_t comm_wait(ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
        OK(ncclCommGetAsyncError(comm, &state));
        nap_ms(1);
    }
    return state;
}

struct rank {
    int rank, ranks;
    ncclUniqueId id;
    ncclComm_t comm;
    cudaStream_t stream;
    pthread_barrier_t *barrier;
    void (*run)(struct rank *self);
    bool joins; /* comm is made before run(), and destroyed behind it unless it is NULL then */
};

static inline void *rank_thread(void *opaque)
{
    struct rank *self = opaque;
    device_enter(self->rank);
    self->stream = stream_create();
    if (self->joins)
        OK(ncclCommInitRank(&self->comm, self->ranks, self->id, self->rank));
    self->run(self);
    pthread_barrier_wait(self->barrier);
    device_free_all();
    if (self->comm)
        OK(ncclCommDestroy(self->comm));
    CHECK(cuStreamDestroy_v2(self->stream) == CUDA_SUCCESS);
    return NULL;
}

static inline void ranks_run(int ranks, bool joins, void (*run)(struct rank *self))
{
    struct rank all[8];
    pthread_t threads[8];
    pthread_barrier_t barrier;
    ncclUniqueId id;
    pthread_barrier_init(&barrier, NULL, (unsigned)ranks);
    OK(ncclGetUniqueId(&id));
    for (int r = 0; r < ranks; r++) {
        all[r] = (struct rank){
            .rank = r, .ranks = ranks, .id = id, .barrier = &barrier, .run = run, .joins = joins};
        CHECK(pthread_create(&threads[r], NULL, rank_thread, &all[r]) == 0);
    }
    for (int r = 0; r < ranks; r++)
        pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&barrier);
}

/* A sum of one over all ranks shows that a communicator works. */
static inline void comm_check(ncclComm_t comm, int ranks, cudaStream_t stream)
{
    int32_t *data = device_alloc(sizeof *data);
    *data = 1;
    OK(ncclAllReduce(data, data, 1, ncclInt32, ncclSum, comm, stream));
    stream_wait(stream);
    CHECK(*data == ranks);
}

/* A configuration as a program of this NCCL version passes it: 23203 is 2.32.3. */
static inline ncclConfig_t config_of(int version, int blocking)
{
    return (ncclConfig_t){.size = sizeof(ncclConfig_t),
                          .magic = NCCL_API_MAGIC,
                          .version = version,
                          .blocking = blocking,
                          .cgaClusterSize = NCCL_CONFIG_UNDEF_INT,
                          .minCTAs = NCCL_CONFIG_UNDEF_INT,
                          .maxCTAs = NCCL_CONFIG_UNDEF_INT,
                          .splitShare = NCCL_CONFIG_UNDEF_INT,
                          .trafficClass = NCCL_CONFIG_UNDEF_INT};
}

#endif
