/* SPDX-License-Identifier: MIT */
#include "cuda/runtime/kernels.h"

#include "base/error.h"
#include "cuda/runtime/calls.h"
#include "cuda/runtime/table.h"

#include <pthread.h>
#include <stdio.h>

enum {
    NAME_BYTES = 64,
    BARRIER_ROW = CUDA_KERNELS, /* behind the rows of CUDA_KERNEL_MAP */
    SYMM_ROW,
    STREAM_WAIT_ROW,
    ROWS,
};

/* fatbins.S */
#define DECLARE_FATBIN(NAME, name, text) extern const unsigned char cuda_fatbin_##name[];
CUDA_KERNEL_MAP(DECLARE_FATBIN)
DECLARE_FATBIN(, barrier, )
DECLARE_FATBIN(, symm, )
DECLARE_FATBIN(, stream_wait, )
#undef DECLARE_FATBIN

/* The fatbins. The first thread that needs a fatbin loads it, for the whole process and for ever.
 * Each has its own lock: a thread that loads one may wait for a kernel, and that kernel may wait
 * for a thread that needs another one. */
static struct library {
    const char *name;
    const unsigned char *fatbin;
    pthread_mutex_t lock;
    CUlibrary handle;
} libraries[ROWS] = {
#define LIBRARY(name)                                                                              \
    {                                                                                              \
#name, cuda_fatbin_##name, PTHREAD_MUTEX_INITIALIZER, NULL                                 \
    }
#define KERNEL_ROW(NAME, kernel, text) [CUDA_##NAME] = LIBRARY(kernel),
    CUDA_KERNEL_MAP(KERNEL_ROW)
#undef KERNEL_ROW
        [BARRIER_ROW] = LIBRARY(barrier),
    [SYMM_ROW] = LIBRARY(symm),
    [STREAM_WAIT_ROW] = LIBRARY(stream_wait),
};

static bool goes_by_tiles(enum cuda_kernel kernel, bool staged, enum tutti_dtype dtype)
{
    return kernel == CUDA_TWO_SHOT_PIPELINED && (staged || !dtype_is_float(dtype));
}

static bool kernel_exists(enum cuda_kernel kernel, int size, bool staged, enum tutti_dtype dtype,
                          enum cuda_form form)
{
    if (cuda_kernel_has_lines(kernel) && (staged || !dtype_is_float(dtype)))
        return false;
    if (form == CUDA_ANY)
        return true;
    if ((int)kernel >= CUDA_TABLE_KERNELS || goes_by_tiles(kernel, staged, dtype) ||
        (form == CUDA_SUM_ONCE && kernel == CUDA_TWO_SHOT_PIPELINED))
        return false;
    return (size <= 4 || size == 8) &&
           (dtype == TUTTI_FLOAT32 || dtype == TUTTI_FLOAT16 || dtype == TUTTI_BFLOAT16);
}

static CUresult fatbin_load(const struct cuda_driver *driver, int row, CUlibrary *library)
{
    CUlibraryOption options[] = {CU_LIBRARY_BINARY_IS_PRESERVED}; /* no copy is needed */
    void *values[] = {(void *)(uintptr_t) true};
    return driver->library_load(library, libraries[row].fatbin, NULL, NULL, 0, options, values, 1);
}

enum tutti_status cuda_kernels_check(const struct cuda_driver *driver)
{
    static const char why[] = TUTTI_CUDA_WHY_TEXT;
    static CUlibrary library;
    CUkernel kernel;
    CUresult result = CUDA_SUCCESS;
    if (!*why)
        return TUTTI_OK;
    /* libcuda loads any bytes. It reads them when a kernel is looked up. */
    if (!library)
        result = fatbin_load(driver, BARRIER_ROW, &library);
    if (result == CUDA_SUCCESS)
        result = driver->library_kernel(&kernel, library, "barrier");
    if (result == CUDA_SUCCESS)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_DECLINED,
                     "no CUDA: this library was built without CUDA kernels, since %s: install nvcc "
                     "of CUDA %d, or have `make deps CUDA=1` fetch it, and build Tutti again with "
                     "-DTUTTI_CUDA=ON",
                     why, CUDA_NVCC_LEAST);
}

