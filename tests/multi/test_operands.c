/* SPDX-License-Identifier: MIT */
/*
 * Operands of a CUDA communicator that are not ordinary memory of its device: pinned memory of the
 * host, memory that a graph allocates; and what is refused.
 *
 * usage: test_operands processes|threads
 */
#include "cuda/driver_more.h"
#include "device.h"
#include "pg_cuda.h"

#include <string.h>
#include <sys/mman.h>

enum { COUNT = 5000, BYTES = COUNT * 4, REPLAYS = 3 };

/* What the tests call of libcuda besides. */
static _Thread_local struct {
    __typeof__(cuMemAllocAsync) *alloc_async;
    __typeof__(cuMemFreeAsync) *free_async;
    __typeof__(cuMemHostAlloc) *host_alloc;
    __typeof__(cuMemFreeHost) *host_free;
    __typeof__(cuMemHostRegister_v2) *host_register;
    __typeof__(cuMemHostUnregister) *host_unregister;
} calls;

static bool may_capture;

static bool calls_open(void)
{
    const char *file = getenv("TUTTI_CUDA_LIBRARY");
    void *library = dlopen(file && *file ? file : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return false;
    *(void **)&calls.alloc_async = dlsym(library, "cuMemAllocAsync");
    *(void **)&calls.free_async = dlsym(library, "cuMemFreeAsync");
    *(void **)&calls.host_alloc = dlsym(library, "cuMemHostAlloc");
    *(void **)&calls.host_free = dlsym(library, "cuMemFreeHost");
    *(void **)&calls.host_register = dlsym(library, "cuMemHostRegister_v2");
    *(void **)&calls.host_unregister = dlsym(library, "cuMemHostUnregister");
    return calls.alloc_async && calls.free_async && calls.host_alloc && calls.host_free &&
           calls.host_register && calls.host_unregister;
}

struct life {
    struct ranks *ranks;
    int rank;
    tutti_comm_t *comm;
    tutti_stream_t stream;
    int32_t *data, *host;
};

static int open_life(struct life *life, struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_comm_options options = {.struct_size = sizeof options,
                                               .device = TUTTI_DEVICE_CUDA};
    *life = (struct life){.ranks = ranks, .rank = rank};
    RANKS_CHECK(calls_open() && pg_cuda_bind(rank));
    RANKS_CHECK(gpu_stream_create(&life->stream));
    RANKS_CHECK((life->data = gpu_alloc(BYTES)) != NULL);
    /* CUDA may wait for the kernels of other ranks while it allocates, so it is done before. */
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &life->comm) == TUTTI_OK);
    life->host = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    RANKS_CHECK(life->host != MAP_FAILED);
    for (int i = 0; i < COUNT; i++)
        life->host[i] = (rank + 1) * (i % 100);
    return 0;
}

static void close_life(struct life *life)
{
    tutti_comm_destroy(life->comm);
    gpu_stream_destroy(life->stream);
    gpu_free(life->data);
    munmap(life->host, BYTES);
}

static enum tutti_status reduce(const struct life *life, const void *send, void *recv)
{
    return tutti_all_reduce(send, recv, COUNT, TUTTI_INT32, TUTTI_SUM, life->comm, life->stream);
}

/* The sum over ranks, so many times over. */
static bool is_sum(const struct life *life, const int32_t *data, int times)
{
    const int size = life->ranks->size;
    int factor = size * (size + 1) / 2;
    for (int i = 1; i < times; i++)
        factor *= size;
    for (int i = 0; i < COUNT; i++)
        if (data[i] != factor * (i % 100))
            return false;
    return true;
}

/* Allocated as pinned, or pinned later; beside memory of the device, and alone. */
static int pinned(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct life life;
    void *block = NULL;
    int failed = open_life(&life, ranks, rank, store);
    if (failed)
        return failed;
    RANKS_CHECK(calls.host_alloc(&block, BYTES, 0) == CUDA_SUCCESS);
    RANKS_CHECK(calls.host_register(life.host, BYTES, CU_MEMHOSTREGISTER_DEVICEMAP) ==
                CUDA_SUCCESS);
    RANKS_CHECK(ranks_meet(ranks, 0)); /* no kernel waits for a rank that pins memory */
    for (int i = 0; i < 2; i++) {      /* asked for, then known */
        RANKS_CHECK(reduce(&life, life.host, block) == TUTTI_OK);
        RANKS_CHECK(gpu_stream_synchronize(life.stream) && is_sum(&life, block, 1));
        RANKS_CHECK(reduce(&life, life.host, life.data) == TUTTI_OK);
        RANKS_CHECK(reduce(&life, life.data, life.data) == TUTTI_OK);
        RANKS_CHECK(reduce(&life, life.data, block) == TUTTI_OK);
        RANKS_CHECK(gpu_stream_synchronize(life.stream) && is_sum(&life, block, 3));
    }
    RANKS_CHECK(reduce(&life, life.host, life.host) == TUTTI_OK);
    RANKS_CHECK(gpu_stream_synchronize(life.stream) && is_sum(&life, life.host, 1));
    RANKS_CHECK(calls.host_unregister(life.host) == CUDA_SUCCESS);
    RANKS_CHECK(calls.host_free(block) == CUDA_SUCCESS);
    close_life(&life);
    return 0;
}

