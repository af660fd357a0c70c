/* SPDX-License-Identifier: MIT */
/*
 * What a CUDA communicator refuses, in which order, in words; and every driver call that fails
 * during its creation, one after the other: both ranks hear of it, and nothing is left.
 */
#include "base/record.h"
#include "failing_calls.h"
#include "tutti/recorder.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- before the store is touched, each in a process of its own --------------------------------
 */

struct refusal {
    const char *name, *value; /* of a variable, or NULL */
    struct tutti_comm_options options;
    int size;
    bool context;
    enum tutti_status status;
    const char *first, *second; /* words of the message */
    bool touches;
};

static int refuse(const struct refusal *refusal)
{
    struct tutti_comm_options options = refusal->options;
    tutti_comm_t *comm;
    int64_t keys = 0;
    tutti_store_t *store;
    if (refusal->name)
        setenv(refusal->name, refusal->value, 1);
    if (refusal->context)
        CHECK(device_enter(0));
    CHECK(tutti_store_open("memory:refuse", 1000, &store) == TUTTI_OK);
    options.struct_size = sizeof options;
    options.device = TUTTI_DEVICE_CUDA;
    options.timeout_ms = 200;
    CHECK(tutti_comm_create(store, 0, refusal->size, &options, &comm) == refusal->status);
    CHECK(!comm);
    CHECK(strstr(tutti_last_error(), refusal->first) &&
          strstr(tutti_last_error(), refusal->second));
    CHECK(tutti_store_num_keys(store, &keys) == TUTTI_OK && (keys != 0) == refusal->touches);
    tutti_store_close(store);
    return 0;
}

static const struct refusal rows[] = {
    {NULL, NULL, {0}, 2, true, TUTTI_ERR_TIMEOUT, "", "", true}, /* nothing to refuse */
    {"TUTTI_DISABLE", "1", {0}, 2, true, TUTTI_ERR_DECLINED, "TUTTI_DISABLE", "", false},
    {NULL, NULL, {0}, 9, true, TUTTI_ERR_DECLINED, "world size 9", "1 to 8", false},
    {NULL,
     NULL,
     {0},
     2,
     false,
     TUTTI_ERR_DECLINED,
     "no current CUDA context",
     "cudaSetDevice",
     false},
    {"TUTTI_CUDA_LIBRARY",
     "/nonexistent/libcuda.so",
     {0},
     2,
     false,
     TUTTI_ERR_DECLINED,
     "no CUDA",
     "nonexistent",
     false},
    {"TUTTI_STANDIN_CAPABILITY", "7.5", {0}, 2, true, TUTTI_ERR_DECLINED, "7.5", "8.0", false},
    {NULL,
     NULL,
     {.algo = TUTTI_ALGO_HYBRID_CUBE_MESH},
     2,
     true,
     TUTTI_ERR_INVALID,
     "hybrid_cube_mesh",
     "8 ranks, not 2",
     false},
    {"TUTTI_ALGO",
     "hybrid_cube_mesh",
     {0},
     2,
     true,
     TUTTI_ERR_INVALID,
     "hybrid_cube_mesh",
     "8 ranks, not 2",
     false},
    {"TUTTI_TUNING_FILE",
     "/nonexistent/table",
     {0},
     2,
     true,
     TUTTI_ERR_SYSTEM,
     "/nonexistent/table",
     "TUTTI_TUNING_FILE",
     false},
    {"TUTTI_STANDIN_FAIL",
     "cuDeviceGetName:1:1",
     {0},
     2,
     true,
     TUTTI_ERR_CUDA,
     "cuDeviceGetName",
     "CUDA_ERROR_INVALID_VALUE",
     false},
};

/* Where there are stubs in place of kernels, and the driver finds none in them. */
static const struct refusal without_kernels = {
    "TUTTI_STANDIN_FAIL",         "cuLibraryGetKernel:1:209", {0},   2, true, TUTTI_ERR_DECLINED,
    "built without CUDA kernels", "make deps CUDA=1",         false,
};

static int refuse_in_child(const struct refusal *refusal)
{
    int how = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(refuse(refusal));
    if (child > 0 && waitpid(child, &how, 0) == child && how == 0)
        return 0;
    fprintf(stderr, "refusal \"%s\", %s failed\n", refusal->first, refusal->second);
    return 1;
}

extern const unsigned char cuda_fatbin_barrier[];

static int refusals(void)
{
    int failures = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        failures += refuse_in_child(&rows[i]);
    if (standin_fatbin_bytes(cuda_fatbin_barrier) == 0)
        failures += refuse_in_child(&without_kernels);
    return failures;
}

