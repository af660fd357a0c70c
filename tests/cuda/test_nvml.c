/* SPDX-License-Identifier: MIT */
/* NVLinks are counted between devices and through switches, and what is missing is said. */
#include "tutti/tutti.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static const char *const ids[] = {"0000:10:00.0", "0000:11:00.0", "0000:12:00.0"};

static void expect(const char *drawn, const int *expected)
{
    int links[9];
    memset(links, -1, sizeof links);
    setenv("TUTTI_STANDIN_LINKS", drawn, 1);
    assert_int_equal(tutti_info_links(ids, 3, links), TUTTI_OK);
    assert_memory_equal(links, expected, sizeof links);
}

static void counts(void **state)
{
    (void)state;
    expect("", (const int[9]){0});
    expect("11,00,", (const int[9]){0, 2, 0, 2, 0, 0, 0, 0, 0});
    expect("1-1,0-2,1", (const int[9]){0, 2, 0, 1, 0, 1, 0, 1, 0});
    /* Switched links lead to whoever has some, too. */
    expect("ssss,ssss,ssss", (const int[9]){0, 4, 4, 4, 0, 4, 4, 4, 0});
    expect("ss,sss,", (const int[9]){0, 2, 0, 3, 0, 0, 0, 0, 0});
    expect("ss2,ss,0", (const int[9]){0, 2, 1, 2, 0, 0, 1, 0, 0});
}

static void says_what_failed(void **state)
{
    static const char *const calls[] = {"nvmlInit_v2", "nvmlDeviceGetHandleByPciBusId_v2",
                                        "nvmlDeviceGetPciInfo_v3"};
    int links[9];
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        setenv("TUTTI_STANDIN_NVML_FAIL", calls[i], 1);
        assert_int_equal(tutti_info_links(ids, 3, links), TUTTI_ERR_SYSTEM);
        assert_non_null(strstr(tutti_last_error(), "Stand-in failed"));
        assert_memory_equal(tutti_last_error(), calls[i], strlen(calls[i]) - 3);
    }
    unsetenv("TUTTI_STANDIN_NVML_FAIL");
    assert_int_equal(tutti_info_links((const char *const[]){"0000:01:00.0"}, 1, links),
                     TUTTI_ERR_SYSTEM);
}

static void says_what_is_missing(void **state)
{
    int links[9];
    (void)state;
    assert_int_equal(tutti_info_links(NULL, 3, links), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_info_links(ids, 3, NULL), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_info_links(ids, 0, links), TUTTI_ERR_INVALID);
    setenv("TUTTI_NVML_LIBRARY", "/nonexistent/nvml", 1);
    assert_int_equal(tutti_info_links(ids, 3, links), TUTTI_ERR_DECLINED);
    assert_non_null(strstr(tutti_last_error(), "/nonexistent/nvml cannot be opened"));
    setenv("TUTTI_NVML_LIBRARY", "libc.so.6", 1);
    assert_int_equal(tutti_info_links(ids, 3, links), TUTTI_ERR_DECLINED);
    assert_non_null(strstr(tutti_last_error(), "libc.so.6 has no nvmlErrorString"));
    setenv("TUTTI_NVML_LIBRARY", NVML_STANDIN, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts),
        cmocka_unit_test(says_what_failed),
        cmocka_unit_test(says_what_is_missing),
    };
    setenv("TUTTI_NVML_LIBRARY", NVML_STANDIN, 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
