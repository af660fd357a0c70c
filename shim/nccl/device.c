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

/* NVIDIA's function with its type; an error of this function's if it or `handle` is not there. */
#define REAL_CALL(name, handle, parameters, arguments)                                             \
    ncclResult_t(*const function) parameters =                                                     \
        (ncclResult_t(*) parameters)real_function(SYMBOL_##name);                                  \
    if (!(handle))                                                                                 \
        return no_real(SYMBOL_##name);                                                             \
    if (!function)                                                                                 \
        return real_absent(SYMBOL_##name);                                                         \
    const int64_t begin = report_begin();                                                          \
    const ncclResult_t result = fail_real(function arguments, #name);                              \
    report_end(SYMBOL_##name, SERVER_REAL, 0, begin);                                              \
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
              (const void *, size_t, ncclDataType_t, int, ncclWindow_t, size_t, int, int, unsigned,
               ncclComm_t, cudaStream_t),
              (local, count, dtype, peer, window->real, offset, signal, context, flags, comm->real,
               stream));
}

NCCL_DEFINE(ncclResult_t, ncclSignal, int peer, int signal, int context, unsigned flags,
            ncclComm_t comm, cudaStream_t stream)
{
    REAL_CALL(ncclSignal, real_of(comm), (int, int, int, unsigned, ncclComm_t, cudaStream_t),
              (peer, signal, context, flags, comm->real, stream));
}

NCCL_DEFINE(ncclResult_t, ncclWaitSignal, int count, ncclWaitSignalDesc_t *signals, ncclComm_t comm,
            cudaStream_t stream)
{
    REAL_CALL(ncclWaitSignal, real_of(comm),
              (int, ncclWaitSignalDesc_t *, ncclComm_t, cudaStream_t),
              (count, signals, comm->real, stream));
}

/* ---- communicators and windows for kernels --------------------------------------------------- */

NCCL_DEFINE(ncclResult_t, ncclDevCommCreate, ncclComm_t comm, const void *requirements, void *made)
{
    ncclResult_t entered = comm_enter(comm, SYMBOL_ncclDevCommCreate, true);
    if (entered == ncclSuccess)
        entered = comm_leave(comm, create_real(comm, SYMBOL_ncclDevCommCreate));
    if (entered != ncclSuccess)
        return entered;
    REAL_CALL(ncclDevCommCreate, real_of(comm), (ncclComm_t, const void *, void *),
              (comm->real, requirements, made));
}

NCCL_DEFINE(ncclResult_t, ncclDevCommDestroy, ncclComm_t comm, const void *made)
{
    REAL_CALL(ncclDevCommDestroy, real_of(comm), (ncclComm_t, const void *), (comm->real, made));
}

NCCL_DEFINE(ncclResult_t, ncclGetLsaMultimemDevicePointer, ncclWindow_t window, size_t offset,
            void **address)
{
    REAL_CALL(ncclGetLsaMultimemDevicePointer, real_window(window), (ncclWindow_t, size_t, void **),
              (window->real, offset, address));
}

NCCL_DEFINE(ncclResult_t, ncclGetMultimemDevicePointer, ncclWindow_t window, size_t offset,
            multimem_t multimem, void **address)
{
    REAL_CALL(ncclGetMultimemDevicePointer, real_window(window),
              (ncclWindow_t, size_t, multimem_t, void **),
              (window->real, offset, multimem, address));
}

NCCL_DEFINE(ncclResult_t, ncclGetLsaDevicePointer, ncclWindow_t window, size_t offset, int rank,
            void **address)
{
    REAL_CALL(ncclGetLsaDevicePointer, real_window(window), (ncclWindow_t, size_t, int, void **),
              (window->real, offset, rank, address));
}

NCCL_DEFINE(ncclResult_t, ncclGetPeerDevicePointer, ncclWindow_t window, size_t offset, int peer,
            void **address)
{
    REAL_CALL(ncclGetPeerDevicePointer, real_window(window), (ncclWindow_t, size_t, int, void **),
              (window->real, offset, peer, address));
}

NCCL_DEFINE(ncclResult_t, ncclGetMultimemDeviceLeInfo, ncclWindow_t window, size_t offset, void *id,
            size_t *at)
{
    REAL_CALL(ncclGetMultimemDeviceLeInfo, real_window(window),
              (ncclWindow_t, size_t, void *, size_t *), (window->real, offset, id, at));
}

NCCL_DEFINE(ncclResult_t, ncclGetCftDeviceLeInfo, ncclWindow_t window, size_t offset, int peer,
            ncclTeam_t team, void *id, size_t *at)
{
    REAL_CALL(ncclGetCftDeviceLeInfo, real_window(window),
              (ncclWindow_t, size_t, int, ncclTeam_t, void *, size_t *),
              (window->real, offset, peer, team, id, at));
}

NCCL_DEFINE(ncclResult_t, ncclGetPeerDeviceLeInfo, ncclWindow_t window, size_t offset, int peer,
            void *id, size_t *at)
{
    REAL_CALL(ncclGetPeerDeviceLeInfo, real_window(window),
              (ncclWindow_t, size_t, int, void *, size_t *), (window->real, offset, peer, id, at));
}

/* ---- what a kernel will need ----------------------------------------------------------------- */

NCCL_DEFINE(ncclResult_t, ncclLsaBarrierCreateRequirement, ncclTeam_t team, int barriers,
            void *handle, void *requirement)
{
    REAL_CALL(ncclLsaBarrierCreateRequirement, true, (ncclTeam_t, int, void *, void *),
              (team, barriers, handle, requirement));
}

NCCL_DEFINE(ncclResult_t, ncclGinBarrierCreateRequirement, ncclComm_t comm, ncclTeam_t team,
            int barriers, void *handle, void *requirement)
{
    REAL_CALL(ncclGinBarrierCreateRequirement, real_of(comm),
              (ncclComm_t, ncclTeam_t, int, void *, void *),
              (comm->real, team, barriers, handle, requirement));
}

NCCL_DEFINE(int, ncclLLA2ACalcSlots, int elements, int bytes)
{
    int (*const function)(int, int) = (int (*)(int, int))real_function(SYMBOL_ncclLLA2ACalcSlots);
    return function ? function(elements, bytes) : 0;
}

NCCL_DEFINE(ncclResult_t, ncclLLA2ACreateRequirement, int blocks, int slots, void *handle,
            void *requirement)
{
    REAL_CALL(ncclLLA2ACreateRequirement, true, (int, int, void *, void *),
              (blocks, slots, handle, requirement));
}

NCCL_DEFINE(ncclResult_t, ncclGinOutboxCreateRequirement, int blocks, int size_log2, void *handle,
            void *requirement)
{
    REAL_CALL(ncclGinOutboxCreateRequirement, true, (int, int, void *, void *),
              (blocks, size_log2, handle, requirement));
}

NCCL_DEFINE(ncclResult_t, ncclGinInboxA2ACreateRequirement, ncclTeam_t peers, int blocks,
            int size_log2, void *handle, void *requirement)
{
    REAL_CALL(ncclGinInboxA2ACreateRequirement, true, (ncclTeam_t, int, int, void *, void *),
              (peers, blocks, size_log2, handle, requirement));
}

/* ---- teams ----------------------------------------------------------------------------------- */

/* NVIDIA's team, if it has a communicator; else `own`. */
static ncclTeam_t team(enum symbol symbol, ncclComm_t comm, ncclTeam_t own)
{
    ncclTeam_t (*const function)(ncclComm_t) =
        real_of(comm) ? (ncclTeam_t(*)(ncclComm_t))real_function(symbol) : NULL;
    return function ? function(comm->real) : own;
}

/* All ranks reach each other's memory. */
static ncclTeam_t all_ranks(ncclComm_t comm)
{
    return comm ? (ncclTeam_t){.nRanks = comm->ranks, .rank = comm->rank, .stride = 1}
                : (ncclTeam_t){.nRanks = 0};
}

NCCL_DEFINE(ncclTeam_t, ncclTeamWorld, ncclComm_t comm)
{
    return team(SYMBOL_ncclTeamWorld, comm, all_ranks(comm));
}

NCCL_DEFINE(ncclTeam_t, ncclTeamLsa, ncclComm_t comm)
{
    return team(SYMBOL_ncclTeamLsa, comm, all_ranks(comm));
}

NCCL_DEFINE(ncclTeam_t, ncclTeamRail, ncclComm_t comm)
{
    return team(SYMBOL_ncclTeamRail, comm, (ncclTeam_t){.nRanks = 1, .stride = 1});
}

NCCL_DEFINE(ncclTeam_t, ncclTeamCftMultimem, ncclComm_t comm)
{
    return team(SYMBOL_ncclTeamCftMultimem, comm, (ncclTeam_t){.nRanks = 0});
}

NCCL_DEFINE(ncclTeam_t, ncclTeamCft, ncclComm_t comm, int mode)
{
    ncclTeam_t (*const function)(ncclComm_t, int) =
        real_of(comm) ? (ncclTeam_t(*)(ncclComm_t, int))real_function(SYMBOL_ncclTeamCft) : NULL;
    return function ? function(comm->real, mode) : (ncclTeam_t){.nRanks = 0};
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
    int (*const function)(ncclComm_t, ncclTeam_t, int) =
        real_of(comm)
            ? (int (*)(ncclComm_t, ncclTeam_t, int))real_function(SYMBOL_ncclTeamRankToLsa)
            : NULL;
    return function ? function(comm->real, team, rank) : in_world(comm, team, rank);
}
