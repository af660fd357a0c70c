/* SPDX-License-Identifier: MIT */
/* What a communicator refuses before it touches the store, and why, in words. */
#include "tutti/tutti.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A store that counts every call and serves none. */
static int touched;

static enum tutti_status touch(void)
{
    touched++;
    return TUTTI_ERR_SYSTEM;
}

static enum tutti_status count_set(void *context, const char *key, const void *value, size_t size)
{
    (void)context, (void)key, (void)value, (void)size;
    return touch();
}

static enum tutti_status count_get(void *context, const char *key, int64_t timeout_ms, void *value,
                                   size_t capacity, size_t *size)
{
    (void)context, (void)key, (void)timeout_ms, (void)value, (void)capacity, (void)size;
    return touch();
}

static enum tutti_status count_wait(void *context, const char *const *keys, size_t count,
                                    int64_t timeout_ms)
{
    (void)context, (void)keys, (void)count, (void)timeout_ms;
    return touch();
}

static enum tutti_status count_add(void *context, const char *key, int64_t amount, int64_t *result)
{
    (void)context, (void)key, (void)amount, (void)result;
    return touch();
}

static enum tutti_status count_check(void *context, const char *const *keys, size_t count,
                                     bool *exists)
{
    (void)context, (void)keys, (void)count, (void)exists;
    return touch();
}

static enum tutti_status count_compare_set(void *context, const char *key, const void *expected,
                                           size_t expected_size, const void *desired,
                                           size_t desired_size, void *value, size_t capacity,
                                           size_t *size)
{
    (void)context, (void)key, (void)expected, (void)expected_size, (void)desired;
    (void)desired_size, (void)value, (void)capacity, (void)size;
    return touch();
}

static enum tutti_status count_delete(void *context, const char *key, bool *deleted)
{
    (void)context, (void)key, (void)deleted;
    return touch();
}

static enum tutti_status count_num_keys(void *context, int64_t *count)
{
    (void)context, (void)count;
    return touch();
}

static tutti_store_t *store;

static int open_store(void **state)
{
    static const struct tutti_store_ops ops = {
        .struct_size = sizeof ops,
        .set = count_set,
        .get = count_get,
        .wait = count_wait,
        .add = count_add,
        .check = count_check,
        .compare_set = count_compare_set,
        .delete_key = count_delete,
        .num_keys = count_num_keys,
    };
    (void)state;
    return tutti_store_from_ops(&ops, NULL, &store) == TUTTI_OK ? 0 : -1;
}

static int close_store(void **state)
{
    (void)state;
    tutti_store_close(store);
    return 0;
}

/* A word is part of the reason; words end with NULL. */
static void assert_reason(const char *first, ...)
{
    va_list words;
    va_start(words, first);
    for (const char *word = first; word; word = va_arg(words, const char *))
        if (!strstr(tutti_last_error(), word))
            fail_msg("\"%s\" is not in \"%s\"", word, tutti_last_error());
    va_end(words);
}

/* The reason begins with the call, once. */
static void assert_call(const char *call)
{
    const char *reason = tutti_last_error();
    size_t length = strlen(call);
    if (strncmp(reason, call, length) != 0 || reason[length] != ':' || strstr(reason + 1, call))
        fail_msg("\"%s\" does not begin with %s", reason, call);
}

/* Refused, in the call's name. */
static enum tutti_status create(int rank, int size, const struct tutti_comm_options *options)
{
    tutti_comm_t *comm = (tutti_comm_t *)(uintptr_t)1;
    int before = touched;
    enum tutti_status status = tutti_comm_create(store, rank, size, options, &comm);
    assert_null(comm);
    assert_int_equal(touched, before);
    assert_call("tutti_comm_create");
    return status;
}

#define OPTIONS(...)                                                                               \
    (&(struct tutti_comm_options){.struct_size = sizeof(struct tutti_comm_options), __VA_ARGS__})

