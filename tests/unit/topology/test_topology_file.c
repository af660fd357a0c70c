/* SPDX-License-Identifier: MIT */
/* The topology file: what it may contain. Errors name the line. */
#include "topology/topology_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct topology_file file;

static enum tutti_status parse(const char *text)
{
    return topology_parse(text, strlen(text), "here", &file);
}

static void test_ranks(void **state)
{
    (void)state;
    assert_int_equal(parse("# a box\n\ntutti-topology 1 # version\r\n ranks\t3\nX 1 ?\n"
                           "0 7 999 # the diagonal is ignored\n\n? 0 X"),
                     TUTTI_OK);
    static const int16_t expected[3][3] = {{0, 1, -1}, {0, 0, 999}, {-1, 0, 0}};
    assert_int_equal(file.matrix.size, 3);
    assert_string_equal(file.source, "here");
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++)
            assert_int_equal(file.matrix.links[i][j], expected[i][j]);
}

static void test_wrong(void **state)
{
    static const struct {
        const char *text;
        int line;
        const char *what;
    } rows[] = {
        {"", 0, "tutti-topology 1"},
        {"\n# nothing\n", 2, "tutti-topology 1"},
        {"tutti-tuning 1\n", 1, "tutti-topology 1"},
        {"tutti-topology 2\n", 1, "tutti-topology 1"},
        {"tutti-topology 1 2\n", 1, "tutti-topology 1"},
        {"tutti-topology 1\n", 1, "ranks N"},
        {"tutti-topology 1\n\n  rows 2\n", 3, "ranks N"},
        {"tutti-topology 1\nranks\n", 2, "1 to 64"},
        {"tutti-topology 1\nranks 0\n", 2, "1 to 64"},
        {"tutti-topology 1\nranks 65\n", 2, "1 to 64"},
        {"tutti-topology 1\nranks 2 2\n", 2, "ranks N"},
        {"tutti-topology 1\nranks 2\nX 1\n", 3, "rows are missing"},
        {"tutti-topology 1\nranks 2\nX 1\n1", 4, "too short"},
        {"tutti-topology 1\nranks 2\nX 1\n1 X 0\n", 4, "too long"},
        {"tutti-topology 1\nranks 2\nX X\n1 X\n", 3, "0 to 999"},
        {"tutti-topology 1\nranks 2\nX 1000\n1 X\n", 3, "0 to 999"},
        {"tutti-topology 1\nranks 2\nX -1\n1 X\n", 3, "0 to 999"},
        {"tutti-topology 1\nranks 2\nX 1\n1 X\n0 0\n", 5, "nothing after"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char where[64];
        snprintf(where, sizeof where, "file here, line %d: ", rows[i].line);
        assert_int_equal(parse(rows[i].text), TUTTI_ERR_INVALID);
        if (!strstr(tutti_last_error(), where) || !strstr(tutti_last_error(), rows[i].what))
            fail_msg("row %zu: \"%s\" lacks \"%s\" or \"%s\"", i, tutti_last_error(), where,
                     rows[i].what);
    }
}

static void test_load(void **state)
{
    char path[] = "/tmp/tutti-test-topology-XXXXXX";
    int fd = mkstemp(path);
    FILE *out = fdopen(fd, "w");
    (void)state;
    assert_non_null(out);
    fputs("tutti-topology 1\nranks 64\n", out);
    for (int i = 0; i < 64; i++) {
        for (int j = 0; j < 64; j++)
            fprintf(out, "%d ", i == j ? 0 : 999);
        fputs("\n", out);
    }
    fclose(out);
    assert_int_equal(topology_file_load(path, &file), TUTTI_OK);
    assert_int_equal(file.matrix.size, 64);
    assert_int_equal(file.matrix.links[63][62], 999);
    unlink(path);
    assert_int_equal(topology_file_load(path, &file), TUTTI_ERR_SYSTEM);
    assert_non_null(strstr(tutti_last_error(), path));
    assert_non_null(strstr(tutti_last_error(), "TUTTI_TOPOLOGY_FILE"));
    /* The file is too large: the message says what was expected and what to do. */
    assert_int_equal(topology_file_load("/dev/zero", &file), TUTTI_ERR_INVALID);
    static const char *const words[] = {
        "TUTTI_TOPOLOGY_FILE=/dev/zero: the file has 65536 bytes or more", "expected",
        "tutti-topology 1", "or unset it"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strstr(tutti_last_error(), words[i]))
            fail_msg("\"%s\" is not in \"%s\"", words[i], tutti_last_error());
    assert_int_equal(topology_file_load("/dev", &file), TUTTI_ERR_SYSTEM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
