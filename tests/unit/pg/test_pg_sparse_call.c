/* SPDX-License-Identifier: MIT */
/* Sparse sums of a process group of one rank: calls that are refused and take no sequence number,
 * which calls are counted, and what a work reports about itself. */
#include "comm/comm.h"
#include "pg_alone.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const int64_t sizes[] = {3, 4, 2};
static const int64_t indices[] = {2, 0, 2, /* second dimension */ 1, 3, 1};
static const float values[] = {1, 2, 10, 20, 100, 200};

/* Three entries of 3 x 4 rows of 2, two of them of one index. */
static struct tutti_sparse_tensor tensor_make(void)
{
    return (struct tutti_sparse_tensor){.struct_size = sizeof(struct tutti_sparse_tensor),
                                        .dtype = TUTTI_FLOAT32,
                                        .sparse_dim = 2,
                                        .dense_dim = 1,
                                        .sizes = sizes,
                                        .nnz = 3,
                                        .indices = indices,
                                        .values = values};
}

/* The number that the next operation of tag 0 gets. */
static uint64_t next_sequence(void)
{
    const struct tutti_sparse_tensor tensor = tensor_make();
    tutti_work_t *work;
    assert_int_equal(tutti_pg_all_reduce_sparse(pg, &tensor, 1, NULL, &work), TUTTI_OK);
    uint64_t sequence = tutti_work_sequence(work);
    assert_int_equal(tutti_work_wait_host(work, 0), TUTTI_OK);
    tutti_work_destroy(work);
    return sequence;
}

static void assert_refused(const struct tutti_sparse_tensor *tensors, int count,
                           enum tutti_status expected, const char *text)
{
    tutti_work_t *work = (tutti_work_t *)(uintptr_t)1;
    uint64_t calls = comm_call_count();
    assert_int_equal(tutti_pg_all_reduce_sparse(pg, tensors, count, NULL, &work), expected);
    assert_null(work);
    if (!strstr(tutti_last_error(), text))
        fail_msg("\"%s\" lacks \"%s\"", tutti_last_error(), text);
    assert_int_equal(comm_call_count() - calls, 1);
}

static void refuses(void **state)
{
    (void)state;
    const int64_t outside[] = {2, 0, 2, 1, 4, 1}, negative[] = {2, -1, 2, 1, 3, 1},
                  minus[] = {3, -4, 2}, other[] = {3, 4, 1}, huge[] = {3, 4, INT64_MAX};
    uint64_t before = next_sequence();
    const struct tutti_sparse_tensor good = tensor_make();
    struct tutti_sparse_tensor one = good, two[2] = {good, good};

    assert_refused(&good, 0, TUTTI_ERR_INVALID, "0 tensors");
    assert_refused(NULL, 1, TUTTI_ERR_INVALID, "1 tensors");
    assert_refused(&good, TUTTI_MAX_TENSORS + 1, TUTTI_ERR_INVALID, "expected 1 to");
    one.struct_size = 12;
    assert_refused(&one, 1, TUTTI_ERR_INVALID, "struct_size");
    one = good, one.device = TUTTI_DEVICE_CUDA;
    assert_refused(&one, 1, TUTTI_ERR_DECLINED, "no CUDA");
    one = good, one.device = (enum tutti_device)7;
    assert_refused(&one, 1, TUTTI_ERR_INVALID, "device is 7");
    one = good, one.dtype = (enum tutti_dtype)77;
    assert_refused(&one, 1, TUTTI_ERR_INVALID, "dtype is 77");
    one = good, one.sparse_dim = -1;
    assert_refused(&one, 1, TUTTI_ERR_INVALID, "-1 sparse");
    one = good, one.sizes = NULL;
    assert_refused(&one, 1, TUTTI_ERR_INVALID, "sizes");
    one = good, one.sizes = minus;
    assert_refused(&one, 1, TUTTI_ERR_INVALID, "dimension 1 of a sparse tensor is -4");
    one = good, one.sizes = huge;
    assert_refused(&one, 1, TUTTI_ERR_INVALID, "more bytes than can be addressed");
    one = good, one.indices = NULL;
    assert_refused(&one, 1, TUTTI_ERR_INVALID, "indices of 3 entries");
    one = good, one.values = NULL;
    assert_refused(&one, 1, TUTTI_ERR_INVALID, "values of 3 entries");
    one = good, one.indices = (const int64_t *)(const void *)((const char *)indices + 4);
    assert_refused(&one, 1, TUTTI_ERR_INVALID, "not aligned");
    one = good, one.values = (const char *)values + 2;
    assert_refused(&one, 1, TUTTI_ERR_INVALID, "not aligned");
    one = good, one.indices = outside;
    assert_refused(&one, 1, TUTTI_ERR_INVALID, "entry 1 of a sparse tensor has index 4");
    one = good, one.indices = negative;
    assert_refused(&one, 1, TUTTI_ERR_INVALID, "entry 1 of a sparse tensor has index -1");
    one = good, one.nnz = SIZE_MAX / 2;
    assert_refused(&one, 1, TUTTI_ERR_INVALID, "can be addressed");

    two[1].dtype = TUTTI_INT32;
    assert_refused(two, 2, TUTTI_ERR_INVALID, "tensors[1]: of int32, the first tensor of float32");
    two[1] = good, two[1].sparse_dim = 1, two[1].dense_dim = 2;
    assert_refused(two, 2, TUTTI_ERR_INVALID, "differ in sparse and dense dimensions");
    two[1] = good, two[1].sizes = other;
    assert_refused(two, 2, TUTTI_ERR_INVALID, "differ in sizes");

    struct tutti_pg_call_options options = {.struct_size = 1};
    assert_int_equal(tutti_pg_all_reduce_sparse(pg, &good, 1, &options, NULL), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_pg_all_reduce_sparse(NULL, &good, 1, NULL, NULL), TUTTI_ERR_INVALID);
    assert_int_equal(next_sequence(), before + 1);
}

