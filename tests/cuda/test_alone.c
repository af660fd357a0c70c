/* SPDX-License-Identifier: MIT */
/*
 * A communicator of one rank: a copy on the stream or a kernel, with the bits of a CPU rank; order,
 * captures, messages to itself, children, its end, and each call of the driver that fails.
 */
#include "failing_calls.h"
#include "shrink.h"
#include "tutti/pg.h"

#include <string.h>

enum { COUNT = 1000, LARGE = (3 << 20) / 4 + 3, DTYPE_BYTES_MOST = 16 };

struct alone {
    struct ranks *ranks;
    tutti_comm_t *comm;
    CUstream a, b;
    int32_t *from, *to; /* LARGE elements */
};

static int alone_open(struct alone *self, struct ranks *ranks, tutti_store_t *store)
{
    const int rank = 0;
    *self = (struct alone){.ranks = ranks};
    RANKS_CHECK(device_join(ranks, 0, store, NULL, &self->comm) == TUTTI_OK);
    RANKS_CHECK(cuStreamCreateWithPriority(&self->a, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamCreateWithPriority(&self->b, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    self->from = device_alloc(LARGE * sizeof *self->from);
    self->to = device_alloc(LARGE * sizeof *self->to);
    for (int i = 0; i < LARGE; i++) {
        self->from[i] = i + 1;
        self->to[i] = 0;
    }
    return 0;
}

static void alone_close(struct alone *self)
{
    tutti_comm_destroy(self->comm);
    cuStreamDestroy_v2(self->a);
    cuStreamDestroy_v2(self->b);
    device_free(self->from);
    device_free(self->to);
}

static bool is_copied(const struct alone *self, int count)
{
    for (int i = 0; i < LARGE; i++)
        if (self->to[i] != (i < count ? i + 1 : 0))
            return false;
    return true;
}

static enum tutti_status reduce(const struct alone *self, const void *send, void *recv,
                                enum tutti_dtype dtype, CUstream stream)
{
    return tutti_all_reduce(send, recv, COUNT, dtype, TUTTI_SUM, self->comm, device_stream(stream));
}

static void stand_still(void *argument)
{
    const uint32_t *go = argument;
    while (!__atomic_load_n(go, __ATOMIC_ACQUIRE))
        usleep(100);
}

static int describes(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_call_options options = {.struct_size = sizeof options};
    struct alone self;
    enum tutti_algo algo;
    const char *reason;
    char text[4096];
    standin_forget();
    int failed = alone_open(&self, ranks, store);
    if (failed)
        return failed;
    /* rms_norm_rows of 3 dtypes, and reduce_alone */
    RANKS_CHECK(standin_calls("cuKernelGetFunction") == 3 + DTYPE_REALS);
    RANKS_CHECK(standin_calls("cuMemCreate") == 0);
    tutti_comm_describe(self.comm, text, sizeof text);
    RANKS_CHECK(strstr(text, "world_size: 1\n") && strstr(text, "device: cuda"));
    RANKS_CHECK(strstr(text, "arena: none, for the rank is alone\ndevice_arena_bytes: 0\n"));
    RANKS_CHECK(strstr(
        text, "plan: reduce_alone for floats, bool and premul_sum if reduced, else a copy\n"));
    RANKS_CHECK(!strstr(text, "host_staged"));
    RANKS_CHECK(tutti_comm_algorithm(self.comm, 10, TUTTI_INT32, TUTTI_SUM, NULL, &algo, &reason) ==
                    TUTTI_OK &&
                algo == TUTTI_ALGO_ONE_SHOT && strstr(reason, "copies on its stream"));
    RANKS_CHECK(tutti_comm_algorithm(self.comm, 10, TUTTI_FLOAT32, TUTTI_SUM, NULL, &algo,
                                     &reason) == TUTTI_OK &&
                algo == TUTTI_ALGO_ONE_SHOT && strstr(reason, "kernel of a rank alone"));
    for (int asked = TUTTI_ALGO_ONE_SHOT; asked <= TUTTI_ALGO_HOST_STAGED; asked++) {
        if (!strcmp(tutti_algo_name((enum tutti_algo)asked), "unknown"))
            continue;
        const bool serves = asked <= TUTTI_ALGO_TWO_SHOT || asked == TUTTI_ALGO_HOST_STAGED;
        options.algo = (enum tutti_algo)asked;
        RANKS_CHECK(tutti_all_reduce_with(self.from, self.to, COUNT, TUTTI_FLOAT32, TUTTI_SUM,
                                          self.comm, device_stream(self.a),
                                          &options) == (serves ? TUTTI_OK : TUTTI_ERR_INVALID));
    }
    RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS && is_copied(&self, COUNT));
    RANKS_CHECK(standin_calls("cuLaunchKernelEx") == 3);
    alone_close(&self);
    return 0;
}

/* A reduction of the CPU rank's input, in place, behind another block, and of operands that are not
 * aligned; a sum of products with the scalar in memory, too. */
static int has_bits_of(struct ranks *ranks, struct alone *self, const void *send,
                       const void *wanted, enum tutti_dtype dtype, tutti_op_t op,
                       const void *scalar)
{
    const int rank = 0;
    const size_t width = tutti_dtype_size(dtype), bytes = COUNT * width, count = COUNT, first = 1;
    const tutti_stream_t stream = device_stream(self->a);
    char *from = (char *)self->from, *to = (char *)self->to;
    tutti_op_t products = op;
    if (scalar) {
        memcpy(to + 2 * bytes, scalar, width);
        RANKS_CHECK(tutti_op_create_premul_sum_device(to + 2 * bytes, dtype, &products) ==
                    TUTTI_OK);
    }
    memset(to, 0, bytes);
    memcpy(from, send, bytes);
    RANKS_CHECK(tutti_all_reduce(from, to, COUNT, dtype, op, self->comm, stream) == TUTTI_OK);
    RANKS_CHECK(cuStreamSynchronize(self->a) == CUDA_SUCCESS && memcmp(wanted, to, bytes) == 0);
    memset(to, 0, bytes + width);
    memcpy(from + width, send, bytes);
    RANKS_CHECK(tutti_reduce_scatter_v(from, &count, &first, to + width, dtype, products,
                                       self->comm, stream) == TUTTI_OK);
    RANKS_CHECK(tutti_reduce_scatter(from + width, from + width, COUNT, dtype, products, self->comm,
                                     stream) == TUTTI_OK);
    RANKS_CHECK(cuStreamSynchronize(self->a) == CUDA_SUCCESS);
    RANKS_CHECK(memcmp(wanted, to + width, bytes) == 0);
    RANKS_CHECK(memcmp(wanted, from + width, bytes) == 0);
    if (scalar)
        tutti_op_destroy(products);
    return 0;
}

/* The bits of a CPU rank, for all bytes that an input may have. */
static int has_bits(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static unsigned char send[COUNT * DTYPE_BYTES_MOST], recv[sizeof send];
    const struct tutti_comm_options options = {.struct_size = sizeof options, .name = "cpu"};
    tutti_comm_t *cpu;
    const int64_t minus_five = -5;
    tutti_op_t third, whole;
    struct alone self;
    uint32_t random = 1;
    int failed = alone_open(&self, ranks, store);
    if (failed)
        return failed;
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &cpu) == TUTTI_OK);
    RANKS_CHECK(tutti_op_create_premul_sum(1. / 3, &third) == TUTTI_OK);
    RANKS_CHECK(tutti_op_create_premul_sum(-5, &whole) == TUTTI_OK);
    for (size_t i = 0; i < sizeof send; i++) {
        random = random * 1664525 + 1013904223;
        send[i] = i < 2048 && i % 4 > 1 ? 0xff : (unsigned char)(random >> 24); /* NaN, too */
    }
    for (int dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++)
        for (int kind = 1; kind < OP_COUNT; kind++) {
            const bool is_float = dtype_is_float((enum tutti_dtype)dtype);
            const tutti_op_t op = kind != OP_PREMUL_SUM ? (tutti_op_t)(uintptr_t)kind
                                  : is_float            ? third
                                                        : whole;
            if (!op_serves((enum op_kind)kind, (enum tutti_dtype)dtype))
                continue;
            memset(recv, 0, sizeof recv);
            RANKS_CHECK(tutti_all_reduce(send, recv, COUNT, (enum tutti_dtype)dtype, op, cpu,
                                         TUTTI_STREAM_DEFAULT) == TUTTI_OK);
            RANKS_CHECK(has_bits_of(ranks, &self, send, recv, (enum tutti_dtype)dtype, op,
                                    kind == OP_PREMUL_SUM && !is_float ? &minus_five : NULL) == 0);
        }
    tutti_op_destroy(third);
    tutti_op_destroy(whole);
    tutti_comm_destroy(cpu);
    alone_close(&self);
    return 0;
}