/* ---- between the ranks ----------------------------------------------------------------------- */

/* The file of a rank's own, that says something else. */
static int write_table(const char *path, int threads)
{
    FILE *file = fopen(path, "w");
    CHECK(file);
    fprintf(file,
            "tutti-tuning 1\nany ranks 2 bytes rest kernel two_shot_pipelined threads %d blocks 8 "
            "units 1\n",
            threads);
    return fclose(file) ? 1 : 0;
}

static int disagree(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_comm_options options = {.struct_size = sizeof options,
                                         .timeout_ms = RANKS_TIMEOUT_MS};
    char path[64], words[96];
    tutti_comm_t *comm;
    /* Both on device 0: by whatever number. */
    RANKS_CHECK(device_enter(0));
    options.device = TUTTI_DEVICE_CUDA;
    RANKS_CHECK(tutti_comm_create(store, rank, 2, &options, &comm) == TUTTI_ERR_DECLINED);
    RANKS_CHECK(strstr(tutti_last_error(), "ranks 0 and 1") &&
                strstr(tutti_last_error(), "00102030405060708090a0b0c0d0e0f0"));

    RANKS_CHECK(device_enter(rank));
    options.name = "mixed";
    options.device = rank ? TUTTI_DEVICE_CUDA : TUTTI_DEVICE_CPU;
    RANKS_CHECK(tutti_comm_create(store, rank, 2, &options, &comm) == TUTTI_ERR_MISMATCH);
    RANKS_CHECK(strstr(tutti_last_error(), "device"));

    snprintf(path, sizeof path, "/tmp/tutti-test-%d-%d", (int)getpid(), rank);
    RANKS_CHECK(write_table(path, 64 + 32 * rank) == 0);
    setenv("TUTTI_TUNING_FILE", path, 1); /* of this process */
    options.name = "tables";
    options.device = TUTTI_DEVICE_CUDA;
    enum tutti_status status = tutti_comm_create(store, rank, 2, &options, &comm);
    snprintf(words, sizeof words, "rank %d has %s", rank, path);
    unlink(path);
    RANKS_CHECK(status == TUTTI_ERR_MISMATCH && strstr(tutti_last_error(), "tuning table") &&
                strstr(tutti_last_error(), words));
    RANKS_CHECK(standin_left() == 0);
    unsetenv("TUTTI_TUNING_FILE");
    return 0;
}

/* What goes wrong with the links, or is asked for, in words; then all goes through the host's
 * memory, unless an algorithm is asked for that goes between devices. */
static int go_staged(struct ranks *ranks, int rank, tutti_store_t *store, const char *why)
{
    const struct tutti_comm_options direct = {.struct_size = sizeof direct,
                                              .algo = TUTTI_ALGO_TWO_SHOT};
    char text[4096];
    tutti_comm_t *comm;
    RANKS_CHECK(device_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    tutti_comm_describe(comm, text, sizeof text);
    RANKS_CHECK(strstr(text, "arena: in the host's memory: ") && strstr(text, why));
    RANKS_CHECK(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(cuStreamSynchronize(0) == CUDA_SUCCESS);
    RANKS_CHECK(tutti_comm_status(comm, NULL) == TUTTI_OK);
    tutti_comm_destroy(comm);
    if (!getenv("TUTTI_ALGO")) {
        RANKS_CHECK(device_join(ranks, rank, store, &direct, &comm) == TUTTI_ERR_DECLINED);
        RANKS_CHECK(strstr(tutti_last_error(), why));
    }
    RANKS_CHECK(standin_left() == 0);
    return 0;
}

static int separate(struct ranks *ranks, int rank, tutti_store_t *store)
{
    setenv("TUTTI_STANDIN_NO_PEER", "0-1", 1); /* read when the driver is opened */
    return go_staged(ranks, rank, store, "peer access");
}

/* A link that loses what is pushed. */
static int lossy(struct ranks *ranks, int rank, tutti_store_t *store)
{
    setenv("TUTTI_STANDIN_LOST", "1 0", 1);
    return go_staged(ranks, rank, store, "device 0 did not receive within 2000 ms what rank 1's");
}

static int staged(struct ranks *ranks, int rank, tutti_store_t *store)
{
    setenv("TUTTI_ALGO", "host_staged", 1);
    return go_staged(ranks, rank, store, "asked for");
}

/* Two ranks of one device, which both have to allow. */
static int share(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_comm_options options = {.struct_size = sizeof options,
                                               .device = TUTTI_DEVICE_CUDA};
    char text[4096];
    tutti_comm_t *comm;
    RANKS_CHECK(device_enter(0));
    setenv("TUTTI_ALLOW_OVERLAPPING_DEVICES", rank ? "0" : "1", 1);
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_ERR_DECLINED);
    RANKS_CHECK(strstr(tutti_last_error(), "(rank 1 has not)"));
    setenv("TUTTI_ALLOW_OVERLAPPING_DEVICES", "1", 1);
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    tutti_comm_describe(comm, text, sizeof text);
    RANKS_CHECK(strstr(text, "arena: none, for a host thread stages: processes share a device"));
    tutti_comm_destroy(comm);
    setenv("TUTTI_STANDIN_NO_WORDS", "1", 1);
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_ERR_DECLINED);
    RANKS_CHECK(strstr(tutti_last_error(), "wait for a word") &&
                strstr(tutti_last_error(), "threads of one process"));
    RANKS_CHECK(standin_left() == 0);
    return 0;
}

