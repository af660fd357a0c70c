/* SPDX-License-Identifier: MIT */
/*
 * The collectives of a process group besides the all-reduce: random calls with operands that are
 * flat on one rank and a list on another, in place or not, of several pairs, on tags that every
 * rank submits in an order of its own. Then refusals, disagreements, a time-out, an exit.
 *
 * usage: test_pg_collectives processes|threads [cuda|direct]
 *
 * With "cuda" the tensors are on GPUs, written and read by a stream; these calls are random ones
 * alone. With "direct" the group is of a CUDA communicator, which serves them.
 */
#include "pg_cuda.h"
#include "random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    MOST_RANKS = 4,
    MOST_PAIRS = 3,
    CALLS = 400,
    CALLS_SHORT = 100,
    IN_FLIGHT = 20,
    TAGS = 5,
    LONG_ELEMENTS = 90000, /* lists of such blocks need several pieces */
    GAP_BYTES = 48,
    SOON_MS = 50,
    ARENA_BYTES = 64 << 20, /* a round's tensors on GPUs */
};

static const enum tutti_dtype dtypes[] = {TUTTI_INT8, TUTTI_INT32, TUTTI_FLOAT32, TUTTI_COMPLEX64};

/* Which operands have a block for each rank, and which the root alone has. */
struct shape {
    enum tutti_collective collective;
    bool each[2], of_root[2]; /* [send, receive] */
};

static const struct shape shapes[] = {
    {TUTTI_COLLECTIVE_ALL_GATHER, {false, true}, {false, false}},
    {TUTTI_COLLECTIVE_REDUCE_SCATTER, {true, false}, {false, false}},
    {TUTTI_COLLECTIVE_ALL_TO_ALL, {true, true}, {false, false}},
    {TUTTI_COLLECTIVE_BROADCAST, {false, false}, {true, false}},
    {TUTTI_COLLECTIVE_REDUCE, {false, false}, {false, true}},
    {TUTTI_COLLECTIVE_GATHER, {false, true}, {false, true}},
    {TUTTI_COLLECTIVE_SCATTER, {true, false}, {true, false}},
};

enum { SHAPES = sizeof shapes / sizeof *shapes };

/* A call. All ranks have the same, but for the forms and the memory. */
struct call {
    const struct shape *shape;
    enum tutti_dtype dtype;
    uint64_t seed;
    int root, pairs;
    bool ragged;                                    /* an all-to-all of blocks of any length */
    int64_t sizes[MOST_PAIRS][2];                   /* of a block */
    int64_t lengths[MOST_RANKS][MOST_RANKS];        /* [from][to], if ragged */
    int64_t numbers[2][MOST_PAIRS * MOST_RANKS][2]; /* sizes of the tensors */
    unsigned char *memory[2][MOST_PAIRS];           /* NULL: in place */
    size_t bytes[2][MOST_PAIRS];
    unsigned char *devices[2][MOST_PAIRS]; /* the same on a GPU, if on_gpus; a copy of it */
    unsigned char *copies[2][MOST_PAIRS];
    void *blocks[2][MOST_PAIRS][MOST_RANKS]; /* sent, received */
    struct tutti_tensor tensors[2][MOST_PAIRS * MOST_RANKS];
    int counts[2];
    tutti_work_t *work;
};

static bool on_gpus, direct;

/* A rank's memory on its GPU. */
static _Thread_local struct pg_cuda_arena arena;

/* ---- what moves ------------------------------------------------------------------------------ */

/* What rank `from` sends to rank `to`, or to all: `to` is 0. Small, so that sums fit into a byte.
 */
static int value_of(const struct call *call, int pair, int from, int to, int64_t element)
{
    uint64_t random = call->seed + (uint64_t)(element * 1000 + pair * 100 + from * 10 + to);
    return random_below(&random, 25);
}

