/* SPDX-License-Identifier: MIT */
/*
 * All kernels are loaded before the first launch, or the error names the missing one. With the
 * argument `names`: the files that scripts/fatbin wrote have a kernel of each name that the library
 * looks up.
 */
#include "cuda/driver/kernels.h"

#include "standin.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct cuda_driver *driver;
static bool names_are_asked_for;

static void check(CUresult result)
{
    assert_int_equal(result, CUDA_SUCCESS);
}

static int open_driver(void **state)
{
    CUcontext context;
    (void)state;
    setenv("TUTTI_CUDA_LIBRARY", STANDIN, 1);
    return cuda_driver_open(&driver) != TUTTI_OK || cuDevicePrimaryCtxRetain(&context, 3) ||
           cuCtxSetCurrent(context);
}

static bool has_sums(int dtype)
{
    return dtype == TUTTI_FLOAT32 || dtype == TUTTI_FLOAT16 || dtype == TUTTI_BFLOAT16;
}

static void check_those_of(int size)
{
    struct cuda_kernels kernels;
    uint64_t count = 2;
    standin_forget();
    assert_int_equal(cuda_kernels_load(driver, size, false, &kernels), TUTTI_OK);
    for (int kernel = CUDA_COPY_LL; kernel < CUDA_REDUCE_LL; kernel++) {
        const bool there = kernel != CUDA_COPY_RELAYED || size > 2;
        assert_true((kernels.functions[kernel][0][CUDA_ANY] != NULL) == there);
        count += there;
        assert_null(kernels.functions[kernel][1][CUDA_ANY]); /* one function serves every dtype */
    }
    assert_non_null(kernels.functions[CUDA_EXCHANGE][0][CUDA_ANY]);
    assert_non_null(kernels.functions[CUDA_EXCHANGE_COUNTED][0][CUDA_ANY]);
    count += 2;
    for (int kernel = 0; kernel < CUDA_EXCHANGE; kernel++) {
        bool floats = kernel == CUDA_ONE_SHOT_LINES || kernel == CUDA_TWO_SHOT_LINES ||
                      kernel == CUDA_TWO_SHOT_PIPELINED;
        bool integers = kernel == CUDA_TWO_SHOT_RELAYED;
        bool blocks = kernel >= CUDA_REDUCE_LL;
        if ((kernel >= CUDA_COPY_LL && !blocks) || (kernel == CUDA_REDUCE_RELAYED && size == 2))
            continue;
        for (int dtype = 0; dtype < DTYPE_REALS; dtype++) {
            CUfunction *row = kernels.functions[kernel][dtype];
            bool there = dtype_is_float((enum tutti_dtype)dtype) ? !integers : !floats;
            assert_true((row[CUDA_ANY] != NULL) == there);
            bool sums = (size <= 4 || size == 8) && has_sums(dtype) &&
                        (kernel < CUDA_TWO_SHOT_RELAYED || blocks);
            bool once = sums && kernel != CUDA_TWO_SHOT_PIPELINED && !blocks;
            assert_true((row[CUDA_SUM] != NULL) == sums);
            assert_true((row[CUDA_SUM_ONCE] != NULL) == once);
            count += there + sums + once;
        }
    }
    for (int dtype = 0; dtype < DTYPE_REALS; dtype++) {
        const bool there = has_sums(dtype), /* sums of float32 do not exist here */
            sums = there && dtype != TUTTI_FLOAT32 && (size <= 4 || size == 8);
        for (int kernel = CUDA_RMS_NORM_LINES; kernel <= CUDA_RMS_NORM_TWO_SHOT; kernel++) {
            CUfunction *row = kernels.functions[kernel][dtype];
            assert_true((row[CUDA_ANY] != NULL) == there);
            assert_true((row[CUDA_SUM] != NULL) == sums);
            assert_true((row[CUDA_SUM_ONCE] != NULL) == sums);
            count += there + 2 * sums;
        }
        assert_true((kernels.functions[CUDA_RMS_NORM_ROWS][dtype][CUDA_ANY] != NULL) == there);
        count += there;
    }
    assert_non_null(kernels.functions[CUDA_BARRIER][0][CUDA_ANY]);
    assert_null(kernels.functions[CUDA_SYMM][0][CUDA_ANY]);
    /* Nothing is left for a launch to load. */
    assert_int_equal(standin_calls("cuKernelGetFunction"), count);
    assert_int_equal(standin_calls("cuFuncLoad"), count);
}

