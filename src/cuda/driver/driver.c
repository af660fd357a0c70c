/* SPDX-License-Identifier: MIT */
#include "cuda/driver/driver.h"

#include "base/error.h"
#include "base/fork_mutex.h"
#include "base/log.h"
#include "cuda/driver/kernels.h"
#include "cuda/driver/wrappers.h"
#include "ipc/fork.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The oldest driver that loads the kernels of this build. */
#ifndef TUTTI_CUDA_DRIVER_LEAST
#define TUTTI_CUDA_DRIVER_LEAST CUDA_DRIVER_LEAST
#endif

static struct fork_mutex lock = FORK_MUTEX(NULL);
static struct cuda_driver loaded; /* constant once `opened` */
static bool opened;
static uint32_t opener; /* epoch of the process that opened it */

static int version_of(const struct cuda_driver *driver)
{
    int version = 0;
    if (!driver->driver_version || driver->driver_version(&version) != CUDA_SUCCESS)
        return 0;
    return version;
}

/* Does not use cuGetProcAddress(), which chooses the interface at run time by a version number. */
static enum tutti_status find_symbols(void *library, const char *file, struct cuda_driver *driver)
{
    enum { COUNT = sizeof(struct cuda_names) / sizeof(char *) };
    const char *names[COUNT], *missing = NULL;
    void *found[COUNT];
    static_assert(sizeof *driver == sizeof found && sizeof cuda_names == sizeof names, "members");
    memcpy(names, &cuda_names, sizeof names);
    for (size_t i = 0; i < COUNT; i++) {
        found[i] = dlsym(library, names[i]);
        if (!found[i] && !missing)
            missing = names[i];
    }
    memcpy(driver, found, sizeof found);
    if (!missing)
        return TUTTI_OK;
    int version = version_of(driver);
    return error_set(TUTTI_ERR_DECLINED,
                     "no CUDA: %s has no %s: the driver, for CUDA %d.%d, is too old; install one "
                     "for CUDA %d.%d or newer",
                     file, missing, version / 1000, version % 1000 / 10,
                     TUTTI_CUDA_DRIVER_LEAST / 1000, TUTTI_CUDA_DRIVER_LEAST % 1000 / 10);
}

static enum tutti_status version_check(const struct cuda_driver *driver)
{
    const int version = version_of(driver);
    if (version >= TUTTI_CUDA_DRIVER_LEAST)
        return TUTTI_OK;
    return error_set(
        TUTTI_ERR_DECLINED,
        "no CUDA: the driver, for CUDA %d.%d, cannot load the kernels of this library: "
        "install a driver for CUDA %d.%d or newer%s",
        version / 1000, version % 1000 / 10, TUTTI_CUDA_DRIVER_LEAST / 1000,
        TUTTI_CUDA_DRIVER_LEAST % 1000 / 10,
        version >= CUDA_DRIVER_LEAST ? ", or build Tutti with -DTUTTI_PTXAS12 (docs/building.md)"
                                     : "");
}

static const char *library_file(void)
{
    const char *file = getenv("TUTTI_CUDA_LIBRARY");
    return file && *file ? file : "libcuda.so.1";
}

bool cuda_driver_in_use(void)
{
    void *library = dlopen(library_file(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (library)
        dlclose(library);
    return library != NULL;
}

static enum tutti_status open_library(struct cuda_driver *driver)
{
    const char *file = library_file();
    enum tutti_status status;
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return error_set(TUTTI_ERR_DECLINED, "no CUDA: %s; is the driver installed?", dlerror());
    status = find_symbols(library, file, driver);
    if (status != TUTTI_OK) {
        dlclose(library);
        return status;
    }
    /* From here on libcuda may have threads: it stays open, even after a failure. */
    if (CUDA_CALL(driver, init, 0) != TUTTI_OK)
        return error_context(TUTTI_ERR_DECLINED, "no CUDA");
    status = version_check(driver);
    return status == TUTTI_OK ? cuda_kernels_check(driver) : status;
}

enum tutti_status cuda_driver_open(const struct cuda_driver **driver)
{
    enum tutti_status status = TUTTI_OK;
    bool first = false;
    *driver = NULL;
    fork_mutex_lock(&lock);
    if (!opened) {
        status = fork_epoch(&opener);
        if (status == TUTTI_OK)
            status = open_library(&loaded);
        opened = first = status == TUTTI_OK;
    } else if (fork_detected(opener)) {
        status = error_set(TUTTI_ERR_DECLINED, "no CUDA: the parent process used it before fork(), "
                                               "and CUDA does not work in the child: call exec(), "
                                               "or fork earlier");
    }
    fork_mutex_unlock(&lock);
    /* Not under the lock: fork() takes the lock of the log too, in its own order. */
    if (first)
        log_write(TUTTI_LOG_INFO, -1, "libcuda is open: a driver for CUDA %d.%d",
                  version_of(&loaded) / 1000, version_of(&loaded) % 1000 / 10);
    if (status == TUTTI_OK)
        *driver = &loaded;
    return status;
}