/* Two processes of one device: each algorithm of kernels is refused, with the algorithm, both ranks
 * and the remedies named; what a host thread does is not. */
static int share_forced(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_comm_options options = {.struct_size = sizeof options,
                                         .device = TUTTI_DEVICE_CUDA};
    tutti_comm_t *comm;
    RANKS_CHECK(device_enter(0));
    setenv("TUTTI_ALLOW_OVERLAPPING_DEVICES", "1", 1);
    setenv("TUTTI_ALGO", "two_shot", 1);
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_ERR_DECLINED);
    unsetenv("TUTTI_ALGO");
    for (int algo = TUTTI_ALGO_ONE_SHOT; algo < TUTTI_ALGO_HOST_STAGED; algo++) {
        if (algo > TUTTI_ALGO_TWO_SHOT && algo != TUTTI_ALGO_RING) /* of 8 ranks, or none */
            continue;
        options.algo = (enum tutti_algo)algo;
        RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_ERR_DECLINED);
        RANKS_CHECK(strstr(tutti_last_error(), tutti_algo_name(options.algo)));
        RANKS_CHECK(strstr(tutti_last_error(), "ranks 0 and 1 are processes that share a device"));
        RANKS_CHECK(strstr(tutti_last_error(), "force none or host_staged"));
        RANKS_CHECK(standin_left() == 0);
    }
    options.algo = TUTTI_ALGO_HOST_STAGED;
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    tutti_comm_destroy(comm);
    RANKS_CHECK(standin_left() == 0);
    return 0;
}

/* CUDA says whether NVLink leads to all; else NVML counts the links; without it those who access
 * each other are asked. A topology file comes before all of these. */
static const struct {
    const char *library, *links, *file;
    enum tutti_topology topology;
    const char *words[2];
    bool nvlink;
} matrices[] = {
    {"/nonexistent/nvml",
     NULL,
     NULL,
     TUTTI_TOPOLOGY_FULLY_CONNECTED,
     {"topology_source: NVLink to all", "links: X 1\nlinks: 1 X\n"},
     true},
    {NVML_STANDIN,
     "11,0",
     NULL,
     TUTTI_TOPOLOGY_FULLY_CONNECTED,
     {"topology_source: NVLinks", "links: X 2\nlinks: 1 X\n"},
     false},
    {NVML_STANDIN,
     "ss,ss",
     NULL,
     TUTTI_TOPOLOGY_FULLY_CONNECTED,
     {"topology_source: NVLinks", "links: X 2\nlinks: 2 X\n"},
     false},
    {NVML_STANDIN,
     "1,",
     NULL,
     TUTTI_TOPOLOGY_UNKNOWN,
     {"rank 0 is linked to rank 1, but not back", "links: X 1\nlinks: 0 X\n"},
     false},
    {"/nonexistent/nvml",
     NULL,
     NULL,
     TUTTI_TOPOLOGY_FULLY_CONNECTED,
     {"topology_source: peer access", "links: X 1\nlinks: 1 X\n"},
     false},
    {"/nonexistent/nvml",
     NULL,
     "tutti-topology 1\nranks 2\nX 6\n5 X\n",
     TUTTI_TOPOLOGY_FULLY_CONNECTED,
     {"every pair is linked", "links: X 6\nlinks: 5 X\n"},
     false},
};

