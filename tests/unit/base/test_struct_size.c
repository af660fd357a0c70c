/* SPDX-License-Identifier: MIT */
/*
 * Each public struct that begins with struct_size, as a program of another version has it: shorter,
 * where the bytes beyond its end must not be read or written, and longer. To add a struct, add a
 * row.
 */
#include "pg_alone.h"
#include "tutti/recovery.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 8192, LONGER = 24, BEYOND = 0xee };

/* IN: the caller fills the struct, WHOLE: and no field may lack. OUT: the library fills it. */
enum direction { IN, OUT, WHOLE };

struct row {
    const char *name; /* without "tutti_" */
    enum direction direction;
    size_t size;
    size_t shorter; /* an older version's size */
    const void *fields;
    enum tutti_status (*call)(void *given);
};

static const int64_t sizes[] = {2};
static float data[2];
static struct tutti_exchanger exchanger;

static enum tutti_status with_comm_options(void *given)
{
    tutti_comm_t *other;
    enum tutti_status status = tutti_comm_create(store, 0, 1, given, &other);
    tutti_comm_destroy(other);
    return status;
}

static enum tutti_status with_call_options(void *given)
{
    tutti_comm_t *other;
    assert_int_equal(tutti_comm_create(store, 0, 1, NULL, &other), TUTTI_OK);
    enum tutti_status status = tutti_all_reduce_with(data, data, 2, TUTTI_FLOAT32, TUTTI_SUM, other,
                                                     TUTTI_STREAM_DEFAULT, given);
    tutti_comm_destroy(other);
    return status;
}

static enum tutti_status with_pg_options(void *given)
{
    tutti_comm_t *other;
    tutti_pg_t *group;
    assert_int_equal(tutti_comm_create(store, 0, 1, NULL, &other), TUTTI_OK);
    enum tutti_status status = tutti_pg_create(other, given, &group);
    tutti_pg_destroy(group);
    tutti_comm_destroy(other);
    return status;
}

static enum tutti_status submit(const struct tutti_tensor *tensors, int count,
                                const struct tutti_pg_call_options *options)
{
    tutti_work_t *work;
    enum tutti_status status = tutti_pg_all_reduce(pg, tensors, count, TUTTI_SUM, options, &work);
    if (status == TUTTI_OK)
        assert_int_equal(tutti_work_wait_host(work, 0), TUTTI_OK);
    tutti_work_destroy(work);
    return status;
}

static enum tutti_status with_pg_call_options(void *given)
{
    const struct tutti_tensor tensor = {
        .struct_size = sizeof tensor, .data = data, .dims = 1, .sizes = sizes};
    return submit(&tensor, 1, given);
}

/* A list of two: the second begins struct_size bytes after the first. */
static void *repeat(void *given)
{
    size_t stride;
    memcpy(&stride, given, sizeof stride);
    if (stride > ROOM / 2 || stride % sizeof stride)
        return given;
    memcpy((char *)given + stride, given, stride);
    return (char *)given + stride;
}

static enum tutti_status with_tensor(void *given)
{
    return submit(given, 1, NULL);
}

static enum tutti_status with_two_tensors(void *given)
{
    static float more[2];
    struct tutti_tensor *second = repeat(given);
    second->data = more;
    return submit(given, 2, NULL);
}

static enum tutti_status sum_sparse(const struct tutti_sparse_tensor *tensors, int count,
                                    struct tutti_sparse_tensor *result)
{
    tutti_work_t *work;
    enum tutti_status status = tutti_pg_all_reduce_sparse(pg, tensors, count, NULL, &work);
    if (status != TUTTI_OK)
        return status;
    assert_int_equal(tutti_work_wait_host(work, 0), TUTTI_OK);
    if (result)
        status = tutti_work_sparse_result(work, result);
    tutti_work_destroy(work);
    return status;
}

static const int64_t indices[] = {1};
static const float values[] = {3};
static const struct tutti_sparse_tensor sparse = {.struct_size = sizeof sparse,
                                                  .sparse_dim = 1,
                                                  .sizes = sizes,
                                                  .nnz = 1,
                                                  .indices = indices,
                                                  .values = values};

static enum tutti_status with_two_sparse_tensors(void *given)
{
    repeat(given);
    return sum_sparse(given, 2, NULL);
}

static enum tutti_status with_sparse_result(void *given)
{
    return sum_sparse(&sparse, 1, given);
}

static enum tutti_status shrink(const void *options, void *result)
{
    tutti_comm_t *other, *shrunk;
    assert_int_equal(tutti_comm_create(store, 0, 1, NULL, &other), TUTTI_OK);
    enum tutti_status status = tutti_comm_shrink(other, store, options, &shrunk, result);
    tutti_comm_destroy(shrunk);
    tutti_comm_destroy(other);
    return status;
}

static enum tutti_status with_shrink_options(void *given)
{
    return shrink(given, NULL);
}

static enum tutti_status with_shrink_result(void *given)
{
    return shrink(NULL, given);
}

