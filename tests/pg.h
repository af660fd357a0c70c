/* SPDX-License-Identifier: MIT */
/* Helpers of the tests of process groups. */
#ifndef TESTS_PG_H
#define TESTS_PG_H

#include "ranks.h"
#include "tutti/pg.h"

#include <string.h>

/* A one-dimensional float32 tensor; *size holds its length. */
static inline struct tutti_tensor pg_vector(float *data, const int64_t *size)
{
    return (struct tutti_tensor){.struct_size = sizeof(struct tutti_tensor),
                                 .data = data,
                                 .dtype = TUTTI_FLOAT32,
                                 .dims = 1,
                                 .sizes = size};
}

/* Submits the sum of one float. */
static inline enum tutti_status pg_sum(tutti_pg_t *pg, float *data, uint32_t tag,
                                       int64_t timeout_ms, tutti_work_t **work)
{
    static const int64_t one = 1;
    const struct tutti_tensor tensor = pg_vector(data, &one);
    const struct tutti_pg_call_options options = {
        .struct_size = sizeof options, .tag = tag, .timeout_ms = timeout_ms};
    return tutti_pg_all_reduce(pg, &tensor, 1, TUTTI_SUM, &options, work);
}

/* Submits a sum of `nnz` entries, numbers, of a vector of PG_ROWS. */
enum { PG_ROWS = 1000 };

static inline struct tutti_sparse_tensor pg_entries(const int64_t *indices, const float *values,
                                                    size_t nnz)
{
    static const int64_t rows = PG_ROWS;
    return (struct tutti_sparse_tensor){.struct_size = sizeof(struct tutti_sparse_tensor),
                                        .dtype = TUTTI_FLOAT32,
                                        .sparse_dim = 1,
                                        .sizes = &rows,
                                        .nnz = nnz,
                                        .indices = indices,
                                        .values = values};
}

static inline enum tutti_status pg_sparse_sum(tutti_pg_t *pg, const int64_t *indices,
                                              const float *values, size_t nnz, uint32_t tag,
                                              int64_t timeout_ms, tutti_work_t **work)
{
    const struct tutti_sparse_tensor tensor = pg_entries(indices, values, nnz);
    const struct tutti_pg_call_options options = {
        .struct_size = sizeof options, .tag = tag, .timeout_ms = timeout_ms};
    return tutti_pg_all_reduce_sparse(pg, &tensor, 1, &options, work);
}

/* Waits for the work and destroys it. */
static inline enum tutti_status pg_end(tutti_work_t *work)
{
    enum tutti_status status = tutti_work_wait_host(work, RANKS_TIMEOUT_MS);
    tutti_work_destroy(work);
    return status;
}

/* Whether a sum of 1 from each rank works. */
static inline bool pg_goes_on(tutti_pg_t *pg, uint32_t tag, int size)
{
    float x = 1;
    tutti_work_t *work;
    return pg_sum(pg, &x, tag, 0, &work) == TUTTI_OK && pg_end(work) == TUTTI_OK &&
           x == (float)size;
}

/* Whether a sparse sum works, of one row that all ranks have and one row per rank. */
static inline bool pg_goes_on_sparse(tutti_pg_t *pg, uint32_t tag, int rank, int size)
{
    const int64_t indices[2] = {PG_ROWS - 1, rank};
    const float values[2] = {1, 2};
    struct tutti_sparse_tensor result = {.struct_size = sizeof result};
    tutti_work_t *work;
    if (pg_sparse_sum(pg, indices, values, 2, tag, 0, &work) != TUTTI_OK)
        return false;
    bool good = tutti_work_wait_host(work, RANKS_TIMEOUT_MS) == TUTTI_OK &&
                tutti_work_sparse_result(work, &result) == TUTTI_OK &&
                result.nnz == (size_t)size + 1;
    for (int r = 0; r <= size && good; r++)
        good = result.indices[r] == (r < size ? r : PG_ROWS - 1) &&
               ((const float *)result.values)[r] == (r < size ? 2 : (float)size);
    tutti_work_destroy(work);
    return good;
}

/* Create the communicator and the group. */
static inline enum tutti_status pg_join(struct ranks *ranks, int rank, tutti_store_t *store,
                                        tutti_comm_t **comm, tutti_pg_t **pg)
{
    *pg = NULL;
    enum tutti_status status = ranks_join(ranks, rank, store, NULL, comm);
    return status == TUTTI_OK ? tutti_pg_create(*comm, NULL, pg) : status;
}

static inline void pg_part(tutti_comm_t *comm, tutti_pg_t *pg)
{
    tutti_pg_destroy(pg);
    tutti_comm_destroy(comm);
}

/* A main(): runs the parts, one after the other, with groups of `least` to 4 ranks, as threads or,
 * with the argument "processes", as processes. */
static inline int pg_main(int argc, char **argv, int least, ranks_fn *const *parts, int count)
{
    bool processes = argc > 1 && strcmp(argv[1], "processes") == 0;
    int failures = 0, skip = ranks_skip_cuda("this test's tensors are the host's");
    if (skip)
        return skip;
    for (int size = least; size <= 4; size++) {
        struct ranks *ranks = ranks_create(size, processes ? size : 0, 0);
        for (int i = 0; i < count; i++)
            failures += ranks_run(ranks, parts[i]);
        ranks_destroy(ranks);
    }
    return failures ? 1 : 0;
}

#endif