/* Sparse and dense operations count once each, however many steps they need. */
static void counts_calls(void **state)
{
    (void)state;
    float x = 1;
    const struct tutti_tensor dense = {
        .struct_size = sizeof dense, .data = &x, .dtype = TUTTI_FLOAT32};
    uint64_t before = comm_call_count();
    tutti_work_t *work;
    for (int i = 0; i < 5; i++)
        next_sequence();
    assert_int_equal(comm_call_count() - before, 5);
    assert_int_equal(tutti_pg_all_reduce(pg, &dense, 1, TUTTI_SUM, NULL, &work), TUTTI_OK);
    assert_int_equal(tutti_work_wait_host(work, 0), TUTTI_OK);
    tutti_work_destroy(work);
    assert_int_equal(comm_call_count() - before, 6);
    assert_int_equal(tutti_pg_all_reduce(pg, &dense, 0, TUTTI_SUM, NULL, &work), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_pg_all_reduce(NULL, NULL, 1, TUTTI_SUM, NULL, NULL), TUTTI_ERR_INVALID);
    assert_int_equal(comm_call_count() - before, 8);
}

static void tells_of_itself(void **state)
{
    (void)state;
    struct tutti_sparse_tensor tensor = tensor_make();
    const struct tutti_sparse_tensor tensors[2] = {tensor, tensor}, *own;
    const struct tutti_tensor *dense;
    struct tutti_sparse_tensor result = {.struct_size = sizeof result};
    tutti_work_t *work;
    int count;
    assert_int_equal(tutti_pg_all_reduce_sparse(pg, tensors, 2, NULL, &work), TUTTI_OK);
    assert_int_equal(tutti_work_wait_host(work, 0), TUTTI_OK);
    assert_string_equal(tutti_work_title(work), "all_reduce_sparse of 6 x 2 float32, sum");
    assert_int_equal(tutti_work_collective(work), TUTTI_COLLECTIVE_ALL_REDUCE);
    assert_int_equal(tutti_work_tensors(work, &dense, &count), TUTTI_OK);
    assert_int_equal(count, 0);
    assert_int_equal(tutti_work_sparse_tensors(work, &own, &count), TUTTI_OK);
    assert_int_equal(count, 2);
    assert_ptr_equal(own[1].values, values);
    assert_ptr_not_equal(own[1].sizes, sizes);
    assert_memory_equal(own[1].sizes, sizes, sizeof sizes);

    const int64_t indices_expected[] = {0, 2, 3, 1};
    const float values_expected[] = {20, 40, 202, 404};
    assert_int_equal(tutti_work_sparse_result(work, &result), TUTTI_OK);
    assert_int_equal(result.struct_size, sizeof result);
    assert_int_equal(result.nnz, 2);
    assert_memory_equal(result.indices, indices_expected, sizeof indices_expected);
    assert_memory_equal(result.values, values_expected, sizeof values_expected);
    assert_memory_equal(result.sizes, sizes, sizeof sizes);

    /* A caller built against another version of the header. */
    result = (struct tutti_sparse_tensor){.struct_size = offsetof(struct tutti_sparse_tensor, nnz)};
    assert_int_equal(tutti_work_sparse_result(work, &result), TUTTI_OK);
    assert_int_equal(result.sparse_dim, 2);
    assert_int_equal(result.nnz, 0);
    result.struct_size = 0;
    assert_int_equal(tutti_work_sparse_result(work, &result), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_work_sparse_result(work, NULL), TUTTI_ERR_INVALID);
    tutti_work_destroy(work);
}

