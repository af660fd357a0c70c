/* SPDX-License-Identifier: MIT */
/*
 * The limit of blocks: no kernel of a collective has more, whether the communicator, the call, the
 * environment or a process group set it, captured or not, with the same results. The limits of
 * ranks' calls differ. Those of messages and v-forms: test_exchange.c, test_v_kernels.c.
 */
#include "../../tools/collective_call.h"
#include "device.h"
#include "forced.h"
#include "tutti/pg.h"

#include <stdio.h>
#include <string.h>

enum {
    LARGE = 4 << 20, /* bytes of an operand, at most */
    LAUNCHES = 64,
    ROOT = 1,
};

static bool launched[CUDA_KERNELS];

static struct standin_launch last_launch(void)
{
    struct standin_launch launch = {.grid = 0};
    (void)standin_launches(&launch, 1);
    return launch;
}

/* The most blocks of any launch since standin_forget(). Notes which kernels they were. */
static unsigned most_blocks(void)
{
    static struct standin_launch launches[LAUNCHES];
    const size_t count = standin_launches(launches, LAUNCHES);
    unsigned most = 0;
    for (size_t i = 0; i < count && i < LAUNCHES; i++) {
        most = launches[i].grid > most ? launches[i].grid : most;
        for (int k = 0; k < CUDA_KERNELS; k++) {
            const struct cuda_kernel_row *row = &cuda_kernel_rows[k];
            if (strncmp(launches[i].name, row->name, strlen(row->name)) == 0)
                launched[k] = true;
        }
    }
    return most;
}

struct operands {
    struct ranks *ranks;
    int rank;
    tutti_comm_t *comm;
    float *send, *recv;
};

/* Small whole numbers, so that sums are exact. */
static float value(int rank, size_t i)
{
    return (float)(rank * 64 + (int)(i % 61));
}

static int operands_open(struct operands *self, struct ranks *ranks, int rank, tutti_comm_t *comm)
{
    *self = (struct operands){.ranks = ranks,
                              .rank = rank,
                              .comm = comm,
                              .send = device_alloc(LARGE),
                              .recv = device_alloc(LARGE)};
    for (size_t i = 0; i < LARGE / sizeof *self->send; i++)
        self->send[i] = value(rank, i);
    return 0;
}

static void operands_close(struct operands *self)
{
    device_free(self->send);
    device_free(self->recv);
}

/* Element k of the result, of blocks of `count` elements. */
static float expected(const struct operands *self, enum tutti_collective which, size_t count,
                      size_t k)
{
    const struct coll *coll = &coll_rows[which];
    const int from = coll->recv_all ? (int)(k / count) : ROOT;
    const size_t at = k % count + (coll->send_all ? (size_t)self->rank * count : 0);
    float sum = 0;
    if (!coll->reduces)
        return value(from, at);
    for (int r = 0; r < self->ranks->size; r++)
        sum += value(r, at);
    return sum;
}

static enum tutti_status call(const struct operands *self, enum tutti_collective which,
                              size_t count, tutti_stream_t stream,
                              const struct tutti_call_options *options)
{
    if (which == TUTTI_COLLECTIVE_BARRIER)
        return tutti_barrier_with(self->comm, NULL, 0, stream, options);
    return collective_call_on(stream, which, self->send, self->recv, &count, TUTTI_FLOAT32,
                              TUTTI_SUM, ROOT, self->comm, options);
}

static int result_check(const struct operands *self, enum tutti_collective which, size_t count)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    const struct coll *coll = &coll_rows[which];
    const bool has = coll_has(coll->recv, rank, ROOT) && which != TUTTI_COLLECTIVE_BARRIER;
    const size_t blocks = coll->recv_all ? (size_t)ranks->size : 1;
    for (size_t k = 0; k < blocks * count && has; k++)
        RANKS_CHECK(self->recv[k] == expected(self, which, count, k));
    return 0;
}

/* Runs a collective with a limit of the call. *most: the blocks of its kernels. */
static int run(const struct operands *self, enum tutti_collective which, size_t count, int forced,
               int max_blocks, unsigned *most)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    const struct tutti_call_options options = {.struct_size = sizeof options,
                                               .algo = forced_algo(self->comm, forced),
                                               .max_blocks = max_blocks};
    memset(self->recv, 0xff, LARGE);
    standin_forget();
    RANKS_CHECK(call(self, which, count, TUTTI_STREAM_DEFAULT, &options) == TUTTI_OK);
    RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    *most = most_blocks();
    return result_check(self, which, count);
}

/* The least of two limits, of which 0 is none. */
static unsigned least(unsigned a, unsigned b)
{
    return !a || (b && b < a) ? b : a;
}

/* One collective by one kernel, with several limits of the call, which differ between the ranks.
 * Its grid is what it is without, but for the limit. */
