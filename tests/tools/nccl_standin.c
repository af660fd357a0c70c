/* SPDX-License-Identifier: MIT */
/* A stand-in for NCCL whose all-reduce is a copy: enough to be measured. Linked with the stand-in
 * for libcuda. TUTTI_STANDIN_NCCL_STALL names a rank that never returns from it. */
#include "cuda/runtime/driver_abi.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS, WRONG = 4, WINDOW_SYMMETRIC = 1 };

struct id {
    char bytes[128];
};

const char *ncclGetErrorString(int result);
int ncclGetVersion(int *version);
int ncclGetUniqueId(struct id *id);
int ncclCommInitRank(void **comm, int size, struct id id, int rank);
int ncclCommDestroy(void *comm);
int ncclAllReduce(const void *send, void *recv, size_t count, int dtype, int op, void *comm,
                  CUstream stream);
int ncclMemAlloc(void **memory, size_t bytes);
int ncclMemFree(void *memory);
int ncclCommWindowRegister(void *comm, void *memory, size_t bytes, void **window, int flags);
int ncclCommWindowDeregister(void *comm, void *window);

const char *ncclGetErrorString(int result)
{
    return result == WRONG ? "the stand-in was called wrongly" : "no error";
}

int ncclGetVersion(int *version)
{
    *version = 22809;
    return SUCCESS;
}

int ncclGetUniqueId(struct id *id)
{
    memset(id->bytes, 7, sizeof id->bytes);
    return SUCCESS;
}

/* The id has come from rank 0 to all. */
int ncclCommInitRank(void **comm, int size, struct id id, int rank)
{
    *comm = malloc(sizeof(int));
    if (!*comm)
        return WRONG;
    *(int *)*comm = rank;
    return rank < size && id.bytes[127] == 7 ? SUCCESS : WRONG;
}

int ncclCommDestroy(void *comm)
{
    free(comm);
    return SUCCESS;
}

int ncclAllReduce(const void *send, void *recv, size_t count, int dtype, int op, void *comm,
                  CUstream stream)
{
    static const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    if (op < 0 || op > 4 || !comm || dtype < 0)
        return WRONG;
    const char *stall = getenv("TUTTI_STANDIN_NCCL_STALL");
    while (stall && atoi(stall) == *(int *)comm)
        pause();
    return cuMemcpyAsync((CUdeviceptr)recv, (CUdeviceptr)(uintptr_t)send, count * bytes[dtype],
                         stream) == CUDA_SUCCESS
               ? SUCCESS
               : WRONG;
}

int ncclMemAlloc(void **memory, size_t bytes)
{
    CUdeviceptr address = 0;
    if (cuMemAlloc_v2(&address, bytes) != CUDA_SUCCESS)
        return WRONG;
    *memory = (void *)(uintptr_t)address;
    return SUCCESS;
}

int ncclMemFree(void *memory)
{
    return cuMemFree_v2((CUdeviceptr)memory) == CUDA_SUCCESS ? SUCCESS : WRONG;
}

int ncclCommWindowRegister(void *comm, void *memory, size_t bytes, void **window, int flags)
{
    *window = memory;
    return comm && bytes && flags == WINDOW_SYMMETRIC ? SUCCESS : WRONG;
}

int ncclCommWindowDeregister(void *comm, void *window)
{
    return comm && window ? SUCCESS : WRONG;
}
