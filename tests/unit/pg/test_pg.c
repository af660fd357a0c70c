/* SPDX-License-Identifier: MIT */
/* A process group of one rank: calls that are refused and take no sequence number, and what a work
 * reports about itself. */
#include "base/order.h"
#include "pg_alone.h"
#include "tutti/recovery.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct tutti_tensor tensor_of(void *data, int dims, const int64_t *sizes,
                                     const int64_t *strides)
{
    return (struct tutti_tensor){.struct_size = sizeof(struct tutti_tensor),
                                 .data = data,
                                 .dtype = TUTTI_FLOAT32,
                                 .dims = dims,
                                 .sizes = sizes,
                                 .strides = strides};
}

/* The number that the next operation of tag 0 gets. */
static uint64_t next_sequence(void)
{
    float x = 1;
    struct tutti_tensor tensor = tensor_of(&x, 0, NULL, NULL);
    tutti_work_t *work;
    assert_int_equal(tutti_pg_all_reduce(pg, &tensor, 1, TUTTI_SUM, NULL, &work), TUTTI_OK);
    uint64_t sequence = tutti_work_sequence(work);
    assert_int_equal(tutti_work_wait_host(work, 0), TUTTI_OK);
    tutti_work_destroy(work);
    return sequence;
}

static void assert_refused(const struct tutti_tensor *tensors, int count, tutti_op_t op,
                           enum tutti_status expected, const char *text)
{
    tutti_work_t *work = (tutti_work_t *)(uintptr_t)1;
    assert_int_equal(tutti_pg_all_reduce(pg, tensors, count, op, NULL, &work), expected);
    assert_null(work);
    if (!strstr(tutti_last_error(), text))
        fail_msg("\"%s\" lacks \"%s\"", tutti_last_error(), text);
}