static void test_ranks(void **state)
{
    (void)state;
    assert_int_equal(create(0, 65, NULL), TUTTI_ERR_DECLINED);
    assert_reason("world size 65", "1 to 64", NULL);
    assert_int_equal(create(0, 0, NULL), TUTTI_ERR_INVALID);
    assert_reason("world size 0", NULL);
    assert_int_equal(create(-1, 4, NULL), TUTTI_ERR_INVALID);
    assert_reason("rank -1", "world size 4", NULL);
    assert_int_equal(create(4, 4, NULL), TUTTI_ERR_INVALID);
    assert_reason("rank 4", "world size 4", NULL);
}

static void test_pointers(void **state)
{
    tutti_comm_t *comm;
    (void)state;
    assert_int_equal(tutti_comm_create(NULL, 0, 1, NULL, &comm), TUTTI_ERR_INVALID);
    assert_null(comm);
    assert_call("tutti_comm_create");
    assert_reason("store is NULL", "tutti_store_open", NULL);
    assert_int_equal(tutti_comm_create(store, 0, 1, NULL, NULL), TUTTI_ERR_INVALID);
    assert_call("tutti_comm_create");
    assert_reason("comm is NULL", NULL);
    assert_int_equal(tutti_comm_rendezvous(NULL), TUTTI_ERR_INVALID);
    assert_call("tutti_comm_rendezvous");
    assert_int_equal(tutti_comm_status(NULL, NULL), TUTTI_ERR_INVALID);
    assert_call("tutti_comm_status");
    assert_int_equal(tutti_barrier(NULL, NULL, 0, TUTTI_STREAM_DEFAULT), TUTTI_ERR_INVALID);
    assert_reason("comm is NULL", NULL);
    tutti_comm_destroy(NULL);
    tutti_comm_abort(NULL);
    assert_int_equal(tutti_comm_describe(NULL, NULL, 0), 0);
    assert_int_equal(tutti_fault_format(NULL, NULL, 0), 0);
    assert_int_equal(touched, 0);
}

/* A fault names nobody whom it does not know. */
static void test_nameless_fault(void **state)
{
    (void)state;
    tutti_store_t *own;
    tutti_comm_t *comm;
    char text[512] = "";
    struct tutti_fault fault = {.struct_size = sizeof fault};
    assert_int_equal(tutti_store_open("memory:nameless", 0, &own), TUTTI_OK);
    assert_int_equal(tutti_comm_create(own, 0, 2, OPTIONS(.defer = true, .timeout_ms = 20), &comm),
                     TUTTI_OK);
    assert_int_equal(tutti_comm_rendezvous(comm), TUTTI_ERR_TIMEOUT);
    assert_int_equal(tutti_comm_status(comm, &fault), TUTTI_ERR_TIMEOUT);
    assert_int_equal(fault.peer, -1);
    assert_true(tutti_fault_format(&fault, text, sizeof text) > 0);
    assert_non_null(strstr(text, "rank 0 failed before the first operation"));
    assert_null(strstr(text, "-1"));
    assert_true(tutti_fault_format(NULL, text, sizeof text) == 0 && !*text);
    tutti_comm_destroy(comm);
    tutti_store_close(own);
}

static void assert_enabled(const char *expected)
{
    char text[32];
    assert_int_equal(tutti_info("enabled", text, sizeof text), TUTTI_OK);
    assert_string_equal(text, expected);
}

static void test_disable(void **state)
{
    (void)state;
    assert_enabled("yes");
    setenv("TUTTI_DISABLE", "1", 1);
    assert_enabled("no");
    assert_int_equal(create(0, 2, NULL), TUTTI_ERR_DECLINED);
    assert_reason("TUTTI_DISABLE", NULL);
    setenv("TUTTI_DISABLE", "perhaps", 1);
    assert_enabled("no");
    assert_int_equal(create(0, 2, NULL), TUTTI_ERR_DECLINED);
    setenv("TUTTI_DISABLE", "0", 1);
    assert_enabled("yes");
    unsetenv("TUTTI_DISABLE");
}