/* The graph allocates the memory, and frees it. */
static int of_graph(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct life life;
    CUdeviceptr address = 0;
    int failed = open_life(&life, ranks, rank, store);
    if (failed)
        return failed;
    const CUstream on = (CUstream)(void *)life.stream;
    RANKS_CHECK(gpu_capture_begin(life.stream));
    RANKS_CHECK(calls.alloc_async(&address, BYTES, on) == CUDA_SUCCESS);
    void *memory = (void *)(uintptr_t)address;
    RANKS_CHECK(gpu_copy_async(memory, life.data, BYTES, life.stream));
    RANKS_CHECK(reduce(&life, memory, memory) == TUTTI_OK);
    RANKS_CHECK(gpu_copy_async(life.data, memory, BYTES, life.stream));
    RANKS_CHECK(calls.free_async(address, on) == CUDA_SUCCESS);
    void *graph = gpu_capture_end(life.stream);
    RANKS_CHECK(graph);
    RANKS_CHECK(gpu_copy(life.data, life.host, BYTES));
    RANKS_CHECK(ranks_meet(ranks, 0)); /* no kernel waits for a rank that makes its graph */
    for (int i = 0; i < REPLAYS; i++)
        RANKS_CHECK(gpu_graph_launch(graph, life.stream));
    RANKS_CHECK(gpu_stream_synchronize(life.stream));
    RANKS_CHECK(tutti_comm_status(life.comm, NULL) == TUTTI_OK);
    RANKS_CHECK(gpu_copy(life.host, life.data, BYTES) && is_sum(&life, life.host, REPLAYS));
    gpu_graph_destroy(graph);
    close_life(&life);
    return 0;
}

static bool refused(const struct life *life, void *memory)
{
    return reduce(life, life->data, memory) == TUTTI_ERR_INVALID &&
           strstr(tutti_last_error(), "host memory that is not pinned") &&
           strstr(tutti_last_error(), "cudaHostRegister()") &&
           reduce(life, memory, life->data) == TUTTI_ERR_INVALID;
}

/* Memory of the host that is not pinned, and addresses of nobody. */
static int refuses(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct life life;
    int failed = open_life(&life, ranks, rank, store);
    if (failed)
        return failed;
    void *nowhere = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    RANKS_CHECK(nowhere != MAP_FAILED);
    RANKS_CHECK(refused(&life, life.host) && refused(&life, nowhere));
    if (may_capture) {
        RANKS_CHECK(gpu_capture_begin(life.stream));
        RANKS_CHECK(refused(&life, life.host));
        RANKS_CHECK(reduce(&life, life.data, life.data) == TUTTI_OK);
        void *graph = gpu_capture_end(life.stream);
        RANKS_CHECK(graph);
        gpu_graph_destroy(graph);
    }
    munmap(nowhere, BYTES);
    close_life(&life);
    return 0;
}

int main(int argc, char **argv)
{
    const bool processes = argc > 1 && strcmp(argv[1], "processes") == 0;
    const int gpus = gpu_probe();
    int failures = 0, runs = 0;
    if (gpus == 0) {
        printf("skipped: %s\n", library_error());
        return 77;
    }
    for (int size = 2; size <= 3; size++) {
        const bool shares = size > gpus;
        may_capture = !(shares && processes);
        if (shares && (!gpu_may_be_shared() || (!processes && device_skips_threads(size))))
            continue;
        runs++;
        struct ranks *ranks = ranks_create(size, processes ? size : 0, 0);
        failures += ranks_run(ranks, pinned);
        failures += may_capture ? ranks_run(ranks, of_graph) : 0;
        failures += ranks_run(ranks, refuses);
        ranks_destroy(ranks);
    }
    return failures ? 1 : runs ? 0 : 77;
}
