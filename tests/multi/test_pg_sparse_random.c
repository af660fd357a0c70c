/* SPDX-License-Identifier: MIT */
/*
 * Sparse all-reduces of a process group against a scalar reference, bit for bit: random dtypes,
 * shapes, numbers of entries and of tensors a rank, many in flight on several tags, among dense
 * operations, which every rank submits in an order of its own; then on a communicator whose links
 * are a ring.
 *
 * usage: test_pg_sparse_random processes|threads [cuda]
 *
 * With "cuda" the sparse tensors are on GPUs, those of a rank on several.
 */
#include "pg_cuda.h"
#include "random.h"
#include "reference.h"
#include "sparse_reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    TAGS = 5,
    ROUNDS = 3,
    OPERATIONS = 100, /* a round */
    OPERATIONS_SHORT = 40,
    MOST_SPARSE = 4,
    MOST_DENSE = 3,
    MANY_DIMS = TUTTI_MAX_DIMS - MOST_DENSE, /* sometimes */
    MOST_TENSORS = 3,
    MOST_NNZ = 40,
    LARGE_NNZ = 800, /* sometimes: the segments grow */
};

static const char mesh[] = "tutti-topology 1\nranks 8\n"
                           "X 1 1 1 1 0 0 0\n1 X 1 1 0 1 0 0\n1 1 X 1 0 0 1 0\n1 1 1 X 0 0 0 1\n"
                           "1 0 0 0 X 1 1 1\n0 1 0 0 1 X 1 1\n0 0 1 0 1 1 X 1\n0 0 0 1 1 1 1 X\n";

/* Equal on all ranks, except for the inputs. */
struct operation {
    uint64_t seed;
    bool dense;
    bool empty; /* on all ranks */
    bool large;
    struct sparse_shape shape;
    int64_t sizes[MANY_DIMS + MOST_DENSE];
    uint32_t tag;
    int32_t element; /* of a dense one */
    int count;
    struct sparse_entries inputs[MOST_TENSORS]; /* of this rank */
    void *devices[2 * MOST_TENSORS];            /* where they are on GPUs */
    tutti_work_t *work;
};

static bool on_gpus;

static void operation_make(uint64_t *random, struct operation *operation)
{
    *operation = (struct operation){.seed = random_next(random)};
    struct sparse_shape *shape = &operation->shape;
    operation->tag = (uint32_t)random_below(random, TAGS);
    operation->dense = random_below(random, 4) == 0;
    operation->empty = random_below(random, 15) == 0;
    operation->large = random_below(random, 15) == 0;
    shape->dtype = (enum tutti_dtype)random_below(random, TUTTI_DTYPE_COUNT);
    shape->sparse_dim =
        random_below(random, 20) ? random_below(random, MOST_SPARSE + 1) : MANY_DIMS;
    shape->dense_dim = random_below(random, MOST_DENSE + 1);
    for (int d = 0; d < shape->sparse_dim; d++)
        operation->sizes[d] =
            1 + random_below(random, operation->large && shape->sparse_dim < MANY_DIMS ? 50 : 5);
    for (int d = 0; d < shape->dense_dim; d++)
        operation->sizes[shape->sparse_dim + d] =
            random_below(random, 20) ? 1 + random_below(random, 6) : 0;
    if (shape->sparse_dim && random_below(random, 20) == 0)
        operation->sizes[0] = 0;
}

/* Numbers whose sums are never NaN, any bits of integers. */
static void element_make(uint64_t *random, enum tutti_dtype dtype, unsigned char *element)
{
    uint64_t bits = random_next(random);
    const double value =
        random_below(random, 10) ? (double)((int64_t)(bits % 4001) - 2000) / 500 : -0.0;
    const float single = (float)value;
    if (dtype == TUTTI_FLOAT64)
        memcpy(&bits, &value, sizeof value);
    else if (dtype == TUTTI_FLOAT32)
        memcpy(&bits, &single, sizeof single);
    else if (dtype <= TUTTI_FLOAT8_E5M2)
        bits = reference_encode(dtype, value);
    else if (dtype == TUTTI_BOOL)
        bits &= 1;
    memcpy(element, &bits, tutti_dtype_size(dtype));
}

static struct sparse_entries entries_make(const struct operation *operation, uint64_t *random)
{
    const struct sparse_shape *shape = &operation->shape;
    size_t nnz = operation->empty || random_below(random, 5) == 0
                     ? 0
                     : (size_t)random_below(random, operation->large ? LARGE_NNZ : MOST_NNZ);
    for (int d = 0; d < shape->sparse_dim; d++)
        nnz = shape->sizes[d] ? nnz : 0;
    const size_t bytes = sparse_row_bytes(shape), indices_count = nnz * (size_t)shape->sparse_dim;
    int64_t *indices = malloc(indices_count * sizeof *indices + 1);
    unsigned char *values = malloc(nnz * bytes + 1);
    for (size_t i = 0; i < indices_count; i++)
        indices[i] = (int64_t)(random_next(random) % (uint64_t)shape->sizes[i / nnz]);
    const enum tutti_dtype component = reference_component(shape->dtype);
    for (size_t at = 0; at < nnz * bytes; at += tutti_dtype_size(component))
        element_make(random, component, values + at);
    return (struct sparse_entries){indices, values, nnz};
}