static void test_options(void **state)
{
    char long_name[80];
    (void)state;
    memset(long_name, 'n', sizeof long_name);
    long_name[sizeof long_name - 1] = 0;
    assert_int_equal(create(0, 1, OPTIONS(.name = "")), TUTTI_ERR_INVALID);
    assert_reason("name", "1 to 63 bytes", NULL);
    assert_int_equal(create(0, 1, OPTIONS(.name = long_name)), TUTTI_ERR_INVALID);
    assert_int_equal(create(0, 1, OPTIONS(.device = (enum tutti_device)7)), TUTTI_ERR_INVALID);
    assert_reason("device 7", NULL);
    assert_int_equal(create(0, 1, OPTIONS(.strict = (enum tutti_strict)3)), TUTTI_ERR_INVALID);
    assert_reason("strict 3", NULL);
    assert_int_equal(create(0, 1, OPTIONS(.algo = TUTTI_ALGO_HYBRID_CUBE_MESH)), TUTTI_ERR_INVALID);
    assert_reason("hybrid_cube_mesh", "one_shot", NULL);
    assert_int_equal(create(0, 1, OPTIONS(.algo = (enum tutti_algo)9)), TUTTI_ERR_INVALID);
    assert_int_equal(create(0, 1, OPTIONS(.programmatic_launch = true)), TUTTI_ERR_INVALID);
    assert_reason("programmatic_launch", "CUDA", NULL);
    assert_int_equal(create(0, 1, OPTIONS(.arena_bytes = 65535)), TUTTI_ERR_INVALID);
    assert_reason("arena_bytes", "is 65535", "at least 65536 bytes", NULL);
    assert_int_equal(create(0, 2, OPTIONS(.device = TUTTI_DEVICE_CUDA, .arena_bytes = 65536)),
                     TUTTI_ERR_INVALID);
    assert_reason("arena_bytes is for CPU", NULL);
    assert_int_equal(create(0, 1, OPTIONS(.direct = (enum tutti_direct)3)), TUTTI_ERR_INVALID);
    assert_reason("direct 3", NULL);
    assert_int_equal(create(0, 2, OPTIONS(.device = TUTTI_DEVICE_CUDA, .direct = TUTTI_DIRECT_ON)),
                     TUTTI_ERR_INVALID);
    assert_reason("direct is for CPU", NULL);
    assert_int_equal(create(0, 2, OPTIONS(.leaf_order = (int[]){0, 0})), TUTTI_ERR_INVALID);
    assert_reason("leaf_order[1] is 0", NULL);
    assert_int_equal(create(0, 2, OPTIONS(.leaf_order = (int[]){0, 2})), TUTTI_ERR_INVALID);
    assert_int_equal(create(0, 2, OPTIONS(.leaf_order = (int[]){-1, 0})), TUTTI_ERR_INVALID);
}

