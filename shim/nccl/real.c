/* SPDX-License-Identifier: MIT */
/*
 * NVIDIA's library beside this one. Both have one name and one SONAME, and opening the name returns
 * the copy that is loaded, which is this one. So the other is opened by its absolute path, and
 * keeps its symbols to itself. The program may have opened it before, and then bind.c sees to that.
 */
#include "shim.h"

#include "base/log.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef REAL_BINDING
#define REAL_BINDING                                                                               \
    RTLD_DEEPBIND /* NVIDIA's functions call each other, not those of this library */
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void *functions[SYMBOLS];
static bool found;
static const char *lacking = "no libnccl.so.2 of NVIDIA's was found; name it in TUTTI_NCCL_LIBRARY";

const char *const symbol_names[SYMBOLS] = {
#define SYMBOL_NAME(name, server) #name,
    SYMBOL_MAP(SYMBOL_NAME)
#undef SYMBOL_NAME
};

/* ---- where it is ----------------------------------------------------------------------------- */

static bool is_this_library(const char *path)
{
    Dl_info own;
    struct stat ours, theirs;
    return dladdr((void *)&real_library, &own) && stat(own.dli_fname, &ours) == 0 &&
           stat(path, &theirs) == 0 && ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
}

static bool is_candidate(const char *path)
{
    return access(path, R_OK) == 0 && !is_this_library(path);
}

/* PyTorch's libraries are in PACKAGES/torch/lib, NVIDIA's wheel is in PACKAGES/nvidia/nccl/lib. */
static int beside_torch(struct dl_phdr_info *object, size_t size, void *context)
{
    char *path = context;
    const char *torch = object->dlpi_name ? strstr(object->dlpi_name, "/torch/lib/") : NULL;
    (void)size;
    if (!torch)
        return 0;
    snprintf(path, PATH_MAX, "%.*s/nvidia/nccl/lib/libnccl.so.2", (int)(torch - object->dlpi_name),
             object->dlpi_name);
    return is_candidate(path);
}

static bool find(char path[PATH_MAX])
{
    static const char *const places[] = {
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/local/cuda/lib64",
        "/usr/local/lib",
        "/usr/lib",
    };
    const char *named = getenv("TUTTI_NCCL_LIBRARY");
    if (named && *named) {
        snprintf(path, PATH_MAX, "%s", named);
        if (is_candidate(path))
            return true;
        lacking = "TUTTI_NCCL_LIBRARY names no file, or this library itself; name NVIDIA's";
        return false;
    }
    if (dl_iterate_phdr(beside_torch, path))
        return true;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(path, PATH_MAX, "%s/libnccl.so.2", places[i]);
        if (is_candidate(path))
            return true;
    }
    return false;
}

/* ---- opening --------------------------------------------------------------------------------- */

static void open_library(void)
{
    char path[PATH_MAX];
    if (!find(path))
        return;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | REAL_BINDING);
    if (!handle) {
        log_write(TUTTI_LOG_WARN, -1, "NCCL: cannot open %s: %s", path, dlerror());
        lacking = "NVIDIA's library cannot be opened; a line of the log says why";
        return;
    }
    if (!real_bind(handle)) {
        log_write(TUTTI_LOG_WARN, -1, "NCCL: %s cannot be used: its calls cannot be changed", path);
        lacking = "NVIDIA's library calls functions of this one, and that cannot be changed";
        return;
    }
    for (int symbol = 0; symbol < SYMBOLS; symbol++)
        functions[symbol] = dlsym(handle, symbol_names[symbol]);
    found = functions[SYMBOL_ncclDevCommCreate]; /* and so what 2.28 has */
    if (found)
        log_write(TUTTI_LOG_INFO, -1, "NCCL: %s serves what Tutti does not", path);
    else
        lacking = "NVIDIA's library is older than 2.28; name a newer one in TUTTI_NCCL_LIBRARY";
}

bool real_library(void)
{
    pthread_once(&once, open_library);
    return found;
}

void *real_function(enum symbol symbol)
{
    return real_library() ? functions[symbol] : NULL;
}

ncclResult_t real_absent(enum symbol symbol)
{
    return fail(ncclInvalidUsage, symbol, "only NVIDIA's library serves this function: %s",
                real_library() ? "the one that was found does not have it" : lacking);
}

ncclResult_t real_wait(ncclComm_t real, ncclResult_t result, enum symbol symbol)
{
    while (result == ncclInProgress) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        const ncclResult_t asked = REAL(ncclCommGetAsyncError)(real, &result);
        if (asked != ncclSuccess)
            result = asked;
    }
    return fail_real(result, symbol);
}

static bool serves_all;

static void read_settings(void)
{
    struct tutti_launcher launcher = {.struct_size = sizeof launcher};
    char text[32] = "";
    if (tutti_info("enabled", text, sizeof text) == TUTTI_OK && strcmp(text, "no") == 0)
        serves_all = true;
    else if (tutti_info_launcher(&launcher) == TUTTI_OK && launcher.local_size > 0 &&
             launcher.world_size > launcher.local_size)
        serves_all = true;
    if (serves_all)
        log_write(TUTTI_LOG_INFO, -1, "NCCL: NVIDIA's library serves all calls: %s",
                  *text == 'n' ? "TUTTI_DISABLE is set"
                               : "the launcher's variables tell of several hosts");
}

bool real_serves_all(void)
{
    static pthread_once_t settings = PTHREAD_ONCE_INIT;
    pthread_once(&settings, read_settings);
    return serves_all;
}