static int inputs_make(const struct operation *operation, int rank, struct sparse_entries *inputs)
{
    uint64_t random = operation->seed + (uint64_t)rank;
    int count = 1 + random_below(&random, MOST_TENSORS);
    for (int i = 0; i < count; i++)
        inputs[i] = entries_make(operation, &random);
    return count;
}

static void inputs_free(const struct sparse_entries *inputs, int count)
{
    for (int i = 0; i < count; i++) {
        free((void *)(uintptr_t)inputs[i].indices);
        free((void *)(uintptr_t)inputs[i].values);
    }
}

static struct sparse_reference expected_make(const struct operation *operation, int size)
{
    struct sparse_reference parts[TUTTI_MAX_RANKS];
    struct sparse_entries entries[TUTTI_MAX_RANKS] = {{0}}, inputs[MOST_TENSORS];
    for (int r = 0; r < size; r++) {
        int count = inputs_make(operation, r, inputs);
        parts[r] = sparse_reference_coalesce(&operation->shape, inputs, count);
        entries[r] = parts[r].entries;
        inputs_free(inputs, count);
    }
    struct sparse_reference result = sparse_reference_unite(&operation->shape, entries, size);
    for (int r = 0; r < size; r++)
        sparse_reference_free(&parts[r]);
    return result;
}

/* A copy on the current device; NULL if it is empty or does not fit. */
static void *to_gpu(const void *from, size_t bytes)
{
    void *memory = bytes ? gpu_alloc(bytes) : NULL;
    if (memory && !gpu_copy(memory, from, bytes)) {
        gpu_free(memory);
        memory = NULL;
    }
    return memory;
}

/* The input's memory on a GPU, on another one for each. */
static bool input_to_gpu(struct operation *operation, int rank, int input,
                         struct tutti_sparse_tensor *tensor)
{
    const size_t values = tensor->nnz * sparse_row_bytes(&operation->shape);
    const size_t indices = tensor->nnz * (size_t)tensor->sparse_dim * sizeof *tensor->indices;
    tensor->device = TUTTI_DEVICE_CUDA;
    tensor->device_index = pg_cuda_device(rank, input);
    if (!gpu_bind(tensor->device_index))
        return false;
    void **devices = &operation->devices[(size_t)input * 2];
    tensor->indices = devices[0] = to_gpu(tensor->indices, indices);
    tensor->values = devices[1] = to_gpu(tensor->values, values);
    return !devices[0] == !indices && !devices[1] == !values && pg_cuda_bind(rank);
}

/* The result, in host memory. */
static bool from_gpu(const struct operation *operation, int rank,
                     struct tutti_sparse_tensor *result)
{
    const size_t values = result->nnz * sparse_row_bytes(&operation->shape);
    const size_t indices = result->nnz * (size_t)result->sparse_dim * sizeof *result->indices;
    int64_t *indices_here = malloc(indices + 1);
    unsigned char *values_here = malloc(values + 1);
    bool good = result->device == TUTTI_DEVICE_CUDA &&
                result->device_index == pg_cuda_device(rank, 0) &&
                (!indices || gpu_copy(indices_here, result->indices, indices)) &&
                (!values || gpu_copy(values_here, result->values, values));
    result->indices = indices_here;
    result->values = values_here;
    for (size_t i = 0; i < sizeof operation->devices / sizeof *operation->devices; i++)
        gpu_free(operation->devices[i]);
    return good;
}

static enum tutti_status submit(tutti_pg_t *pg, int rank, struct operation *operation)
{
    static const int64_t one = 1;
    const struct sparse_shape *shape = &operation->shape;
    struct tutti_sparse_tensor tensors[MOST_TENSORS];
    const struct tutti_pg_call_options options = {.struct_size = sizeof options,
                                                  .tag = operation->tag};
    if (operation->dense) {
        struct tutti_tensor tensor = {.struct_size = sizeof tensor,
                                      .data = &operation->element,
                                      .dtype = TUTTI_INT32,
                                      .dims = 1,
                                      .sizes = &one};
        operation->element = rank + 1;
        return tutti_pg_all_reduce(pg, &tensor, 1, TUTTI_SUM, &options, &operation->work);
    }
    operation->count = inputs_make(operation, rank, operation->inputs);
    for (int i = 0; i < operation->count; i++)
        tensors[i] = (struct tutti_sparse_tensor){
            .struct_size = sizeof tensors[i],
            .dtype = shape->dtype,
            .sparse_dim = shape->sparse_dim,
            .dense_dim = shape->dense_dim,
            .sizes = shape->sizes,
            .nnz = operation->inputs[i].nnz,
            .indices = operation->inputs[i].indices,
            .values = operation->inputs[i].values,
        };
    for (int i = 0; i < operation->count && on_gpus; i++)
        if (!input_to_gpu(operation, rank, i, &tensors[i]))
            return TUTTI_ERR_CUDA;
    return tutti_pg_all_reduce_sparse(pg, tensors, operation->count, &options, &operation->work);
}