static void refuses(void **state)
{
    (void)state;
    float data[2][12] = {{0}};
    const int64_t sizes[] = {3, 4}, other[] = {4, 3}, holes[] = {5, 1}, overlap[] = {1, 1},
                  columns[] = {1, 3}, negative[] = {-3, 4}, backwards[] = {4, -1},
                  huge[] = {INT64_MAX, 16};
    uint64_t before = next_sequence();
    struct tutti_tensor good = tensor_of(data[0], 2, sizes, NULL), one = good;
    struct tutti_tensor two[2] = {good, tensor_of(data[1], 2, sizes, NULL)};

    assert_refused(&good, 0, TUTTI_SUM, TUTTI_ERR_INVALID, "0 tensors");
    assert_refused(NULL, 1, TUTTI_SUM, TUTTI_ERR_INVALID, "1 tensors");
    assert_refused(&good, TUTTI_MAX_TENSORS + 1, TUTTI_SUM, TUTTI_ERR_INVALID, "expected 1 to");
    assert_refused(&good, 1, NULL, TUTTI_ERR_INVALID, "op is none");
    assert_refused(&good, 1, (tutti_op_t)(uintptr_t)0x1234, TUTTI_ERR_INVALID, "op is none");
    assert_refused(&good, 1, TUTTI_BXOR, TUTTI_ERR_INVALID, "bxor is not defined for float32");
    one.struct_size = 12;
    assert_refused(&one, 1, TUTTI_SUM, TUTTI_ERR_INVALID, "struct_size");
    one = good, one.device = TUTTI_DEVICE_CUDA;
    assert_refused(&one, 1, TUTTI_SUM, TUTTI_ERR_DECLINED, "CUDA");
    one = good, one.device = (enum tutti_device)7;
    assert_refused(&one, 1, TUTTI_SUM, TUTTI_ERR_INVALID, "device is 7");
    one = good, one.dtype = (enum tutti_dtype)77;
    assert_refused(&one, 1, TUTTI_SUM, TUTTI_ERR_INVALID, "dtype 77");
    one = good, one.dims = TUTTI_MAX_DIMS + 1;
    assert_refused(&one, 1, TUTTI_SUM, TUTTI_ERR_INVALID, "17 dimensions");
    one = good, one.data = NULL;
    assert_refused(&one, 1, TUTTI_SUM, TUTTI_ERR_INVALID, "tensors[0]: data is NULL");
    one = good, one.data = (char *)data[0] + 2;
    assert_refused(&one, 1, TUTTI_SUM, TUTTI_ERR_INVALID, "not aligned");
    one = tensor_of(data[0], 2, sizes, holes);
    assert_refused(&one, 1, TUTTI_SUM, TUTTI_ERR_INVALID, "strides[0] is 5, expected 4");
    one = tensor_of(data[0], 2, sizes, overlap);
    assert_refused(&one, 1, TUTTI_SUM, TUTTI_ERR_INVALID, "overlaps itself");
    one = tensor_of(data[0], 2, sizes, backwards);
    assert_refused(&one, 1, TUTTI_SUM, TUTTI_ERR_INVALID, "strides[1] is -1, expected 1");
    one = tensor_of(data[0], 2, negative, NULL);
    assert_refused(&one, 1, TUTTI_SUM, TUTTI_ERR_INVALID, "sizes[0] is -3");
    one = tensor_of(data[0], 2, huge, NULL);
    assert_refused(&one, 1, TUTTI_SUM, TUTTI_ERR_INVALID, "more than memory can hold");

    two[1].sizes = other;
    assert_refused(two, 2, TUTTI_SUM, TUTTI_ERR_INVALID, "differ in sizes");
    two[1].sizes = sizes, two[1].strides = columns;
    assert_refused(two, 2, TUTTI_SUM, TUTTI_ERR_INVALID, "differ in strides");
    two[1].strides = NULL, two[1].dims = 1;
    assert_refused(two, 2, TUTTI_SUM, TUTTI_ERR_INVALID, "differ in number of dimensions");
    two[1].dims = 2, two[1].dtype = TUTTI_INT32;
    assert_refused(two, 2, TUTTI_SUM, TUTTI_ERR_INVALID, "of int32, the first tensor of float32");
    two[1].dtype = TUTTI_FLOAT32, two[1].data = &data[0][11];
    assert_refused(two, 2, TUTTI_SUM, TUTTI_ERR_INVALID, "overlap");

    struct tutti_pg_call_options options = {.struct_size = 1};
    assert_int_equal(tutti_pg_all_reduce(pg, &good, 1, TUTTI_SUM, &options, NULL),
                     TUTTI_ERR_INVALID);
    assert_int_equal(tutti_pg_all_reduce(NULL, &good, 1, TUTTI_SUM, NULL, NULL), TUTTI_ERR_INVALID);
    assert_int_equal(next_sequence(), before + 1);
}

static void takes_any_dense_layout(void **state)
{
    (void)state;
    float data[24];
    const int64_t sizes[][3] = {
        {2, 3, 4}, {1, 24, 1}, {0, 3, 4}, {4, 3, 2}, {0, INT64_MAX, INT64_MAX}};
    const int64_t strides[][3] = {{1, 8, 2}, {77, 1, -5}, {9, 9, 9}, {6, 2, 1}};
    for (int i = 0; i < 5; i++) {
        struct tutti_tensor tensor =
            tensor_of(sizes[i][0] ? data : NULL, 3, sizes[i], i < 4 ? strides[i] : NULL);
        tutti_work_t *work;
        for (int k = 0; k < 24; k++)
            data[k] = (float)k;
        assert_int_equal(tutti_pg_all_reduce(pg, &tensor, 1, TUTTI_AVG, NULL, &work), TUTTI_OK);
        assert_int_equal(tutti_work_wait_host(work, 0), TUTTI_OK);
        for (int k = 0; k < 24; k++)
            assert_true(data[k] == (float)k);
        tutti_work_destroy(work);
    }
}

