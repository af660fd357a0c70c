/* SPDX-License-Identifier: MIT */
/*
 * Memory, registration and windows. Tutti takes any memory and needs none registered, so these
 * functions keep what a program may ask for again. They succeed on a broken communicator, too:
 * programs deregister before they abort. NVIDIA's communicator of the handle, if there is one, gets
 * the windows.
 */
#include "shim.h"

#include "cuda/driver/memory.h"
#include "cuda/kernels/arena.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- memory for windows ---------------------------------------------------------------------- */

/* What ncclMemAlloc() has given. */
struct allocation {
    struct allocation *next;
    const struct cuda_driver *driver;
    struct cuda_memory memory; /* of 0 bytes: of cuMemAlloc() */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *allocations;

/* As symmetric memory is: that other processes can map. NVIDIA's library takes no other memory for
 * symmetric windows. A driver that cannot export gives ordinary memory. */
static enum tutti_status allocate(size_t bytes, struct allocation *made)
{
    CUdevice device;
    int fd;
    enum tutti_status status = cuda_driver_open(&made->driver);
    if (status == TUTTI_OK)
        status = CUDA_CALL(made->driver, ctx_device, &device);
    if (status != TUTTI_OK)
        return status;
    status = cuda_memory_create(made->driver, device, bytes, &made->memory, &fd);
    if (status == TUTTI_ERR_CUDA)
        return CUDA_CALL(made->driver, mem_alloc, &made->memory.base, bytes);
    if (status == TUTTI_OK)
        close(fd);
    return status;
}

NCCL_DEFINE(ncclResult_t, ncclMemAlloc, void **memory, size_t bytes)
{
    const int64_t begin = report_begin();
    if (!memory || bytes == 0)
        return fail(ncclInvalidArgument, SYMBOL_ncclMemAlloc, "NULL, or 0 bytes");
    *memory = NULL;
    if (real_serves_all() && real_library())
        return fail_real(REAL(ncclMemAlloc)(memory, bytes), SYMBOL_ncclMemAlloc);
    struct allocation *made = calloc(1, sizeof *made);
    if (!made)
        return fail(ncclSystemError, SYMBOL_ncclMemAlloc, "no memory");
    const enum tutti_status status = allocate(bytes, made);
    if (status != TUTTI_OK) {
        free(made);
        return fail_status(status, SYMBOL_ncclMemAlloc);
    }
    pthread_mutex_lock(&lock);
    made->next = allocations;
    allocations = made;
    pthread_mutex_unlock(&lock);
    *memory = (void *)(uintptr_t)made->memory.base;
    report_end(SYMBOL_ncclMemAlloc, false, bytes, begin);
    return ncclSuccess;
}

NCCL_DEFINE(ncclResult_t, ncclMemFree, void *memory)
{
    const int64_t begin = report_begin();
    enum tutti_status status = TUTTI_OK;
    if (!memory)
        return ncclSuccess;
    if (real_serves_all() && real_library())
        return fail_real(REAL(ncclMemFree)(memory), SYMBOL_ncclMemFree);
    pthread_mutex_lock(&lock);
    struct allocation **place = &allocations, *found;
    while (*place && (*place)->memory.base != cuda_address(memory))
        place = &(*place)->next;
    found = *place;
    if (found)
        *place = found->next;
    pthread_mutex_unlock(&lock);
    if (!found)
        return fail(ncclInvalidArgument, SYMBOL_ncclMemFree, "%p is not of ncclMemAlloc()", memory);
    if (found->memory.bytes)
        cuda_memory_unmap(found->driver, &found->memory);
    else
        status = CUDA_CALL(found->driver, mem_free, found->memory.base);
    report_end(SYMBOL_ncclMemFree, false, 0, begin);
    free(found);
    return fail_status(status, SYMBOL_ncclMemFree);
}

/* ---- registration ---------------------------------------------------------------------------- */

NCCL_DEFINE(ncclResult_t, ncclCommRegister, const ncclComm_t comm, void *memory, size_t bytes,
            void **handle)
{
    ncclResult_t result = comm_enter(comm, SYMBOL_ncclCommRegister, false);
    if (result != ncclSuccess)
        return result;
    if (!memory || !handle || bytes == 0)
        result = fail(ncclInvalidArgument, SYMBOL_ncclCommRegister, "NULL, or 0 bytes");
    else
        *handle = memory;
    return comm_leave(comm, result);
}

NCCL_DEFINE(ncclResult_t, ncclCommDeregister, const ncclComm_t comm, void *handle)
{
    const ncclResult_t result = comm_enter(comm, SYMBOL_ncclCommDeregister, false);
    (void)handle;
    return result == ncclSuccess ? comm_leave(comm, result) : result;
}

/* ---- windows --------------------------------------------------------------------------------- */

static ncclResult_t window_register(ncclComm_t comm, struct ncclWindow_vidmem *window)
{
    return real_wait(comm->real,
                     REAL(ncclCommWindowRegister)(comm->real, window->memory, window->bytes,
                                                  &window->real, window->flags),
                     SYMBOL_ncclCommWindowRegister);
}

ncclResult_t windows_register(ncclComm_t comm)
{
    ncclResult_t result = ncclSuccess;
    for (struct ncclWindow_vidmem *window = comm->windows; window && result == ncclSuccess;
         window = window->next)
        result = window_register(comm, window);
    return result;
}

NCCL_DEFINE(ncclResult_t, ncclCommWindowRegister, ncclComm_t comm, void *memory, size_t bytes,
            ncclWindow_t *made, int flags)
{
    ncclResult_t result = comm_enter(comm, SYMBOL_ncclCommWindowRegister, true);
    if (result != ncclSuccess)
        return result;
    if (!memory || !made || bytes == 0)
        return comm_leave(
            comm, fail(ncclInvalidArgument, SYMBOL_ncclCommWindowRegister, "NULL, or 0 bytes"));
    struct ncclWindow_vidmem *window = malloc(sizeof *window), **end = &comm->windows;
    if (!window)
        return comm_leave(comm, fail(ncclSystemError, SYMBOL_ncclCommWindowRegister, "no memory"));
    *window = (struct ncclWindow_vidmem){.memory = memory, .bytes = bytes, .flags = flags};
    if (comm->real)
        result = window_register(comm, window);
    if (result != ncclSuccess) {
        free(window);
        return comm_leave(comm, result);
    }
    /* All ranks register in one order, and NVIDIA's communicator gets them in that order. */
    while (*end)
        end = &(*end)->next;
    *end = *made = window;
    return comm_leave(comm, result);
}

NCCL_DEFINE(ncclResult_t, ncclCommWindowDeregister, ncclComm_t comm, ncclWindow_t window)
{
    ncclResult_t result = comm_enter(comm, SYMBOL_ncclCommWindowDeregister, false);
    if (result != ncclSuccess || !window)
        return result == ncclSuccess ? comm_leave(comm, result) : result;
    struct ncclWindow_vidmem **place = &comm->windows;
    while (*place && *place != window)
        place = &(*place)->next;
    if (!*place)
        return comm_leave(comm, fail(ncclInvalidArgument, SYMBOL_ncclCommWindowDeregister,
                                     "this is no window of the communicator"));
    *place = window->next;
    if (window->real && comm->real)
        result = fail_real(REAL(ncclCommWindowDeregister)(comm->real, window->real),
                           SYMBOL_ncclCommWindowDeregister);
    free(window);
    return comm_leave(comm, result);
}

NCCL_DEFINE(ncclResult_t, ncclWinGetUserPtr, ncclComm_t comm, ncclWindow_t window, void **memory)
{
    ncclResult_t result = comm_enter(comm, SYMBOL_ncclWinGetUserPtr, false);
    if (result != ncclSuccess)
        return result;
    if (!window || !memory)
        result = fail(ncclInvalidArgument, SYMBOL_ncclWinGetUserPtr, "NULL");
    else
        *memory = window->memory;
    return comm_leave(comm, result);
}

/* ---- memory of a communicator ---------------------------------------------------------------- */

/* Tutti keeps its memory; only calls are refused meanwhile. */
NCCL_DEFINE(ncclResult_t, ncclCommSuspend, ncclComm_t comm, int flags)
{
    ncclResult_t result = comm_enter(comm, SYMBOL_ncclCommSuspend, true);
    if (result != ncclSuccess)
        return result;
    if (flags != NCCL_SUSPEND_MEM)
        result = fail(ncclInvalidArgument, SYMBOL_ncclCommSuspend,
                      "flags %d: expected NCCL_SUSPEND_MEM", flags);
    comm->suspended = result == ncclSuccess;
    return comm_leave(comm, result);
}

NCCL_DEFINE(ncclResult_t, ncclCommResume, ncclComm_t comm)
{
    ncclResult_t result = comm_enter(comm, SYMBOL_ncclCommResume, false);
    if (result != ncclSuccess)
        return result;
    if (!comm->suspended)
        result = fail(ncclInvalidUsage, SYMBOL_ncclCommResume, "the communicator is not suspended");
    comm->suspended = false;
    return comm_leave(comm, result);
}

NCCL_DEFINE(ncclResult_t, ncclCommMemStats, ncclComm_t comm, ncclCommMemStat_t stat,
            uint64_t *value)
{
    ncclResult_t result = comm_enter(comm, SYMBOL_ncclCommMemStats, false);
    if (result != ncclSuccess)
        return result;
    const uint64_t arena = comm->comm && comm->ranks > 1 ? sizeof(struct cuda_arena) : 0;
    if (!value || (unsigned)stat > ncclStatGpuMemTotal)
        result = fail(ncclInvalidArgument, SYMBOL_ncclCommMemStats, "NULL, or no statistic %d",
                      (int)stat);
    else
        *value = stat == ncclStatGpuMemSuspended ? comm->suspended
                 : stat == ncclStatGpuMemSuspend ? 0
                                                 : arena;
    return comm_leave(comm, result);
}