static void test_environment(void **state)
{
    static const struct {
        const char *name, *value;
    } wrong[] = {
        {"TUTTI_BUFFER_SIZE", "ten"}, {"TUTTI_BUFFER_SIZE", "-1"},  {"TUTTI_BUFFER_SIZE", "0"},
        {"TUTTI_BUFFER_SIZE", "10X"}, {"TUTTI_BUFFER_SIZE", "10 "}, {"TUTTI_BUFFER_SIZE", " -1"},
        {"TUTTI_STRICT", "maybe"},    {"TUTTI_ALGO", "three_shot"}, {"TUTTI_TIMEOUT_MS", "1s"},
        {"TUTTI_TIMEOUT_MS", "1.5"},  {"TUTTI_ARENA_BYTES", "few"}, {"TUTTI_ARENA_BYTES", "65535"},
        {"TUTTI_DIRECT", "maybe"},    {"TUTTI_MAX_BLOCKS", "-1"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        setenv(wrong[i].name, wrong[i].value, 1);
        assert_int_equal(create(0, 1, NULL), TUTTI_ERR_INVALID);
        assert_reason(wrong[i].name, wrong[i].value, "expected", NULL);
        unsetenv(wrong[i].name);
    }
    setenv("TUTTI_TIMEOUT_MS", "soon", 1);
    assert_int_equal(create(0, 1, NULL), TUTTI_ERR_INVALID);
    assert_reason("TUTTI_TIMEOUT_MS=soon: expected a whole number that fits in 64 bits", NULL);
    unsetenv("TUTTI_TIMEOUT_MS");
    setenv("TUTTI_ALGO", "hybrid_cube_mesh", 1);
    assert_int_equal(create(0, 1, NULL), TUTTI_ERR_INVALID);
    unsetenv("TUTTI_ALGO");
}

/* An algorithm of CUDA devices: the reason names where it comes from, the algorithm, what CPU ranks
 * have and what to do. */
static void test_foreign_algorithm(void **state)
{
    static const char serves[] = "a CPU communicator has one_shot, two_shot and "
                                 "hybrid_cube_mesh";
    static const struct {
        enum tutti_algo algo;
        const char *name;
    } foreign[] = {{TUTTI_ALGO_RING, "ring"}, {TUTTI_ALGO_HOST_STAGED, "host_staged"}};
    struct tutti_call_options call = {.struct_size = sizeof call};
    tutti_store_t *memory;
    tutti_comm_t *comm;
    float one = 1;
    char text[64];
    (void)state;
    assert_int_equal(tutti_store_open("memory:foreign", 1000, &memory), TUTTI_OK);
    assert_int_equal(tutti_comm_create(memory, 0, 1, NULL, &comm), TUTTI_OK);
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        setenv("TUTTI_ALGO", foreign[i].name, 1);
        assert_int_equal(create(0, 1, NULL), TUTTI_ERR_INVALID);
        snprintf(text, sizeof text, "tutti_comm_create: TUTTI_ALGO=%s: ", foreign[i].name);
        assert_reason(text, serves, "or unset it", NULL);
        unsetenv("TUTTI_ALGO");
        assert_int_equal(create(0, 1, OPTIONS(.algo = foreign[i].algo)), TUTTI_ERR_INVALID);
        snprintf(text, sizeof text,
                 "tutti_comm_create: options->algo %d (%s): ", (int)foreign[i].algo,
                 foreign[i].name);
        assert_reason(text, serves, "or none", NULL);
        call.algo = foreign[i].algo;
        assert_int_equal(tutti_all_reduce_with(&one, &one, 1, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                               TUTTI_STREAM_DEFAULT, &call),
                         TUTTI_ERR_INVALID);
        snprintf(text, sizeof text,
                 "tutti_all_reduce: options->algo %d (%s): ", (int)foreign[i].algo,
                 foreign[i].name);
        assert_reason(text, serves, "or none", NULL);
    }
    tutti_comm_destroy(comm);
    tutti_store_close(memory);
    static const int unknown[] = {4, 7, 10, -1};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        snprintf(text, sizeof text, "options->algo %d: expected", unknown[i]);
        assert_int_equal(create(0, 1, OPTIONS(.algo = (enum tutti_algo)unknown[i])),
                         TUTTI_ERR_INVALID);
        assert_reason(text, "enum tutti_algo", NULL);
    }
    setenv("TUTTI_ALGO", "one_shot_ll", 1); /* a kernel */
    assert_int_equal(create(0, 1, NULL), TUTTI_ERR_INVALID);
    assert_reason("TUTTI_ALGO=one_shot_ll: expected none", "on CUDA", "a kernel", NULL);
    unsetenv("TUTTI_ALGO");
}