/* What a callback found. */
struct called {
    int times;
    bool done;
    enum tutti_status status;
    tutti_work_t *work;
    tutti_work_t *next;
};

static void call_back(void *context, tutti_work_t *work, enum tutti_status status)
{
    struct called *called = context;
    static float x = 1;
    struct tutti_tensor tensor = tensor_of(&x, 0, NULL, NULL);
    called->times++;
    called->status = status;
    called->work = work;
    (void)tutti_work_test(work, &called->done);
    (void)tutti_pg_all_reduce(pg, &tensor, 1, TUTTI_SUM, NULL, &called->next);
}

static void tells_of_itself(void **state)
{
    (void)state;
    float data[2][6] = {{1, 2, 3, 4, 5, 6}, {10, 20, 30, 40, 50, 60}};
    const int64_t sizes[] = {2, 3};
    struct tutti_tensor tensors[2] = {tensor_of(data[0], 2, sizes, NULL),
                                      tensor_of(data[1], 2, sizes, NULL)};
    struct called called = {.done = true};
    struct tutti_pg_call_options options = {
        .struct_size = sizeof options, .tag = 9, .callback = call_back, .context = &called};
    struct tutti_fault fault = {.struct_size = sizeof fault};
    const struct tutti_tensor *own;
    tutti_work_t *work;
    bool done;
    int count;
    assert_int_equal(tutti_pg_all_reduce(pg, tensors, 2, TUTTI_SUM, &options, &work), TUTTI_OK);
    assert_int_equal(tutti_work_wait_stream(work, TUTTI_STREAM_LEGACY), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_work_wait_stream(work, TUTTI_STREAM_DEFAULT), TUTTI_OK);
    assert_int_equal(called.times, 1);
    assert_ptr_equal(called.work, work);
    assert_false(called.done);
    assert_int_equal(called.status, TUTTI_OK);
    assert_int_equal(tutti_work_test(work, &done), TUTTI_OK);
    assert_true(done);
    assert_int_equal(tutti_work_fault(work, &fault), TUTTI_OK);
    assert_int_equal(fault.status, TUTTI_OK);
    for (int i = 0; i < 6; i++)
        assert_true(data[0][i] == (float)(11 * (i + 1)) && data[1][i] == data[0][i]);

    assert_string_equal(tutti_work_title(work), "all_reduce of 2 x 6 float32, sum");
    assert_int_equal(tutti_work_collective(work), TUTTI_COLLECTIVE_ALL_REDUCE);
    assert_int_equal(tutti_work_tag(work), 9);
    assert_int_equal(tutti_work_sequence(work), 1);
    assert_int_equal(tutti_work_tensors(work, &own, &count), TUTTI_OK);
    assert_int_equal(count, 2);
    for (int i = 0; i < 2; i++) {
        assert_ptr_equal(own[i].data, data[i]);
        assert_ptr_not_equal(own[i].sizes, sizes);
        assert_int_equal(own[i].sizes[1], 3);
        assert_int_equal(own[i].strides[0], 3);
        assert_int_equal(own[i].strides[1], 1);
    }
    assert_int_equal(tutti_work_wait_host(called.next, 0), TUTTI_OK);
    tutti_work_destroy(called.next);
    tutti_work_destroy(work);
}

static void raise_flag(void *context, tutti_work_t *work, enum tutti_status status)
{
    (void)work;
    order_store_release_u32(context, status == TUTTI_OK ? 1 : 2);
}