static bool sums(const struct call *call)
{
    return call->shape->collective == TUTTI_COLLECTIVE_REDUCE_SCATTER ||
           call->shape->collective == TUTTI_COLLECTIVE_REDUCE;
}

static bool has_block_each(const struct call *call, int side)
{
    return call->shape->each[side];
}

static bool has_side(const struct call *call, int side, int rank)
{
    return !call->shape->of_root[side] || rank == call->root;
}

/* What block `block` that `rank` has received must hold. */
static int expected_value(const struct call *call, int size, int pair, int rank, int block,
                          int64_t element)
{
    const bool own = has_block_each(call, 0);
    int sum = 0;
    if (!sums(call))
        return value_of(call, pair, has_block_each(call, 1) ? block : call->root, own ? rank : 0,
                        element);
    for (int from = 0; from < size; from++)
        sum += value_of(call, pair, from, own ? rank : 0, element);
    return sum;
}

static void put(const struct call *call, void *block, int64_t element, int value)
{
    if (call->dtype == TUTTI_INT8)
        ((int8_t *)block)[element] = (int8_t)value;
    else if (call->dtype == TUTTI_INT32)
        ((int32_t *)block)[element] = value;
    else if (call->dtype == TUTTI_FLOAT32)
        ((float *)block)[element] = (float)value;
    else
        ((float *)block)[2 * element] = ((float *)block)[2 * element + 1] = (float)value;
}

static bool holds(const struct call *call, const void *block, int64_t element, int value)
{
    struct {
        _Alignas(8) unsigned char bytes[8];
    } wanted;
    const size_t width = tutti_dtype_size(call->dtype);
    put(call, wanted.bytes, 0, value);
    return memcmp((const char *)block + (size_t)element * width, wanted.bytes, width) == 0;
}

static int64_t block_length(const struct call *call, int side, int pair, int rank, int block)
{
    if (call->ragged)
        return side ? call->lengths[block][rank] : call->lengths[rank][block];
    return call->sizes[pair][0] * call->sizes[pair][1];
}

/* ---- a call ---------------------------------------------------------------------------------- */

static void call_draw(struct call *call, uint64_t seed, int size)
{
    uint64_t random = seed;
    *call = (struct call){.seed = seed};
    call->shape = &shapes[random_below(&random, SHAPES)];
    call->dtype = dtypes[random_below(&random, 4)];
    call->root = random_below(&random, size);
    const bool all_to_all = has_block_each(call, 0) && has_block_each(call, 1);
    call->pairs = all_to_all ? 1 : 1 + random_below(&random, MOST_PAIRS);
    call->ragged = all_to_all && random_below(&random, 2);
    for (int p = 0; p < MOST_PAIRS; p++) {
        const int64_t most = random_below(&random, 20) ? 30 : LONG_ELEMENTS / 3;
        call->sizes[p][0] = random_below(&random, 4);
        call->sizes[p][1] = random_below(&random, (int)most);
    }
    for (int from = 0; from < size; from++)
        for (int to = 0; to < size; to++)
            call->lengths[from][to] =
                random_below(&random, random_below(&random, 20) ? 40 : LONG_ELEMENTS);
}

/* Make one operand of one pair: its memory, and its tensors. In a list the blocks lie in memory in
 * the opposite order, with gaps. */
static bool side_make(struct call *call, int side, int pair, int rank, int size, bool list)
{
    const size_t width = tutti_dtype_size(call->dtype);
    const int blocks = has_block_each(call, side) ? size : 1;
    size_t bytes = 0;
    for (int b = 0; b < blocks; b++)
        bytes += (size_t)block_length(call, side, pair, rank, b) * width + GAP_BYTES;
    unsigned char *at = call->memory[side][pair] = calloc(1, bytes);
    call->bytes[side][pair] = bytes;
    if (on_gpus) {
        call->devices[side][pair] = pg_cuda_arena_take(&arena, bytes);
        call->copies[side][pair] = pg_cuda_arena_take(&arena, bytes);
        if (!call->devices[side][pair] || !call->copies[side][pair])
            return false;
    }
    for (int i = 0; i < blocks; i++) {
        const int b = list ? blocks - 1 - i : i;
        call->blocks[side][pair][b] = at;
        at += (size_t)block_length(call, side, pair, rank, b) * width + (list ? GAP_BYTES / 2 : 0);
        at += list ? (8 - (uintptr_t)at % 8) % 8 : 0;
    }
    return true;
}

