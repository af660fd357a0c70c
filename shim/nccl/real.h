/* SPDX-License-Identifier: MIT */
/* NVIDIA's libnccl.so.2, opened at run time by the first call that needs it, and never closed. */
#ifndef SHIM_NCCL_REAL_H
#define SHIM_NCCL_REAL_H

#include "shim.h"

/* False if there is none, or one older than 2.28: real_absent() says why. */
bool real_library(void);
/* A function by its name; NULL if the library or the function is not there. */
void *real_function(enum symbol symbol);
/* The same, with the type of our function of that name. */
#define REAL(name) ((__typeof__(&(name)))real_function(SYMBOL_##name))

/* What one file calls there and another one defines here. */
EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                           ncclConfig_t *config);
EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm);
EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm);
EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm);
EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made,
                                  ncclConfig_t *config);
EXPORT ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *memory, size_t bytes,
                                           ncclWindow_t *made, int flags);
EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error);
EXPORT const char *ncclGetLastError(ncclComm_t comm);

/* The error of a call that only NVIDIA's library could serve. */
ncclResult_t real_absent(enum symbol symbol);
/* As fail_real(), of a call on NVIDIA's communicator, once that is ready again: with
 * NCCL_COMM_BLOCKING=0 the call returns early. */
ncclResult_t real_wait(ncclComm_t real, ncclResult_t result, const char *call);
/* Whether NVIDIA's library serves everything: TUTTI_DISABLE is set, or the launcher has started
 * ranks on several hosts. Equal on all ranks. */
bool real_serves_all(void);

#endif
