/* SPDX-License-Identifier: MIT */
/* Shared by the tests of CUDA communicators: a rank on its device, and device memory. Linked with
 * the stand-in, whose device memory the host can read. */
#ifndef TESTS_CUDA_DEVICE_H
#define TESTS_CUDA_DEVICE_H

#include "comm/comm.h"
#include "cuda/comm/group_internal.h"
#include "ranks.h"
#include "standin.h"

#include <dirent.h>
#include <stdlib.h>

/* Before any rank runs. */
static inline void device_setup(void)
{
    setenv("TUTTI_CUDA_LIBRARY", STANDIN, 1);
    setenv("XDG_CACHE_HOME", "/nonexistent", 1);
}

/* The calling thread uses that device from now on. */
static inline bool device_enter(int ordinal)
{
    CUcontext context;
    return cuInit(0) == CUDA_SUCCESS &&
           cuDevicePrimaryCtxRetain(&context, ordinal) == CUDA_SUCCESS &&
           cuCtxSetCurrent(context) == CUDA_SUCCESS;
}

static inline void *device_alloc(size_t bytes)
{
    CUdeviceptr address = 0;
    if (cuMemAlloc_v2(&address, bytes) != CUDA_SUCCESS)
        abort();
    return (void *)(uintptr_t)address;
}

static inline void device_free(void *pointer)
{
    cuMemFree_v2((CUdeviceptr)(uintptr_t)pointer);
}

/* A CUDA communicator of all ranks, each on the device of its number. */
static inline enum tutti_status device_join(const struct ranks *ranks, int rank,
                                            tutti_store_t *store,
                                            const struct tutti_comm_options *options,
                                            tutti_comm_t **comm)
{
    struct tutti_comm_options own = {.struct_size = sizeof own};
    if (options)
        own = *options;
    own.device = TUTTI_DEVICE_CUDA;
    if (!device_enter(rank))
        abort();
    return ranks_join(ranks, rank, store, &own, comm);
}

/* How long the communicator's destroy waits for operations that do not end; operations keep their
 * own time-out. */
static inline void device_destroy_within(tutti_comm_t *comm, int64_t timeout_ms)
{
    ((struct cuda_group *)comm->group)->default_timeout_ms = timeout_ms;
}

static inline tutti_stream_t device_stream(CUstream stream)
{
    return (tutti_stream_t)(void *)stream;
}

/* standin_left(), after resources of graphs that are gone have been freed; a late destructor leaves
 * them to the next communicator. */
static inline size_t device_left(void)
{
    standin_wait_idle();
    cuda_resources_sweep();
    return standin_left();
}

/* The number of entries of a folder of /proc/self: descriptors, threads. */
static inline int device_count(const char *path)
{
    int count = 0;
    DIR *folder = opendir(path);
    if (!folder)
        abort();
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

#endif
