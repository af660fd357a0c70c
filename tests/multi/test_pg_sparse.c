/* SPDX-License-Identifier: MIT */
/*
 * Sparse all-reduces of a process group, apart from the sums: ranks without entries, ranks that
 * disagree, come late, lack memory or leave; results in callbacks, and after the end of the group.
 *
 * usage: test_pg_sparse processes|threads
 */
#include "pg.h"

#include "base/order.h"

#include <stdio.h>
#include <sys/resource.h>

enum {
    LATE_TAG = 7,
    BUSY_TAG = 8,
    MANY = 60, /* operations in flight: more than a control ring has room for */
    SOON_MS = 50,
    DIMS = TUTTI_MAX_DIMS,
};

/* No rank has entries; then only the last rank has some. */
static int nothing(struct ranks *ranks, int rank, tutti_pg_t *pg)
{
    const int64_t index = 3;
    const float value = 4;
    for (int has = 0; has < 2; has++) {
        struct tutti_sparse_tensor result = {.struct_size = sizeof result};
        size_t nnz = has && rank == ranks->size - 1;
        tutti_work_t *work;
        RANKS_CHECK(pg_sparse_sum(pg, nnz ? &index : NULL, nnz ? &value : NULL, nnz, 0, 0, &work) ==
                    TUTTI_OK);
        RANKS_CHECK(tutti_work_wait_host(work, RANKS_TIMEOUT_MS) == TUTTI_OK);
        RANKS_CHECK(tutti_work_sparse_result(work, &result) == TUTTI_OK);
        RANKS_CHECK(result.nnz == (size_t)has && result.sizes[0] == PG_ROWS);
        RANKS_CHECK(!has || (result.indices[0] == index && *(const float *)result.values == value));
        tutti_work_destroy(work);
    }
    return 0;
}

/* One rank has another dtype, split, size, or number of dimensions; or a dense tensor. */
static int mismatch(struct ranks *ranks, int rank, tutti_pg_t *pg)
{
    static const char *const own[] = {
        "has all_reduce_sparse of float32, sparse sizes [4, 3], dense sizes [5]",
        "sparse sizes [4, 3], dense sizes [5]", "dense sizes [5]",
        "sparse sizes [4, 3, 5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]",
        "has all_reduce_sparse of float32"};
    static const char *const theirs[] = {
        "has all_reduce_sparse of float64", "sparse sizes [4], dense sizes [3, 5]",
        "dense sizes [6]", "sparse sizes [4, 3, 5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]",
        "has all_reduce of 1 float32, sum"};
    const bool other = rank == ranks->size - 1;
    for (int i = 0; i < 5; i++) {
        int64_t sizes[DIMS] = {[0] = 4, [1] = 3, [2] = i == 2 && other ? 6 : 5};
        for (int d = 3; d < DIMS; d++)
            sizes[d] = 1;
        struct tutti_sparse_tensor tensor = pg_entries(NULL, NULL, 0);
        struct tutti_fault fault = {.struct_size = sizeof fault};
        tutti_work_t *work;
        char name[32];
        float x = 0;
        tensor.sizes = sizes;
        tensor.dtype = i == 0 && other ? TUTTI_FLOAT64 : TUTTI_FLOAT32;
        tensor.sparse_dim = i == 3 ? DIMS - other : i == 1 && other ? 1 : 2;
        tensor.dense_dim = i == 3 ? 0 : 3 - tensor.sparse_dim;
        if (i == 4 && other)
            RANKS_CHECK(pg_sum(pg, &x, 0, 0, &work) == TUTTI_OK);
        else
            RANKS_CHECK(tutti_pg_all_reduce_sparse(pg, &tensor, 1, NULL, &work) == TUTTI_OK);
        RANKS_CHECK(tutti_work_wait_host(work, RANKS_TIMEOUT_MS) == TUTTI_ERR_MISMATCH);
        snprintf(name, sizeof name, "rank %d has", ranks->size - 1);
        RANKS_CHECK(strstr(tutti_last_error(), own[i]));
        RANKS_CHECK(strstr(tutti_last_error(), theirs[i]));
        RANKS_CHECK(strstr(tutti_last_error(), name));
        RANKS_CHECK(tutti_work_fault(work, &fault) == TUTTI_ERR_MISMATCH);
        RANKS_CHECK(fault.rank != fault.peer);
        RANKS_CHECK(fault.rank == ranks->size - 1 || fault.peer == ranks->size - 1);
        struct tutti_sparse_tensor result = {.struct_size = sizeof result};
        RANKS_CHECK(tutti_work_sparse_result(work, &result) ==
                    (i == 4 && other ? TUTTI_ERR_INVALID : TUTTI_ERR_MISMATCH));
        tutti_work_destroy(work);
        RANKS_CHECK(pg_goes_on_sparse(pg, 0, rank, ranks->size));
    }
    return 0;
}

