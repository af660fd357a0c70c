/* SPDX-License-Identifier: MIT */
/*
 * A process group's all-reduces against a scalar reference: random dtypes, operations, shapes and
 * strides, one or several tensors a rank, hundreds in flight on several tags from several threads,
 * which every rank submits in an order of its own.
 *
 * usage: test_pg_random processes|threads [cuda|direct]
 *
 * With "cuda" the tensors are on GPUs, those of a rank on several, behind streams of their own;
 * with "direct" the group is of a CUDA communicator besides.
 */
#include "pg_cuda.h"
#include "pool.h"
#include "random.h"
#include "reference.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    THREADS = 3,
    TAGS = 9,
    ROUNDS = 4,
    OPERATIONS = 360, /* a round */
    OPERATIONS_SHORT = 90,
    MOST_DIMS = 5,
    MOST_TENSORS = 3,
    LONG_ELEMENTS = 70000, /* more than one block of converted inputs */
};

/* Equal on all ranks, except for the number of tensors and their memory. */
struct operation {
    uint64_t seed;
    enum tutti_dtype dtype;
    tutti_op_t kind;
    bool several; /* tensors, on some ranks */
    int dims;
    int64_t sizes[MOST_DIMS];
    int64_t strides[MOST_DIMS];
    size_t count;
    uint32_t tag;
    unsigned char *memory;       /* of all tensors of this rank, results afterwards */
    void *devices[MOST_TENSORS]; /* where they are on GPUs */
    tutti_work_t *work;
};

static bool on_gpus, direct;

/* One rank's. */
struct life {
    struct ranks *ranks;
    int rank;
    tutti_pg_t *pg;
    tutti_op_t premul_sum;
    unsigned char *scalars;                    /* one for each dtype, where the tensors are */
    tutti_op_t from_memory[TUTTI_DTYPE_COUNT]; /* premultiplied sums by these; of bool none */
    struct operation *operations;
    int count;
    int failures[THREADS];
    tutti_stream_t streams[THREADS];
    struct pg_cuda_arena arenas[MOST_TENSORS]; /* on the GPUs of the tensors */
};

enum { ARENA_BYTES = 32 << 20 };

struct submitter {
    struct life *life;
    int index;
};

/* Random extents, in a random order in memory. */
static void shape_make(uint64_t *random, struct operation *operation)
{
    int order[MOST_DIMS] = {0};
    operation->dims = random_below(random, MOST_DIMS + 1);
    operation->count = 1;
    for (int d = 0; d < operation->dims; d++) {
        int place = random_below(random, d + 1);
        operation->sizes[d] = random_below(random, 20) ? 1 + random_below(random, 6) : 0;
        operation->count *= (size_t)operation->sizes[d];
        order[d] = order[place];
        order[place] = d;
    }
    if (operation->dims && !random_below(random, 40)) {
        operation->dims = 1;
        operation->sizes[0] = LONG_ELEMENTS;
        operation->count = LONG_ELEMENTS;
        order[0] = 0;
    }
    int64_t stride = 1;
    for (int i = 0; i < operation->dims; i++) {
        int64_t size = operation->sizes[order[i]];
        operation->strides[order[i]] = size == 1 ? -7 : stride; /* ignored for a size of 1 */
        stride *= size;
    }
}

static void operation_make(uint64_t *random, struct operation *operation)
{
    *operation = (struct operation){.seed = random_next(random)};
    do {
        operation->dtype = (enum tutti_dtype)random_below(random, TUTTI_DTYPE_COUNT);
        operation->kind = (tutti_op_t)(uintptr_t)(1 + random_below(random, REFERENCE_OPS - 1));
    } while (!reference_has(operation->dtype, operation->kind));
    operation->several = random_below(random, 2);
    operation->tag = (uint32_t)random_below(random, TAGS);
    shape_make(random, operation);
}

static int tensors_of(const struct operation *operation, int rank)
{
    uint64_t random = operation->seed + (uint64_t)rank;
    return operation->several ? 1 + random_below(&random, MOST_TENSORS) : 1;
}