/* Where a block is on the GPU. */
static void *device_at(const struct call *call, const void *block)
{
    const uintptr_t at = (uintptr_t)block;
    for (int side = 0; side < 2; side++)
        for (int p = 0; p < MOST_PAIRS; p++) {
            const uintptr_t begin = (uintptr_t)call->memory[side][p];
            if (begin && at >= begin && at < begin + call->bytes[side][p])
                return call->devices[side][p] + (at - begin);
        }
    return NULL;
}

static void tensors_make(struct call *call, int side, int pair, int rank, int size, bool list)
{
    const bool each = has_block_each(call, side);
    const int tensors = each && list ? size : 1;
    for (int t = 0; t < tensors; t++) {
        const int index = call->counts[side]++;
        int64_t *sizes = call->numbers[side][index];
        struct tutti_tensor *tensor = &call->tensors[side][index];
        *tensor = pg_vector(call->blocks[side][pair][t], sizes);
        if (on_gpus)
            *tensor = pg_cuda_vector(device_at(call, tensor->data), sizes, pg_cuda_device(rank, 0));
        tensor->dtype = call->dtype;
        tensor->dims = call->ragged ? 1 : 2;
        sizes[0] = call->ragged ? block_length(call, side, pair, rank, t) : call->sizes[pair][0];
        sizes[1] = call->sizes[pair][1];
        if (each && !list)
            sizes[0] *= size;
    }
}

/* Choose this rank's forms, make its memory and fill what it sends. */
static bool call_make(struct call *call, int rank, int size)
{
    uint64_t random = call->seed * 31 + (uint64_t)rank;
    const bool in_place = random_below(&random, 3) == 0;
    bool lists[2] = {random_below(&random, 2), random_below(&random, 2)};
    uint64_t same = call->seed + 1;
    if (has_block_each(call, 0) && has_block_each(call, 1))
        lists[0] = lists[1] = call->ragged || random_below(&same, 2);
    for (int p = 0; p < call->pairs; p++) {
        const bool both = has_side(call, 0, rank) && has_side(call, 1, rank);
        for (int side = 0; side < 2; side++)
            if (has_side(call, side, rank) && !side_make(call, side, p, rank, size, lists[side]))
                return false;
        if (both && in_place && !call->ragged) {
            /* The side with more blocks keeps its memory. */
            const int from = has_block_each(call, 0) && !has_block_each(call, 1) ? 1 : 0;
            const bool each = has_block_each(call, from);
            for (int b = 0; b < (each ? size : 1); b++)
                call->blocks[from][p][b] =
                    call->blocks[!from][p][each || !has_block_each(call, !from) ? b : rank];
        }
        if (both && in_place && has_block_each(call, 0) && has_block_each(call, 1) && !call->ragged)
            lists[0] = lists[1];
        for (int side = 0; side < 2; side++)
            if (has_side(call, side, rank))
                tensors_make(call, side, p, rank, size, lists[side]);
        for (int b = 0; has_side(call, 0, rank) && b < (has_block_each(call, 0) ? size : 1); b++)
            for (int64_t e = 0; e < block_length(call, 0, p, rank, b); e++)
                put(call, call->blocks[0][p][b], e, value_of(call, p, rank, b, e));
    }
    return true;
}

