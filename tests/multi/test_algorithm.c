/* SPDX-License-Identifier: MIT */
/* Which algorithm a call takes: strict mode's table with its exact limits, who may force another
 * one, and what is refused and counted. One rank: the choice looks at no other. */
#include "tutti/tutti.h"

#include "../../tools/collective.h"
#include "../../tools/collective_call.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { KIB = 1024, MIB = 1024 * KIB };

static tutti_store_t *store;

static int open_store(void **state)
{
    (void)state;
    return tutti_store_open("memory:algorithm", 1000, &store) == TUTTI_OK ? 0 : -1;
}

static int close_store(void **state)
{
    (void)state;
    tutti_store_close(store);
    return 0;
}

static tutti_comm_t *create(struct tutti_comm_options options)
{
    tutti_comm_t *comm;
    options.struct_size = sizeof options;
    assert_int_equal(tutti_comm_create(store, 0, 1, &options, &comm), TUTTI_OK);
    return comm;
}

static enum tutti_algo algorithm(tutti_comm_t *comm, size_t count, enum tutti_dtype dtype,
                                 uint64_t storage_offset, enum tutti_algo forced)
{
    struct tutti_call_options options = {
        .struct_size = sizeof options, .algo = forced, .storage_offset = storage_offset};
    enum tutti_algo algo;
    const char *reason = NULL;
    assert_int_equal(tutti_comm_algorithm(comm, count, dtype, TUTTI_SUM, &options, &algo, &reason),
                     TUTTI_OK);
    assert_non_null(reason);
    return algo;
}

struct row {
    enum tutti_dtype dtype;
    size_t count;
    uint64_t storage_offset;
    enum tutti_algo algo;
};

static void check_rows(tutti_comm_t *comm, const struct row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (algorithm(comm, rows[i].count, rows[i].dtype, rows[i].storage_offset,
                      TUTTI_ALGO_NONE) != rows[i].algo)
            fail_msg("row %zu: %zu %s at %zu", i, rows[i].count, tutti_dtype_name(rows[i].dtype),
                     (size_t)rows[i].storage_offset);
}

static void test_strict(void **state)
{
    static const struct row rows[] = {
        {TUTTI_FLOAT32, 0, 0, TUTTI_ALGO_ONE_SHOT},
        {TUTTI_FLOAT32, 1, 0, TUTTI_ALGO_ONE_SHOT},
        {TUTTI_FLOAT32, 256 * KIB / 4, 0, TUTTI_ALGO_ONE_SHOT},
        {TUTTI_FLOAT32, 256 * KIB / 4 + 1, 0, TUTTI_ALGO_TWO_SHOT},
        {TUTTI_FLOAT32, 10 * MIB / 4, 0, TUTTI_ALGO_TWO_SHOT},
        {TUTTI_FLOAT32, 10 * MIB / 4 + 1, 0, TUTTI_ALGO_NONE},
        {TUTTI_FLOAT32, 4, 3, TUTTI_ALGO_ONE_SHOT},
        {TUTTI_BFLOAT16, 256 * KIB / 2, 0, TUTTI_ALGO_ONE_SHOT},
        {TUTTI_BFLOAT16, 256 * KIB / 2 + 2, 0, TUTTI_ALGO_TWO_SHOT},
        {TUTTI_BFLOAT16, 10 * MIB / 2, 0, TUTTI_ALGO_TWO_SHOT},
        {TUTTI_BFLOAT16, 10 * MIB / 2 + 2, 0, TUTTI_ALGO_NONE},
        {TUTTI_BFLOAT16, 1, 0, TUTTI_ALGO_NONE},   /* 2 bytes */
        {TUTTI_BFLOAT16, 101, 0, TUTTI_ALGO_NONE}, /* 202 bytes */
        {TUTTI_BFLOAT16, 100, 1, TUTTI_ALGO_NONE}, /* 2 bytes into the storage */
        {TUTTI_BFLOAT16, 100, 2, TUTTI_ALGO_ONE_SHOT},
        {TUTTI_FLOAT64, 4, 0, TUTTI_ALGO_NONE},
        {TUTTI_FLOAT16, 4, 0, TUTTI_ALGO_NONE},
        {TUTTI_INT32, 4, 0, TUTTI_ALGO_NONE},
        {TUTTI_BOOL, 4, 0, TUTTI_ALGO_NONE},
        {TUTTI_COMPLEX64, 4, 0, TUTTI_ALGO_NONE},
    };
    (void)state;
    tutti_comm_t *comm = create((struct tutti_comm_options){.strict = TUTTI_STRICT_ON});
    check_rows(comm, rows, sizeof rows / sizeof *rows);
    /* What it does not serve it declines, and the caller falls back. */
    int32_t one = 1;
    assert_int_equal(
        tutti_all_reduce(&one, &one, 1, TUTTI_INT32, TUTTI_SUM, comm, TUTTI_STREAM_DEFAULT),
        TUTTI_ERR_DECLINED);
    assert_non_null(strstr(tutti_last_error(), "float32 and bfloat16"));
    assert_int_equal(tutti_comm_status(comm, NULL), TUTTI_OK);
    /* Forced is forced. */
    assert_int_equal(algorithm(comm, 1, TUTTI_INT32, 0, TUTTI_ALGO_TWO_SHOT), TUTTI_ALGO_TWO_SHOT);
    tutti_comm_destroy(comm);
}