static void other_works_have_no_result(void **state)
{
    (void)state;
    float x = 1;
    const struct tutti_tensor dense = {
        .struct_size = sizeof dense, .data = &x, .dtype = TUTTI_FLOAT32};
    const struct tutti_sparse_tensor *tensors;
    struct tutti_sparse_tensor result = {.struct_size = sizeof result};
    tutti_work_t *work;
    int count = 7;
    assert_int_equal(tutti_pg_all_reduce(pg, &dense, 1, TUTTI_SUM, NULL, &work), TUTTI_OK);
    assert_int_equal(tutti_work_wait_host(work, 0), TUTTI_OK);
    assert_int_equal(tutti_work_sparse_result(work, &result), TUTTI_ERR_INVALID);
    assert_non_null(strstr(tutti_last_error(), "all_reduce of 1 float32, sum, no sparse sum"));
    assert_int_equal(tutti_work_sparse_tensors(work, &tensors, &count), TUTTI_OK);
    assert_int_equal(count, 0);
    tutti_work_destroy(work);
    assert_int_equal(tutti_work_sparse_result(NULL, &result), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_work_sparse_tensors(NULL, &tensors, &count), TUTTI_ERR_INVALID);
}

/* In a child of fork() calls on the handles fail, and to destroy them does nothing. */
static void survives_fork(void **state)
{
    (void)state;
    const struct tutti_sparse_tensor tensor = tensor_make();
    struct tutti_sparse_tensor result = {.struct_size = sizeof result};
    tutti_work_t *work;
    assert_int_equal(tutti_pg_all_reduce_sparse(pg, &tensor, 1, NULL, &work), TUTTI_OK);
    assert_int_equal(tutti_work_wait_host(work, 0), TUTTI_OK);
    pid_t pid = fork();
    if (pid == 0) {
        const struct tutti_sparse_tensor *own = &tensor;
        int count = 1;
        bool good = tutti_work_sparse_result(work, &result) == TUTTI_ERR_INVALID &&
                    tutti_work_sparse_tensors(work, &own, &count) == TUTTI_ERR_INVALID && !own &&
                    !count &&
                    tutti_pg_all_reduce_sparse(pg, &tensor, 1, NULL, NULL) == TUTTI_ERR_INVALID;
        tutti_work_destroy(work);
        tutti_pg_destroy(pg);
        _exit(good ? 0 : 1);
    }
    int ended;
    assert_int_equal(waitpid(pid, &ended, 0), pid);
    assert_int_equal(ended, 0);
    tutti_work_destroy(work);
}

int main(void)
{
    setenv("TUTTI_CUDA_LIBRARY", "/nonexistent/libcuda.so", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses),         cmocka_unit_test(counts_calls),
        cmocka_unit_test(tells_of_itself), cmocka_unit_test(other_works_have_no_result),
        cmocka_unit_test(survives_fork),
    };
    return cmocka_run_group_tests(tests, open_group, close_group);
}
