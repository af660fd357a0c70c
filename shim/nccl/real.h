/* SPDX-License-Identifier: MIT */
/* NVIDIA's libnccl.so.2, opened at run time by the first call that needs it, and never closed. */
#ifndef SHIM_NCCL_REAL_H
#define SHIM_NCCL_REAL_H

#include "shim.h"

/* X(member, symbol, arguments): what the shim itself calls. */
#define REAL_MAP(X)                                                                                \
    X(get_version, ncclGetVersion, (int *version))                                                 \
    X(get_id, ncclGetUniqueId, (ncclUniqueId * id))                                                \
    X(init, ncclCommInitRankConfig,                                                                \
      (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config))             \
    X(finalize, ncclCommFinalize, (ncclComm_t comm))                                               \
    X(destroy, ncclCommDestroy, (ncclComm_t comm))                                                 \
    X(abort, ncclCommAbort, (ncclComm_t comm))                                                     \
    X(split, ncclCommSplit,                                                                        \
      (ncclComm_t comm, int color, int key, ncclComm_t *child, ncclConfig_t *config))              \
    X(async_error, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t * error))                 \
    X(group_start, ncclGroupStart, (void))                                                         \
    X(group_end, ncclGroupEnd, (void))                                                             \
    X(premul_create, ncclRedOpCreatePreMulSum,                                                     \
      (ncclRedOp_t * op, void *scalar, ncclDataType_t dtype, ncclScalarResidence_t residence,      \
       ncclComm_t comm))                                                                           \
    X(op_destroy, ncclRedOpDestroy, (ncclRedOp_t op, ncclComm_t comm))                             \
    X(window_register, ncclCommWindowRegister,                                                     \
      (ncclComm_t comm, void *memory, size_t bytes, ncclWindow_t *window, int flags))              \
    X(window_deregister, ncclCommWindowDeregister, (ncclComm_t comm, ncclWindow_t window))         \
    X(mem_alloc, ncclMemAlloc, (void **memory, size_t bytes))                                      \
    X(mem_free, ncclMemFree, (void *memory))

struct real {
#define REAL_MEMBER(member, symbol, arguments) ncclResult_t(*member) arguments;
    REAL_MAP(REAL_MEMBER)
#undef REAL_MEMBER
};

/* NULL if there is none, or it lacks a function above: real_absent() says why. */
const struct real *real_library(void);
/* A function by its name; NULL if the library or the function is not there. */
void *real_function(enum symbol symbol);
/* The error of a call that only NVIDIA's library could serve. */
ncclResult_t real_absent(enum symbol symbol);
/* Whether NVIDIA's library serves everything: TUTTI_DISABLE is set, or the launcher has started
 * ranks on several hosts. Equal on all ranks. */
bool real_serves_all(void);

#endif
