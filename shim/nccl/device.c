/* SPDX-License-Identifier: MIT */
/*
 * Functions of NCCL for programs whose own kernels communicate, and put, signal and wait. NVIDIA's
 * library alone has them. ncclDevCommCreate(), which all ranks call, makes NVIDIA's communicator
 * and its windows. The others need that one: a rank cannot make it alone.
 */
#include "real.h"

#include <string.h>

typedef struct {
    void *address;
} multimem_t;

static ncclResult_t no_real(enum symbol symbol)
{
    if (!real_library())
        return real_absent(symbol);
    return fail(ncclInvalidUsage,
                "%s: NVIDIA's library serves this function, and has no communicator yet: all ranks "
                "call ncclDevCommCreate() first, or set TUTTI_NCCL_DEVICE_API=1",
                symbol_names[symbol]);
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
    const ncclResult_t result = fail_real(function arguments, #name);                              \
    report_end(SYMBOL_##name, true, 0, begin);                                                     \
    return result

static ncclComm_t real_of(ncclComm_t comm)
{
    return comm ? comm->real : NULL;
}

static ncclWindow_t real_window(ncclWindow_t window)
{
    return window ? window->real : NULL;
}

/* ---- put, signal, wait ----------------------------------------------------------------------- */

NCCL_DEFINE(ncclResult_t, ncclPutSignal, const void *local, size_t count, ncclDataType_t dtype,
            int peer, ncclWindow_t window, size_t offset, int signal, int context, unsigned flags,
            ncclComm_t comm, cudaStream_t stream)
{
    REAL_CALL(ncclPutSignal, real_of(comm) && real_window(window),
              (local, count, dtype, peer, window->real, offset, signal, context, flags, comm->real,
               stream));
}

NCCL_DEFINE(ncclResult_t, ncclSignal, int peer, int signal, int context, unsigned flags,
            ncclComm_t comm, cudaStream_t stream)
{
    REAL_CALL(ncclSignal, real_of(comm), (peer, signal, context, flags, comm->real, stream));
}

NCCL_DEFINE(ncclResult_t, ncclWaitSignal, int count, ncclWaitSignalDesc_t *signals, ncclComm_t comm,
            cudaStream_t stream)
{
    REAL_CALL(ncclWaitSignal, real_of(comm), (count, signals, comm->real, stream));
}

/* ---- communicators and windows for kernels --------------------------------------------------- */

NCCL_DEFINE(ncclResult_t, ncclDevCommCreate, ncclComm_t comm, const void *requirements, void *made)
{
    ncclResult_t entered = comm_enter(comm, SYMBOL_ncclDevCommCreate, true);
    if (entered == ncclSuccess)
        entered = comm_leave(comm, create_real(comm, SYMBOL_ncclDevCommCreate));
    if (entered != ncclSuccess)
        return entered;
    REAL_CALL(ncclDevCommCreate, real_of(comm), (comm->real, requirements, made));
}

NCCL_DEFINE(ncclResult_t, ncclDevCommDestroy, ncclComm_t comm, const void *made)
{
    REAL_CALL(ncclDevCommDestroy, real_of(comm), (comm->real, made));
}

NCCL_DEFINE(ncclResult_t, ncclGetLsaMultimemDevicePointer, ncclWindow_t window, size_t offset,
            void **address)
{
    REAL_CALL(ncclGetLsaMultimemDevicePointer, real_window(window),
              (window->real, offset, address));
}

NCCL_DEFINE(ncclResult_t, ncclGetMultimemDevicePointer, ncclWindow_t window, size_t offset,
            multimem_t multimem, void **address)
{
    REAL_CALL(ncclGetMultimemDevicePointer, real_window(window),
              (window->real, offset, multimem, address));
}

NCCL_DEFINE(ncclResult_t, ncclGetLsaDevicePointer, ncclWindow_t window, size_t offset, int rank,
            void **address)
{
    REAL_CALL(ncclGetLsaDevicePointer, real_window(window), (window->real, offset, rank, address));
}

NCCL_DEFINE(ncclResult_t, ncclGetPeerDevicePointer, ncclWindow_t window, size_t offset, int peer,
            void **address)
{
    REAL_CALL(ncclGetPeerDevicePointer, real_window(window), (window->real, offset, peer, address));
}

NCCL_DEFINE(ncclResult_t, ncclGetMultimemDeviceLeInfo, ncclWindow_t window, size_t offset, void *id,
            size_t *at)
{
    REAL_CALL(ncclGetMultimemDeviceLeInfo, real_window(window), (window->real, offset, id, at));
}

NCCL_DEFINE(ncclResult_t, ncclGetCftDeviceLeInfo, ncclWindow_t window, size_t offset, int peer,
            ncclTeam_t team, void *id, size_t *at)
{
    REAL_CALL(ncclGetCftDeviceLeInfo, real_window(window),
              (window->real, offset, peer, team, id, at));
}

NCCL_DEFINE(ncclResult_t, ncclGetPeerDeviceLeInfo, ncclWindow_t window, size_t offset, int peer,
            void *id, size_t *at)
{
    REAL_CALL(ncclGetPeerDeviceLeInfo, real_window(window), (window->real, offset, peer, id, at));
}

/* ---- what a kernel will need ----------------------------------------------------------------- */

NCCL_DEFINE(ncclResult_t, ncclLsaBarrierCreateRequirement, ncclTeam_t team, int barriers,
            void *handle, void *requirement)
{
    REAL_CALL(ncclLsaBarrierCreateRequirement, true, (team, barriers, handle, requirement));
}

NCCL_DEFINE(ncclResult_t, ncclGinBarrierCreateRequirement, ncclComm_t comm, ncclTeam_t team,
            int barriers, void *handle, void *requirement)
{
    REAL_CALL(ncclGinBarrierCreateRequirement, real_of(comm),
              (comm->real, team, barriers, handle, requirement));
}

NCCL_DEFINE(int, ncclLLA2ACalcSlots, int elements, int bytes)
{
    return REAL(ncclLLA2ACalcSlots) ? REAL(ncclLLA2ACalcSlots)(elements, bytes) : 0;
}

NCCL_DEFINE(ncclResult_t, ncclLLA2ACreateRequirement, int blocks, int slots, void *handle,
            void *requirement)
{
    REAL_CALL(ncclLLA2ACreateRequirement, true, (blocks, slots, handle, requirement));
}

NCCL_DEFINE(ncclResult_t, ncclGinOutboxCreateRequirement, int blocks, int size_log2, void *handle,
            void *requirement)
{
    REAL_CALL(ncclGinOutboxCreateRequirement, true, (blocks, size_log2, handle, requirement));
}

NCCL_DEFINE(ncclResult_t, ncclGinInboxA2ACreateRequirement, ncclTeam_t peers, int blocks,
            int size_log2, void *handle, void *requirement)
{
    REAL_CALL(ncclGinInboxA2ACreateRequirement, true,
              (peers, blocks, size_log2, handle, requirement));
}

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