/* Adds the kernel's name to the error, and the device if no fatbin serves the device. */
static enum tutti_status kernel_check(const struct cuda_driver *driver, CUresult result,
                                      const char *call, const char *name)
{
    CUdevice device = -1;
    int major = 0, minor = 0;
    enum tutti_status status = cuda_check(driver, result, call);
    if (status == TUTTI_OK)
        return TUTTI_OK;
    if (result != CUDA_ERROR_NO_BINARY_FOR_GPU && result != CUDA_ERROR_UNSUPPORTED_PTX_VERSION)
        return error_context(status, "kernel \"%s\"", name);
    if (driver->ctx_device(&device) == CUDA_SUCCESS) {
        driver->device_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
        driver->device_attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    }
    return error_context(TUTTI_ERR_CUDA,
                         "no kernel \"%s\" for device %d of compute capability %d.%d; this library "
                         "has those for " TUTTI_CUDA_ARCHS_TEXT ", compiled by nvcc of CUDA %d or "
                         "newer",
                         name, device, major, minor, CUDA_NVCC_LEAST);
}

/* Loads a fatbin unless the process has it. */
static CUresult library_open(const struct cuda_driver *driver, int row, CUlibrary *library)
{
    struct library *its = &libraries[row];
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&its->lock);
    if (!its->handle)
        result = fatbin_load(driver, row, &its->handle);
    *library = its->handle;
    pthread_mutex_unlock(&its->lock);
    return result;
}

/* Also makes the driver load the code now. Otherwise the driver loads it at the first launch, and
 * then allocates and synchronises. */
static enum tutti_status load_function(const struct cuda_driver *driver, int row, const char *name,
                                       CUfunction *function)
{
    CUlibrary library = NULL;
    CUkernel kernel = NULL;
    CUfunction found = NULL;
    CUresult result = library_open(driver, row, &library);
    if (result != CUDA_SUCCESS)
        return kernel_check(driver, result, cuda_names.library_load, libraries[row].name);
    const char *call = cuda_names.library_kernel;
    result = driver->library_kernel(&kernel, library, name);
    if (result == CUDA_SUCCESS) {
        call = cuda_names.kernel_function;
        result = driver->kernel_function(&found, kernel);
    }
    if (result == CUDA_SUCCESS) {
        call = cuda_names.function_load;
        result = driver->function_load(found);
    }
    if (result == CUDA_SUCCESS)
        *function = found;
    return kernel_check(driver, result, call, name);
}

static enum tutti_status load_form(const struct cuda_driver *driver, int size, bool staged,
                                   enum cuda_kernel kernel, enum tutti_dtype dtype,
                                   enum cuda_form form, CUfunction *function)
{
    char name[NAME_BYTES], sum[24] = "";
    if (form != CUDA_ANY)
        snprintf(sum, sizeof sum, "_sum_%d%s", size, form == CUDA_SUM_ONCE ? "_once" : "");
    snprintf(name, sizeof name, "%s_%s%s",
             goes_by_tiles(kernel, staged, dtype) ? "two_shot_tiles" : libraries[kernel].name,
             tutti_dtype_name(dtype), sum);
    return load_function(driver, kernel, name, function);
}

enum tutti_status cuda_kernels_load(const struct cuda_driver *driver, int size, bool staged,
                                    struct cuda_kernels *kernels)
{
    enum tutti_status status = TUTTI_OK;
    *kernels = (struct cuda_kernels){0};
    for (enum cuda_kernel kernel = 0; kernel < CUDA_KERNELS; kernel++)
        for (int dtype = 0; dtype < DTYPE_REALS; dtype++)
            for (enum cuda_form form = 0; form < CUDA_FORMS && status == TUTTI_OK; form++)
                if (kernel_exists(kernel, size, staged, (enum tutti_dtype)dtype, form))
                    status = load_form(driver, size, staged, kernel, (enum tutti_dtype)dtype, form,
                                       &kernels->all_reduce[kernel][dtype][form]);
    if (status == TUTTI_OK)
        status = load_function(driver, BARRIER_ROW, "barrier", &kernels->barrier);
    if (status == TUTTI_OK)
        status = load_function(driver, BARRIER_ROW, "probe", &kernels->probe);
    return status;
}

enum tutti_status cuda_kernel_load_symm(const struct cuda_driver *driver, CUfunction *function)
{
    return load_function(driver, SYMM_ROW, "symm", function);
}

enum tutti_status cuda_kernel_load_stream_wait(const struct cuda_driver *driver,
                                               CUfunction *function)
{
    return load_function(driver, STREAM_WAIT_ROW, "stream_wait", function);
}