/* No thread waits for the work: the group's thread finds it after a nap, and after a sleep. */
static void begins_by_itself(void **state)
{
    (void)state;
    static const int idle_ms[] = {0, 5, 100, 1200};
    for (int i = 0; i < 4; i++) {
        float x = 1;
        uint32_t flag = 0;
        const struct tutti_tensor tensor = tensor_of(&x, 0, NULL, NULL);
        const struct tutti_pg_call_options options = {
            .struct_size = sizeof options, .callback = raise_flag, .context = &flag};
        usleep((useconds_t)idle_ms[i] * 1000);
        assert_int_equal(tutti_pg_all_reduce(pg, &tensor, 1, TUTTI_SUM, &options, NULL), TUTTI_OK);
        for (int ms = 0; ms < 60000 && !order_load_acquire_u32(&flag); ms++)
            usleep(1000);
        assert_int_equal(order_load_acquire_u32(&flag), 1);
    }
}

static void read_fault(void *context, tutti_work_t *work, enum tutti_status status)
{
    struct tutti_fault *fault = context;
    if (tutti_work_fault(work, fault) != status || !strstr(tutti_last_error(), "had matched it"))
        fault->status = TUTTI_OK;
}

static void fault_in_a_callback(void **state)
{
    (void)state;
    float x = 1;
    const struct tutti_tensor tensor = tensor_of(&x, 0, NULL, NULL);
    struct tutti_fault fault = {.struct_size = sizeof fault};
    const struct tutti_pg_call_options options = {
        .struct_size = sizeof options, .timeout_ms = 1, .callback = read_fault, .context = &fault};
    tutti_work_t *work;
    assert_int_equal(tutti_pg_recv(pg, &tensor, 0, &options, &work), TUTTI_OK);
    assert_int_equal(tutti_work_wait_host(work, -1), TUTTI_ERR_TIMEOUT);
    assert_int_equal(fault.status, TUTTI_ERR_TIMEOUT);
    assert_int_equal(fault.expected.collective, TUTTI_COLLECTIVE_RECV);
    tutti_work_destroy(work);
}

static void accessors_refuse(void **state)
{
    (void)state;
    const struct tutti_tensor *tensors;
    int count;
    assert_int_equal(tutti_work_tensors(NULL, &tensors, &count), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_work_fault(NULL, NULL), TUTTI_ERR_INVALID);
    assert_null(tutti_work_title(NULL));
    assert_int_equal(tutti_work_collective(NULL), 0);
}

static void owns_the_communicator(void **state)
{
    (void)state;
    tutti_pg_t *second;
    float x = 1;
    assert_int_equal(tutti_pg_create(comm, NULL, &second), TUTTI_ERR_CONCURRENT);
    assert_null(second);
    assert_int_equal(tutti_all_reduce(&x, &x, 1, TUTTI_FLOAT32, TUTTI_SUM, comm, 0),
                     TUTTI_ERR_CONCURRENT);
    assert_non_null(strstr(tutti_last_error(), "process group"));
}

/* tutti_comm_shrink() allocates the new communicator; meanwhile a second call comes, as another
 * thread would make it. */
static struct {
    tutti_comm_t *comm; /* NULL: no call comes */
    enum tutti_status status;
} intruder;

void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    const struct tutti_shrink_options options = {.struct_size = sizeof options, .timeout_ms = 1};
    tutti_comm_t *target = intruder.comm, *second;
    intruder.comm = NULL;
    if (target)
        intruder.status = tutti_comm_shrink(target, store, &options, &second, NULL);
    return __real_aligned_alloc(alignment, size);
}