/* Have the stream write the tensors, or read them once the work is done. */
static bool stream_copy(const struct call *call, bool in, tutti_stream_t stream)
{
    bool good = in || tutti_work_wait_stream(call->work, stream) == TUTTI_OK;
    for (int i = 0; i < 2 * MOST_PAIRS && good; i++) {
        const int side = i % 2, p = i / 2;
        const size_t bytes = call->bytes[side][p];
        unsigned char *device = call->devices[side][p], *copy = call->copies[side][p];
        if (!call->memory[side][p])
            continue;
        if (in)
            good = gpu_copy(copy, call->memory[side][p], bytes) &&
                   gpu_copy_async(device, copy, bytes, stream);
        else
            good = gpu_copy_async(copy, device, bytes, stream) && gpu_stream_synchronize(stream) &&
                   gpu_copy(call->memory[side][p], copy, bytes);
    }
    return good;
}

static enum tutti_status call_submit(struct call *call, tutti_pg_t *pg, uint32_t tag,
                                     tutti_stream_t stream)
{
    const struct tutti_pg_call_options options = {
        .struct_size = sizeof options, .tag = tag, .stream = stream};
    const struct tutti_tensor *send = call->tensors[0], *recv = call->tensors[1];
    const int sends = call->counts[0], recvs = call->counts[1], root = call->root;
    tutti_work_t **work = &call->work;
    const enum tutti_collective collective = call->shape->collective;
    if (collective == TUTTI_COLLECTIVE_ALL_GATHER)
        return tutti_pg_all_gather(pg, send, sends, recv, recvs, &options, work);
    if (collective == TUTTI_COLLECTIVE_REDUCE_SCATTER)
        return tutti_pg_reduce_scatter(pg, send, sends, recv, recvs, TUTTI_SUM, &options, work);
    if (collective == TUTTI_COLLECTIVE_ALL_TO_ALL)
        return tutti_pg_all_to_all(pg, send, sends, recv, recvs, &options, work);
    if (collective == TUTTI_COLLECTIVE_BROADCAST)
        return tutti_pg_broadcast(pg, send, sends, recv, recvs, root, &options, work);
    if (collective == TUTTI_COLLECTIVE_REDUCE)
        return tutti_pg_reduce(pg, send, sends, recv, recvs, TUTTI_SUM, root, &options, work);
    if (collective == TUTTI_COLLECTIVE_GATHER)
        return tutti_pg_gather(pg, send, sends, recv, recvs, root, &options, work);
    return tutti_pg_scatter(pg, send, sends, recv, recvs, root, &options, work);
}

static bool is_right(const struct call *call, int rank, int size)
{
    for (int p = 0; has_side(call, 1, rank) && p < call->pairs; p++)
        for (int b = 0; b < (has_block_each(call, 1) ? size : 1); b++)
            for (int64_t e = 0; e < block_length(call, 1, p, rank, b); e++)
                if (!holds(call, call->blocks[1][p][b], e,
                           expected_value(call, size, p, rank, b, e))) {
                    fprintf(stderr, "%s of seed %llu: pair %d, block %d, element %lld\n",
                            tutti_work_title(call->work), (unsigned long long)call->seed, p, b,
                            (long long)e);
                    return false;
                }
    return true;
}

static void call_free(struct call *call)
{
    tutti_work_destroy(call->work);
    for (int p = 0; p < MOST_PAIRS; p++)
        for (int side = 0; side < 2; side++)
            free(call->memory[side][p]);
}

/* ---- the parts of the test ------------------------------------------------------------------- */

