/* SPDX-License-Identifier: MIT */
/*
 * What is launched: kernel, geometry within what fits at once, parameters, attributes; what the
 * call costs in calls of the driver; strict mode; a child of fork(), and a program that exits.
 */
#include "device.h"
#include "forced.h"

#include "base/signature.h"
#include "cuda/tuning/table.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 4 << 20 };

static struct standin_launch last_launch(void)
{
    struct standin_launch launch = {.grid = 0};
    (void)standin_launches(&launch, 1);
    return launch;
}

static enum tutti_status reduce(tutti_comm_t *comm, void *data, size_t bytes, int64_t timeout_ms,
                                int forced)
{
    struct tutti_call_options options = {
        .struct_size = sizeof options, .timeout_ms = timeout_ms, .algo = forced_algo(comm, forced)};
    enum tutti_status status = tutti_all_reduce_with(
        data, data, bytes / 2, TUTTI_BFLOAT16, TUTTI_SUM, comm, TUTTI_STREAM_LEGACY, &options);
    return cuCtxSynchronize() == CUDA_SUCCESS ? status : TUTTI_ERR_CUDA;
}

/* Each rank is a process here, so that the log of launches is its own. */
static int parameters(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_comm_options options = {.struct_size = sizeof options, .timeout_ms = 45000};
    tutti_comm_t *comm;
    RANKS_CHECK(device_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    void *data = device_alloc(BYTES);
    RANKS_CHECK(reduce(comm, data, 1024, 0, TUTTI_ALGO_NONE) == TUTTI_OK);
    struct standin_launch launch = last_launch();
    const char *name =
        ranks->size == 3 ? "one_shot_ll_bfloat16_sum_3_once" : "one_shot_ll_bfloat16_sum_2_once";
    RANKS_CHECK(strcmp(launch.name, name) == 0);
    const unsigned workers =
        launch.block - CUDA_CONTROL_THREADS; /* 8 bytes each, in no block too many */
    RANKS_CHECK(launch.grid == (1024 / 8 + workers - 1) / workers);
    RANKS_CHECK(launch.attribute_count == 1);
    RANKS_CHECK(launch.stream == CU_STREAM_LEGACY && !launch.captured);
    RANKS_CHECK(launch.parameters.send == data && launch.parameters.recv == data);
    RANKS_CHECK(launch.parameters.count == 512 && launch.parameters.rank == rank &&
                launch.parameters.size == ranks->size && launch.parameters.op == OP_SUM);
    RANKS_CHECK(launch.parameters.signature == signature_pack(TUTTI_COLLECTIVE_ALL_REDUCE,
                                                              TUTTI_BFLOAT16, OP_SUM,
                                                              TUTTI_ALGO_ONE_SHOT, 512));
    /* Deadlines are in the page, but for those of the call. */
    RANKS_CHECK(launch.parameters.timeout_ns == 0);
    RANKS_CHECK(launch.parameters.host->timeout_ns == UINT64_C(45000000000));
    RANKS_CHECK(reduce(comm, data, 8, 1234, TUTTI_ALGO_NONE) == TUTTI_OK);
    RANKS_CHECK(last_launch().parameters.timeout_ns == 1234000000);
    RANKS_CHECK(reduce(comm, data, 8, -1, TUTTI_ALGO_NONE) == TUTTI_OK);
    RANKS_CHECK(last_launch().parameters.timeout_ns == UINT64_MAX);
    /* The largest of a one-shot, and what only the pipeline serves. */
    RANKS_CHECK(reduce(comm, data, BYTES, 0, FORCED(TWO_SHOT_PIPELINED)) == TUTTI_OK);
    RANKS_CHECK(strncmp(last_launch().name, "two_shot_pipelined", 18) == 0);
    RANKS_CHECK(last_launch().grid <= CUDA_TILE_BLOCKS);
    RANKS_CHECK(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    RANKS_CHECK(strcmp(last_launch().name, "barrier") == 0 && last_launch().grid == 1);
    device_free(data);
    tutti_comm_destroy(comm);
    return 0;
}

/* Without loops where each worker has one whole, aligned unit at most, of each chunk. */
static int forms(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const struct {
        size_t from, to, count;
        tutti_op_t op;
        int forced;
        const char *name;
    } rows[] = {
        {0, 64, 4, TUTTI_SUM, FORCED(ONE_SHOT_LL), "one_shot_ll_bfloat16_sum_2_once"},
        {8, 72, 4, TUTTI_SUM, FORCED(ONE_SHOT_LL), "one_shot_ll_bfloat16_sum_2_once"},
        {2, 64, 4, TUTTI_SUM, FORCED(ONE_SHOT_LL), "one_shot_ll_bfloat16_sum_2"},
        {0, 66, 4, TUTTI_SUM, FORCED(ONE_SHOT_LL), "one_shot_ll_bfloat16_sum_2"},
        {0, 64, 5, TUTTI_SUM, FORCED(ONE_SHOT_LL), "one_shot_ll_bfloat16_sum_2"},
        {0, 64, 4, TUTTI_MAX, FORCED(ONE_SHOT_LL), "one_shot_ll_bfloat16"},
        {0, 64, 8, TUTTI_SUM, FORCED(ONE_SHOT_LINES), "one_shot_lines_bfloat16_sum_2_once"},
        {8, 64, 8, TUTTI_SUM, FORCED(ONE_SHOT_LINES), "one_shot_lines_bfloat16_sum_2"},
        {0, 64, 12, TUTTI_SUM, FORCED(ONE_SHOT_LINES), "one_shot_lines_bfloat16_sum_2"},
        {0, 64, 16, TUTTI_SUM, FORCED(TWO_SHOT_LINES), "two_shot_lines_bfloat16_sum_2_once"},
        {0, 64, 8, TUTTI_SUM, FORCED(TWO_SHOT_LINES), "two_shot_lines_bfloat16_sum_2"},
        /* 6 blocks of 256 workers */
        {0, 0, 24 << 10, TUTTI_SUM, FORCED(TWO_SHOT_LINES), "two_shot_lines_bfloat16_sum_2_once"},
        {0, 0, 25 << 10, TUTTI_SUM, FORCED(TWO_SHOT_LINES), "two_shot_lines_bfloat16_sum_2"},
    };
    tutti_comm_t *comm;
    setenv("TUTTI_TUNING_FILE", "", 1);
    RANKS_CHECK(device_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    unsigned char *data = device_alloc(2 * BYTES);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct tutti_call_options options = {.struct_size = sizeof options,
                                             .algo = forced_algo(comm, rows[i].forced)};
        RANKS_CHECK(tutti_all_reduce_with(data + rows[i].from, data + rows[i].to, rows[i].count,
                                          TUTTI_BFLOAT16, rows[i].op, comm, TUTTI_STREAM_LEGACY,
                                          &options) == TUTTI_OK);
        RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
        bool same = strcmp(last_launch().name, rows[i].name) == 0;
        if (!same)
            fprintf(stderr, "row %zu launches %s\n", i, last_launch().name);
        RANKS_CHECK(same);
    }
    device_free(data);
    tutti_comm_destroy(comm);
    return 0;
}

static bool is_ahead(void)
{
    struct standin_launch launch = last_launch();
    return launch.attribute_count == 1 &&
           launch.attributes[0].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
           launch.attributes[0].value.programmaticStreamSerializationAllowed == 1;
}

/* On a device of compute capability 9.0 kernels are launched programmatically, unless the option or
 * the environment says otherwise; the option comes first. */
static int programmatic(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const struct {
        enum tutti_programmatic option;
        const char *variable;
        bool on;
    } rows[] = {{TUTTI_PROGRAMMATIC_AUTO, NULL, true},  {TUTTI_PROGRAMMATIC_OFF, NULL, false},
                {TUTTI_PROGRAMMATIC_AUTO, "0", false},  {TUTTI_PROGRAMMATIC_ON, "0", true},
                {TUTTI_PROGRAMMATIC_AUTO, "yes", true}, {TUTTI_PROGRAMMATIC_OFF, "1", false}};
    char text[2048];
    tutti_comm_t *comm;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct tutti_comm_options options = {.struct_size = sizeof options,
                                             .programmatic_launch = rows[i].option};
        unsetenv("TUTTI_PROGRAMMATIC_LAUNCH");
        if (rows[i].variable)
            setenv("TUTTI_PROGRAMMATIC_LAUNCH", rows[i].variable, 1);
        RANKS_CHECK(device_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
        void *data = device_alloc(64);
        RANKS_CHECK(reduce(comm, data, 64, 0, TUTTI_ALGO_NONE) == TUTTI_OK);
        RANKS_CHECK(is_ahead() == rows[i].on);
        tutti_comm_describe(comm, text, sizeof text);
        RANKS_CHECK(
            strstr(text, rows[i].on ? "programmatic_launch: on\n" : "programmatic_launch: off\n"));
        device_free(data);
        tutti_comm_destroy(comm);
    }
    struct tutti_comm_options wrong = {.struct_size = sizeof wrong,
                                       .programmatic_launch = (enum tutti_programmatic)3};
    RANKS_CHECK(device_join(ranks, rank, store, &wrong, &comm) == TUTTI_ERR_INVALID);
    RANKS_CHECK(strstr(tutti_last_error(), "programmatic_launch 3"));
    return 0;
}

/* A communicator that is not alone on its device launches no kernel ahead that takes more than its
 * part beside the one before. */
static int ahead(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_comm_options one = {.struct_size = sizeof one, .name = "one"};
    const struct tutti_comm_options two = {.struct_size = sizeof two, .name = "two"};
    const size_t large = (size_t)16 << 20;
    tutti_comm_t *comm, *other;
    RANKS_CHECK(device_join(ranks, rank, store, &one, &comm) == TUTTI_OK);
    void *data = device_alloc(large);
    for (int i = 0; i < 2; i++) {
        RANKS_CHECK(reduce(comm, data, large, 0, TUTTI_ALGO_NONE) == TUTTI_OK);
        RANKS_CHECK(strstr(last_launch().name, "two_shot_pipelined") && is_ahead());
    }
    RANKS_CHECK(device_join(ranks, rank, store, &two, &other) == TUTTI_OK);
    static const struct {
        size_t bytes;
        bool ahead;
    } rows[] = {{64, false}, /* behind a large one */
                {64, true},  {0, false},         {64, false},
                {64, true},  {512 << 10, false}, /* 512 blocks */
                {64, false}, {64, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const size_t bytes = rows[i].bytes ? rows[i].bytes : large;
        RANKS_CHECK(reduce(comm, data, bytes, 0, TUTTI_ALGO_NONE) == TUTTI_OK);
        RANKS_CHECK(is_ahead() == rows[i].ahead);
    }
    tutti_comm_destroy(other);
    RANKS_CHECK(reduce(comm, data, large, 0, TUTTI_ALGO_NONE) == TUTTI_OK && is_ahead());
    device_free(data);
    tutti_comm_destroy(comm);
    return 0;
}

/* One launch, one look at the stream, one at the context: nothing else once the operands are known.
 */
static int cost(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const char *const once[] = {"cuLaunchKernelEx", "cuStreamGetCaptureInfo",
                                       "cuCtxGetCurrent"};
    static const char *const never[] = {"cuPointerGetAttributes", "cuEventRecord",
                                        "cuStreamWaitEvent", "cuCtxPushCurrent"};
    tutti_comm_t *comm;
    RANKS_CHECK(device_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    char *data = device_alloc(BYTES);
    RANKS_CHECK(reduce(comm, data, 1024, 0, TUTTI_ALGO_NONE) == TUTTI_OK);
    standin_forget();
    for (int i = 0; i < 10; i++)
        RANKS_CHECK(tutti_all_reduce(data + 64 * i, data + 8192, 32, TUTTI_BFLOAT16, TUTTI_SUM,
                                     comm, TUTTI_STREAM_LEGACY) == TUTTI_OK);
    for (size_t i = 0; i < sizeof once / sizeof *once; i++)
        RANKS_CHECK(standin_calls(once[i]) == 10);
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        RANKS_CHECK(standin_calls(never[i]) == 0);
    RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    device_free(data);
    tutti_comm_destroy(comm);
    return 0;
}

/* A table of an older version, whose blocks of 512 workers are read as 480, asks for more than
 * fits: with a control warp two such blocks a multiprocessor, of which there are 2. */
static int residency(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    char path[64], text[8192];
    snprintf(path, sizeof path, "/tmp/tutti-test-%d", (int)getpid());
    FILE *file = fopen(path, "w");
    RANKS_CHECK(file);
    fputs("tutti-tuning 1\n"
          "any ranks 2 bytes 100000 kernel one_shot_ll threads 512 blocks 512 units 1\n"
          "any ranks 2 bytes rest kernel two_shot_pipelined threads 512 blocks 128 units 1\n"
          "sm_90 ranks 2 bytes 100000 kernel one_shot_ll threads 512 blocks 512 units 1\n"
          "sm_90 ranks 2 bytes rest kernel two_shot_pipelined threads 512 blocks 128 units 1\n",
          file);
    fclose(file);
    setenv("TUTTI_TUNING_FILE", path, 1);
    enum tutti_status status = device_join(ranks, rank, store, NULL, &comm);
    unlink(path);
    RANKS_CHECK(status == TUTTI_OK);
    tutti_comm_describe(comm, text, sizeof text);
    RANKS_CHECK(strstr(text, "plan: one_shot_ll up to 100000 bytes, 480 threads, 4 blocks"));
    RANKS_CHECK(strstr(text, "plan of scatter: copy_ll up to 2048 bytes, 64 threads"));
    tutti_comm_destroy(comm);
    return 0;
}

/* TUTTI_ALGO names a kernel: it runs what its algorithm may run. The ranks compare it. */
static int named(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_comm_options two_shot = {
        .struct_size = sizeof two_shot, .name = "two shot", .algo = TUTTI_ALGO_TWO_SHOT};
    tutti_comm_t *comm;
    char text[4096];
    setenv("TUTTI_ALGO", "Two_Shot_Lines", 1);
    RANKS_CHECK(device_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    tutti_comm_describe(comm, text, sizeof text);
    RANKS_CHECK(strstr(text, "algorithm: two_shot\n") &&
                strstr(text, "forced_kernel: two_shot_lines\n"));
    void *data = device_alloc(BYTES);
    const struct {
        enum tutti_algo algo;
        const char *name;
    } calls[] = {{TUTTI_ALGO_NONE, "two_shot_lines_"},
                 {TUTTI_ALGO_TWO_SHOT, "two_shot_lines_"},
                 {TUTTI_ALGO_ONE_SHOT, "one_shot_ll_"}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        struct tutti_call_options options = {.struct_size = sizeof options, .algo = calls[i].algo};
        RANKS_CHECK(tutti_all_reduce_with(data, data, 4, TUTTI_BFLOAT16, TUTTI_SUM, comm,
                                          TUTTI_STREAM_LEGACY, &options) == TUTTI_OK);
        RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
        RANKS_CHECK(strncmp(last_launch().name, calls[i].name, strlen(calls[i].name)) == 0);
    }
    tutti_comm_destroy(comm);
    /* The option comes before the variable. */
    RANKS_CHECK(device_join(ranks, rank, store, &two_shot, &comm) == TUTTI_OK);
    RANKS_CHECK(tutti_all_reduce(data, data, BYTES / 2, TUTTI_INT16, TUTTI_SUM, comm,
                                 TUTTI_STREAM_LEGACY) == TUTTI_OK);
    RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    RANKS_CHECK(strcmp(last_launch().name, "two_shot_relayed_int16") == 0);
    device_free(data);
    tutti_comm_destroy(comm);
    setenv("TUTTI_ALGO", rank ? "one_shot_ll" : "one_shot_lines", 1);
    RANKS_CHECK(device_join(ranks, rank, store, NULL, &comm) == TUTTI_ERR_MISMATCH);
    RANKS_CHECK(strstr(tutti_last_error(), "one_shot by one_shot_ll"));
    static const char *const wrong[] = {"three_shot", "copy_ll"}; /* the second reduces nothing */
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        setenv("TUTTI_ALGO", wrong[i], 1);
        RANKS_CHECK(device_join(ranks, rank, store, NULL, &comm) == TUTTI_ERR_INVALID);
        RANKS_CHECK(strstr(tutti_last_error(), "a kernel as tuning files name it"));
    }
    unsetenv("TUTTI_ALGO");
    return 0;
}

static int strict(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const struct {
        enum tutti_dtype dtype;
        size_t count;
        enum tutti_algo algo;
    } rows[] = {{TUTTI_FLOAT32, 65536, TUTTI_ALGO_ONE_SHOT},
                {TUTTI_FLOAT32, 65537, TUTTI_ALGO_TWO_SHOT},
                {TUTTI_BFLOAT16, 3, TUTTI_ALGO_NONE},
                {TUTTI_FLOAT16, 64, TUTTI_ALGO_NONE}};
    struct tutti_comm_options options = {.struct_size = sizeof options, .strict = TUTTI_STRICT_ON};
    enum tutti_algo algo;
    tutti_comm_t *comm;
    RANKS_CHECK(device_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    void *data = device_alloc(BYTES);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        RANKS_CHECK(tutti_comm_algorithm(comm, rows[i].count, rows[i].dtype, TUTTI_SUM, NULL, &algo,
                                         NULL) == TUTTI_OK &&
                    algo == rows[i].algo);
        enum tutti_status status = tutti_all_reduce(data, data, rows[i].count, rows[i].dtype,
                                                    TUTTI_SUM, comm, TUTTI_STREAM_DEFAULT);
        RANKS_CHECK(status == (algo == TUTTI_ALGO_NONE ? TUTTI_ERR_DECLINED : TUTTI_OK));
        RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
        RANKS_CHECK(algo != TUTTI_ALGO_ONE_SHOT || strncmp(last_launch().name, "one_shot", 8) == 0);
        RANKS_CHECK(algo != TUTTI_ALGO_TWO_SHOT || strncmp(last_launch().name, "two_shot", 8) == 0);
    }
    device_free(data);
    tutti_comm_destroy(comm);
    return 0;
}

/* The child owns nothing: its calls are refused, its destroy frees the handle, its exit ends. */
static int forks(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm, *another;
    int how = 0;
    RANKS_CHECK(device_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    void *data = device_alloc(64);
    pid_t child = fork();
    if (child == 0) {
        struct tutti_comm_options options = {.struct_size = sizeof options,
                                             .device = TUTTI_DEVICE_CUDA};
        int wrong = tutti_all_reduce(data, data, 1, TUTTI_INT8, TUTTI_SUM, comm,
                                     TUTTI_STREAM_DEFAULT) != TUTTI_ERR_INVALID;
        wrong += tutti_comm_status(comm, NULL) != TUTTI_ERR_INVALID;
        tutti_comm_abort(comm);
        tutti_comm_destroy(comm);
        wrong += tutti_comm_create(store, rank, ranks->size, &options, &another) == TUTTI_OK;
        ranks_short() ? _exit(wrong) : exit(wrong); /* a sanitizer finds what is the parent's */
    }
    RANKS_CHECK(child > 0 && waitpid(child, &how, 0) == child && how == 0);
    RANKS_CHECK(reduce(comm, data, 64, 0, TUTTI_ALGO_NONE) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_status(comm, NULL) == TUTTI_OK);
    device_free(data);
    tutti_comm_destroy(comm);
    return 0;
}

/* A communicator that nobody destroys: its watcher is gone before the driver's exit handlers. */
static int exits(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    RANKS_CHECK(device_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    ranks_raise(ranks, 1);
    RANKS_CHECK(ranks_await(ranks, 1, (uint32_t)ranks->size));
    if (rank == 0 && !ranks_short())
        exit(0);
    return 0;
}

int main(void)
{
    static const struct ranks_part parts[] = {{"parameters", parameters, {2, 3}},
                                              {"forms", forms, {2}},
                                              {"programmatic", programmatic, {2}},
                                              {"ahead", ahead, {2}},
                                              {"cost", cost, {2}},
                                              {"residency", residency, {2}},
                                              {"strict", strict, {2}},
                                              {"named", named, {2}},
                                              {"forks", forks, {2}},
                                              {"exits", exits, {2}}};
    device_setup();
    return ranks_run_parts(parts, sizeof parts / sizeof *parts) ? 1 : 0;
}