/* On a communicator with a destroyed group, and on one without a group. */
static void one_thread_shrinks(void **state)
{
    (void)state;
    for (int grouped = 0; grouped < 2; grouped++) {
        const struct tutti_comm_options options = {.struct_size = sizeof options,
                                                   .name = "shrinks"};
        tutti_comm_t *old, *shrunk, *second;
        tutti_pg_t *group;
        assert_int_equal(tutti_comm_create(store, 0, 1, &options, &old), TUTTI_OK);
        if (grouped) {
            assert_int_equal(tutti_pg_create(old, NULL, &group), TUTTI_OK);
            assert_int_equal(tutti_comm_shrink(old, store, NULL, &shrunk, NULL),
                             TUTTI_ERR_CONCURRENT);
            tutti_pg_destroy(group);
        }
        intruder.comm = old;
        assert_int_equal(tutti_comm_shrink(old, store, NULL, &shrunk, NULL), TUTTI_OK);
        assert_int_equal(intruder.status, TUTTI_ERR_CONCURRENT);
        assert_int_equal(tutti_comm_shrink(old, store, NULL, &second, NULL), TUTTI_ERR_INVALID);
        assert_non_null(strstr(tutti_last_error(), "has shrunk already"));
        assert_int_equal(tutti_barrier(old, NULL, 0, TUTTI_STREAM_DEFAULT), TUTTI_ERR_ABORTED);
        assert_int_equal(tutti_pg_create(old, NULL, &group), TUTTI_ERR_ABORTED);
        tutti_comm_destroy(shrunk);
        tutti_comm_destroy(old);
    }
}

static void declines_strict(void **state)
{
    (void)state;
    struct tutti_comm_options options = {
        .struct_size = sizeof options, .name = "strict", .strict = TUTTI_STRICT_ON};
    struct tutti_pg_options unknown = {.struct_size = sizeof unknown + 8};
    tutti_comm_t *strict;
    tutti_pg_t *group;
    assert_int_equal(tutti_comm_create(store, 0, 1, &options, &strict), TUTTI_OK);
    assert_int_equal(tutti_pg_create(strict, NULL, &group), TUTTI_ERR_DECLINED);
    assert_null(group);
    unknown.struct_size = 1;
    assert_int_equal(tutti_pg_create(NULL, &unknown, &group), TUTTI_ERR_INVALID);
    tutti_comm_destroy(strict);
}

static void refuses_threads(void **state)
{
    (void)state;
    static const int counts[] = {-1, 17};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const struct tutti_pg_options options = {.struct_size = sizeof options,
                                                 .threads = counts[i]};
        tutti_pg_t *group;
        assert_int_equal(tutti_pg_create(comm, &options, &group), TUTTI_ERR_INVALID);
        assert_null(group);
        assert_non_null(strstr(tutti_last_error(), "options->threads"));
    }
}

/* In a child of fork() calls on the handles fail, and to destroy them does nothing. */
static void survives_fork(void **state)
{
    (void)state;
    float x = 1;
    struct tutti_tensor tensor = tensor_of(&x, 0, NULL, NULL);
    tutti_work_t *work, *other;
    assert_int_equal(tutti_pg_all_reduce(pg, &tensor, 1, TUTTI_SUM, NULL, &work), TUTTI_OK);
    assert_int_equal(tutti_work_wait_host(work, 0), TUTTI_OK);
    pid_t pid = fork();
    if (pid == 0) {
        const struct tutti_tensor *own = &tensor;
        int count = 1;
        bool done = true;
        bool good =
            tutti_work_test(work, &done) == TUTTI_ERR_INVALID && !done &&
            tutti_work_wait_host(work, 0) == TUTTI_ERR_INVALID &&
            tutti_work_tensors(work, &own, &count) == TUTTI_ERR_INVALID && !own && !count &&
            tutti_pg_all_reduce(pg, &tensor, 1, TUTTI_SUM, NULL, &other) == TUTTI_ERR_INVALID;
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
        cmocka_unit_test(refuses),
        cmocka_unit_test(takes_any_dense_layout),
        cmocka_unit_test(tells_of_itself),
        cmocka_unit_test(begins_by_itself),
        cmocka_unit_test(fault_in_a_callback),
        cmocka_unit_test(accessors_refuse),
        cmocka_unit_test(owns_the_communicator),
        cmocka_unit_test(declines_strict),
        cmocka_unit_test(refuses_threads),
        cmocka_unit_test(one_thread_shrinks),
        cmocka_unit_test(survives_fork),
    };
    return cmocka_run_group_tests(tests, open_group, close_group);
}