static enum tutti_status reduce_one(tutti_comm_t *comm, tutti_op_t op)
{
    float one = 1;
    return tutti_all_reduce(&one, &one, 1, TUTTI_FLOAT32, op, comm, TUTTI_STREAM_DEFAULT);
}

/* A value that is no reduction is refused, whatever lies at its address, and so is a destroyed one.
 */
static void test_garbage_op(void **state)
{
    tutti_store_t *memory;
    tutti_comm_t *comm;
    tutti_op_t made, other;
    enum tutti_algo algo;
    const double mine[2] = {1, 2};
    (void)state;
    assert_int_equal(tutti_store_open("memory:garbage", 1000, &memory), TUTTI_OK);
    assert_int_equal(tutti_comm_create(memory, 0, 1, NULL, &comm), TUTTI_OK);
    assert_int_equal(tutti_op_create_premul_sum(2, &made), TUTTI_OK);
    assert_int_equal(reduce_one(comm, made), TUTTI_OK);
    const uintptr_t values[] = {(uintptr_t)TUTTI_PREMUL_SUM + 1,
                                0x1234,
                                (uintptr_t)mine,
                                (uintptr_t)made + 1,
                                (uintptr_t)made + 8,
                                (uintptr_t)made ^ (uintptr_t)1 << 40,
                                UINTPTR_MAX,
                                UINTPTR_MAX / 2 + 1};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        tutti_op_t op = (tutti_op_t)values[i]; /* NOLINT */
        assert_int_equal(reduce_one(comm, op), TUTTI_ERR_INVALID);
        assert_reason("op is none", "tutti_op_create_premul_sum", NULL);
        assert_int_equal(tutti_comm_algorithm(comm, 1, TUTTI_FLOAT32, op, NULL, &algo, NULL),
                         TUTTI_ERR_INVALID);
        assert_reason("op is none", NULL);
        assert_string_equal(tutti_op_name(op), "unknown");
        tutti_op_destroy(op);
    }
    assert_int_equal(reduce_one(comm, made), TUTTI_OK);
    tutti_op_destroy(made);
    tutti_op_destroy(made);
    assert_int_equal(tutti_op_create_premul_sum(3, &other), TUTTI_OK);
    assert_int_equal(reduce_one(comm, made), TUTTI_ERR_INVALID);
    assert_string_equal(tutti_op_name(made), "unknown");
    assert_string_equal(tutti_op_name(other), "premul_sum");
    tutti_op_destroy(other);
    tutti_comm_destroy(comm);
    tutti_store_close(memory);
}