static enum tutti_status with_store_ops(void *given)
{
    tutti_store_t *own;
    enum tutti_status status = tutti_store_from_ops(given, NULL, &own);
    tutti_store_close(own);
    return status;
}

static enum tutti_status with_exchanger(void *given)
{
    enum tutti_status status = tutti_exchanger_barrier(given, 1000);
    if (status == TUTTI_OK)
        assert_int_equal(((struct tutti_exchanger *)given)->sequence, 1);
    return status;
}

static enum tutti_status with_launcher(void *given)
{
    return tutti_info_launcher(given);
}

static enum tutti_status with_comm_fault(void *given)
{
    return tutti_comm_status(comm, given);
}

static enum tutti_status with_work_fault(void *given)
{
    tutti_work_t *work;
    const struct tutti_tensor tensor = {
        .struct_size = sizeof tensor, .data = data, .dims = 1, .sizes = sizes};
    assert_int_equal(tutti_pg_all_reduce(pg, &tensor, 1, TUTTI_SUM, NULL, &work), TUTTI_OK);
    assert_int_equal(tutti_work_wait_host(work, 0), TUTTI_OK);
    enum tutti_status status = tutti_work_fault(work, given);
    tutti_work_destroy(work);
    return status;
}

static void *symmetric;

static enum tutti_status with_symm_fault(void *given)
{
    return tutti_symm_status(symmetric, given);
}

static enum tutti_status with_symm_info(void *given)
{
    return tutti_symm_rendezvous(symmetric, 1000, given);
}

/* Operations that are never called. */
static enum tutti_status no_set(void *context, const char *key, const void *value, size_t size)
{
    (void)context, (void)key, (void)value, (void)size;
    return TUTTI_ERR_SYSTEM;
}
static enum tutti_status no_get(void *context, const char *key, int64_t timeout_ms, void *value,
                                size_t capacity, size_t *size)
{
    (void)context, (void)key, (void)timeout_ms, (void)value, (void)capacity, (void)size;
    return TUTTI_ERR_SYSTEM;
}
static enum tutti_status no_wait(void *context, const char *const *keys, size_t count,
                                 int64_t timeout_ms)
{
    (void)context, (void)keys, (void)count, (void)timeout_ms;
    return TUTTI_ERR_SYSTEM;
}
static enum tutti_status no_add(void *context, const char *key, int64_t amount, int64_t *result)
{
    (void)context, (void)key, (void)amount, (void)result;
    return TUTTI_ERR_SYSTEM;
}
static enum tutti_status no_check(void *context, const char *const *keys, size_t count,
                                  bool *exists)
{
    (void)context, (void)keys, (void)count, (void)exists;
    return TUTTI_ERR_SYSTEM;
}
static enum tutti_status no_compare_set(void *context, const char *key, const void *expected,
                                        size_t expected_size, const void *desired,
                                        size_t desired_size, void *value, size_t capacity,
                                        size_t *size)
{
    (void)context, (void)key, (void)expected, (void)expected_size, (void)desired;
    (void)desired_size, (void)value, (void)capacity, (void)size;
    return TUTTI_ERR_SYSTEM;
}
static enum tutti_status no_delete(void *context, const char *key, bool *deleted)
{
    (void)context, (void)key, (void)deleted;
    return TUTTI_ERR_SYSTEM;
}
static enum tutti_status no_num_keys(void *context, int64_t *count)
{
    (void)context, (void)count;
    return TUTTI_ERR_SYSTEM;
}

static const struct tutti_store_ops ops = {.set = no_set,
                                           .get = no_get,
                                           .wait = no_wait,
                                           .add = no_add,
                                           .check = no_check,
                                           .compare_set = no_compare_set,
                                           .delete_key = no_delete,
                                           .num_keys = no_num_keys};
static const struct tutti_tensor tensor_fields = {.data = data, .dims = 1, .sizes = sizes};

#define ROW(name, direction, next, fields, call)                                                   \
    {                                                                                              \
#name, direction, sizeof(struct tutti_##name), offsetof(struct tutti_##name, next),        \
            fields, call                                                                           \
    }

static const struct row rows[] = {
    ROW(comm_options, IN, buffer_size, NULL, with_comm_options),
    ROW(call_options, IN, storage_offset, NULL, with_call_options),
    ROW(pg_options, IN, ranks, NULL, with_pg_options),
    ROW(pg_call_options, IN, callback, NULL, with_pg_call_options),
    ROW(shrink_options, IN, exclude, NULL, with_shrink_options),
    ROW(store_ops, IN, close, &ops, with_store_ops),
    ROW(tensor, IN, strides, &tensor_fields, with_tensor),
    ROW(tensor, IN, strides, &tensor_fields, with_two_tensors),
    ROW(sparse_tensor, IN, device_index, &sparse, with_two_sparse_tensors),
    ROW(exchanger, WHOLE, sequence, &exchanger, with_exchanger),
    ROW(shrink_result, OUT, completed_by_all, NULL, with_shrink_result),
    ROW(sparse_tensor, OUT, sizes, NULL, with_sparse_result),
    ROW(launcher, OUT, local_rank, NULL, with_launcher),
    ROW(fault, OUT, sequence, NULL, with_comm_fault),
    ROW(fault, OUT, sequence, NULL, with_work_fault),
    ROW(fault, OUT, sequence, NULL, with_symm_fault),
    ROW(symm_info, OUT, buffers, NULL, with_symm_info),
};
enum { ROWS = sizeof rows / sizeof *rows };

