/* SPDX-License-Identifier: MIT */
/* libcuda is opened if there is a usable one; otherwise the error says what is missing. */
#include "cuda/driver/wrappers.h"

#include "standin.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Each test opens for the first time, so each has a process of its own. Returns what fn returns. */
static int in_child(int (*fn)(void))
{
    pid_t child = fork();
    if (child == 0)
        _exit(fn());
    int how;
    if (waitpid(child, &how, 0) != child || !WIFEXITED(how))
        return 99;
    return WEXITSTATUS(how);
}

/* 0 if opening declines and says all of these words. */
static int declines(const char *library, const char *word, const char *other)
{
    const struct cuda_driver *driver = (const struct cuda_driver *)1;
    setenv("TUTTI_CUDA_LIBRARY", library, 1);
    if (cuda_driver_open(&driver) != TUTTI_ERR_DECLINED)
        return 1;
    if (driver)
        return 2;
    return strstr(tutti_last_error(), word) && strstr(tutti_last_error(), other) ? 0 : 3;
}

static int opens(void)
{
    const struct cuda_driver *driver, *again;
    setenv("TUTTI_CUDA_LIBRARY", STANDIN, 1);
    if (cuda_driver_open(&driver) != TUTTI_OK || !driver)
        return 1;
    /* No member is left out, and each is the function of its name. */
    for (size_t i = 0; i < sizeof *driver / sizeof(void *); i++)
        if (!((void *const *)driver)[i])
            return 2;
    if (driver->mem_map != cuMemMap || driver->device_uuid != cuDeviceGetUuid_v2 ||
        driver->stream_capture_info != cuStreamGetCaptureInfo_v3)
        return 3;
    /* Once open it stays as it is. */
    setenv("TUTTI_CUDA_LIBRARY", "/nonexistent", 1);
    if (cuda_driver_open(&again) != TUTTI_OK || again != driver)
        return 4;
    return standin_calls("cuInit") == 1 ? 0 : 5;
}

static void opens_once(void **state)
{
    (void)state;
    assert_int_equal(in_child(opens), 0);
}

static int is_absent(void)
{
    return declines("/nonexistent/libcuda.so.1", "/nonexistent/libcuda.so.1", "driver installed");
}

/* A machine without the driver is not stuck with the answer. */
static int comes_later(void)
{
    int wrong = is_absent();
    return wrong ? wrong : opens();
}

static void absence_is_said(void **state)
{
    (void)state;
    assert_int_equal(in_child(is_absent), 0);
    assert_int_equal(in_child(comes_later), 0);
}

static int is_old(void)
{
    return declines(OLD, "CUDA 11.4, is too old", "has no cu");
}

static int is_no_driver(void)
{
    return declines("libm.so.6", "libm.so.6 has no cuInit", "CUDA 0.0");
}

static void age_is_said(void **state)
{
    (void)state;
    assert_int_equal(in_child(is_old), 0);
    assert_int_equal(in_child(is_no_driver), 0);
}

/* All functions are there. */
static int has_version(const char *version)
{
    setenv("TUTTI_STANDIN_VERSION", version, 1);
    return opens();
}

static int is_12_3(void)
{
    setenv("TUTTI_STANDIN_VERSION", "12030", 1);
    return declines(STANDIN, "the driver, for CUDA 12.3, cannot load the kernels", "install");
}

/* Its kernels may not be for it; then the message says how they are made so. */
static int is_12_4(void)
{
    if (DRIVER_LEAST <= 12040)
        return has_version("12040");
    setenv("TUTTI_STANDIN_VERSION", "12040", 1);
    return declines(STANDIN, "the driver, for CUDA 12.4, cannot load the kernels",
                    "-DTUTTI_PTXAS12");
}

static int is_13_0(void)
{
    return has_version("13000");
}

static void version_is_looked_at(void **state)
{
    (void)state;
    assert_int_equal(in_child(is_12_3), 0);
    assert_int_equal(in_child(is_12_4), 0);
    assert_int_equal(in_child(is_13_0), 0);
}

extern const unsigned char cuda_fatbin_barrier[];

