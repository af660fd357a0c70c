/* SPDX-License-Identifier: MIT */
/* The text of a time-out names its length, the option that held, and what else to do. That of a
 * mismatch names the roots. */
#include "comm/comm.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *format(struct tutti_signature seen)
{
    static char text[512];
    const struct tutti_fault fault = {.struct_size = sizeof fault,
                                      .status = TUTTI_ERR_TIMEOUT,
                                      .rank = 0,
                                      .peer = 2,
                                      .sequence = 5,
                                      .seen = seen};
    assert_true((size_t)tutti_fault_format(&fault, text, sizeof text) < sizeof text);
    return text;
}

static void timeout_names_its_option(void **state)
{
    static const struct {
        enum timeout_source source;
        const char *remedy;
    } rows[] = {
        {TIMEOUT_OF_CALL, "until its time-out of 400 ms: look at what rank 2 does, or raise "
                          "timeout_ms in the options of the call; go on"},
        {TIMEOUT_OF_COMM, "or raise timeout_ms in the options of the communicator; go on"},
        {TIMEOUT_OF_ENVIRONMENT, "or raise TUTTI_TIMEOUT_MS; go on"},
        {TIMEOUT_OF_DEFAULT, "or set TUTTI_TIMEOUT_MS to more; go on"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *text =
            format((struct tutti_signature){.count = 400, .parameter = (uint32_t)rows[i].source});
        if (!strstr(text, rows[i].remedy) || !strstr(text, "tutti_comm_shrink()"))
            fail_msg("\"%s\" lacks \"%s\"", text, rows[i].remedy);
    }
}

/* Of a device's time-out, or one that another version tells of, all options are named in order. */
static void unknown_timeout_names_all_options(void **state)
{
    static const struct tutti_signature unknown[] = {
        {.count = 0},
        {.count = 400, .parameter = 77},
        {.collective = TUTTI_COLLECTIVE_ALL_REDUCE, .count = 4, .parameter = TIMEOUT_OF_CALL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        const char *text = format(unknown[i]);
        if (!strstr(text, "until its time-out: look") ||
            !strstr(text, "timeout_ms in the options of the call, else of the communicator, else "
                          "TUTTI_TIMEOUT_MS"))
            fail_msg("%s", text);
    }
}

static void timeout_of_a_thread_names_calls_that_wait(void **state)
{
    static const char words[] = "what rank 2 does (a thread of the same process: a call such as "
                                "cuMemFree or cudaFree waits for this operation";
    const struct tutti_signature seen = {.parameter = TIMEOUT_OF_THREAD};
    const struct tutti_signature both = {.count = 400,
                                         .parameter = TIMEOUT_OF_THREAD | TIMEOUT_OF_CALL};
    (void)state;
    assert_non_null(strstr(format(seen), words));
    assert_non_null(strstr(format(both), "time-out of 400 ms"));
    assert_non_null(strstr(format(both), words));
    assert_null(strstr(format((struct tutti_signature){0}), "cudaFree"));
}

static void timeout_of_an_own_copy_blames_no_peer(void **state)
{
    const struct tutti_fault fault = {.struct_size = sizeof fault,
                                      .status = TUTTI_ERR_TIMEOUT,
                                      .rank = 1,
                                      .peer = 1,
                                      .sequence = 117};
    char text[512];
    (void)state;
    assert_true((size_t)tutti_fault_format(&fault, text, sizeof text) < sizeof text);
    assert_non_null(strstr(text, "rank 1 could not end its own part of operation 117"));
    assert_null(strstr(text, "waited for"));
}

/* A copy between two processes names both ranks, and the one whose memory is wrong. */
static void copy_names_the_memory(void **state)
{
    char text[512];
    struct tutti_fault fault = {.struct_size = sizeof fault,
                                .status = TUTTI_ERR_SYSTEM,
                                .rank = 1,
                                .peer = 2,
                                .sequence = 5,
                                .seen.count = EFAULT};
    (void)state;
    assert_true((size_t)tutti_fault_format(&fault, text, sizeof text) < sizeof text);
    assert_non_null(strstr(text, "rank 1 could not copy the memory of rank 2 in operation 5: Bad "
                                 "address: rank 2 has to keep its operands mapped"));
    fault.peer = 1;
    assert_true((size_t)tutti_fault_format(&fault, text, sizeof text) < sizeof text);
    assert_non_null(strstr(text, "the memory of rank 1 in operation 5"));
}

static void mismatch_names_roots_beside_the_scalar(void **state)
{
    const uint32_t hash = 0xabcdef01;
    const struct tutti_signature reduce = {.collective = TUTTI_COLLECTIVE_REDUCE,
                                           .dtype = TUTTI_FLOAT32,
                                           .op = TUTTI_PREMUL_SUM,
                                           .count = 4};
    struct tutti_fault fault = {.struct_size = sizeof fault,
                                .status = TUTTI_ERR_MISMATCH,
                                .peer = 1,
                                .expected = reduce,
                                .seen = reduce};
    char text[512];
    (void)state;
    fault.expected.parameter = signature_root(hash, 0);
    fault.seen.parameter = signature_root(hash, 9999);
    assert_true((size_t)tutti_fault_format(&fault, text, sizeof text) < sizeof text);
    assert_non_null(strstr(text, "root 0, scalar hash abcd0000"));
    assert_non_null(strstr(text, "root 9999, scalar hash abcd0000"));
}

static void communicator_knows_its_source(void **state)
{
    static const struct {
        const char *variable;
        int64_t option;
        enum timeout_source source;
        int64_t timeout_ms;
    } rows[] = {
        {NULL, 0, TIMEOUT_OF_DEFAULT, 600000},     {"0", 0, TIMEOUT_OF_DEFAULT, 600000},
        {"5000", 0, TIMEOUT_OF_ENVIRONMENT, 5000}, {"5000", 7000, TIMEOUT_OF_COMM, 7000},
        {NULL, -1, TIMEOUT_OF_COMM, -1},
    };
    tutti_store_t *store;
    (void)state;
    assert_int_equal(tutti_store_open("memory:fault", 1000, &store), TUTTI_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct tutti_comm_options options = {
            .struct_size = sizeof options, .timeout_ms = rows[i].option, .defer = true};
        tutti_comm_t *comm;
        if (rows[i].variable)
            setenv("TUTTI_TIMEOUT_MS", rows[i].variable, 1);
        assert_int_equal(tutti_comm_create(store, 0, 2, &options, &comm), TUTTI_OK);
        unsetenv("TUTTI_TIMEOUT_MS");
        assert_int_equal(comm->timeout_source, rows[i].source);
        assert_int_equal(comm->timeout_ms, rows[i].timeout_ms);
        tutti_comm_destroy(comm);
    }
    tutti_store_close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(timeout_names_its_option),
        cmocka_unit_test(unknown_timeout_names_all_options),
        cmocka_unit_test(timeout_of_a_thread_names_calls_that_wait),
        cmocka_unit_test(timeout_of_an_own_copy_blames_no_peer),
        cmocka_unit_test(copy_names_the_memory),
        cmocka_unit_test(mismatch_names_roots_beside_the_scalar),
        cmocka_unit_test(communicator_knows_its_source),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
