/* SPDX-License-Identifier: MIT */
/* The thread's last error: text, errno, context, length. */
#include "base/error.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void set_returns_its_status(void **state)
{
    (void)state;
    assert_int_equal(error_set(TUTTI_ERR_INVALID, "rank %d", 3), TUTTI_ERR_INVALID);
    assert_string_equal(tutti_last_error(), "rank 3");
}

static void errno_is_named(void **state)
{
    (void)state;
    errno = ENOENT;
    assert_int_equal(error_errno("open(%s)", "x"), TUTTI_ERR_SYSTEM);
    assert_string_equal(tutti_last_error(), "open(x): No such file or directory (ENOENT)");
    errno = ENOMEM;
    assert_int_equal(error_errno("mmap"), TUTTI_ERR_NO_MEMORY);
}

static void context_goes_before(void **state)
{
    (void)state;
    error_set(TUTTI_ERR_TIMEOUT, "rank 2 is late");
    assert_int_equal(error_context(TUTTI_ERR_TIMEOUT, "rendezvous"), TUTTI_ERR_TIMEOUT);
    assert_string_equal(tutti_last_error(), "rendezvous: rank 2 is late");
}

static void long_text_is_cut(void **state)
{
    (void)state;
    char text[4000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    error_set(TUTTI_ERR_INVALID, "%s", text);
    assert_int_equal(strlen(tutti_last_error()), 1023);
    error_context(TUTTI_ERR_INVALID, "%s", text);
    errno = EINVAL;
    error_errno("%s", text);
    assert_int_equal(strlen(tutti_last_error()), 1023);
}

static void names_cover_the_maps(void **state)
{
    (void)state;
    assert_string_equal(tutti_status_name(TUTTI_ERR_PEER_DEAD), "TUTTI_ERR_PEER_DEAD");
    assert_string_equal(tutti_status_name((enum tutti_status)99), "TUTTI_UNKNOWN");
    assert_int_equal(tutti_dtype_size(TUTTI_FLOAT64), 8);
    assert_int_equal(tutti_dtype_size((enum tutti_dtype)TUTTI_DTYPE_COUNT), 0);
    assert_string_equal(tutti_dtype_name(TUTTI_BOOL), "bool");
    assert_string_equal(tutti_algo_name(TUTTI_ALGO_TWO_SHOT), "two_shot");
    assert_string_equal(tutti_collective_name(TUTTI_COLLECTIVE_BARRIER), "barrier");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(set_returns_its_status), cmocka_unit_test(errno_is_named),
        cmocka_unit_test(context_goes_before),    cmocka_unit_test(long_text_is_cut),
        cmocka_unit_test(names_cover_the_maps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