static int detect(struct ranks *ranks, int rank, tutti_store_t *store)
{
    char path[64], text[4096];
    tutti_comm_t *comm;
    RANKS_CHECK(device_enter(rank));
    snprintf(path, sizeof path, "/tmp/tutti-test-detect-%d-%d", (int)getpid(), rank);
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
        setenv("TUTTI_NVML_LIBRARY", matrices[i].library, 1);
        setenv("TUTTI_STANDIN_LINKS", matrices[i].links ? matrices[i].links : "", 1);
        if (matrices[i].nvlink)
            setenv("TUTTI_STANDIN_NVLINK", "1", 1);
        else
            unsetenv("TUTTI_STANDIN_NVLINK");
        if (matrices[i].file) {
            FILE *file = fopen(path, "w");
            RANKS_CHECK(file && fputs(matrices[i].file, file) >= 0 && fclose(file) == 0);
            setenv("TUTTI_TOPOLOGY_FILE", path, 1);
        }
        enum tutti_status status = device_join(ranks, rank, store, NULL, &comm);
        unlink(path);
        unsetenv("TUTTI_TOPOLOGY_FILE");
        RANKS_CHECK(status == TUTTI_OK && tutti_comm_topology(comm) == matrices[i].topology);
        tutti_comm_describe(comm, text, sizeof text);
        RANKS_CHECK(strstr(text, matrices[i].words[0]) && strstr(text, matrices[i].words[1]));
        tutti_comm_destroy(comm);
    }
    return 0;
}

/* The error of a creation that fails is not replaced by one of the clean-up behind it. */
static int clean_up_fails(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    if (rank == 1)
        setenv("TUTTI_STANDIN_FAIL", "cuKernelGetFunction:1,cuEventQuery:0", 1);
    RANKS_CHECK(device_enter(rank));
    RANKS_CHECK(device_join(ranks, rank, store, NULL, &comm) == TUTTI_ERR_CUDA);
    RANKS_CHECK(strstr(tutti_last_error(), "cuKernelGetFunction"));
    return 0;
}

/* ---- every call fails in turn ---------------------------------------------------------------- */

/* Without their versions. Those before the store is touched are the refusals' above; destroying and
 * freeing cannot fail a creation. */
static const char *const calls[] = {
    "cuMemGetAllocationGranularity",
    "cuMemCreate",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer",
    "cuLaunchKernelEx",
    "cuMemsetD8Async",
    "cuMemcpyAsync",
    "cuLibraryGetKernel",
    "cuKernelGetFunction",
    "cuFuncLoad",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuStreamCreateWithPriority",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuThreadExchangeStreamCaptureMode",
};

/* Creates, and duplicates what was created. */
static int create_once(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct failing_calls_outcome *outcome = (struct failing_calls_outcome *)(void *)ranks->shared;
    tutti_comm_t *comm, *dup;
    RANKS_CHECK(device_enter(rank));
    outcome->whole[rank] = 0;
    if (device_join(ranks, rank, store, NULL, &comm) == TUTTI_OK) {
        outcome->whole[rank] = tutti_comm_dup(comm, NULL, &dup) == TUTTI_OK;
        RANKS_CHECK(!dup == !outcome->whole[rank]);
        tutti_comm_destroy(dup);
        tutti_comm_destroy(comm);
    } else {
        RANKS_CHECK(!comm);
    }
    return 0;
}

static int fail_in_turn(void)
{
    return failing_calls_run(
        &(struct failing_calls){.once = create_once,
                                .shared_bytes = sizeof(struct failing_calls_outcome),
                                .calls = calls,
                                .count = sizeof calls / sizeof *calls,
                                .doubling = true,
                                .left = standin_left});
}

/* A dump before the ranks have met tells of the device already. */
static int dumped_early(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_comm_options options = {
        .struct_size = sizeof options, .device = TUTTI_DEVICE_CUDA, .defer = true};
    struct record_page page;
    char path[64];
    tutti_comm_t *comm;
    snprintf(path, sizeof path, "/tmp/tutti-test-%d-%d", (int)getpid(), rank);
    RANKS_CHECK(device_enter(rank));
    RANKS_CHECK(tutti_comm_create(store, rank, 2, &options, &comm) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_dump(comm, path) == TUTTI_OK);
    FILE *file = fopen(path, "r");
    RANKS_CHECK(file && fread(&page, sizeof page, 1, file) == 1);
    fclose(file);
    unlink(path);
    RANKS_CHECK(page.phase == RECORD_MEETING && page.device == TUTTI_DEVICE_CUDA);
    tutti_comm_destroy(comm);
    return 0;
}

static int run(ranks_fn *fn)
{
    struct ranks *ranks = ranks_create(2, 2, 0);
    int failures = ranks_run(ranks, fn);
    ranks_destroy(ranks);
    return failures;
}

int main(void)
{
    device_setup();
    int failures = refusals() + run(disagree) + run(separate) + run(lossy) + run(staged) +
                   run(share) + run(share_forced) + run(detect) + run(clean_up_fails) +
                   run(dumped_early);
    return failures + fail_in_turn() ? 1 : 0;
}