/* Both limits are at most the buffer size. */
static void test_strict_buffer(void **state)
{
    static const struct row small[] = {
        {TUTTI_FLOAT32, 64 * KIB / 4, 0, TUTTI_ALGO_ONE_SHOT},
        {TUTTI_FLOAT32, 64 * KIB / 4 + 1, 0, TUTTI_ALGO_NONE},
    };
    static const struct row middle[] = {
        {TUTTI_FLOAT32, 256 * KIB / 4, 0, TUTTI_ALGO_ONE_SHOT},
        {TUTTI_FLOAT32, 256 * KIB / 4 + 1, 0, TUTTI_ALGO_TWO_SHOT},
        {TUTTI_FLOAT32, 1 * MIB / 4, 0, TUTTI_ALGO_TWO_SHOT},
        {TUTTI_FLOAT32, 1 * MIB / 4 + 1, 0, TUTTI_ALGO_NONE},
    };
    static const struct row large[] = {
        {TUTTI_FLOAT32, 10 * MIB / 4, 0, TUTTI_ALGO_TWO_SHOT},
        {TUTTI_FLOAT32, 10 * MIB / 4 + 1, 0, TUTTI_ALGO_NONE},
    };
    (void)state;
    tutti_comm_t *comm =
        create((struct tutti_comm_options){.strict = TUTTI_STRICT_ON, .buffer_size = 64 * KIB});
    check_rows(comm, small, 2);
    tutti_comm_destroy(comm);
    setenv("TUTTI_BUFFER_SIZE", "1M", 1);
    setenv("TUTTI_STRICT", "1", 1);
    comm = create((struct tutti_comm_options){.name = "middle"});
    assert_int_equal(tutti_comm_buffer_size(comm), 1 * MIB);
    check_rows(comm, middle, 4);
    tutti_comm_destroy(comm);
    comm = create((struct tutti_comm_options){.buffer_size = 64 * MIB}); /* the option goes first */
    check_rows(comm, large, 2);
    tutti_comm_destroy(comm);
    comm = create((struct tutti_comm_options){.strict = TUTTI_STRICT_OFF});
    assert_int_not_equal(algorithm(comm, 7, TUTTI_INT8, 0, TUTTI_ALGO_NONE), TUTTI_ALGO_NONE);
    tutti_comm_destroy(comm);
    unsetenv("TUTTI_BUFFER_SIZE");
    unsetenv("TUTTI_STRICT");
}

