/* SPDX-License-Identifier: MIT */
/*
 * Memory and registration. Tutti takes any memory and needs none registered, so these functions
 * keep what a program may ask for again. They succeed on a broken communicator, too: programs
 * deregister before they abort.
 */
#include "shim.h"

#include "cuda/kernels/arena.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- memory for windows ---------------------------------------------------------------------- */

/* What ncclMemAlloc() has given. */
struct allocation {
    struct allocation *next;
    struct device_memory memory;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *allocations;

enum tutti_status device_memory_alloc(size_t bytes, struct device_memory *made)
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

enum tutti_status device_memory_free(struct device_memory *memory)
{
    if (!memory->memory.bytes)
        return CUDA_CALL(memory->driver, mem_free, memory->memory.base);
    cuda_memory_unmap(memory->driver, &memory->memory);
    return TUTTI_OK;
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
    const enum tutti_status status = device_memory_alloc(bytes, &made->memory);
    if (status != TUTTI_OK) {
        free(made);
        return fail_status(status, SYMBOL_ncclMemAlloc);
    }
    pthread_mutex_lock(&lock);
    made->next = allocations;
    allocations = made;
    pthread_mutex_unlock(&lock);
    *memory = (void *)(uintptr_t)made->memory.memory.base;
    report_end(SYMBOL_ncclMemAlloc, false, bytes, begin);
    return ncclSuccess;
}

NCCL_DEFINE(ncclResult_t, ncclMemFree, void *memory)
{
    const int64_t begin = report_begin();
    if (!memory)
        return ncclSuccess;
    if (real_serves_all() && real_library())
        return fail_real(REAL(ncclMemFree)(memory), SYMBOL_ncclMemFree);
    pthread_mutex_lock(&lock);
    struct allocation **place = &allocations, *found;
    while (*place && (*place)->memory.memory.base != cuda_address(memory))
        place = &(*place)->next;
    found = *place;
    if (found)
        *place = found->next;
    pthread_mutex_unlock(&lock);
    if (!found)
        return fail(ncclInvalidArgument, SYMBOL_ncclMemFree, "%p is not of ncclMemAlloc()", memory);
    const enum tutti_status status = device_memory_free(&found->memory);
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