/* The last rank submits nothing to one tag until all ranks have finished another tag. By then one
 * operation of the first tag has timed out; no other has. */
static int stopped_tag(struct ranks *ranks, int rank, tutti_pg_t *pg)
{
    const int64_t indices[2] = {rank, 100};
    const float values[2] = {1, 2};
    const bool last = rank == ranks->size - 1;
    tutti_work_t *late[MANY], *busy[MANY], *timed = NULL;
    bool done;
    if (!last)
        RANKS_CHECK(pg_sparse_sum(pg, indices, values, 2, LATE_TAG, SOON_MS, &timed) == TUTTI_OK);
    for (int i = 0; i < MANY; i++) {
        if (!last)
            RANKS_CHECK(pg_sparse_sum(pg, indices, values, 2, LATE_TAG, 0, &late[i]) == TUTTI_OK);
        RANKS_CHECK(pg_sparse_sum(pg, indices, values, 2, BUSY_TAG, 0, &busy[i]) == TUTTI_OK);
    }
    for (int i = 0; i < MANY; i++)
        RANKS_CHECK(pg_end(busy[i]) == TUTTI_OK);
    for (int i = 0; i < MANY && !last; i++) {
        struct tutti_sparse_tensor result = {.struct_size = sizeof result};
        RANKS_CHECK(tutti_work_test(late[i], &done) == TUTTI_OK && !done);
        RANKS_CHECK(tutti_work_sparse_result(late[i], &result) == TUTTI_ERR_INVALID);
        RANKS_CHECK(strstr(tutti_last_error(), "is not done"));
    }
    if (!last) {
        RANKS_CHECK(tutti_work_wait_host(timed, RANKS_TIMEOUT_MS) == TUTTI_ERR_TIMEOUT);
        RANKS_CHECK(strstr(tutti_last_error(), "all_reduce_sparse 1 of tag 7: rank"));
    }
    ranks_raise(ranks, 0);
    RANKS_CHECK(ranks_await(ranks, 0, (uint32_t)ranks->size));
    if (last)
        RANKS_CHECK(pg_sparse_sum(pg, indices, values, 2, LATE_TAG, 0, &timed) == TUTTI_OK);
    RANKS_CHECK(pg_end(timed) == TUTTI_ERR_TIMEOUT);
    for (int i = 0; i < MANY && last; i++)
        RANKS_CHECK(pg_sparse_sum(pg, indices, values, 2, LATE_TAG, 0, &late[i]) == TUTTI_OK);
    for (int i = 0; i < MANY; i++)
        RANKS_CHECK(pg_end(late[i]) == TUTTI_OK);
    return 0;
}

/* The last rank may not write files, and its segment is a file. All ranks get the error; once the
 * limit is lifted, sums work again. Only for processes, since threads share the limit. */
static int no_memory(struct ranks *ranks, int rank, tutti_pg_t *pg)
{
    enum { MORE = 20000 };
    static int64_t indices[MORE];
    static float values[MORE];
    const bool last = rank == ranks->size - 1;
    struct rlimit limit, none;
    char text[64];
    tutti_work_t *work;
    for (int i = 0; i < MORE; i++)
        indices[i] = i % PG_ROWS;
    RANKS_CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    none = limit;
    none.rlim_cur = 4096;
    for (int turn = 0; turn < 4; turn++) {
        if (last)
            RANKS_CHECK(setrlimit(RLIMIT_FSIZE, turn < 2 ? &none : &limit) == 0);
        RANKS_CHECK(pg_sparse_sum(pg, indices, values, MORE, 0, 0, &work) == TUTTI_OK);
        enum tutti_status status = tutti_work_wait_host(work, RANKS_TIMEOUT_MS);
        RANKS_CHECK(status == (turn < 2 ? TUTTI_ERR_NO_MEMORY : TUTTI_OK));
        snprintf(text, sizeof text, last ? "file size limit" : "rank %d failed (", ranks->size - 1);
        RANKS_CHECK(turn > 1 || strstr(tutti_last_error(), text));
        tutti_work_destroy(work);
    }
    return pg_goes_on_sparse(pg, 0, rank, ranks->size) ? 0 : __LINE__;
}

/* What a callback found. */
struct called {
    uint32_t times;
    size_t nnz;
    float sum;
};

