/* SPDX-License-Identifier: MIT */
/*
 * Kernels whose rows fail while their blocks start. A kernel with barriers of the block decides
 * once a block whether it takes part; if each warp decided, some would leave and the others would
 * wait in a barrier, which has no deadline. One rank's kernels run here, of which the peers never
 * come, so each launch ends by its time-out. Rows fail meanwhile: by the kernel itself, whose later
 * blocks start as its first ones fail; by memsets amid the start; by the host's word. Every launch
 * has to end. Needs a GPU; the stand-in for libcuda runs no kernels. usage: test_rows [ROUNDS]
 */
#include "base/deadline.h"
#include "base/device_trace.h"
#include "cuda/driver/kernels.h"
#include "cuda/driver/wrappers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    ROUNDS = 4000,
    SHORT_ROUNDS = 400,
    DATA_BYTES = 32 << 20,
    ARENAS_BYTES =
        2 * (int)sizeof(struct cuda_arena), /* blocks beyond CUDA_TILE_BLOCKS stay within */
    END_MS = 10000,
    MESH_RANKS = 8,
};

static const struct cuda_driver *driver;

/* What a round launches. */
static struct {
    struct cuda_arena *own, *theirs; /* the device's */
    unsigned char *data;
    struct device_trace *page; /* the host's */
    struct cuda_host *host;
    struct cuda_kernels kernels[2]; /* of 2 ranks, of 8 */
    CUstream stream, other;
    CUevent event;
    int multiprocessors;
} bed;

static void check(CUresult result, const char *call)
{
    if (result == CUDA_SUCCESS)
        return;
    cuda_check(driver, result, call);
    fprintf(stderr, "%s\n", tutti_last_error());
    _exit(1);
}
#define CHECK_CUDA(call) check(driver->call, #call)

static unsigned draw(unsigned below)
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)(state >> 32) % below;
}

static void fill(const void *from, unsigned char byte, size_t bytes, CUstream stream)
{
    CHECK_CUDA(memset_d8_async((CUdeviceptr)(uintptr_t)from, byte, bytes, stream));
}

static void *device_memory(size_t bytes)
{
    CUdeviceptr address = 0;
    CHECK_CUDA(mem_alloc(&address, bytes));
    return (void *)(uintptr_t)address;
}