/* From stream to stream each operation sees the one before, copies and reductions alike. */
static int keeps_order(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct alone self;
    uint32_t go = 0;
    int failed = alone_open(&self, ranks, store);
    if (failed)
        return failed;
    int32_t *between = device_alloc(LARGE * sizeof *between);
    memset(between, 0, LARGE * sizeof *between);
    RANKS_CHECK(cuLaunchHostFunc(self.a, stand_still, &go) == CUDA_SUCCESS);
    RANKS_CHECK(tutti_broadcast(self.from, between, LARGE, TUTTI_INT32, 0, self.comm,
                                device_stream(self.a)) == TUTTI_OK);
    RANKS_CHECK(tutti_all_gather(between, self.to, LARGE, TUTTI_INT32, self.comm,
                                 device_stream(self.b)) == TUTTI_OK);
    __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
    RANKS_CHECK(cuStreamSynchronize(self.b) == CUDA_SUCCESS && is_copied(&self, LARGE));

    /* Behind a reduction, a barrier and a message to itself; all bits are those of whole numbers.
     */
    memset(self.to, 0, LARGE * sizeof *self.to);
    memset(between, 0, LARGE * sizeof *between);
    go = 0;
    RANKS_CHECK(cuLaunchHostFunc(self.b, stand_still, &go) == CUDA_SUCCESS);
    RANKS_CHECK(tutti_all_reduce(self.from, between, LARGE, TUTTI_FLOAT32, TUTTI_MAX, self.comm,
                                 device_stream(self.b)) == TUTTI_OK);
    RANKS_CHECK(tutti_barrier(self.comm, NULL, 0, device_stream(self.a)) == TUTTI_OK);
    RANKS_CHECK(tutti_group_start() == TUTTI_OK);
    RANKS_CHECK(tutti_send(between, LARGE, TUTTI_INT32, 0, self.comm, device_stream(self.a)) ==
                TUTTI_OK);
    RANKS_CHECK(tutti_recv(self.to, LARGE, TUTTI_INT32, 0, self.comm, device_stream(self.a)) ==
                TUTTI_OK);
    RANKS_CHECK(tutti_group_end() == TUTTI_OK);
    __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
    RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS && is_copied(&self, LARGE));
    RANKS_CHECK(tutti_comm_finalize(self.comm, RANKS_TIMEOUT_MS) == TUTTI_OK);
    device_free(between);
    alone_close(&self);
    return 0;
}