/* The call goes before the option, the option before the environment. */
static void test_forced(void **state)
{
    (void)state;
    setenv("TUTTI_ALGO", "two_shot", 1);
    tutti_comm_t *comm = create((struct tutti_comm_options){.name = "environment"});
    assert_int_equal(algorithm(comm, 1, TUTTI_FLOAT32, 0, TUTTI_ALGO_NONE), TUTTI_ALGO_TWO_SHOT);
    assert_int_equal(algorithm(comm, 1, TUTTI_FLOAT32, 0, TUTTI_ALGO_ONE_SHOT),
                     TUTTI_ALGO_ONE_SHOT);
    tutti_comm_destroy(comm);
    comm = create((struct tutti_comm_options){.algo = TUTTI_ALGO_ONE_SHOT});
    assert_int_equal(algorithm(comm, 100 * MIB, TUTTI_FLOAT32, 0, TUTTI_ALGO_NONE),
                     TUTTI_ALGO_ONE_SHOT);
    assert_int_equal(algorithm(comm, 1, TUTTI_FLOAT32, 0, TUTTI_ALGO_TWO_SHOT),
                     TUTTI_ALGO_TWO_SHOT);
    tutti_comm_destroy(comm);
    unsetenv("TUTTI_ALGO");
    /* The measured choice is never none. */
    comm = create((struct tutti_comm_options){.name = "measured"});
    for (size_t count = 0; count < SIZE_MAX / 16 >> 20; count = count * 2 + 1)
        assert_int_not_equal(algorithm(comm, count, TUTTI_FLOAT8_E4M3, 1, TUTTI_ALGO_NONE),
                             TUTTI_ALGO_NONE);
    tutti_comm_destroy(comm);
}