/* A struct of struct_size bytes: the fields that it has, then zeros; after its end other bytes. */
static void fill(const struct row *row, size_t struct_size, size_t bytes, unsigned char *room)
{
    memset(room, BEYOND, ROOM);
    memset(room, 0, bytes);
    if (row->fields)
        memcpy(room, row->fields, bytes < row->size ? bytes : row->size);
    memcpy(room, &struct_size, sizeof struct_size);
}

static void expect(const struct row *row, size_t struct_size, size_t bytes, enum tutti_status want,
                   unsigned char *room)
{
    fill(row, struct_size, bytes, room);
    if (want == TUTTI_ERR_VERSION)
        room[row->size + 3] = 1;
    enum tutti_status status = row->call(room);
    if (status != want)
        fail_msg("%s of %zu bytes (%zu here): %s, \"%s\"", row->name, struct_size, row->size,
                 tutti_status_name(status), tutti_last_error());
    if (want == TUTTI_OK)
        return;
    char given[32], known[32];
    snprintf(given, sizeof given, "%zu", struct_size);
    snprintf(known, sizeof known, "%zu", row->size);
    if (!strstr(tutti_last_error(), given) || !strstr(tutti_last_error(), known))
        fail_msg("%s: \"%s\" lacks %s or %s", row->name, tutti_last_error(), given, known);
}

static void structs_that_callers_fill(void **state)
{
    static _Alignas(16) unsigned char room[ROOM];
    (void)state;
    for (const struct row *row = rows; row < rows + ROWS; row++) {
        if (row->direction == OUT)
            continue;
        expect(row, row->size, row->size, TUTTI_OK, room);
        expect(row, row->shorter, row->shorter,
               row->direction == WHOLE ? TUTTI_ERR_INVALID : TUTTI_OK, room);
        expect(row, row->size + LONGER, row->size + LONGER, TUTTI_OK, room);
        expect(row, row->size + LONGER, row->size + LONGER, TUTTI_ERR_VERSION, room);
    }
}

/* The library writes what both know, 0 to what it does not know, and nothing beyond the end. */
static void structs_that_the_library_fills(void **state)
{
    static _Alignas(16) unsigned char room[ROOM], whole[ROOM];
    (void)state;
    for (const struct row *row = rows; row < rows + ROWS; row++) {
        if (row->direction != OUT)
            continue;
        expect(row, row->size, row->size, TUTTI_OK, whole);
        const size_t lengths[] = {row->shorter, row->size, row->size + LONGER};
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            const size_t length = lengths[i], both = length < row->size ? length : row->size;
            size_t kept;
            expect(row, length, length, TUTTI_OK, room);
            memcpy(&kept, room, sizeof kept);
            assert_int_equal(kept, length);
            assert_memory_equal(room + 8, whole + 8, row->shorter - 8);
            for (size_t b = both; b < length; b++)
                assert_int_equal(room[b], 0);
            for (size_t b = length; b < ROOM; b++)
                if (room[b] != BEYOND)
                    fail_msg("%s of %zu bytes: byte %zu was written", row->name, length, b);
        }
    }
}

static void sizes_that_are_none(void **state)
{
    static _Alignas(16) unsigned char room[ROOM];
    static const size_t wrong[] = {0, 1, 12, 4104, SIZE_MAX};
    (void)state;
    for (const struct row *row = rows; row < rows + ROWS; row++)
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
            expect(row, wrong[i], row->size, TUTTI_ERR_INVALID, room);
}

static int set_up(void **state)
{
    static tutti_symm_group_t *group;
    exchanger = (struct tutti_exchanger){.prefix = "sizes", .size = 1};
    if (open_group(state) || tutti_symm_group("struct_size", 0, 1, store, &group) != TUTTI_OK ||
        tutti_symm_alloc(group, TUTTI_DEVICE_CPU, 64, &symmetric) != TUTTI_OK)
        return -1;
    exchanger.store = store;
    *state = group;
    setenv("RANK", "0", 1), setenv("WORLD_SIZE", "1", 1);
    setenv("LOCAL_RANK", "0", 1), setenv("LOCAL_WORLD_SIZE", "1", 1);
    return 0;
}

static int tear_down(void **state)
{
    tutti_symm_group_destroy(*state);
    return close_group(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(structs_that_callers_fill),
        cmocka_unit_test(structs_that_the_library_fills),
        cmocka_unit_test(sizes_that_are_none),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