/* Copies and reductions are captured, across streams. A scalar in memory is read at each launch. */
static int is_captured(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct alone self;
    CUgraph graph;
    CUgraphExec exec;
    CUevent fork, join;
    int failed = alone_open(&self, ranks, store);
    if (failed)
        return failed;
    const size_t count = COUNT;
    tutti_op_t products;
    int32_t *between = device_alloc(2 * COUNT * sizeof *between), *scalar = between + COUNT;
    memset(between, 0, 2 * COUNT * sizeof *between);
    RANKS_CHECK(tutti_op_create_premul_sum_device(scalar, TUTTI_INT32, &products) == TUTTI_OK);
    RANKS_CHECK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    RANKS_CHECK(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamBeginCapture_v2(self.a, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    RANKS_CHECK(cuEventRecord(fork, self.a) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamWaitEvent(self.b, fork, 0) == CUDA_SUCCESS);
    RANKS_CHECK(tutti_barrier(self.comm, NULL, 0, device_stream(self.a)) == TUTTI_OK);
    RANKS_CHECK(tutti_gather_v(self.from, COUNT, between, &count, NULL, TUTTI_INT32, 0, self.comm,
                               device_stream(self.a)) == TUTTI_OK);
    RANKS_CHECK(reduce(&self, between, between, TUTTI_INT32, self.a) == TUTTI_OK);
    RANKS_CHECK(tutti_all_reduce(between, between, COUNT, TUTTI_INT32, products, self.comm,
                                 device_stream(self.a)) == TUTTI_OK);
    RANKS_CHECK(reduce(&self, between, self.to, TUTTI_FLOAT32, self.b) == TUTTI_OK);
    RANKS_CHECK(reduce(&self, self.to, self.to, TUTTI_UINT32, self.b) == TUTTI_OK);
    RANKS_CHECK(cuEventRecord(join, self.b) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamWaitEvent(self.a, join, 0) == CUDA_SUCCESS);
    RANKS_CHECK(cuStreamEndCapture(self.a, &graph) == CUDA_SUCCESS);
    RANKS_CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
    RANKS_CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
    RANKS_CHECK(is_copied(&self, 0));
    for (int i = 0; i < 3; i++) {
        *scalar = i + 1;
        memset(self.to, 0, COUNT * sizeof *self.to);
        RANKS_CHECK(cuGraphLaunch(exec, self.a) == CUDA_SUCCESS);
        RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS);
        for (int k = 0; k < COUNT; k++)
            RANKS_CHECK(self.to[k] == (k + 1) * (i + 1));
        if (i == 1) {
            tutti_comm_destroy(self.comm);
            self.comm = NULL;
        }
    }
    RANKS_CHECK(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
    tutti_op_destroy(products);
    cuEventDestroy_v2(fork);
    cuEventDestroy_v2(join);
    device_free(between);
    alone_close(&self);
    return 0;
}

/* After an abort a reduction still runs once its input has come; then the rank shrinks to itself.
 * What it had completed is known. */
static int aborts(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_shrink_result result;
    struct alone self;
    tutti_comm_t *shrunk;
    uint32_t go = 0;
    for (int held = 0; held < 2; held++) {
        int failed = alone_open(&self, ranks, store);
        if (failed)
            return failed;
        RANKS_CHECK(reduce(&self, self.from, self.to, TUTTI_FLOAT32, self.a) == TUTTI_OK);
        RANKS_CHECK(tutti_barrier(self.comm, NULL, 0, device_stream(self.b)) == TUTTI_OK);
        RANKS_CHECK(reduce(&self, self.from, self.to, TUTTI_INT32, self.b) == TUTTI_OK);
        RANKS_CHECK(cuStreamSynchronize(self.b) == CUDA_SUCCESS && is_copied(&self, COUNT));
        go = !held;
        RANKS_CHECK(cuLaunchHostFunc(self.a, stand_still, &go) == CUDA_SUCCESS);
        if (held)
            RANKS_CHECK(reduce(&self, self.from, self.to, TUTTI_FLOAT32, self.a) == TUTTI_OK);
        tutti_comm_abort(self.comm);
        __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
        RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS);
        RANKS_CHECK(tutti_comm_status(self.comm, NULL) == TUTTI_ERR_ABORTED);
        RANKS_CHECK(reduce(&self, self.from, self.to, TUTTI_INT32, self.a) == TUTTI_ERR_ABORTED);
        RANKS_CHECK(shrink_without(self.comm, store, -1, &shrunk, &result) == TUTTI_OK);
        RANKS_CHECK(result.completed_by_all == (uint64_t)(3 + held));
        tutti_comm_destroy(self.comm);
        self.comm = shrunk;
        memset(self.to, 0, LARGE * sizeof *self.to);
        RANKS_CHECK(reduce(&self, self.from, self.to, TUTTI_FLOAT32, self.a) == TUTTI_OK);
        RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS && is_copied(&self, COUNT));
        alone_close(&self);
    }
    return 0;
}