/* Refused calls are counted like any other, and leave the communicator as it was. */
static void test_refused(void **state)
{
    (void)state;
    struct tutti_call_options options = {.struct_size = sizeof options};
    struct {
        struct tutti_call_options known;
        unsigned char unknown[8];
    } newer = {.known.struct_size = sizeof newer, .unknown = {1}};
    tutti_comm_t *comm = create((struct tutti_comm_options){.name = "refused"});
    float data[64] = {1};
    char *bytes = (char *)data;
    char calls_before[32], calls_after[32];
    assert_int_equal(tutti_info("calls", calls_before, sizeof calls_before), TUTTI_OK);
    int calls = 0;
#define REFUSED(status, why, ...)                                                                  \
    do {                                                                                           \
        assert_int_equal(tutti_all_reduce_with(__VA_ARGS__), TUTTI_##status);                      \
        if (!strstr(tutti_last_error(), why))                                                      \
            fail_msg("\"%s\" is not in \"%s\"", why, tutti_last_error());                          \
        calls++;                                                                                   \
    } while (0)
#define REST comm, TUTTI_STREAM_DEFAULT, &options
    REFUSED(ERR_INVALID, "comm is NULL", data, data, 1, TUTTI_FLOAT32, TUTTI_SUM, NULL, 0, NULL);
    REFUSED(ERR_INVALID, "stream", data, data, 1, TUTTI_FLOAT32, TUTTI_SUM, comm,
            TUTTI_STREAM_PER_THREAD, NULL);
    REFUSED(ERR_INVALID, "send is NULL", NULL, data, 1, TUTTI_FLOAT32, TUTTI_SUM, REST);
    REFUSED(ERR_INVALID, "recv is NULL", data, NULL, 1, TUTTI_FLOAT32, TUTTI_SUM, REST);
    REFUSED(ERR_INVALID, "dtype 16", data, data, 1, (enum tutti_dtype)16, TUTTI_SUM, REST);
    REFUSED(ERR_INVALID, "dtype -1", data, data, 1, (enum tutti_dtype) - 1, TUTTI_SUM, REST);
    REFUSED(ERR_INVALID, "op is none", data, data, 1, TUTTI_FLOAT32, NULL, REST);
    REFUSED(ERR_INVALID, "op is none", data, data, 1, TUTTI_FLOAT32, TUTTI_PREMUL_SUM, REST);
    REFUSED(ERR_INVALID, "band is not defined for float32", data, data, 1, TUTTI_FLOAT32,
            TUTTI_BAND, REST);
    REFUSED(ERR_INVALID, "avg is not defined for bool", data, data, 1, TUTTI_BOOL, TUTTI_AVG, REST);
    REFUSED(ERR_INVALID, "aligned", bytes + 2, data, 1, TUTTI_FLOAT32, TUTTI_SUM, REST);
    REFUSED(ERR_INVALID, "aligned", data, bytes + 1, 1, TUTTI_FLOAT16, TUTTI_SUM, REST);
    REFUSED(ERR_INVALID, "overlap", data, data + 1, 2, TUTTI_FLOAT32, TUTTI_SUM, REST);
    REFUSED(ERR_INVALID, "overlap", data + 3, data, 4, TUTTI_FLOAT32, TUTTI_SUM, REST);
    REFUSED(ERR_INVALID, "count", data, data, SIZE_MAX / 2, TUTTI_FLOAT32, TUTTI_SUM, REST);
    REFUSED(ERR_INVALID, "count", data, data, (size_t)1 << 48, TUTTI_INT8, TUTTI_SUM, REST);
    REFUSED(ERR_VERSION, "is not 0", data, data, 1, TUTTI_FLOAT32, TUTTI_SUM, comm, 0,
            &newer.known);
    options.flags = 1 << 20;
    REFUSED(ERR_INVALID, "flags 0x100000", data, data, 1, TUTTI_FLOAT32, TUTTI_SUM, REST);
    options.flags = 0;
    options.algo = TUTTI_ALGO_HYBRID_CUBE_MESH;
    REFUSED(ERR_INVALID, "hybrid_cube_mesh", data, data, 1, TUTTI_FLOAT32, TUTTI_SUM, REST);
    options.algo = TUTTI_ALGO_NONE;
    options.struct_size = 4;
    REFUSED(ERR_INVALID, "struct_size is 4", data, data, 1, TUTTI_FLOAT32, TUTTI_SUM, REST);
    assert_int_equal(tutti_barrier(NULL, NULL, 0, 0), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_barrier(comm, NULL, 0, 0), TUTTI_OK);
    assert_int_equal(tutti_all_reduce(data, data, 1, TUTTI_FLOAT32, TUTTI_SUM, comm, 0), TUTTI_OK);
    assert_int_equal(tutti_all_reduce(NULL, NULL, 0, TUTTI_FLOAT32, TUTTI_SUM, comm, 0), TUTTI_OK);
    assert_int_equal(tutti_all_reduce(data, data + 32, 32, TUTTI_FLOAT32, TUTTI_SUM, comm, 0),
                     TUTTI_OK);
    assert_int_equal(tutti_info("calls", calls_after, sizeof calls_after), TUTTI_OK);
    assert_int_equal(atoll(calls_after) - atoll(calls_before), calls + 5);
    assert_int_equal(tutti_comm_status(comm, NULL), TUTTI_OK);
    tutti_comm_destroy(comm);
}

/* A complex number has sums only, and the alignment of its floats. */
static void test_complex_refused(void **state)
{
    (void)state;
    static const struct {
        enum tutti_dtype dtype;
        size_t shift;
        tutti_op_t op;
        const char *why; /* NULL: it is served */
    } rows[] = {
        {TUTTI_COMPLEX64, 0, TUTTI_PROD, "prod is not defined for complex64"},
        {TUTTI_COMPLEX128, 0, TUTTI_BOR, "bor is not defined for complex128"},
        {TUTTI_COMPLEX64, 2, TUTTI_SUM, "is not aligned to the 4 bytes"},
        {TUTTI_COMPLEX128, 4, TUTTI_SUM, "is not aligned to the 8 bytes"},
        {TUTTI_COMPLEX64, 4, TUTTI_SUM, NULL},
        {TUTTI_COMPLEX128, 8, TUTTI_AVG, NULL},
    };
    tutti_comm_t *comm = create((struct tutti_comm_options){.name = "complex"});
    _Alignas(16) char data[48] = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        void *at = data + rows[i].shift;
        assert_int_equal(tutti_all_reduce(at, at, 2, rows[i].dtype, rows[i].op, comm, 0),
                         rows[i].why ? TUTTI_ERR_INVALID : TUTTI_OK);
        if (rows[i].why)
            assert_non_null(strstr(tutti_last_error(), rows[i].why));
    }
    tutti_comm_destroy(comm);
}