/* As a driver answers that finds no kernel in a stub. A build with kernels does not ask at once. */
static int has_no_kernels(void)
{
    setenv("TUTTI_STANDIN_FAIL", "cuLibraryGetKernel:1:209", 1);
    if (standin_fatbin_bytes(cuda_fatbin_barrier) > 0)
        return opens();
    int wrong = declines(STANDIN, "built without CUDA kernels, since ", "make deps CUDA=1");
    return wrong ? wrong : opens() == 5 ? 0 : 4; /* the second look finds one */
}

static void lack_of_kernels_is_said(void **state)
{
    (void)state;
    assert_int_equal(in_child(has_no_kernels), 0);
}

static int has_no_device(void)
{
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    return declines(STANDIN, "cuInit: CUDA_ERROR_NO_DEVICE", "no CUDA-capable device");
}

static int fails_to_start(void)
{
    setenv("TUTTI_STANDIN_FAIL", "cuInit:1:999", 1);
    int wrong = declines(STANDIN, "cuInit: CUDA_ERROR_UNKNOWN", "999");
    return wrong ? wrong : opens() == 5 ? 0 : 4; /* the second cuInit() succeeds */
}

static void failures_are_said(void **state)
{
    (void)state;
    assert_int_equal(in_child(has_no_device), 0);
    assert_int_equal(in_child(fails_to_start), 0);
}

static int is_forked(void)
{
    const struct cuda_driver *driver;
    if (cuda_driver_open(&driver) != TUTTI_ERR_DECLINED || driver)
        return 1;
    return strstr(tutti_last_error(), "fork()") ? 0 : 2;
}

static int forks(void)
{
    int wrong = opens();
    return wrong ? wrong : in_child(is_forked);
}

static int fails_and_forks(void)
{
    int wrong = is_absent();
    return wrong ? wrong : in_child(opens);
}

static void child_of_an_opener_is_refused(void **state)
{
    (void)state;
    assert_int_equal(in_child(forks), 0);
    assert_int_equal(in_child(fails_and_forks), 0);
}

static void *open_one(void *out)
{
    return cuda_driver_open(out) == TUTTI_OK ? out : NULL;
}

static int opens_from_threads(void)
{
    pthread_t threads[8];
    const struct cuda_driver *drivers[8];
    setenv("TUTTI_CUDA_LIBRARY", STANDIN, 1);
    for (int i = 0; i < 8; i++)
        if (pthread_create(&threads[i], NULL, open_one, &drivers[i]) != 0)
            return 1;
    for (int i = 0; i < 8; i++) {
        void *ok;
        if (pthread_join(threads[i], &ok) != 0 || !ok || drivers[i] != drivers[0])
            return 2;
    }
    return standin_calls("cuInit") == 1 ? 0 : 3;
}

static void threads_open_one(void **state)
{
    (void)state;
    assert_int_equal(in_child(opens_from_threads), 0);
}

static int checks(void)
{
    const struct cuda_driver *driver;
    int wrong = opens();
    if (wrong)
        return wrong;
    cuda_driver_open(&driver);
    if (cuda_check(driver, CUDA_SUCCESS, "cuCall") != TUTTI_OK)
        return 11;
    if (cuda_check(driver, CUDA_ERROR_INVALID_VALUE, "cuCall") != TUTTI_ERR_CUDA ||
        strcmp(tutti_last_error(), "cuCall: CUDA_ERROR_INVALID_VALUE (1: invalid argument)") != 0)
        return 12;
    if (cuda_check(driver, CUDA_ERROR_OUT_OF_MEMORY, "cuCall") != TUTTI_ERR_NO_MEMORY)
        return 13;
    return cuda_check(driver, (CUresult)123456, "cuCall") == TUTTI_ERR_CUDA &&
                   strstr(tutti_last_error(), "123456")
               ? 0
               : 14;
}

static void results_become_statuses(void **state)
{
    (void)state;
    assert_int_equal(in_child(checks), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens_once),
        cmocka_unit_test(absence_is_said),
        cmocka_unit_test(age_is_said),
        cmocka_unit_test(version_is_looked_at),
        cmocka_unit_test(lack_of_kernels_is_said),
        cmocka_unit_test(failures_are_said),
        cmocka_unit_test(child_of_an_opener_is_refused),
        cmocka_unit_test(threads_open_one),
        cmocka_unit_test(results_become_statuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