/* A child of it, a child of that one, and a process group. */
static int has_children(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const int64_t size = COUNT;
    struct tutti_pg_options options = {.struct_size = sizeof options, .store = store};
    struct alone self;
    tutti_comm_t *sub, *dup;
    tutti_pg_t *pg;
    tutti_work_t *work;
    int failed = alone_open(&self, ranks, store);
    if (failed)
        return failed;
    const struct tutti_tensor tensor = {.struct_size = sizeof tensor,
                                        .data = self.to,
                                        .dtype = TUTTI_INT32,
                                        .dims = 1,
                                        .sizes = &size,
                                        .device = TUTTI_DEVICE_CUDA};
    RANKS_CHECK(tutti_comm_split(self.comm, 7, 0, NULL, &sub) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_dup(sub, NULL, &dup) == TUTTI_OK);
    tutti_comm_destroy(self.comm);
    tutti_comm_destroy(sub);
    self.comm = dup;
    for (int listed = 0; listed < 2; listed++) {
        options.ranks = listed ? &rank : NULL;
        options.rank_count = listed;
        memset(self.to, 0, LARGE * sizeof *self.to);
        RANKS_CHECK(tutti_pg_create(dup, &options, &pg) == TUTTI_OK);
        RANKS_CHECK(reduce(&self, self.from, self.to, TUTTI_FLOAT32, self.a) == TUTTI_OK);
        RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS);
        RANKS_CHECK(tutti_pg_all_reduce(pg, &tensor, 1, TUTTI_SUM, NULL, &work) == TUTTI_OK);
        RANKS_CHECK(tutti_work_wait_host(work, RANKS_TIMEOUT_MS) == TUTTI_OK);
        RANKS_CHECK(is_copied(&self, COUNT));
        tutti_work_destroy(work);
        tutti_pg_destroy(pg);
    }
    alone_close(&self);
    return 0;
}

