/* SPDX-License-Identifier: MIT */
/*
 * Functions of NCCL for programs whose own kernels communicate, and put, signal and wait. NVIDIA's
 * library alone has them. ncclDevCommCreate(), which all ranks call, makes NVIDIA's communicator
 * and its windows. The others need that one: a rank cannot make it alone.
 */
#include "shim.h"

#include <string.h>

typedef struct {
    void *address;
} multimem_t;

static ncclResult_t no_real(enum symbol symbol)
{
    if (!real_library())
        return real_absent(symbol);
    return fail(ncclInvalidUsage, symbol,
                "NVIDIA's library serves this function, and has no communicator yet: all ranks "
                "call ncclDevCommCreate() first, or set TUTTI_NCCL_DEVICE_API=1");
}

/* Calls NVIDIA's function of that name; an error of this function's if it or `handle` is not there.
 */
#define REAL_CALL(name, handle, arguments)                                                         \
    const __typeof__(&(name)) function = REAL(name);                                               \
    if (!(handle))                                                                                 \
        return no_real(SYMBOL_##name);                                                             \
    if (!function)                                                                                 \
        return real_absent(SYMBOL_##name);                                                         \
    const int64_t begin = report_begin();                                                          \
    const ncclResult_t result = fail_real(function arguments, SYMBOL_##name);                      \
    report_end(SYMBOL_##name, true, 0, begin);                                                     \
    return result

/* Defines a function that does so. */
#define REAL_FUNCTION(name, handle, arguments, ...)                                                \
    NCCL_DEFINE(ncclResult_t, name, __VA_ARGS__)                                                   \
    {                                                                                              \
        REAL_CALL(name, handle, arguments);                                                        \
    }

static ncclComm_t real_of(ncclComm_t comm)
{
    return comm ? comm->real : NULL;
}

/* ---- put, signal, wait ----------------------------------------------------------------------- */

REAL_FUNCTION(ncclPutSignal, real_of(comm) && window_real(window),
              (local, count, dtype, peer, window_real(window), offset, signal, context, flags,
               comm->real, stream),
              const void *local, size_t count, ncclDataType_t dtype, int peer, ncclWindow_t window,
              size_t offset, int signal, int context, unsigned flags, ncclComm_t comm,
              cudaStream_t stream)

REAL_FUNCTION(ncclSignal, real_of(comm), (peer, signal, context, flags, comm->real, stream),
              int peer, int signal, int context, unsigned flags, ncclComm_t comm,
              cudaStream_t stream)

REAL_FUNCTION(ncclWaitSignal, real_of(comm), (count, signals, comm->real, stream), int count,
              ncclWaitSignalDesc_t *signals, ncclComm_t comm, cudaStream_t stream)

/* ---- communicators and windows for kernels --------------------------------------------------- */

/* May change NVIDIA's windows. */
NCCL_DEFINE(ncclResult_t, ncclDevCommCreate, ncclComm_t comm, const void *requirements, void *made)
{
    const enum symbol symbol = SYMBOL_ncclDevCommCreate;
    bool pushed;
    ncclResult_t result = comm_enter(comm, symbol, true);
    if (result != ncclSuccess)
        return result;
    result = fail_status(cuda_context_enter(comm->driver, comm->context, &pushed), symbol);
    if (result != ncclSuccess)
        return comm_leave(comm, result);
    result = create_real(comm, symbol);
    if (result == ncclSuccess) {
        const int64_t begin = report_begin();
        result = REAL(ncclDevCommCreate)(comm->real, requirements, made);
        result = real_wait(comm->real, result, symbol);
        report_end(symbol, true, 0, begin);
    }
    if (result == ncclSuccess)
        result = windows_update(comm, symbol);
    cuda_context_leave(comm->driver, pushed);
    return comm_leave(comm, result);
}

REAL_FUNCTION(ncclDevCommDestroy, real_of(comm), (comm->real, made), ncclComm_t comm,
              const void *made)

REAL_FUNCTION(ncclGetLsaMultimemDevicePointer, window_real(window),
              (window_real(window), offset, address), ncclWindow_t window, size_t offset,
              void **address)

REAL_FUNCTION(ncclGetMultimemDevicePointer, window_real(window),
              (window_real(window), offset, multimem, address), ncclWindow_t window, size_t offset,
              multimem_t multimem, void **address)

REAL_FUNCTION(ncclGetLsaDevicePointer, window_real(window),
              (window_real(window), offset, rank, address), ncclWindow_t window, size_t offset,
              int rank, void **address)

REAL_FUNCTION(ncclGetPeerDevicePointer, window_real(window),
              (window_real(window), offset, peer, address), ncclWindow_t window, size_t offset,
              int peer, void **address)

REAL_FUNCTION(ncclGetMultimemDeviceLeInfo, window_real(window),
              (window_real(window), offset, id, at), ncclWindow_t window, size_t offset, void *id,
              size_t *at)

REAL_FUNCTION(ncclGetCftDeviceLeInfo, window_real(window),
              (window_real(window), offset, peer, team, id, at), ncclWindow_t window, size_t offset,
              int peer, ncclTeam_t team, void *id, size_t *at)

REAL_FUNCTION(ncclGetPeerDeviceLeInfo, window_real(window),
              (window_real(window), offset, peer, id, at), ncclWindow_t window, size_t offset,
              int peer, void *id, size_t *at)

/* ---- what a kernel will need ----------------------------------------------------------------- */

REAL_FUNCTION(ncclLsaBarrierCreateRequirement, true, (team, barriers, handle, requirement),
              ncclTeam_t team, int barriers, void *handle, void *requirement)

REAL_FUNCTION(ncclGinBarrierCreateRequirement, real_of(comm),
              (comm->real, team, barriers, handle, requirement), ncclComm_t comm, ncclTeam_t team,
              int barriers, void *handle, void *requirement)

NCCL_DEFINE(int, ncclLLA2ACalcSlots, int elements, int bytes)
{
    return REAL(ncclLLA2ACalcSlots) ? REAL(ncclLLA2ACalcSlots)(elements, bytes) : 0;
}

REAL_FUNCTION(ncclLLA2ACreateRequirement, true, (blocks, slots, handle, requirement), int blocks,
              int slots, void *handle, void *requirement)

REAL_FUNCTION(ncclGinOutboxCreateRequirement, true, (blocks, size_log2, handle, requirement),
              int blocks, int size_log2, void *handle, void *requirement)

REAL_FUNCTION(ncclGinInboxA2ACreateRequirement, true,
              (peers, blocks, size_log2, handle, requirement), ncclTeam_t peers, int blocks,
              int size_log2, void *handle, void *requirement)

/* ---- teams ----------------------------------------------------------------------------------- */

/* All ranks reach each other's memory. */
static ncclTeam_t all_ranks(ncclComm_t comm)
{
    return comm ? (ncclTeam_t){.nRanks = comm->ranks, .rank = comm->rank, .stride = 1}
                : (ncclTeam_t){.nRanks = 0};
}

/* Defines a team: NVIDIA's, if it has a communicator and knows that team; else `own`. */
#define TEAM(name, own)                                                                            \
    NCCL_DEFINE(ncclTeam_t, name, ncclComm_t comm)                                                 \
    {                                                                                              \
        return real_of(comm) && REAL(name) ? REAL(name)(comm->real) : (own);                       \
    }
TEAM(ncclTeamWorld, all_ranks(comm))
TEAM(ncclTeamLsa, all_ranks(comm))
TEAM(ncclTeamRail, ((ncclTeam_t){.nRanks = 1, .stride = 1}))
TEAM(ncclTeamCftMultimem, ((ncclTeam_t){.nRanks = 0}))

NCCL_DEFINE(ncclTeam_t, ncclTeamCft, ncclComm_t comm, int mode)
{
    return real_of(comm) && REAL(ncclTeamCft) ? REAL(ncclTeamCft)(comm->real, mode)
                                              : (ncclTeam_t){.nRanks = 0};
}

static int in_world(const struct ncclComm *comm, ncclTeam_t team, int rank)
{
    return comm ? comm->rank + (rank - team.rank) * team.stride : -1;
}

NCCL_DEFINE(int, ncclTeamRankToWorld, ncclComm_t comm, ncclTeam_t team, int rank)
{
    return in_world(comm, team, rank);
}

NCCL_DEFINE(int, ncclTeamRankToLsa, ncclComm_t comm, ncclTeam_t team, int rank)
{
    return real_of(comm) && REAL(ncclTeamRankToLsa)
               ? REAL(ncclTeamRankToLsa)(comm->real, team, rank)
               : in_world(comm, team, rank);
}