/* False where there is no GPU. */
static bool set_up(void)
{
    CUcontext context;
    CUdeviceptr page;
    CUdevice device = 0;
    void *memory;
    if (getenv("TUTTI_CUDA_LIBRARY") || cuda_driver_open(&driver) != TUTTI_OK)
        return false;
    CHECK_CUDA(primary_retain(&context, device));
    CHECK_CUDA(ctx_push(context));
    CHECK_CUDA(
        device_attribute(&bed.multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
    CHECK_CUDA(stream_create(&bed.stream, CU_STREAM_NON_BLOCKING, 0));
    CHECK_CUDA(stream_create(&bed.other, CU_STREAM_NON_BLOCKING, 0));
    CHECK_CUDA(event_create(&bed.event, CU_EVENT_DISABLE_TIMING));
    CHECK_CUDA(mem_host_alloc(&memory, sizeof(struct device_trace), CU_MEMHOSTALLOC_DEVICEMAP));
    CHECK_CUDA(mem_host_device_pointer(&page, memory, 0));
    bed.page = memory;
    bed.host = (struct cuda_host *)(uintptr_t)page;
    bed.own = device_memory(ARENAS_BYTES);
    bed.theirs = device_memory(ARENAS_BYTES);
    bed.data = device_memory(2 * (size_t)DATA_BYTES);
    fill(bed.own, 0, ARENAS_BYTES, bed.stream);
    fill(bed.own->one_shot, 0xff, sizeof *bed.own - offsetof(struct cuda_arena, one_shot),
         bed.stream);
    fill(bed.data, 0, 2 * (size_t)DATA_BYTES, bed.stream);
    for (int i = 0; i < 2; i++)
        if (cuda_kernels_load(driver, i ? MESH_RANKS : 2, false, &bed.kernels[i]) != TUTTI_OK) {
            fprintf(stderr, "%s\n", tutti_last_error());
            _exit(1);
        }
    return true;
}

static struct cuda_launch launch_of(int size, size_t count, uint64_t timeout_ns)
{
    struct cuda_launch launch = {
        .own = bed.own,
        .control = &bed.own->control,
        .host = bed.host,
        .send = bed.data,
        .recv = bed.data + DATA_BYTES,
        .count = count,
        .signature = 1,
        .timeout_ns = timeout_ns,
        .op = OP_SUM,
        .size = size,
        .tag = 7,
    };
    if (size == MESH_RANKS)
        launch.mesh = (struct cuda_mesh){.quarters = {0, 1, 2, 3}, .partner = 4};
    else
        launch.ring = (struct cuda_ring){.position = 0, .before = 1, .after = 1};
    for (int p = 0; p < size; p++) {
        launch.peers[p] = launch.arenas[p] = p ? bed.theirs : bed.own;
        launch.ranks[p] = (uint8_t)p;
    }
    return launch;
}

static void pass(int64_t ns)
{
    const int64_t end = deadline_now() + ns;
    while (deadline_now() < end)
        ;
}

/* Rows fail while the blocks start: all at once, or some after others. */
static void rows_fail(void)
{
    const unsigned parts = 1u << draw(4);
    const size_t bytes = sizeof bed.own->control.rows / parts;
    pass(draw(20000));
    for (unsigned part = 0; part < parts; part++)
        fill((unsigned char *)bed.own->control.rows + part * bytes, 1, bytes, bed.other);
    fill(&bed.own->control.failed, 1, sizeof bed.own->control.failed, bed.other);
}

static bool round_run(unsigned round)
{
    static const struct {
        enum cuda_kernel kernel;
        enum tutti_dtype dtype;
        enum cuda_form form;
        int size, bytes; /* of an element */
        unsigned workers;
    } rows[] = {
        {CUDA_TWO_SHOT_PIPELINED, TUTTI_FLOAT32, CUDA_SUM, 2, 4, CUDA_WORKERS},
        {CUDA_TWO_SHOT_PIPELINED, TUTTI_BFLOAT16, CUDA_SUM, 8, 2, CUDA_WORKERS},
        {CUDA_MESH, TUTTI_FLOAT32, CUDA_ANY, MESH_RANKS, 4, 192},
        {CUDA_RING, TUTTI_FLOAT32, CUDA_ANY, 2, 4, CUDA_WORKERS},
    };
    const unsigned which = draw(sizeof rows / sizeof *rows), way = draw(3);
    const unsigned waves = (unsigned)bed.multiprocessors * (1 + draw(4));
    const unsigned blocks = waves < CUDA_BLOCKS ? waves : CUDA_BLOCKS;
    struct cuda_launch launch = launch_of(
        rows[which].size, (DATA_BYTES >> draw(4)) / rows[which].bytes, 20000 + draw(400000));
    launch.columns = (uint8_t)(blocks < UINT8_MAX ? blocks : UINT8_MAX);
    void *parameters[] = {&launch};
    const CUlaunchConfig config = {.gridDimX = blocks,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = rows[which].workers + CUDA_CONTROL_THREADS,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .hStream = bed.stream};
    const CUfunction function =
        bed.kernels[rows[which].size == MESH_RANKS]
            .functions[rows[which].kernel][rows[which].dtype][rows[which].form];
    memset(bed.page, 0, sizeof *bed.page);
    fill(&bed.own->control, 0, sizeof bed.own->control, bed.stream);
    CHECK_CUDA(stream_synchronize(bed.stream));
    CHECK_CUDA(launch(&config, function, parameters, NULL));
    if (way == 1)
        rows_fail();
    if (way == 2) {
        pass(draw(200000));
        __atomic_store_n(&((struct cuda_host *)(void *)bed.page)->stop, TUTTI_ERR_ABORTED,
                         __ATOMIC_RELAXED);
    }
    CHECK_CUDA(event_record(bed.event, bed.stream));
    const int64_t end = deadline_after(END_MS);
    for (;;) {
        CUresult result = driver->event_query(bed.event);
        if (result != CUDA_ERROR_NOT_READY) {
            check(result, "cuEventQuery");
            break;
        }
        if (deadline_passed(end)) {
            fprintf(stderr,
                    "round %u: kernel %d, dtype %d, %d ranks, %u blocks, rows failed in way %u: it "
                    "does not end\n",
                    round, (int)rows[which].kernel, (int)rows[which].dtype, rows[which].size,
                    blocks, way);
            return false;
        }
    }
    CHECK_CUDA(stream_synchronize(bed.other)); /* its memsets are over before rows are reset */
    return true;
}

int main(int argc, char **argv)
{
    if (!set_up()) {
        puts("skipped: there is no GPU");
        return 77;
    }
    unsigned rounds = getenv("TUTTI_TEST_SHORT") ? SHORT_ROUNDS : ROUNDS;
    if (argc > 1)
        rounds = (unsigned)atoi(argv[1]);
    for (unsigned round = 0; round < rounds; round++)
        if (!round_run(round))
            _exit(1); /* nothing can be freed while it runs */
    printf("%u rounds ended\n", rounds);
    return 0;
}