/* A device whose streams cannot wait for a word serves all of it. */
static int needs_no_words(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_shrink_result result;
    struct alone self;
    tutti_comm_t *shrunk;
    setenv("TUTTI_STANDIN_NO_WORDS", "1", 1);
    int failed = alone_open(&self, ranks, store);
    if (failed)
        return failed;
    RANKS_CHECK(reduce(&self, self.from, self.to, TUTTI_FLOAT32, self.a) == TUTTI_OK);
    RANKS_CHECK(cuStreamSynchronize(self.a) == CUDA_SUCCESS && is_copied(&self, COUNT));
    RANKS_CHECK(shrink_without(self.comm, store, -1, &shrunk, &result) == TUTTI_OK);
    RANKS_CHECK(result.completed_by_all == 1);
    tutti_comm_destroy(self.comm);
    self.comm = shrunk;
    alone_close(&self);
    unsetenv("TUTTI_STANDIN_NO_WORDS");
    return 0;
}

/* ---- each call of the driver fails in turn --------------------------------------------------- */

static const char *const calls[] = {
    "cuMemHostGetDevicePointer",
    "cuStreamCreateWithPriority",
    "cuEventCreate",
    "cuPointerGetAttributes",
    "cuMemcpyAsync",
    "cuThreadExchangeStreamCaptureMode",
    "cuMemHostAlloc",
    "cuLibraryGetKernel",
    "cuLaunchKernelEx",
};

/* The runner has two ranks: the second one has nothing to do. */
static int run_once(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct failing_calls_outcome *outcome = (struct failing_calls_outcome *)(void *)ranks->shared;
    const struct tutti_comm_options options = {
        .struct_size = sizeof options, .device = TUTTI_DEVICE_CUDA, .timeout_ms = RANKS_TIMEOUT_MS};
    tutti_comm_t *comm;
    if (rank)
        return 0;
    RANKS_CHECK(device_enter(0));
    int32_t *data = device_alloc(2 * COUNT * sizeof *data);
    enum tutti_status status = tutti_comm_create(store, 0, 1, &options, &comm);
    outcome->whole[0] = outcome->whole[1] = status == TUTTI_OK;
    if (status == TUTTI_OK)
        status =
            tutti_broadcast(data, data + COUNT, COUNT, TUTTI_INT32, 0, comm, TUTTI_STREAM_LEGACY);
    if (status == TUTTI_OK)
        status = tutti_all_reduce(data, data + COUNT, COUNT, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                  TUTTI_STREAM_LEGACY);
    /* An operand that the driver does not know is INVALID. */
    RANKS_CHECK(status == TUTTI_OK || status == TUTTI_ERR_CUDA || status == TUTTI_ERR_INVALID);
    RANKS_CHECK(cuStreamSynchronize(CU_STREAM_LEGACY) == CUDA_SUCCESS);
    tutti_comm_destroy(comm);
    device_free(data);
    return 0;
}

static int run(const char *name, ranks_fn *fn)
{
    struct ranks *ranks = ranks_create(1, 0, 0);
    const int failed = ranks_run(ranks, fn);
    ranks_destroy(ranks);
    if (failed)
        fprintf(stderr, "%s failed\n", name);
    return failed;
}

int main(void)
{
    static const struct {
        const char *name;
        ranks_fn *fn;
    } parts[] = {
        {"describes", describes},     {"has bits", has_bits}, {"keeps order", keeps_order},
        {"is captured", is_captured}, {"aborts", aborts},     {"needs no words", needs_no_words},
    };
    int failures = 0;
    device_setup();
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        failures += run(parts[i].name, parts[i].fn);
    failures += failing_calls_run(
        &(struct failing_calls){.once = run_once,
                                .shared_bytes = sizeof(struct failing_calls_outcome),
                                .calls = calls,
                                .count = sizeof calls / sizeof *calls,
                                .doubling = true,
                                .left = device_left});
    failures += run("has children", has_children); /* the process keeps what groups had of CUDA */
    return failures ? 1 : 0;
}