/* Random calls. Every rank begins with another tag. */
static int random_calls(struct ranks *ranks, int rank, tutti_pg_t *pg)
{
    static const uint64_t seed = 29000;
    const int calls = ranks_operations(CALLS, CALLS_SHORT);
    struct call *round = calloc(IN_FLIGHT, sizeof *round);
    tutti_stream_t stream = TUTTI_STREAM_DEFAULT;
    RANKS_CHECK(round && (!on_gpus || gpu_stream_create(&stream)));
    for (int first = 0; first < calls; first += IN_FLIGHT) {
        arena.used = 0;
        for (int i = 0; i < IN_FLIGHT; i++) {
            call_draw(&round[i], seed + (uint64_t)(first + i) * 1000003, ranks->size);
            RANKS_CHECK(call_make(&round[i], rank, ranks->size));
            RANKS_CHECK(!on_gpus || stream_copy(&round[i], true, stream));
        }
        for (int t = 0; t < TAGS; t++)
            for (int i = (t + rank) % TAGS; i < IN_FLIGHT; i += TAGS)
                RANKS_CHECK(call_submit(&round[i], pg, (uint32_t)(i % TAGS), stream) == TUTTI_OK);
        for (int i = 0; i < IN_FLIGHT; i++) {
            RANKS_CHECK(!on_gpus || stream_copy(&round[i], false, stream));
            RANKS_CHECK(tutti_work_wait_host(round[i].work, RANKS_TIMEOUT_MS) == TUTTI_OK);
            RANKS_CHECK(is_right(&round[i], rank, ranks->size));
            call_free(&round[i]);
        }
    }
    if (on_gpus)
        gpu_stream_destroy(stream);
    free(round);
    return 0;
}

/* Blocks of a list whose dimensions lie in memory in another order. */
static int strided(struct ranks *ranks, int rank, tutti_pg_t *pg)
{
    static const int64_t sizes[] = {2, 3}, columns[] = {1, 2};
    float own[6], all[MOST_RANKS][6];
    struct tutti_tensor send = pg_vector(own, sizes), recv[MOST_RANKS];
    tutti_work_t *work;
    const struct tutti_tensor *tensors;
    int count;
    send.dims = 2;
    send.strides = columns;
    for (int i = 0; i < 6; i++)
        own[i] = (float)(10 * rank + i);
    for (int r = 0; r < ranks->size; r++) {
        recv[r] = send;
        recv[r].data = all[r];
    }
    RANKS_CHECK(tutti_pg_all_gather(pg, &send, 1, recv, ranks->size, NULL, &work) == TUTTI_OK);
    RANKS_CHECK(strcmp(tutti_work_title(work), "all_gather of 6 float32") == 0);
    RANKS_CHECK(tutti_work_tensors(work, &tensors, &count) == TUTTI_OK);
    RANKS_CHECK(count == 1 + ranks->size && tensors[0].data == own && tensors[1].data == all[0]);
    RANKS_CHECK(tensors[1].strides[1] == 2 && tensors[1].sizes[1] == 3);
    RANKS_CHECK(pg_end(work) == TUTTI_OK);
    for (int r = 0; r < ranks->size; r++)
        for (int i = 0; i < 6; i++)
            RANKS_CHECK(all[r][i] == (float)(10 * r + i));
    return 0;
}

static int refused(struct ranks *ranks, int rank, enum tutti_status status, const char *text)
{
    RANKS_CHECK(status == TUTTI_ERR_INVALID);
    if (!strstr(tutti_last_error(), text))
        return ranks_fail(ranks, rank, __FILE__, __LINE__, text);
    return 0;
}

