/* SPDX-License-Identifier: MIT */
/* A tuning file that cannot be read is left as it is. */
#include "tune.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const struct tune_plan plan = {
    .capability = 90,
    .ranks = 2,
    .count = 1,
    .choices = {{"one_shot_ll", 64, 32, 1}},
    .bytes = {TUNE_REST},
};

static void rows_that_cannot_be_read_are_not_lost(void **state)
{
    (void)state;
    char folder[] = "/tmp/tutti-tune-XXXXXX", path[64], target[64] = "";
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/tuning", folder);
    assert_int_equal(symlink("/proc/self/mem", path), 0); /* its first byte is EIO */
    assert_false(tune_file_write(path, &plan, "test"));
    assert_true(readlink(path, target, sizeof target - 1) > 0);
    assert_string_equal(target, "/proc/self/mem");
    assert_int_equal(unlink(path), 0);
    assert_true(tune_file_write(path, &plan, "test"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0); /* nothing else is left */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_that_cannot_be_read_are_not_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
