/* SPDX-License-Identifier: MIT */
#include "cuda/driver/kernels.h"

#include "base/error.h"
#include "cuda/driver/wrappers.h"

#include <pthread.h>
#include <stdio.h>

enum { NAME_BYTES = 64 };

/* The fatbins. The first thread that needs a fatbin loads it, for the whole process and for ever.
 * Each has its own lock: a thread that loads one may wait for a kernel, and that kernel may wait
 * for a thread that needs another one. */
static struct library {
    pthread_mutex_t lock;
    CUlibrary handle;
} libraries[CUDA_KERNELS] = {
#define LIBRARY(NAME, name) {PTHREAD_MUTEX_INITIALIZER, NULL},
    CUDA_KERNEL_MAP(LIBRARY)
#undef LIBRARY
};

static CUresult fatbin_load(const struct cuda_driver *driver, enum cuda_kernel kernel,
                            CUlibrary *library)
{
    CUlibraryOption options[] = {CU_LIBRARY_BINARY_IS_PRESERVED}; /* no copy is needed */
    void *values[] = {(void *)(uintptr_t) true};
    return driver->library_load(library, cuda_kernel_rows[kernel].fatbin, NULL, NULL, 0, options,
                                values, 1);
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
        result = fatbin_load(driver, CUDA_BARRIER, &library);
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
static CUresult library_open(const struct cuda_driver *driver, enum cuda_kernel kernel,
                             CUlibrary *library)
{
    struct library *its = &libraries[kernel];
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&its->lock);
    if (!its->handle)
        result = fatbin_load(driver, kernel, &its->handle);
    *library = its->handle;
    pthread_mutex_unlock(&its->lock);
    return result;
}

/* Also makes the driver load the code now. Otherwise the driver loads it at the first launch, and
 * then allocates and synchronises. */
static enum tutti_status load_function(const struct cuda_driver *driver, enum cuda_kernel which,
                                       const char *name, CUfunction *function)
{
    CUlibrary library = NULL;
    CUkernel kernel = NULL;
    CUfunction found = NULL;
    CUresult result = library_open(driver, which, &library);
    if (result != CUDA_SUCCESS)
        return kernel_check(driver, result, cuda_names.library_load, cuda_kernel_rows[which].name);
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

enum tutti_status cuda_kernel_load(const struct cuda_driver *driver, enum cuda_kernel kernel,
                                   CUfunction *function)
{
    return load_function(driver, kernel, cuda_kernel_rows[kernel].name, function);
}

static enum tutti_status load_form(const struct cuda_driver *driver, int size, bool on_host,
                                   enum cuda_kernel kernel, enum tutti_dtype dtype,
                                   enum cuda_form form, CUfunction *function)
{
    const struct cuda_kernel_row *row = &cuda_kernel_rows[kernel];
    char name[NAME_BYTES], sum[24] = "";
    if (!cuda_kernel_has(row, size, on_host, dtype, form))
        return TUTTI_OK;
    if (!row->dtypes)
        return cuda_kernel_load(driver, kernel, function);
    if (form != CUDA_ANY)
        snprintf(sum, sizeof sum, "_sum_%d%s", size, form == CUDA_SUM_ONCE ? "_once" : "");
    snprintf(name, sizeof name, "%s_%s%s",
             cuda_kernel_is_own(row, on_host, dtype) ? row->name : row->other,
             tutti_dtype_name(dtype), sum);
    return load_function(driver, kernel, name, function);
}

/* How many of a row's functions are loaded: [dtype]. */
static int dtypes_of(const struct cuda_kernel_row *row)
{
    return !row->collectives ? 0 : row->dtypes ? DTYPE_REALS : 1;
}

enum tutti_status cuda_kernels_load(const struct cuda_driver *driver, int size, bool on_host,
                                    struct cuda_kernels *kernels)
{
    enum tutti_status status = TUTTI_OK;
    *kernels = (struct cuda_kernels){0};
    for (enum cuda_kernel kernel = 0; kernel < CUDA_KERNELS; kernel++)
        for (int dtype = 0; dtype < dtypes_of(&cuda_kernel_rows[kernel]); dtype++)
            for (enum cuda_form form = 0; form < CUDA_FORMS && status == TUTTI_OK; form++)
                status = load_form(driver, size, on_host, kernel, (enum tutti_dtype)dtype, form,
                                   &kernels->functions[kernel][dtype][form]);
    if (status == TUTTI_OK)
        status = load_function(driver, CUDA_BARRIER, "probe", &kernels->probe);
    return status == TUTTI_OK ? cuda_kernels_load_rows(driver, false, kernels) : status;
}

enum tutti_status cuda_kernels_load_rows(const struct cuda_driver *driver, bool alone,
                                         struct cuda_kernels *kernels)
{
    static const enum cuda_kernel rows[] = {CUDA_RMS_NORM_ROWS, CUDA_REDUCE_ALONE};
    enum tutti_status status = TUTTI_OK;
    for (int i = 0; i < (alone ? 2 : 1); i++)
        for (int dtype = 0; dtype < DTYPE_REALS && status == TUTTI_OK; dtype++)
            status = load_form(driver, 1, false, rows[i], (enum tutti_dtype)dtype, CUDA_ANY,
                               &kernels->functions[rows[i]][dtype][CUDA_ANY]);
    return status;
}

enum tutti_status cuda_kernels_load_fabric(const struct cuda_driver *driver, int size,
                                           struct cuda_kernels *kernels)
{
    enum tutti_status status = cuda_kernels_load_rows(driver, false, kernels);
    for (int dtype = 0; dtype < DTYPE_REALS; dtype++)
        for (enum cuda_form form = 0; form < CUDA_FORMS && status == TUTTI_OK; form++)
            status = load_form(driver, size, false, CUDA_COMBINE, (enum tutti_dtype)dtype, form,
                               &kernels->functions[CUDA_COMBINE][dtype][form]);
    return status == TUTTI_OK ? load_function(driver, CUDA_COMBINE, "announce", &kernels->announce)
                              : status;
}