#define REFUSED(text, name, ...)                                                                   \
    RANKS_CHECK(refused(ranks, rank, tutti_pg_##name(pg, __VA_ARGS__, NULL, &work),                \
                        "tutti_pg_" #name ": " text) == 0 &&                                       \
                !work)

static int refusals(struct ranks *ranks, int rank, tutti_pg_t *pg)
{
    const int size = ranks->size;
    const int64_t two = 2, all = 2 * size, odd = all + 1, matrix[] = {2, size}, columns[] = {1, 2};
    float a[2 * MOST_RANKS + 2] = {0}, b[2 * MOST_RANKS + 2] = {0};
    tutti_work_t *work = NULL;
    struct tutti_tensor block = pg_vector(a, &two), flat = pg_vector(b, &all);
    struct tutti_tensor three[MOST_RANKS] = {block, block, block, block};
    struct tutti_tensor ints = block, wrong = flat, turned = flat, over = flat;
    ints.dtype = TUTTI_INT32;
    wrong.sizes = &odd;
    turned.dims = 2;
    turned.sizes = matrix;
    turned.strides = columns;
    over.data = a;
    REFUSED("0 tensors at send", all_gather, &block, 0, &flat, 1);
    REFUSED("1 tensors at recv", all_gather, &block, 1, NULL, 1);
    REFUSED("65 tensors at send", all_gather, &block, 65, &flat, 1);
    REFUSED("1 tensors in send: expected 3", broadcast, three, 1, three, 3, rank);
    REFUSED("root is -1", broadcast, &block, 1, &block, 1, -1);
    REFUSED("root is", gather, &block, 1, &flat, 1, size);
    REFUSED("recv[0]: of float32, the first tensor of int32", all_gather, &ints, 1, &flat, 1);
    REFUSED("recv[0]: it has", all_gather, &block, 1, &wrong, 1);
    REFUSED("send[0]: it has", all_to_all, &wrong, 1, &flat, 1);
    REFUSED("1 tensors in send, ", all_to_all, &flat, 1, three, size);
    REFUSED("recv[0]: only the last dimension", all_gather, &block, 1, &turned, 1);
    REFUSED("recv[0]: op is none", reduce_scatter, &flat, 1, &block, 1, NULL);
    REFUSED("recv[0]: band is not defined for float32", reduce_scatter, &flat, 1, &block, 1,
            TUTTI_BAND);
    if (rank != 1)
        REFUSED("recv[0] at", all_gather,
                (&(struct tutti_tensor){
                    .struct_size = sizeof block, .data = a + 2, .dims = 1, .sizes = &two}),
                1, &over, 1);
    REFUSED("recv[1] at", broadcast, NULL, 0, three, 2, (rank + 1) % size);
    return 0;
}

/* One rank has another root, other pairs, another layout, another length of a block. */
static int mismatches(struct ranks *ranks, int rank, tutti_pg_t *pg)
{
    static const char *const texts[] = {"broadcast of 4 float32, root 1",
                                        "broadcast of 2 x 4",
                                        "sizes [2, 2]",
                                        "layouts of the other pairs",
                                        "gather",
                                        "all_to_all of 3 float32 from rank 0 to rank 1"};
    const int64_t four = 4, three = 3, square[] = {2, 2};
    const bool other = rank == ranks->size - 1;
    float data[8][8] = {{0}};
    for (int i = 0; i < 6; i++) {
        struct tutti_fault fault = {.struct_size = sizeof fault};
        struct tutti_tensor tensors[8], *send = tensors, *recv = tensors;
        tutti_work_t *work;
        int count = (i == 1 && other) || i == 3 ? 2 : 1;
        for (int t = 0; t < 8; t++)
            tensors[t] = pg_vector(data[t], &four);
        if (i == 2 && other) {
            tensors[0].dims = 2;
            tensors[0].sizes = square;
        }
        if (i == 3 && other)
            tensors[1].sizes = &three;
        if (i == 4 && other)
            RANKS_CHECK(tutti_pg_gather(pg, send, 1, recv, 1, 0, NULL, &work) == TUTTI_OK);
        else if (i == 5) {
            recv = tensors + 4;
            send[1].sizes = rank == 0 ? &three : &four;
            RANKS_CHECK(tutti_pg_all_to_all(pg, send, ranks->size, recv, ranks->size, NULL,
                                            &work) == TUTTI_OK);
        } else
            RANKS_CHECK(tutti_pg_broadcast(pg, send, count, recv, count, i == 0 && other, NULL,
                                           &work) == TUTTI_OK);
        RANKS_CHECK(tutti_work_wait_host(work, RANKS_TIMEOUT_MS) == TUTTI_ERR_MISMATCH);
        if (!strstr(tutti_last_error(), texts[i]))
            return ranks_fail(ranks, rank, __FILE__, __LINE__, texts[i]);
        RANKS_CHECK(tutti_work_fault(work, &fault) == TUTTI_ERR_MISMATCH);
        RANKS_CHECK(fault.rank != fault.peer);
        RANKS_CHECK(i < 5 || (fault.expected.count == 3 && fault.seen.count == 4));
        tutti_work_destroy(work);
    }
    RANKS_CHECK(pg_goes_on(pg, 0, ranks->size));
    return 0;
}

/* The last rank comes late: to a barrier without a time-out, and to a gather after its time-out. */
static int late_rank(struct ranks *ranks, int rank, tutti_pg_t *pg)
{
    const bool late = rank == ranks->size - 1;
    const int64_t one = 1, all = ranks->size;
    float own = (float)rank, gathered[MOST_RANKS];
    const struct tutti_tensor send = pg_vector(&own, &one), recv = pg_vector(gathered, &all);
    const struct tutti_pg_call_options soon = {
        .struct_size = sizeof soon, .tag = TAGS, .timeout_ms = late ? 0 : SOON_MS};
    tutti_work_t *barrier, *gather;
    bool done;
    if (late)
        RANKS_CHECK(ranks_await(ranks, 0, (uint32_t)ranks->size - 1));
    RANKS_CHECK(tutti_pg_gather(pg, &send, 1, &recv, 1, 0, &soon, &gather) == TUTTI_OK);
    if (!late)
        RANKS_CHECK(tutti_pg_barrier(pg, NULL, &barrier) == TUTTI_OK);
    RANKS_CHECK(tutti_work_wait_host(gather, RANKS_TIMEOUT_MS) == TUTTI_ERR_TIMEOUT);
    RANKS_CHECK(strstr(tutti_last_error(), "gather 1 of tag 5: "));
    tutti_work_destroy(gather);
    if (!late)
        RANKS_CHECK(tutti_work_test(barrier, &done) == TUTTI_OK && !done);
    ranks_raise(ranks, 0);
    RANKS_CHECK(ranks_await(ranks, 0, (uint32_t)ranks->size));
    if (late)
        RANKS_CHECK(tutti_pg_barrier(pg, NULL, &barrier) == TUTTI_OK);
    RANKS_CHECK(strcmp(tutti_work_title(barrier), "barrier") == 0);
    RANKS_CHECK(tutti_work_collective(barrier) == TUTTI_COLLECTIVE_BARRIER);
    RANKS_CHECK(pg_end(barrier) == TUTTI_OK);
    RANKS_CHECK(tutti_pg_gather(pg, &send, 1, &recv, 1, 0, NULL, &gather) == TUTTI_OK);
    RANKS_CHECK(pg_end(gather) == TUTTI_OK);
    for (int r = 0; rank == 0 && r < ranks->size; r++)
        RANKS_CHECK(gathered[r] == (float)r);
    return 0;
}

static void sleep_long(void *context, tutti_work_t *work, enum tutti_status status)
{
    enum { LONG_S = 6 }; /* longer than a leader may take for an answer */
    (void)context, (void)work, (void)status;
    nanosleep(&(struct timespec){.tv_sec = LONG_S}, NULL);
}

/* The leader waits inside a gather, as its root, for a rank whose callback takes long. Another
 * rank, whose part is done, withdraws an operation meanwhile. The leader answers late, and the
 * group goes on. */
static int slow_gather(struct ranks *ranks, int rank, tutti_pg_t *pg)
{
    const int64_t one = 1, all = ranks->size;
    float own = (float)rank, gathered[MOST_RANKS];
    const struct tutti_tensor send = pg_vector(&own, &one), recv = pg_vector(gathered, &all);
    const struct tutti_pg_call_options gathers = {.struct_size = sizeof gathers, .tag = 11};
    const struct tutti_pg_call_options sleeps = {
        .struct_size = sizeof sleeps, .tag = 12, .callback = rank == 2 ? sleep_long : NULL};
    tutti_work_t *barrier, *gather, *sum;
    if (rank != 2)
        RANKS_CHECK(ranks_await(ranks, 1, 1));
    RANKS_CHECK(tutti_pg_barrier(pg, &sleeps, &barrier) == TUTTI_OK);
    RANKS_CHECK(tutti_pg_gather(pg, &send, 1, &recv, 1, 0, &gathers, &gather) == TUTTI_OK);
    if (rank == 2)
        ranks_raise(ranks, 1);
    RANKS_CHECK(pg_end(gather) == TUTTI_OK);
    if (rank == 1) {
        RANKS_CHECK(pg_sum(pg, &own, 13, SOON_MS, &sum) == TUTTI_OK);
        RANKS_CHECK(pg_end(sum) == TUTTI_ERR_TIMEOUT);
    }
    RANKS_CHECK(pg_end(barrier) == TUTTI_OK);
    RANKS_CHECK(pg_goes_on(pg, 1, ranks->size));
    return 0;
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    RANKS_CHECK(pg_join(ranks, rank, store, &comm, &pg) == TUTTI_OK);
    int failed = random_calls(ranks, rank, pg);
    if (!failed)
        failed = strided(ranks, rank, pg);
    if (!failed)
        failed = refusals(ranks, rank, pg);
    if (!failed)
        failed = mismatches(ranks, rank, pg);
    if (!failed)
        failed = late_rank(ranks, rank, pg);
    if (!failed && ranks->size == 3)
        failed = slow_gather(ranks, rank, pg);
    if (!failed) /* no rank leaves before all have finished */
        RANKS_CHECK(pg_goes_on(pg, 1, ranks->size));
    pg_part(comm, pg);
    return failed;
}

/* The last rank leaves while the others wait for it in a broadcast from the first one. */
static int exits(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const int64_t one = 1;
    float x = 1;
    const struct tutti_tensor tensor = pg_vector(&x, &one);
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    tutti_work_t *work;
    RANKS_CHECK(pg_join(ranks, rank, store, &comm, &pg) == TUTTI_OK);
    RANKS_CHECK(pg_goes_on(pg, 1, ranks->size));
    if (rank < ranks->size - 1) {
        /* The exit may come before the call. */
        const enum tutti_status status =
            tutti_pg_broadcast(pg, &tensor, 1, &tensor, 1, 0, NULL, &work);
        RANKS_CHECK((status == TUTTI_OK ? pg_end(work) : status) == TUTTI_ERR_PEER_DEAD);
    }
    pg_part(comm, pg);
    return 0;
}

static int live_on_gpus(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    RANKS_CHECK(pg_cuda_arena_open(&arena, pg_cuda_device(rank, 0), ARENA_BYTES));
    RANKS_CHECK(pg_cuda_join(ranks, rank, store, direct, &comm, &pg) == TUTTI_OK);
    int failed = random_calls(ranks, rank, pg);
    if (!failed) /* no rank leaves before all have finished */
        RANKS_CHECK(pg_goes_on(pg, 1, ranks->size));
    pg_part(comm, pg);
    pg_cuda_arena_close(&arena);
    return failed;
}

int main(int argc, char **argv)
{
    static ranks_fn *const gpu_parts[] = {live_on_gpus};
    on_gpus = argc > 2;
    direct = on_gpus && strcmp(argv[2], "direct") == 0;
    if (on_gpus && pg_cuda_skip())
        return 77;
    if (direct)
        return pg_cuda_main_direct(strcmp(argv[1], "processes") == 0, gpu_parts, 1);
    if (on_gpus)
        return pg_main(argc, argv, 2, gpu_parts, 1);
    return pg_main(argc, argv, 2, (ranks_fn *const[]){live, exits}, 2);
}