/* One element: numbers that the dtype can hold, or any bits of an integer. */
static void element_make(uint64_t *random, enum tutti_dtype dtype, void *element)
{
    uint64_t bits = random_next(random);
    double value = (double)((int64_t)(bits % 4001) - 2000) / 500;
    float single = (float)value;
    uint32_t code;
    switch (dtype) {
    case TUTTI_FLOAT32:
        memcpy(element, &single, sizeof single);
        return;
    case TUTTI_FLOAT64:
        memcpy(element, &value, sizeof value);
        return;
    case TUTTI_FLOAT16:
    case TUTTI_BFLOAT16:
    case TUTTI_FLOAT8_E4M3:
    case TUTTI_FLOAT8_E5M2:
        code = reference_encode(dtype, value);
        memcpy(element, &code, tutti_dtype_size(dtype));
        return;
    case TUTTI_BOOL:
        bits &= 1;
        break;
    case TUTTI_INT8:
    case TUTTI_UINT8:
    case TUTTI_INT16:
    case TUTTI_INT32:
    case TUTTI_INT64:
    case TUTTI_UINT32:
    case TUTTI_UINT64:
    case TUTTI_COMPLEX64: /* elements are components */
    case TUTTI_COMPLEX128:
        break;
    }
    memcpy(element, &bits, tutti_dtype_size(dtype));
}

/* A rank's tensor, in memory order. */
static void input_make(const struct operation *operation, int rank, int tensor, void *memory)
{
    uint64_t random = operation->seed ^ (uint64_t)(rank * MOST_TENSORS + tensor + 1) << 32;
    const enum tutti_dtype component = reference_component(operation->dtype);
    const size_t width = tutti_dtype_size(component);
    const size_t count = operation->count * tutti_dtype_size(operation->dtype) / width;
    for (size_t i = 0; i < count; i++)
        element_make(&random, component, (unsigned char *)memory + i * width);
}

/* Conversions to float32 and back, for the dtypes that accumulate in float32 and are not
 * float32. */
static bool is_narrow(enum tutti_dtype dtype)
{
    return dtype >= TUTTI_FLOAT16 && dtype <= TUTTI_FLOAT8_E5M2;
}

static void widen(const struct operation *operation, const void *from, float *to)
{
    size_t width = tutti_dtype_size(operation->dtype);
    for (size_t i = 0; i < operation->count; i++) {
        uint32_t code = 0;
        memcpy(&code, (const unsigned char *)from + i * width, width);
        to[i] = (float)reference_decode(operation->dtype, code);
    }
}

static void narrow(const struct operation *operation, const float *from, void *to)
{
    size_t width = tutti_dtype_size(operation->dtype);
    for (size_t i = 0; i < operation->count; i++) {
        uint32_t code = reference_encode(operation->dtype, from[i]);
        memcpy((unsigned char *)to + i * width, &code, width);
    }
}

/* Reduce the inputs of a rank in the accumulation type. */
static void *partial_make(const struct operation *operation, int rank, enum tutti_dtype wide)
{
    size_t width = tutti_dtype_size(operation->dtype);
    void *tensors[MOST_TENSORS];
    int count = tensors_of(operation, rank);
    for (int i = 0; i < count; i++) {
        tensors[i] = malloc(operation->count * 16 + 16);
        input_make(operation, rank, i, tensors[i]);
        if (wide == operation->dtype)
            continue;
        void *wider = malloc(operation->count * sizeof(float) + width);
        widen(operation, tensors[i], wider);
        free(tensors[i]);
        tensors[i] = wider;
    }
    tutti_op_t kind = operation->kind == TUTTI_AVG ? TUTTI_SUM : operation->kind;
    reference_reduce(tensors[0], (const void *const *)tensors, count, operation->count, wide, kind,
                     POOL_SCALAR);
    for (int i = 1; i < count; i++)
        free(tensors[i]);
    return tensors[0];
}

/* The result, in memory order. */
static void *expected_make(const struct operation *operation, int size)
{
    void *parts[TUTTI_MAX_RANKS];
    bool several = false;
    for (int r = 0; r < size; r++)
        several |= tensors_of(operation, r) > 1;
    enum tutti_dtype wide =
        several && is_narrow(operation->dtype) ? TUTTI_FLOAT32 : operation->dtype;
    tutti_op_t kind = operation->kind;
    for (int r = 0; r < size; r++) {
        if (several) {
            parts[r] = partial_make(operation, r, wide);
            continue;
        }
        parts[r] = malloc(operation->count * 16 + 16);
        input_make(operation, r, 0, parts[r]);
    }
    if (several && kind == TUTTI_PREMUL_SUM)
        kind = TUTTI_SUM;
    reference_reduce(parts[0], (const void *const *)parts, size, operation->count, wide, kind,
                     POOL_SCALAR);
    for (int r = 1; r < size; r++)
        free(parts[r]);
    if (wide != operation->dtype) {
        void *result = malloc(operation->count * 16 + 16);
        narrow(operation, parts[0], result);
        free(parts[0]);
        return result;
    }
    return parts[0];
}

