/* SPDX-License-Identifier: MIT */
/* Stands in for NVIDIA's libnccl.so.2: notes the calls that the shim passes on. Its communicators
 * do nothing. As NVIDIA's does, it calls functions that it exports by the dynamic linker, which are
 * weak names of others. */
#include "../cuda/driver_more.h"
#include "nccl.h"
#include "real_window.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ncclComm {
    int ranks, rank;
    ncclWindow_t window; /* the last one */
    int asked;           /* with NCCL_COMM_BLOCKING=0: how often the program must still ask */
};

/* By such a name the compiler cannot tell which function it will call. */
#define WEAK __attribute__((weak))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
char real_calls[4096];

static void note(const char *name)
{
    pthread_mutex_lock(&lock);
    const size_t length = strlen(real_calls);
    snprintf(real_calls + length, sizeof real_calls - length, " %s", name);
    pthread_mutex_unlock(&lock);
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = 22809;
    return ncclSuccess;
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "the stand-in's error";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    note("id");
    memset(id, 7, sizeof *id);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    (void)config;
    note("init");
    if (id.internal[5] != 7)
        return ncclInvalidArgument;
    *comm = calloc(1, sizeof **comm);
    (*comm)->ranks = ranks;
    (*comm)->rank = rank;
    const char *blocking = getenv("NCCL_COMM_BLOCKING");
    (*comm)->asked = blocking && *blocking == '0' ? 3 : 0;
    return (*comm)->asked ? ncclInProgress : ncclSuccess;
}

#define COMM_CALL(name, word)                                                                      \
    ncclResult_t name(ncclComm_t comm)                                                             \
    {                                                                                              \
        note(word);                                                                                \
        free(comm);                                                                                \
        return ncclSuccess;                                                                        \
    }
COMM_CALL(ncclCommDestroy, "destroy")
COMM_CALL(ncclCommAbort, "abort")

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    (void)comm;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    *count = comm->ranks;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    *rank = comm->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made,
                           ncclConfig_t *config)
{
    (void)color, (void)key, (void)config;
    note("split");
    *made = calloc(1, sizeof **made);
    **made = *comm;
    return ncclSuccess;
}

WEAK ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    *error = comm->asked > 0 ? ncclInProgress : ncclSuccess;
    comm->asked--;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void)
{
    note("start");
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    note("end");
    return ncclSuccess;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t dtype,
                                      ncclScalarResidence_t residence, ncclComm_t comm)
{
    (void)scalar, (void)dtype, (void)residence, (void)comm;
    *op = (ncclRedOp_t)9;
    return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    (void)op, (void)comm;
    return ncclSuccess;
}

WEAK ncclResult_t ncclMemAlloc(void **memory, size_t bytes)
{
    note("alloc");
    *memory = malloc(bytes);
    return ncclSuccess;
}

WEAK ncclResult_t ncclMemFree(void *memory)
{
    note("free");
    free(memory);
    return ncclSuccess;
}

/* An address in data that are read-only once the dynamic linker has written it. */
extern ncclResult_t (*const free_memory)(void *);
WEAK ncclResult_t (*const free_memory)(void *) = ncclMemFree;

WEAK ncclTeam_t ncclTeamWorld(ncclComm_t comm)
{
    return (ncclTeam_t){.nRanks = comm->ranks, .rank = comm->rank, .stride = 1};
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *memory, size_t bytes,
                                    ncclWindow_t *window, int flags)
{
    ncclResult_t error;
    (void)bytes, (void)flags;
    note("window");
    if (ncclCommGetAsyncError(comm, &error) != ncclSuccess)
        return ncclInvalidArgument;
    CUdeviceptr structure;
    if (cuMemAlloc_v2(&structure, sizeof **window) != CUDA_SUCCESS)
        return ncclUnhandledCudaError;
    *window = comm->window = (ncclWindow_t)(uintptr_t)structure;
    memset(*window, REAL_WINDOW_BYTE, sizeof **window);
    (*window)->memory = memory;
    (*window)->device_comms = 0;
    return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
    if (comm->window == window)
        comm->window = NULL;
    return cuMemFree_v2((CUdeviceptr)(uintptr_t)window) == CUDA_SUCCESS ? ncclSuccess
                                                                        : ncclUnhandledCudaError;
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t dtype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    (void)send, (void)recv, (void)dtype, (void)op, (void)comm, (void)stream;
    note("all_reduce");
    return count == 13 ? ncclSystemError : ncclSuccess;
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t dtype, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    (void)send, (void)count, (void)dtype, (void)peer, (void)comm, (void)stream;
    note("send");
    return ncclSuccess;
}

ncclResult_t ncclDevCommCreate(ncclComm_t comm, const void *requirements, void *made)
{
    void *memory;
    (void)requirements;
    note("device");
    if (comm->window)
        comm->window->device_comms++;
    *(int *)made = ncclTeamWorld(comm).nRanks;
    return ncclMemAlloc(&memory, 8) == ncclSuccess ? free_memory(memory) : ncclSystemError;
}

ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **address)
{
    note("pointer");
    *address = (char *)window->memory + offset + peer;
    return ncclSuccess;
}

ncclResult_t ncclSignal(int peer, int signal, int context, unsigned flags, ncclComm_t comm,
                        cudaStream_t stream)
{
    (void)peer, (void)signal, (void)context, (void)flags, (void)comm, (void)stream;
    note("signal");
    return ncclSuccess;
}