static void call_back(void *context, tutti_work_t *work, enum tutti_status status)
{
    struct called *called = context;
    struct tutti_sparse_tensor result = {.struct_size = sizeof result};
    if (status == TUTTI_OK && tutti_work_sparse_result(work, &result) == TUTTI_OK)
        for (called->nnz = 0; called->nnz < result.nnz; called->nnz++)
            called->sum += ((const float *)result.values)[called->nnz];
    order_fetch_add_u32(&called->times, 1);
}

/* Several inputs, one of them twice; a callback that reads the result; a handle that is not
 * kept. */
static int called_back(struct ranks *ranks, int rank, tutti_pg_t *pg)
{
    const int64_t indices[3] = {5, 2, 5};
    const float values[3] = {1, 10, 100};
    const struct tutti_sparse_tensor one = pg_entries(indices, values, 3);
    const struct tutti_sparse_tensor tensors[3] = {one, pg_entries(NULL, NULL, 0), one};
    struct called called = {0};
    const struct tutti_pg_call_options options = {
        .struct_size = sizeof options, .tag = 3, .callback = call_back, .context = &called};
    RANKS_CHECK(tutti_pg_all_reduce_sparse(pg, tensors, 3, &options, NULL) == TUTTI_OK);
    RANKS_CHECK(pg_goes_on(pg, 3, ranks->size)); /* it runs after the first */
    RANKS_CHECK(order_load_acquire_u32(&called.times) == 1);
    RANKS_CHECK(called.nnz == 2 && called.sum == (float)(222 * ranks->size));
    return 0;
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    int (*const parts[])(struct ranks *, int, tutti_pg_t *) = {nothing, mismatch, stopped_tag,
                                                               called_back, no_memory};
    const int count = ranks->processes && !ranks_short() ? 5 : 4;
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    int failed = 0;
    RANKS_CHECK(pg_join(ranks, rank, store, &comm, &pg) == TUTTI_OK);
    for (int i = 0; i < count && !failed; i++)
        failed = parts[i](ranks, rank, pg);
    if (!failed) /* no rank leaves before all have finished */
        RANKS_CHECK(pg_goes_on(pg, 1, ranks->size));
    pg_part(comm, pg);
    return failed;
}

/* Rank 0 destroys its group with operations in flight. Works that are done stay valid, with their
 * results. */
static int leave(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const int64_t index = rank;
    const float value = (float)(rank + 1);
    const bool lonely = rank != ranks->size - 1; /* the last never submits them */
    struct tutti_sparse_tensor result = {.struct_size = sizeof result};
    tutti_work_t *works[MANY], *kept;
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    RANKS_CHECK(pg_join(ranks, rank, store, &comm, &pg) == TUTTI_OK);
    for (int i = 0; i < MANY; i++) /* no thread waits for these */
        RANKS_CHECK(pg_sparse_sum(pg, &index, &value, 1, 1, 0, NULL) == TUTTI_OK);
    RANKS_CHECK(pg_sparse_sum(pg, &index, &value, 1, 1, 0, &kept) == TUTTI_OK);
    for (int i = 0; i < MANY && lonely; i++)
        RANKS_CHECK(pg_sparse_sum(pg, &index, &value, 1, 2, 0, &works[i]) == TUTTI_OK);
    RANKS_CHECK(tutti_work_wait_host(kept, RANKS_TIMEOUT_MS) == TUTTI_OK);
    if (rank == 0) {
        tutti_pg_destroy(pg);
        pg = NULL;
    }
    for (int i = 0; i < MANY && lonely; i++) {
        enum tutti_status expected = rank == 0 ? TUTTI_ERR_ABORTED : TUTTI_ERR_PEER_DEAD;
        RANKS_CHECK(tutti_work_wait_host(works[i], RANKS_TIMEOUT_MS) == expected);
        RANKS_CHECK(strstr(tutti_last_error(), "rank 0"));
        RANKS_CHECK(tutti_work_sparse_result(works[i], &result) == expected);
        tutti_work_destroy(works[i]);
    }
    if (lonely)
        ranks_raise(ranks, 1);
    else
        RANKS_CHECK(ranks_await(ranks, 1, (uint32_t)ranks->size - 1));
    pg_part(comm, pg);
    RANKS_CHECK(tutti_work_sparse_result(kept, &result) == TUTTI_OK);
    RANKS_CHECK(result.nnz == (size_t)ranks->size);
    for (int r = 0; r < ranks->size; r++)
        RANKS_CHECK(result.indices[r] == r && ((const float *)result.values)[r] == (float)(r + 1));
    tutti_work_destroy(kept);
    return 0;
}

int main(int argc, char **argv)
{
    return pg_main(argc, argv, 2, (ranks_fn *const[]){live, leave}, 2);
}