static bool arenas_open(struct life *life)
{
    bool good = true;
    for (int i = 0; i < MOST_TENSORS; i++)
        good &= pg_cuda_arena_open(&life->arenas[i], pg_cuda_device(life->rank, i), ARENA_BYTES);
    return good && pg_cuda_bind(life->rank);
}

/* The tensor's memory on a GPU, with the input in it. */
static bool to_gpu(struct life *life, struct operation *operation, int tensor, size_t bytes,
                   struct tutti_tensor *description)
{
    description->device = TUTTI_DEVICE_CUDA;
    description->device_index = pg_cuda_device(life->rank, tensor);
    if (!gpu_bind(description->device_index))
        return false;
    operation->devices[tensor] = pg_cuda_arena_take(&life->arenas[tensor], bytes);
    if (!operation->devices[tensor])
        return false;
    bool copied = bytes == 0 || gpu_copy(operation->devices[tensor], description->data, bytes);
    description->data = operation->devices[tensor];
    return copied && pg_cuda_bind(life->rank);
}

static enum tutti_status submit(struct life *life, int thread, struct operation *operation)
{
    struct tutti_tensor tensors[MOST_TENSORS];
    size_t bytes = operation->count * tutti_dtype_size(operation->dtype);
    int count = tensors_of(operation, life->rank);
    const struct tutti_pg_call_options options = {
        .struct_size = sizeof options, .tag = operation->tag, .stream = life->streams[thread]};
    operation->memory = malloc((size_t)count * bytes + 1);
    for (int i = 0; i < count; i++) {
        tensors[i] = (struct tutti_tensor){
            .struct_size = sizeof tensors[i],
            .data = operation->memory + (size_t)i * bytes,
            .dtype = operation->dtype,
            .dims = operation->dims,
            .sizes = operation->sizes,
            .strides = operation->strides,
        };
        input_make(operation, life->rank, i, tensors[i].data);
        if (on_gpus && !to_gpu(life, operation, i, bytes, &tensors[i]))
            return TUTTI_ERR_CUDA;
    }
    tutti_op_t op = operation->kind != TUTTI_PREMUL_SUM ? operation->kind
                    : operation->count % 2              ? life->premul_sum
                                                        : life->from_memory[operation->dtype];
    return tutti_pg_all_reduce(life->pg, tensors, count, op, &options, &operation->work);
}

/* The results, in the host's memory. */
static bool from_gpus(const struct life *life, const struct operation *operation, int count,
                      size_t bytes)
{
    bool copied = true;
    for (int i = 0; i < count; i++) {
        copied &= gpu_bind(pg_cuda_device(life->rank, i)) &&
                  (bytes == 0 ||
                   gpu_copy(operation->memory + (size_t)i * bytes, operation->devices[i], bytes));
    }
    return copied && pg_cuda_bind(life->rank);
}

/* Submit the tags one after the other, starting with a different tag on each rank. */
static void *submit_some(void *argument)
{
    const struct submitter *submitter = argument;
    struct life *life = submitter->life;
    if (on_gpus && !pg_cuda_bind(life->rank))
        life->failures[submitter->index]++;
    for (int i = 0; i < TAGS; i++) {
        uint32_t tag = (uint32_t)((i + life->rank * THREADS) % TAGS);
        if (tag % THREADS != (uint32_t)submitter->index)
            continue;
        for (int k = 0; k < life->count; k++)
            if (life->operations[k].tag == tag &&
                submit(life, submitter->index, &life->operations[k]) != TUTTI_OK)
                life->failures[submitter->index]++;
    }
    return NULL;
}

static int check(const struct life *life, struct operation *operation)
{
    struct ranks *ranks = life->ranks;
    const int rank = life->rank;
    size_t bytes = operation->count * tutti_dtype_size(operation->dtype);
    RANKS_CHECK(tutti_work_wait_host(operation->work, RANKS_TIMEOUT_MS) == TUTTI_OK);
    RANKS_CHECK(!on_gpus || from_gpus(life, operation, tensors_of(operation, rank), bytes));
    void *expected = expected_make(operation, ranks->size);
    bool same = true;
    for (int i = 0; i < tensors_of(operation, rank); i++)
        same &= memcmp(operation->memory + (size_t)i * bytes, expected, bytes) == 0;
    free(expected);
    RANKS_CHECK(same || !tutti_work_title(operation->work));
    tutti_work_destroy(operation->work);
    free(operation->memory);
    return 0;
}