/* Which premultiplied sums a dtype has. */
static void test_scalars(void **state)
{
    tutti_store_t *memory;
    tutti_comm_t *comm;
    tutti_op_t half, large, typed;
    int32_t data = 7, seven = 7;
    uint64_t wide = 3;
    const uint64_t factor = UINT64_C(1) << 63 | 5;
    (void)state;
    assert_int_equal(tutti_store_open("memory:scalars", 1000, &memory), TUTTI_OK);
    assert_int_equal(tutti_comm_create(memory, 0, 1, NULL, &comm), TUTTI_OK);
    assert_int_equal(tutti_op_create_premul_sum(.5, &half), TUTTI_OK);
    assert_int_equal(tutti_op_create_premul_sum(0x1p64, &large), TUTTI_OK);
    assert_int_equal(tutti_all_reduce(&data, &data, 1, TUTTI_INT32, half, comm, NULL),
                     TUTTI_ERR_INVALID);
    assert_reason("0.5", "int32", "whole number", NULL);
    assert_int_equal(tutti_all_reduce(&data, &data, 1, TUTTI_INT32, large, comm, NULL),
                     TUTTI_ERR_INVALID);
    assert_int_equal(tutti_all_reduce(&data, &data, 1, TUTTI_BOOL, half, comm, NULL),
                     TUTTI_ERR_INVALID);
    assert_reason("premul_sum is not defined for bool", NULL);
    tutti_op_destroy(half);
    tutti_op_destroy(large);
    assert_int_equal(tutti_op_create_premul_sum_typed(&factor, TUTTI_UINT64, &typed), TUTTI_OK);
    assert_int_equal(tutti_all_reduce(&wide, &wide, 1, TUTTI_UINT64, typed, comm, NULL), TUTTI_OK);
    assert_true(wide == factor * 3);
    assert_int_equal(tutti_all_reduce(&wide, &wide, 1, TUTTI_INT64, typed, comm, NULL),
                     TUTTI_ERR_INVALID);
    assert_reason("created for uint64", "has int64", NULL);
    tutti_op_destroy(typed);
    assert_int_equal(tutti_op_create_premul_sum_device(&seven, TUTTI_INT32, &typed), TUTTI_OK);
    seven = -2; /* read by each call */
    assert_int_equal(tutti_all_reduce(&data, &data, 1, TUTTI_INT32, typed, comm, NULL), TUTTI_OK);
    assert_int_equal(data, -14);
    tutti_op_destroy(typed);
    assert_int_equal(tutti_op_create_premul_sum_device(NULL, TUTTI_INT32, &typed),
                     TUTTI_ERR_INVALID);
    assert_null(typed);
    assert_int_equal(
        tutti_op_create_premul_sum_device((const char *)&factor + 4, TUTTI_UINT64, &typed),
        TUTTI_ERR_INVALID);
    assert_reason("aligned to 8 bytes", NULL);
    assert_int_equal(tutti_op_create_premul_sum_typed(&factor, TUTTI_BOOL, &typed),
                     TUTTI_ERR_INVALID);
    assert_int_equal(tutti_op_create_premul_sum_typed(&factor, (enum tutti_dtype)99, &typed),
                     TUTTI_ERR_INVALID);
    assert_int_equal(tutti_op_create_premul_sum_typed(&factor, TUTTI_UINT64, NULL),
                     TUTTI_ERR_INVALID);
    tutti_comm_destroy(comm);
    tutti_store_close(memory);
}

/* So many operations live at once, and each that is destroyed makes room for another. */
static void test_ops_at_once(void **state)
{
    enum { MOST = 4096 };
    static tutti_op_t ops[MOST];
    tutti_op_t more;
    (void)state;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < MOST; i++)
            assert_int_equal(tutti_op_create_premul_sum(i, &ops[i]), TUTTI_OK);
        assert_int_equal(tutti_op_create_premul_sum(0, &more), TUTTI_ERR_NO_MEMORY);
        assert_null(more);
        assert_reason("4096", "tutti_op_destroy", NULL);
        tutti_op_destroy(ops[7]);
        assert_int_equal(tutti_op_create_premul_sum(7, &ops[7]), TUTTI_OK);
        for (int i = 0; i < MOST; i++)
            tutti_op_destroy(ops[i]);
    }
}

/* Only a communicator that passes all checks reaches the store, whose failure it reports. */
static void test_touches(void **state)
{
    tutti_comm_t *comm;
    (void)state;
    assert_int_equal(touched, 0);
    assert_int_equal(tutti_comm_create(store, 0, 2, OPTIONS(.timeout_ms = 1000), &comm),
                     TUTTI_ERR_SYSTEM);
    assert_null(comm);
    assert_int_not_equal(touched, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks),          cmocka_unit_test(test_pointers),
        cmocka_unit_test(test_disable),        cmocka_unit_test(test_options),
        cmocka_unit_test(test_environment),    cmocka_unit_test(test_touches),
        cmocka_unit_test(test_nameless_fault), cmocka_unit_test(test_foreign_algorithm),
        cmocka_unit_test(test_garbage_op),     cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_ops_at_once),
    };
    return cmocka_run_group_tests(tests, open_store, close_store);
}