/* What is wrong with a root or a peer, and which operands are ignored. */
static void test_roots_refused(void **state)
{
    (void)state;
    tutti_comm_t *comm = create((struct tutti_comm_options){.name = "roots"});
    const struct tutti_call_options one_shot = {.struct_size = sizeof one_shot,
                                                .algo = TUTTI_ALGO_ONE_SHOT};
    float data[8] = {1, 2, 3, 4};
    const tutti_stream_t stream = TUTTI_STREAM_DEFAULT;
    assert_int_equal(tutti_broadcast(data, data, 4, TUTTI_FLOAT32, 1, comm, stream),
                     TUTTI_ERR_INVALID);
    assert_non_null(strstr(tutti_last_error(), "tutti_broadcast: root is 1: expected 0 to 0"));
    assert_int_equal(tutti_reduce(data, data, 4, TUTTI_FLOAT32, TUTTI_SUM, -1, comm, stream),
                     TUTTI_ERR_INVALID);
    assert_non_null(strstr(tutti_last_error(), "root is -1"));
    assert_int_equal(tutti_gather(data, NULL, 4, TUTTI_FLOAT32, 0, comm, stream),
                     TUTTI_ERR_INVALID);
    assert_non_null(strstr(tutti_last_error(), "recv is NULL"));
    assert_int_equal(tutti_scatter(data, (char *)data + 1, 1, TUTTI_FLOAT32, 0, comm, stream),
                     TUTTI_ERR_INVALID);
    assert_non_null(strstr(tutti_last_error(), "recv"));
    assert_int_equal(tutti_send(data, 4, TUTTI_FLOAT32, 0, comm, stream), TUTTI_ERR_INVALID);
    assert_non_null(strstr(tutti_last_error(), "tutti_send: peer 0 is the caller"));
    assert_int_equal(tutti_recv(data, 4, TUTTI_FLOAT32, 3, comm, stream), TUTTI_ERR_INVALID);
    assert_non_null(strstr(tutti_last_error(), "tutti_recv: peer is 3"));
    assert_int_equal(tutti_broadcast_with(data, data, 4, TUTTI_FLOAT32, 0, comm, stream, &one_shot),
                     TUTTI_ERR_INVALID);
    assert_non_null(strstr(tutti_last_error(), "cannot be forced"));
    assert_int_equal(tutti_broadcast(data, data + 4, 4, TUTTI_FLOAT32, 0, comm, stream), TUTTI_OK);
    assert_memory_equal(data, data + 4, 4 * sizeof *data);
    assert_int_equal(tutti_comm_status(comm, NULL), TUTTI_OK);
    tutti_comm_destroy(comm);
}