static int check(struct ranks *ranks, int rank, struct operation *operation)
{
    RANKS_CHECK(tutti_work_wait_host(operation->work, RANKS_TIMEOUT_MS) == TUTTI_OK);
    if (operation->dense) {
        RANKS_CHECK(operation->element == ranks->size * (ranks->size + 1) / 2);
        tutti_work_destroy(operation->work);
        return 0;
    }
    const struct sparse_shape *shape = &operation->shape;
    struct tutti_sparse_tensor result = {.struct_size = sizeof result};
    RANKS_CHECK(tutti_work_sparse_result(operation->work, &result) == TUTTI_OK);
    RANKS_CHECK(!on_gpus || from_gpu(operation, rank, &result));
    inputs_free(operation->inputs, operation->count); /* the result lies elsewhere */
    struct sparse_reference expected = expected_make(operation, ranks->size);
    RANKS_CHECK(result.nnz == expected.entries.nnz);
    RANKS_CHECK(result.dtype == shape->dtype && result.sparse_dim == shape->sparse_dim &&
                result.dense_dim == shape->dense_dim);
    size_t dims = (size_t)(shape->sparse_dim + shape->dense_dim);
    RANKS_CHECK(memcmp(result.sizes, operation->sizes, dims * sizeof *result.sizes) == 0);
    RANKS_CHECK(memcmp(result.indices, expected.indices,
                       result.nnz * (size_t)shape->sparse_dim * sizeof *result.indices) == 0);
    RANKS_CHECK(memcmp(result.values, expected.values, result.nnz * sparse_row_bytes(shape)) == 0);
    sparse_reference_free(&expected);
    if (on_gpus) {
        free((void *)(uintptr_t)result.indices);
        free((void *)(uintptr_t)result.values);
    }
    tutti_work_destroy(operation->work);
    return 0;
}

/* Submit the tags one after the other, starting with a different tag on each rank. */
static int round_of(struct ranks *ranks, int rank, tutti_pg_t *pg, struct operation *operations,
                    int count)
{
    for (int i = 0; i < TAGS; i++)
        for (int k = 0; k < count; k++)
            if (operations[k].tag == (uint32_t)((i + rank) % TAGS))
                RANKS_CHECK(submit(pg, rank, &operations[k]) == TUTTI_OK);
    for (int k = 0; k < count; k++) {
        int failed = check(ranks, rank, &operations[k]);
        if (failed)
            return failed;
    }
    return 0;
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const int count = ranks_short() ? OPERATIONS_SHORT : OPERATIONS;
    struct operation *operations = malloc((size_t)count * sizeof *operations);
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    uint64_t random = 77;
    int failed = 0;
    RANKS_CHECK(!on_gpus || pg_cuda_bind(rank));
    RANKS_CHECK(operations && pg_join(ranks, rank, store, &comm, &pg) == TUTTI_OK);
    for (int round = 0; round < ROUNDS && !failed; round++) {
        for (int k = 0; k < count; k++) {
            operation_make(&random, &operations[k]);
            operations[k].shape.sizes = operations[k].sizes;
        }
        failed = round_of(ranks, rank, pg, operations, count);
    }
    pg_part(comm, pg);
    free(operations);
    return failed;
}

/* The same on a hybrid cube mesh, where some two ranks exchange no data. */
static int along_links(bool processes)
{
    char path[] = "/tmp/tutti-mesh-XXXXXX";
    int file = mkstemp(path);
    if (file < 0 || write(file, mesh, sizeof mesh - 1) != sizeof mesh - 1)
        return 1;
    close(file);
    setenv("TUTTI_TOPOLOGY_FILE", path, 1);
    struct ranks *ranks = ranks_create(8, processes ? 8 : 0, 0);
    int failures = ranks_run(ranks, live);
    ranks_destroy(ranks);
    unlink(path);
    unsetenv("TUTTI_TOPOLOGY_FILE");
    return failures;
}

int main(int argc, char **argv)
{
    on_gpus = argc > 2 && strcmp(argv[2], "cuda") == 0;
    int skip = on_gpus ? pg_cuda_skip() : 0;
    if (skip)
        return skip;
    int failed = pg_main(argc, argv, 1, (ranks_fn *const[]){live}, 1);
    return failed ? failed : along_links(argc > 1 && strcmp(argv[1], "processes") == 0) ? 1 : 0;
}