static int limits_check(const struct operands *self, enum tutti_collective which, size_t count,
                        int forced, unsigned of_comm)
{
    static const int limits[] = {1, 3, 7, 100, 5000};
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    const size_t step = count * sizeof(float) * (size_t)ranks->size > LARGE / 2 ? 2 : 1;
    unsigned usual, most;
    int failed = run(self, which, count, forced, 0, &usual);
    RANKS_CHECK(failed || (usual >= 1 && usual == least(usual, of_comm)));
    for (size_t i = 0; i < sizeof limits / sizeof *limits && !failed; i += step) {
        const int limit = limits[(i + (size_t)rank) % (sizeof limits / sizeof *limits)];
        failed = run(self, which, count, forced, limit, &most);
        if (!failed && most != least(usual, (unsigned)limit))
            fprintf(stderr, "%s of %zu: %u blocks, without limit %u, limit %d\n",
                    tutti_collective_name(which), count, most, usual, limit);
        RANKS_CHECK(failed || most == least(usual, (unsigned)limit));
    }
    return failed;
}

/* Every kernel of tables, and the ring: in a communicator without a limit, and in one with. */
static int kernels(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const size_t bytes[] = {1000, 200000, LARGE};
    static const int limits[] = {0, 4};
    struct operands self;
    tutti_comm_t *comm;
    int failed = 0;
    for (size_t l = 0; l < sizeof limits / sizeof *limits; l++) {
        const struct tutti_comm_options options = {.struct_size = sizeof options,
                                                   .max_blocks = limits[l]};
        RANKS_CHECK(device_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
        RANKS_CHECK(operands_open(&self, ranks, rank, comm) == 0);
        for (int c = 0; c <= TUTTI_COLLECTIVE_SPLIT; c++) {
            if (!cuda_kernel_serves(c) || coll_rows[c].peer == COLL_PARTNER || coll_rows[c].varies)
                continue;
            for (size_t b = 0; b < sizeof bytes / sizeof *bytes && !failed; b++)
                failed = limits_check(&self, c, bytes[b] / sizeof(float) / (size_t)ranks->size,
                                      TUTTI_ALGO_NONE, (unsigned)limits[l]);
        }
        for (int k = 0; k < FORCED_TUNED && !failed; k++)
            failed = limits_check(&self, TUTTI_COLLECTIVE_ALL_REDUCE, 40000, FORCED_KERNEL + k,
                                  (unsigned)limits[l]);
        if (!failed)
            failed = limits_check(&self, TUTTI_COLLECTIVE_ALL_REDUCE, LARGE / sizeof(float),
                                  TUTTI_ALGO_RING, (unsigned)limits[l]);
        if (failed)
            return failed;
        operands_close(&self);
        tutti_comm_destroy(comm);
    }
    for (int k = 0; k < CUDA_KERNELS; k++)
        if (cuda_kernel_rows[k].collectives && !cuda_kernel_rows[k].symmetric && k != CUDA_MESH &&
            k != CUDA_EXCHANGE && k != CUDA_EXCHANGE_COUNTED && k != CUDA_REDUCE_VARIED &&
            k != CUDA_REDUCE_COUNTED && k != CUDA_TWO_SHOT_RELAYED && k != CUDA_RMS_NORM_LINES &&
            k != CUDA_RMS_NORM_TWO_SHOT && /* agree/test_rms_norm */
            cuda_kernel_rows[k].least <= ranks->size && !launched[k]) {
            fprintf(stderr, "%s was not launched\n", cuda_kernel_rows[k].name);
            RANKS_CHECK(launched[k]);
        }
    return 0;
}

/* The kernels that need more than two ranks, and the two-shot of integers. */
static int mesh(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct operands self;
    tutti_comm_t *comm;
    RANKS_CHECK(device_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    RANKS_CHECK(operands_open(&self, ranks, rank, comm) == 0);
    int failed = limits_check(&self, TUTTI_COLLECTIVE_ALL_REDUCE, LARGE / sizeof(float),
                              TUTTI_ALGO_HYBRID_CUBE_MESH, 0);
    RANKS_CHECK(failed || launched[CUDA_MESH]);
    if (!failed)
        failed =
            limits_check(&self, TUTTI_COLLECTIVE_ALL_REDUCE, 160000, FORCED(TWO_SHOT_PIPELINED), 0);
    for (int c = TUTTI_COLLECTIVE_BROADCAST; c <= TUTTI_COLLECTIVE_REDUCE && !failed; c++)
        failed = limits_check(&self, (enum tutti_collective)c, LARGE / sizeof(float) / 8,
                              TUTTI_ALGO_NONE, 0);
    RANKS_CHECK(failed || (launched[CUDA_COPY_RELAYED] && launched[CUDA_REDUCE_RELAYED]));
    const unsigned limit = 1 + 4 * ((unsigned)rank % 3);
    const struct tutti_call_options options = {.struct_size = sizeof options,
                                               .max_blocks = (int)limit};
    RANKS_CHECK(failed ||
                tutti_all_reduce_with(self.send, self.recv, LARGE / sizeof(float), TUTTI_INT32,
                                      TUTTI_MAX, comm, TUTTI_STREAM_DEFAULT, &options) == TUTTI_OK);
    RANKS_CHECK(failed || (strcmp(last_launch().name, "two_shot_relayed_int32") == 0 &&
                           last_launch().grid == limit));
    RANKS_CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    operands_close(&self);
    tutti_comm_destroy(comm);
    return failed;
}

static bool describes(const tutti_comm_t *comm, const char *line)
{
    static char text[8192];
    tutti_comm_describe(comm, text, sizeof text);
    return strstr(text, line);
}

/* The blocks of a large all-reduce. */
static int large(const struct operands *self, unsigned *most)
{
    return run(self, TUTTI_COLLECTIVE_ALL_REDUCE, LARGE / sizeof(float), TUTTI_ALGO_NONE, 0, most);
}

/* Where the limit comes from, and who inherits it. The least of all ranks holds. */
static int sources(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const struct {
        int options[2];
        const char *variables[2];
        unsigned limit;
    } rows[] = {{{6, 5}, {NULL, NULL}, 5},
                {{6, 0}, {NULL, NULL}, 6},
                {{0, 0}, {"9", "8"}, 8},
                {{20, 0}, {"2", "30"}, 20},
                {{0, 0}, {"0", ""}, 0}};
    tutti_comm_t *comm, *sub;
    struct operands self;
    char line[32];
    unsigned most;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct tutti_comm_options options = {.struct_size = sizeof options,
                                             .max_blocks = rows[i].options[rank]};
        unsetenv("TUTTI_MAX_BLOCKS");
        if (rows[i].variables[rank])
            setenv("TUTTI_MAX_BLOCKS", rows[i].variables[rank], 1);
        RANKS_CHECK(device_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
        RANKS_CHECK(operands_open(&self, ranks, rank, comm) == 0);
        snprintf(line, sizeof line, "max_blocks: %u\n", rows[i].limit);
        RANKS_CHECK(describes(comm, line) == (rows[i].limit != 0));
        RANKS_CHECK(rows[i].limit || !describes(comm, "max_blocks"));
        RANKS_CHECK(large(&self, &most) == 0);
        RANKS_CHECK(rows[i].limit ? most == rows[i].limit : most > 30);
        options = (struct tutti_comm_options){.struct_size = sizeof options, .max_blocks = 0};
        for (int own = 0; own < 2; own++) {
            options.max_blocks = own ? 11 + rank : 0;
            RANKS_CHECK(tutti_comm_split(comm, 0, 0, &options, &sub) == TUTTI_OK);
            self.comm = sub;
            RANKS_CHECK(large(&self, &most) == 0);
            RANKS_CHECK(own ? most == 11 : rows[i].limit ? most == rows[i].limit : most > 30);
            tutti_comm_destroy(sub);
        }
        operands_close(&self);
        tutti_comm_destroy(comm);
    }
    static const char *const wrong[] = {"few", "-1", "3000000000"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        setenv("TUTTI_MAX_BLOCKS", wrong[i], 1);
        RANKS_CHECK(device_join(ranks, rank, store, NULL, &comm) == TUTTI_ERR_INVALID);
        RANKS_CHECK(strstr(tutti_last_error(), "TUTTI_MAX_BLOCKS=") &&
                    strstr(tutti_last_error(), wrong[i]));
    }
    unsetenv("TUTTI_MAX_BLOCKS");
    const struct tutti_comm_options negative = {.struct_size = sizeof negative, .max_blocks = -2};
    RANKS_CHECK(device_join(ranks, rank, store, &negative, &comm) == TUTTI_ERR_INVALID);
    RANKS_CHECK(strstr(tutti_last_error(), "max_blocks -2: expected"));
    return 0;
}

/* A call's limit, in a group of calls and in a graph, whose replays have it too. Refusals. */
static int calls(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const size_t count = LARGE / sizeof(float);
    struct tutti_call_options options = {.struct_size = sizeof options, .max_blocks = 13};
    struct operands self;
    tutti_comm_t *comm;
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    RANKS_CHECK(device_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    RANKS_CHECK(operands_open(&self, ranks, rank, comm) == 0);
    RANKS_CHECK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    standin_forget();
    RANKS_CHECK(tutti_group_start() == TUTTI_OK);
    RANKS_CHECK(call(&self, TUTTI_COLLECTIVE_ALL_REDUCE, count, device_stream(stream), &options) ==
                TUTTI_OK);
    RANKS_CHECK(tutti_group_end() == TUTTI_OK);
    RANKS_CHECK(last_launch().grid == 13);
    RANKS_CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    RANKS_CHECK(call(&self, TUTTI_COLLECTIVE_ALL_REDUCE, count, device_stream(stream), &options) ==
                TUTTI_OK);
    RANKS_CHECK(last_launch().grid == 13 && last_launch().captured);
    RANKS_CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    RANKS_CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
    for (int i = 0; i < 3; i++) {
        memset(self.recv, 0xff, LARGE);
        RANKS_CHECK(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
        RANKS_CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
        RANKS_CHECK(result_check(&self, TUTTI_COLLECTIVE_ALL_REDUCE, count) == 0);
    }
    RANKS_CHECK(cuGraphExecDestroy(exec) == CUDA_SUCCESS && cuGraphDestroy(graph) == CUDA_SUCCESS);
    options.max_blocks = -1;
    RANKS_CHECK(call(&self, TUTTI_COLLECTIVE_BROADCAST, 4, TUTTI_STREAM_DEFAULT, &options) ==
                TUTTI_ERR_INVALID);
    RANKS_CHECK(strstr(tutti_last_error(), "tutti_broadcast: max_blocks -1: expected"));
    RANKS_CHECK(tutti_comm_status(comm, NULL) == TUTTI_OK);
    operands_close(&self);
    tutti_comm_destroy(comm);
    RANKS_CHECK(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
    return 0;
}

/* A process group's own limit, or that of its communicator. */
static int group(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_comm_options options = {.struct_size = sizeof options, .max_blocks = 10};
    const int64_t sizes[] = {LARGE / sizeof(float)};
    struct operands self;
    tutti_comm_t *comm;
    tutti_work_t *work;
    tutti_pg_t *pg;
    RANKS_CHECK(device_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    RANKS_CHECK(operands_open(&self, ranks, rank, comm) == 0);
    const struct tutti_tensor tensor = {.struct_size = sizeof tensor,
                                        .data = self.send,
                                        .dtype = TUTTI_FLOAT32,
                                        .device = TUTTI_DEVICE_CUDA,
                                        .dims = 1,
                                        .sizes = sizes,
                                        .device_index = rank};
    for (int own = 0; own < 2; own++) {
        const struct tutti_pg_options of_group = {
            .struct_size = sizeof of_group, .store = store, .max_blocks = own ? 14 + rank : 0};
        RANKS_CHECK(tutti_pg_create(comm, &of_group, &pg) == TUTTI_OK);
        standin_forget();
        RANKS_CHECK(tutti_pg_all_reduce(pg, &tensor, 1, TUTTI_SUM, NULL, &work) == TUTTI_OK);
        RANKS_CHECK(tutti_work_wait_host(work, RANKS_TIMEOUT_MS) == TUTTI_OK);
        RANKS_CHECK(most_blocks() == (own ? 14 : 10));
        tutti_work_destroy(work);
        tutti_pg_destroy(pg);
    }
    const struct tutti_pg_options wrong = {
        .struct_size = sizeof wrong, .store = store, .max_blocks = -5};
    RANKS_CHECK(tutti_pg_create(comm, &wrong, &pg) == TUTTI_ERR_INVALID);
    RANKS_CHECK(strstr(tutti_last_error(), "max_blocks is -5"));
    operands_close(&self);
    tutti_comm_destroy(comm);
    return 0;
}

/* CPU communicators ignore the limit. */
static int ignored(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_comm_options options = {.struct_size = sizeof options, .max_blocks = 1};
    const struct tutti_call_options of_call = {.struct_size = sizeof of_call,
                                               .max_blocks = 1 + rank};
    int32_t one = 1;
    tutti_comm_t *comm;
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    RANKS_CHECK(tutti_all_reduce_with(&one, &one, 1, TUTTI_INT32, TUTTI_SUM, comm,
                                      TUTTI_STREAM_DEFAULT, &of_call) == TUTTI_OK);
    RANKS_CHECK(one == ranks->size && !describes(comm, "max_blocks"));
    tutti_comm_destroy(comm);
    return 0;
}

int main(void)
{
    static const struct ranks_part parts[] = {
        {"kernels", kernels, {2, 3}}, {"mesh", mesh, {8}},   {"sources", sources, {2}},
        {"calls", calls, {2}},        {"group", group, {2}}, {"ignored", ignored, {2}}};
    device_setup();
    setenv("TUTTI_TUNING_FILE", "", 1);
    setenv("TUTTI_STANDIN_MULTIPROCESSORS", "16", 1);
    return ranks_run_parts(parts, sizeof parts / sizeof *parts) ? 1 : 0;
}