static void check_blocks(enum tutti_collective which, tutti_comm_t *comm)
{
    struct tutti_call_options options = {.struct_size = sizeof options};
    const size_t one = 1, nine = 9;
    float data[64] = {1};
    char place[64];
    const struct {
        const void *send;
        void *recv;
        size_t count;
        enum tutti_dtype dtype;
        const char *why;
    } rows[] = {
        {NULL, data, 1, TUTTI_FLOAT32, "send is NULL"},
        {data, NULL, 1, TUTTI_FLOAT32, "recv is NULL"},
        {data, data, 1, (enum tutti_dtype)77, "dtype 77"},
        {data, (char *)data + 1, 1, TUTTI_FLOAT16, "aligned"},
        {data, data, SIZE_MAX / 2, TUTTI_FLOAT32, "count"},
        {data, data + 1, 2, TUTTI_FLOAT32, "overlap in part: use "},
        {data + 3, data, 4, TUTTI_FLOAT32, place},
    };
    const struct collective *collective = &collectives[which];
    const char *in_place = collective->send_all == collective->recv_all ? "the same address"
                           : collective->send_all ? "send + rank * count as recv"
                                                  : "recv + rank * count as send";
    strcpy(stpcpy(place, "overlap in part: use "), in_place);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(collective_call(which, rows[i].send, rows[i].recv, &rows[i].count,
                                         rows[i].dtype, TUTTI_SUM, 0, comm, &options),
                         TUTTI_ERR_INVALID);
        if (!strstr(tutti_last_error(), rows[i].why) ||
            !strstr(tutti_last_error(), tutti_collective_name(which)))
            fail_msg("\"%s\" is not in \"%s\"", rows[i].why, tutti_last_error());
    }
    options.algo = TUTTI_ALGO_ONE_SHOT;
    assert_int_equal(
        collective_call(which, data, data, &one, TUTTI_FLOAT32, TUTTI_SUM, 0, comm, &options),
        TUTTI_ERR_INVALID);
    assert_non_null(strstr(tutti_last_error(), "one_shot cannot be forced"));
    assert_int_equal(
        collective_call(which, data, data, &nine, TUTTI_FLOAT32, TUTTI_SUM, 0, comm, NULL),
        TUTTI_OK);
}

/* Where an operand has a block for each rank the message says what is in place. */
static void test_blocks_refused(void **state)
{
    (void)state;
    tutti_comm_t *comm = create((struct tutti_comm_options){.name = "blocks"});
    for (int i = 0; i < COLLECTIVE_ROWS; i++)
        if (collective_has_blocks((enum tutti_collective)i) &&
            collective_is_plain((enum tutti_collective)i))
            check_blocks((enum tutti_collective)i, comm);
    tutti_comm_destroy(comm);
}

/* An error names the call that was made. */
static void test_names(void **state)
{
    (void)state;
    enum tutti_algo algo;
    float x = 1;
    tutti_comm_t *comm = create((struct tutti_comm_options){.defer = true});
    assert_int_equal(tutti_comm_algorithm(NULL, 1, TUTTI_FLOAT32, TUTTI_SUM, NULL, &algo, NULL),
                     TUTTI_ERR_INVALID);
    assert_string_equal(tutti_last_error(), "tutti_comm_algorithm: comm is NULL");
    assert_int_equal(tutti_comm_algorithm(comm, 1, TUTTI_FLOAT32, TUTTI_SUM, NULL, &algo, NULL),
                     TUTTI_ERR_INVALID);
    assert_non_null(strstr(tutti_last_error(), "call tutti_comm_rendezvous()"));
    assert_int_equal(tutti_comm_rendezvous(comm), TUTTI_OK);
    assert_int_equal(tutti_comm_algorithm(comm, 1, TUTTI_FLOAT32, NULL, NULL, &algo, NULL),
                     TUTTI_ERR_INVALID);
    assert_ptr_equal(strstr(tutti_last_error(), "tutti_comm_algorithm: op is none"),
                     tutti_last_error());
    assert_int_equal(tutti_all_reduce(&x, &x, 1, TUTTI_FLOAT32, NULL, comm, NULL),
                     TUTTI_ERR_INVALID);
    assert_ptr_equal(strstr(tutti_last_error(), "tutti_all_reduce: op is none"),
                     tutti_last_error());
    tutti_comm_destroy(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strict),         cmocka_unit_test(test_strict_buffer),
        cmocka_unit_test(test_forced),         cmocka_unit_test(test_refused),
        cmocka_unit_test(test_blocks_refused), cmocka_unit_test(test_complex_refused),
        cmocka_unit_test(test_roots_refused),  cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, open_store, close_store);
}