static void those_that_exist_are_loaded(void **state)
{
    (void)state;
    for (int size = 2; size <= CUDA_RANKS; size++)
        check_those_of(size);
}

static FILE *names_open(const char *file)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s.fatbin.names", NAMES, file);
    return fopen(path, "r");
}

/* Whether a line of the file that scripts/fatbin wrote is the name; true if that is not asked for.
 */
static bool has_kernel(const char *file, const char *name)
{
    char line[128];
    bool found = false;
    if (!names_are_asked_for)
        return true;
    FILE *names = names_open(file);
    assert_non_null(names);
    while (!found && fgets(line, sizeof line, names)) {
        line[strcspn(line, "\n")] = 0;
        found = strcmp(line, name) == 0;
    }
    fclose(names);
    return found;
}

static void check_the_fatbins(int size)
{
    struct cuda_kernels kernels;
    assert_int_equal(cuda_kernels_load(driver, size, false, &kernels), TUTTI_OK);
    assert_int_equal(cuda_kernels_load_fabric(driver, size, &kernels), TUTTI_OK);
    assert_int_equal(cuda_kernels_load_rows(driver, true, &kernels), TUTTI_OK);
    assert_true(has_kernel("combine", standin_function_name(kernels.announce)));
    for (int kernel = 0; kernel < CUDA_KERNELS; kernel++)
        for (int dtype = 0; dtype < DTYPE_REALS; dtype++)
            for (int form = 0; form < CUDA_FORMS; form++) {
                const char *file = cuda_kernel_rows[kernel].name;
                CUfunction function = kernels.functions[kernel][dtype][form];
                if (function && !has_kernel(file, standin_function_name(function)))
                    fail_msg("%s.cu has no %s", file, standin_function_name(function));
            }
}

static void the_fatbins_have_what_is_looked_up(void **state)
{
    (void)state;
    for (int size = 2; size <= CUDA_RANKS; size++)
        check_the_fatbins(size);
}

static void those_alone_have_their_own(void **state)
{
    (void)state;
    CUfunction symm, stream_wait, again;
    standin_forget();
    assert_int_equal(cuda_kernel_load(driver, CUDA_SYMM, &symm), TUTTI_OK);
    assert_true(has_kernel("symm", standin_function_name(symm)));
    assert_int_equal(standin_calls("cuLibraryLoadData"), 1);
    assert_int_equal(standin_calls("cuFuncLoad"), 1);
    assert_int_equal(cuda_kernel_load(driver, CUDA_STREAM_WAIT, &stream_wait), TUTTI_OK);
    assert_true(has_kernel("stream_wait", standin_function_name(stream_wait)));
    assert_int_equal(cuda_kernel_load(driver, CUDA_STREAM_WAIT, &again), TUTTI_OK);
    assert_ptr_equal(again, stream_wait);
    assert_int_equal(standin_calls("cuLibraryLoadData"), 2);
}

/* Makes the Nth call fail and returns what loading does. */
static enum tutti_status load_failing(const char *call, int at, CUresult error)
{
    struct cuda_kernels kernels;
    standin_fail(call, at, error);
    enum tutti_status status = cuda_kernels_load(driver, 4, false, &kernels);
    standin_fail(NULL, 0, CUDA_SUCCESS);
    assert_null(kernels.functions[CUDA_BARRIER][0][CUDA_ANY]);
    return status;
}

