/* SPDX-License-Identifier: MIT */
/* GPUs for the tests of process groups: of the machine, or of the stand-in for libcuda. The
 * communicators remain CPU communicators, whatever TUTTI_TEST_DEVICE says. */
#ifndef TESTS_PG_CUDA_H
#define TESTS_PG_CUDA_H

#include "../tools/gpu.h"
#include "pg.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Blocks a stream until pg_brake_release(). */
struct pg_brake {
    uint32_t go;
};

static inline void pg_brake_hold(void *argument)
{
    const struct pg_brake *brake = argument;
    while (!__atomic_load_n(&brake->go, __ATOMIC_ACQUIRE))
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static inline bool pg_brake_put(struct pg_brake *brake, tutti_stream_t stream)
{
    typedef int launch_fn(tutti_stream_t stream, void (*function)(void *), void *argument);
    const char *file = getenv("TUTTI_CUDA_LIBRARY");
    void *library = dlopen(file && *file ? file : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    launch_fn *launch = NULL;
    if (library)
        *(void **)&launch = dlsym(library, "cuLaunchHostFunc");
    brake->go = 0;
    return launch && launch(stream, pg_brake_hold, brake) == 0;
}

static inline void pg_brake_release(struct pg_brake *brake)
{
    __atomic_store_n(&brake->go, 1, __ATOMIC_RELEASE);
}

/* Memory on one GPU, which a test allocates before its ranks meet and frees after they have met for
 * the last time. In between no test allocates or frees: CUDA may wait for all kernels of the
 * process then, also for kernels that wait for a rank which itself waits for CUDA. */
struct pg_cuda_arena {
    unsigned char *memory;
    size_t bytes, used;
    int device;
};

/* These two leave the device bound. */
static inline bool pg_cuda_arena_open(struct pg_cuda_arena *arena, int device, size_t bytes)
{
    *arena = (struct pg_cuda_arena){.bytes = bytes, .device = device};
    return gpu_bind(device) && (arena->memory = gpu_alloc(bytes)) != NULL;
}

static inline void pg_cuda_arena_close(struct pg_cuda_arena *arena)
{
    if (arena->memory && gpu_bind(arena->device))
        gpu_free(arena->memory);
    arena->memory = NULL;
}

/* Any thread may call it. Returns NULL if the arena is full. To use all again, set `used` to 0. */
static inline void *pg_cuda_arena_take(struct pg_cuda_arena *arena, size_t bytes)
{
    enum { ALIGNMENT = 256 };
    const size_t room = (bytes / ALIGNMENT + 1) * ALIGNMENT;
    const size_t at = __atomic_fetch_add(&arena->used, room, __ATOMIC_RELAXED);
    return at + room <= arena->bytes ? arena->memory + at : NULL;
}

/* The device of the rank, or the one `more` devices after it. */
static inline int pg_cuda_device(int rank, int more)
{
    return gpu_open() ? (rank + more) % gpu_count() : -1;
}

static inline bool pg_cuda_bind(int rank)
{
    return gpu_bind(pg_cuda_device(rank, 0));
}

/* Create the communicator and the group: of a CPU communicator or, if `direct`, of a CUDA
 * communicator. */
static inline enum tutti_status pg_cuda_join(struct ranks *ranks, int rank, tutti_store_t *store,
                                             bool direct, tutti_comm_t **comm, tutti_pg_t **pg)
{
    const struct tutti_comm_options options = {.struct_size = sizeof options,
                                               .device = TUTTI_DEVICE_CUDA};
    const struct tutti_pg_options group = {
        .struct_size = sizeof group, .store = store, .threads = 1 + rank % 3};
    *pg = NULL;
    enum tutti_status status = ranks_join(ranks, rank, store, direct ? &options : NULL, comm);
    return status == TUTTI_OK ? tutti_pg_create(*comm, &group, pg) : status;
}

/* pg_main() for a CUDA communicator, with 2 to 4 ranks, at most one per GPU. */
static inline int pg_cuda_main_direct(bool processes, ranks_fn *const *parts, int count)
{
    int failures = 0, gpus = gpu_probe();
    for (int size = 2; size <= 4 && size <= gpus; size++) {
        struct ranks *ranks = ranks_create(size, processes ? size : 0, 0);
        for (int i = 0; i < count; i++)
            failures += ranks_run(ranks, parts[i]);
        ranks_destroy(ranks);
    }
    return failures ? 1 : 0;
}

/* A main() returns this value if it is not 0: there is no GPU, and the test is skipped. */
static inline int pg_cuda_skip(void)
{
    if (gpu_probe() > 0)
        return 0;
    printf("skipped: no GPU: %s\n", library_error());
    return 77;
}

/* A vector on the rank's device. */
static inline struct tutti_tensor pg_cuda_vector(float *data, const int64_t *size, int device)
{
    struct tutti_tensor tensor = pg_vector(data, size);
    tensor.device = TUTTI_DEVICE_CUDA;
    tensor.device_index = device;
    return tensor;
}

#endif
