/* SPDX-License-Identifier: MIT */
/* The log that a program receives, and what a communicator says of itself. */
#include "tutti/tutti.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static tutti_store_t *store;

static int open_store(void **state)
{
    (void)state;
    return tutti_store_open("memory:hooks", 1000, &store) == TUTTI_OK ? 0 : -1;
}

static int close_store(void **state)
{
    (void)state;
    tutti_store_close(store);
    return 0;
}

static void test_describe(void **state)
{
    static const char *const lines[] = {
        "name: described\n",   "state: ready\n", "rank: 0\n",
        "world_size: 1\n",     "device: cpu\n",  "leaf_order: 0\n",
        "buffer_size: 4096\n", "strict: on\n",   "algorithm: two_shot\n",
        "generation: ",        "isa: ",          "topology: fully_connected\n",
    };
    struct tutti_comm_options options = {.struct_size = sizeof options,
                                         .name = "described",
                                         .buffer_size = 4096,
                                         .strict = TUTTI_STRICT_ON,
                                         .algo = TUTTI_ALGO_TWO_SHOT};
    tutti_comm_t *comm;
    char text[4096], cut[4096];
    (void)state;
    assert_int_equal(tutti_comm_create(store, 0, 1, &options, &comm), TUTTI_OK);
    int length = tutti_comm_describe(comm, text, sizeof text);
    assert_int_equal(length, strlen(text));
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (!strstr(text, lines[i]))
            fail_msg("no \"%s\" in:\n%s", lines[i], text);
    /* As snprintf: the same length, however little room there is. */
    assert_int_equal(tutti_comm_describe(comm, NULL, 0), length);
    for (size_t size = 1; size <= (size_t)length + 1; size++) {
        memset(cut, 'x', sizeof cut);
        assert_int_equal(tutti_comm_describe(comm, cut, size), length);
        assert_int_equal(cut[size - 1], 0);
        assert_memory_equal(cut, text, size - 1);
        assert_int_equal(cut[size], 'x');
    }
    tutti_comm_destroy(comm);
}

struct log {
    int lines;
    char last[1024];
};

static void note(void *context, enum tutti_log_level level, const char *line)
{
    struct log *log = context;
    assert_int_equal(level, TUTTI_LOG_INFO);
    assert_null(strchr(line, '\n'));
    strncpy(log->last, line, sizeof log->last - 1);
    log->lines++;
}

static void test_log(void **state)
{
    struct tutti_comm_options options = {.struct_size = sizeof options, .name = "logged"};
    struct log log = {0};
    tutti_comm_t *comm;
    (void)state;
    tutti_log_set(note, &log);
    assert_int_equal(tutti_comm_create(store, 0, 1, &options, &comm), TUTTI_OK);
    tutti_comm_destroy(comm);
    tutti_log_set(NULL, NULL);
    assert_true(log.lines > 0);
    /* host:pid:tid [rank] TUTTI INFO text */
    assert_non_null(strstr(log.last, " [0] TUTTI INFO "));
    assert_non_null(strstr(log.last, "logged"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_describe),
        cmocka_unit_test(test_log),
    };
    setenv("TUTTI_DEBUG", "INFO", 1); /* read once */
    tutti_log_set(NULL, NULL);
    return cmocka_run_group_tests(tests, open_store, close_store);
}