static void assert_said(const char *text)
{
    if (!strstr(tutti_last_error(), text))
        fail_msg("expected \"%s\" in \"%s\"", text, tutti_last_error());
}

/* Before anything else has: what is loaded is so for the whole process. */
static void failures_name_the_kernel(void **state)
{
    (void)state;
    assert_int_equal(load_failing("cuLibraryLoadData", 2, CUDA_ERROR_INVALID_IMAGE),
                     TUTTI_ERR_CUDA);
    assert_said("\"one_shot_lines\"");
    assert_said("CUDA_ERROR_INVALID_IMAGE");
    assert_int_equal(load_failing("cuLibraryLoadData", 1, CUDA_ERROR_OUT_OF_MEMORY),
                     TUTTI_ERR_NO_MEMORY);
    assert_said("\"one_shot_lines\""); /* the first one was there */
    assert_int_equal(load_failing("cuLibraryGetKernel", 2, CUDA_ERROR_NOT_FOUND), TUTTI_ERR_CUDA);
    assert_said("\"one_shot_ll_float32_sum_4\"");
    assert_int_equal(load_failing("cuKernelGetFunction", 1, CUDA_ERROR_OUT_OF_MEMORY),
                     TUTTI_ERR_NO_MEMORY);
    assert_said("\"one_shot_ll_float32\"");
    assert_int_equal(load_failing("cuFuncLoad", CUDA_FORMS + 1, CUDA_ERROR_OUT_OF_MEMORY),
                     TUTTI_ERR_NO_MEMORY);
    assert_said("\"one_shot_ll_float64\"");
}

static void other_devices_are_named(void **state)
{
    static const char *const calls[] = {"cuLibraryLoadData", "cuLibraryGetKernel",
                                        "cuKernelGetFunction", "cuFuncLoad"};
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        assert_int_equal(load_failing(calls[i], 1, CUDA_ERROR_NO_BINARY_FOR_GPU), TUTTI_ERR_CUDA);
        assert_said("device 3 of compute capability 9.0");
        assert_said("sm_90");
        assert_said("CUDA_ERROR_NO_BINARY_FOR_GPU");
    }
}

/* What a context has stays there; another one has its own. */
static void nothing_is_loaded_again(void **state)
{
    (void)state;
    struct cuda_kernels first, second;
    CUcontext context;
    assert_int_equal(cuda_kernels_load(driver, 4, false, &first), TUTTI_OK);
    standin_forget();
    assert_int_equal(cuda_kernels_load(driver, 4, false, &second), TUTTI_OK);
    assert_memory_equal(&first, &second, sizeof first);
    check(cuDevicePrimaryCtxRetain(&context, 2));
    check(cuCtxPushCurrent_v2(context));
    assert_int_equal(cuda_kernels_load(driver, 4, false, &second), TUTTI_OK);
    assert_ptr_not_equal(first.functions[CUDA_BARRIER][0][CUDA_ANY],
                         second.functions[CUDA_BARRIER][0][CUDA_ANY]);
    assert_int_equal(standin_calls("cuLibraryLoadData"), 0);
    check(cuCtxPopCurrent_v2(&context));
    check(cuDevicePrimaryCtxRelease_v2(2));
}

int main(int argc, char **argv)
{
    names_are_asked_for = argc > 1 && strcmp(argv[1], "names") == 0;
    if (names_are_asked_for) {
        FILE *names = names_open("barrier");
        if (!names) {
            puts("the names of kernels are not known: this build has compiled none");
            return 77;
        }
        fclose(names);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failures_name_the_kernel),
        cmocka_unit_test(other_devices_are_named),
        cmocka_unit_test(those_that_exist_are_loaded),
        cmocka_unit_test(the_fatbins_have_what_is_looked_up),
        cmocka_unit_test(those_alone_have_their_own),
        cmocka_unit_test(nothing_is_loaded_again),
    };
    return cmocka_run_group_tests(tests, open_driver, NULL);
}