static int round_of(struct life *life, uint64_t *random)
{
    struct ranks *ranks = life->ranks;
    int rank = life->rank;
    pthread_t threads[THREADS];
    struct submitter submitters[THREADS];
    for (int k = 0; k < life->count; k++)
        operation_make(random, &life->operations[k]);
    for (int t = 0; t < THREADS; t++) {
        submitters[t] = (struct submitter){life, t};
        RANKS_CHECK(pthread_create(&threads[t], NULL, submit_some, &submitters[t]) == 0);
    }
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    for (int t = 0; t < THREADS; t++)
        RANKS_CHECK(life->failures[t] == 0);
    for (int k = 0; k < life->count; k++) {
        int failed = check(life, &life->operations[k]);
        if (failed)
            return failed;
    }
    return 0;
}

static bool scalars_open(struct life *life)
{
    enum { APART = 16, BYTES = TUTTI_DTYPE_COUNT * APART };
    bool good = !on_gpus || gpu_bind(pg_cuda_device(life->rank, 0));
    unsigned char scalars[BYTES] = {0};
    life->scalars = on_gpus ? gpu_alloc(BYTES) : malloc(BYTES);
    for (int d = 0; d < TUTTI_DTYPE_COUNT && life->scalars; d++) {
        pool_scalar((enum tutti_dtype)d, scalars + (size_t)d * APART);
        good &= d == TUTTI_BOOL || tutti_op_create_premul_sum_device(
                                       life->scalars + (size_t)d * APART, (enum tutti_dtype)d,
                                       &life->from_memory[d]) == TUTTI_OK;
    }
    if (!life->scalars || !good)
        return false;
    if (!on_gpus)
        memcpy(life->scalars, scalars, BYTES);
    return !on_gpus || (gpu_copy(life->scalars, scalars, BYTES) && pg_cuda_bind(life->rank));
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct life life = {
        .ranks = ranks, .rank = rank, .count = ranks_short() ? OPERATIONS_SHORT : OPERATIONS};
    tutti_comm_t *comm;
    uint64_t random = 20;
    int failed = 0;
    RANKS_CHECK(!on_gpus || arenas_open(&life));
    RANKS_CHECK(pg_cuda_join(ranks, rank, store, direct, &comm, &life.pg) == TUTTI_OK);
    RANKS_CHECK(tutti_op_create_premul_sum(POOL_SCALAR, &life.premul_sum) == TUTTI_OK);
    RANKS_CHECK(scalars_open(&life));
    for (int t = 0; t < THREADS && on_gpus; t++)
        RANKS_CHECK(gpu_stream_create(&life.streams[t]));
    life.operations = calloc((size_t)life.count, sizeof *life.operations);
    RANKS_CHECK(ranks_meet(ranks, 0));
    for (int i = 0; i < ROUNDS && !failed; i++) {
        for (int k = 0; k < MOST_TENSORS; k++)
            life.arenas[k].used = 0;
        failed = round_of(&life, &random);
    }
    RANKS_CHECK(ranks_meet(ranks, 1));
    tutti_op_destroy(life.premul_sum);
    for (int d = 0; d < TUTTI_DTYPE_COUNT; d++)
        tutti_op_destroy(life.from_memory[d]);
    (on_gpus ? gpu_free : free)(life.scalars);
    free(life.operations);
    pg_part(comm, life.pg);
    for (int i = 0; i < MOST_TENSORS; i++)
        pg_cuda_arena_close(&life.arenas[i]);
    for (int t = 0; t < THREADS; t++)
        gpu_stream_destroy(life.streams[t]);
    return failed;
}

int main(int argc, char **argv)
{
    direct = argc > 2 && strcmp(argv[2], "direct") == 0;
    on_gpus = direct || (argc > 2 && strcmp(argv[2], "cuda") == 0);
    int skip = on_gpus ? pg_cuda_skip() : 0;
    if (skip)
        return skip;
    if (direct)
        return pg_cuda_main_direct(strcmp(argv[1], "processes") == 0, (ranks_fn *const[]){live}, 1);
    return pg_main(argc, argv, 1, (ranks_fn *const[]){live}, 1);
}
