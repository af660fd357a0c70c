/* SPDX-License-Identifier: MIT */
/*
 * What libnccl.so.2 exports, 97 functions in version 2.32.3, and who serves each. The list of
 * exports, the report (TUTTI_NCCL_REPORT) and the tests are made from this table. What makes a
 * communicator, collectives and messages, and the device interface at the end, stand together.
 *
 *   TUTTI   Tutti alone
 *   BOTH    Tutti; NVIDIA's library for communicators that it serves
 *   LOCAL   the shim's own tables: nothing is sent
 *   REAL    NVIDIA's library alone; an error without it
 */
#ifndef SHIM_NCCL_SYMBOLS_H
#define SHIM_NCCL_SYMBOLS_H

/* X(name, server) */
#define SYMBOL_MAP(X)                                                                              \
    X(ncclGetVersion, BOTH)                                                                        \
    X(ncclGetErrorString, LOCAL)                                                                   \
    X(ncclGetLastError, LOCAL)                                                                     \
    X(ncclGetUniqueId, BOTH)                                                                       \
    X(ncclResetDebugInit, LOCAL)                                                                   \
    X(ncclResetDebugInitInternal, LOCAL)                                                           \
    X(ncclCommInitRank, BOTH)                                                                      \
    X(ncclCommInitRankConfig, BOTH)                                                                \
    X(ncclCommInitRankScalable, BOTH)                                                              \
    X(ncclCommInitAll, TUTTI)                                                                      \
    X(ncclCommFinalize, BOTH)                                                                      \
    X(ncclCommSplit, BOTH)                                                                         \
    X(ncclCommShrink, TUTTI)                                                                       \
    X(ncclCommGrow, TUTTI)                                                                         \
    X(ncclCommDestroy, BOTH)                                                                       \
    X(ncclCommAbort, BOTH)                                                                         \
    X(ncclCommRevoke, TUTTI)                                                                       \
    X(ncclCommGetUniqueId, TUTTI)                                                                  \
    X(ncclCommGetAsyncError, BOTH)                                                                 \
    X(ncclCommCount, LOCAL)                                                                        \
    X(ncclCommCuDevice, LOCAL)                                                                     \
    X(ncclCommUserRank, LOCAL)                                                                     \
    X(ncclCommSuspend, LOCAL)                                                                      \
    X(ncclCommResume, LOCAL)                                                                       \
    X(ncclCommMemStats, LOCAL)                                                                     \
    X(ncclCommRegister, LOCAL)                                                                     \
    X(ncclCommDeregister, LOCAL)                                                                   \
    X(ncclCommWindowRegister, BOTH)                                                                \
    X(ncclCommWindowDeregister, BOTH)                                                              \
    X(ncclWinGetUserPtr, LOCAL)                                                                    \
    X(ncclMemAlloc, BOTH)                                                                          \
    X(ncclMemFree, BOTH)                                                                           \
    X(ncclAllReduce, BOTH)                                                                         \
    X(ncclAllReduceConfig, BOTH)                                                                   \
    X(ncclBroadcast, BOTH)                                                                         \
    X(ncclBroadcastConfig, BOTH)                                                                   \
    X(ncclBcast, BOTH)                                                                             \
    X(ncclReduce, BOTH)                                                                            \
    X(ncclReduceConfig, BOTH)                                                                      \
    X(ncclAllGather, BOTH)                                                                         \
    X(ncclAllGatherConfig, BOTH)                                                                   \
    X(ncclReduceScatter, BOTH)                                                                     \
    X(ncclReduceScatterConfig, BOTH)                                                               \
    X(ncclAlltoAll, BOTH)                                                                          \
    X(ncclAlltoAllConfig, BOTH)                                                                    \
    X(ncclGather, BOTH)                                                                            \
    X(ncclGatherConfig, BOTH)                                                                      \
    X(ncclScatter, BOTH)                                                                           \
    X(ncclScatterConfig, BOTH)                                                                     \
    X(ncclSend, BOTH)                                                                              \
    X(ncclRecv, BOTH)                                                                              \
    X(ncclGroupStart, BOTH)                                                                        \
    X(ncclGroupEnd, BOTH)                                                                          \
    X(ncclGroupSimulateEnd, LOCAL)                                                                 \
    X(ncclRedOpCreatePreMulSum, BOTH)                                                              \
    X(ncclRedOpDestroy, BOTH)                                                                      \
    X(ncclSetEncryption, BOTH)                                                                     \
    X(ncclParamBind, LOCAL)                                                                        \
    X(ncclParamGetI8, LOCAL)                                                                       \
    X(ncclParamGetI16, LOCAL)                                                                      \
    X(ncclParamGetI32, LOCAL)                                                                      \
    X(ncclParamGetI64, LOCAL)                                                                      \
    X(ncclParamGetU8, LOCAL)                                                                       \
    X(ncclParamGetU16, LOCAL)                                                                      \
    X(ncclParamGetU32, LOCAL)                                                                      \
    X(ncclParamGetU64, LOCAL)                                                                      \
    X(ncclParamGetStr, LOCAL)                                                                      \
    X(ncclParamGet, LOCAL)                                                                         \
    X(ncclParamGetParameter, LOCAL)                                                                \
    X(ncclParamGetAllParameterKeys, LOCAL)                                                         \
    X(ncclParamDumpAll, LOCAL)                                                                     \
    X(ncclPutSignal, REAL)                                                                         \
    X(ncclSignal, REAL)                                                                            \
    X(ncclWaitSignal, REAL)                                                                        \
    X(ncclCommQueryProperties, BOTH)                                                               \
    X(ncclDevCommCreate, REAL)                                                                     \
    X(ncclDevCommDestroy, REAL)                                                                    \
    X(ncclGetLsaMultimemDevicePointer, REAL)                                                       \
    X(ncclGetMultimemDevicePointer, REAL)                                                          \
    X(ncclGetLsaDevicePointer, REAL)                                                               \
    X(ncclGetPeerDevicePointer, REAL)                                                              \
    X(ncclGetMultimemDeviceLeInfo, REAL)                                                           \
    X(ncclGetCftDeviceLeInfo, REAL)                                                                \
    X(ncclGetPeerDeviceLeInfo, REAL)                                                               \
    X(ncclTeamWorld, BOTH)                                                                         \
    X(ncclTeamLsa, BOTH)                                                                           \
    X(ncclTeamCft, REAL)                                                                           \
    X(ncclTeamCftMultimem, REAL)                                                                   \
    X(ncclTeamRail, BOTH)                                                                          \
    X(ncclTeamRankToWorld, BOTH)                                                                   \
    X(ncclTeamRankToLsa, BOTH)                                                                     \
    X(ncclLsaBarrierCreateRequirement, REAL)                                                       \
    X(ncclGinBarrierCreateRequirement, REAL)                                                       \
    X(ncclLLA2ACalcSlots, REAL)                                                                    \
    X(ncclLLA2ACreateRequirement, REAL)                                                            \
    X(ncclGinOutboxCreateRequirement, REAL)                                                        \
    X(ncclGinInboxA2ACreateRequirement, REAL)

enum symbol {
#define SYMBOL_ENUM(name, server) SYMBOL_##name,
    SYMBOL_MAP(SYMBOL_ENUM)
#undef SYMBOL_ENUM
        SYMBOLS
};
static_assert(SYMBOLS == 97, "as in 2.32.3");

/* Defines an exported function: its twin with the prefix p, and a weak name for it, as NCCL has. */
#define EXPORT __attribute__((visibility("default")))
#define NCCL_DEFINE(type, name, ...)                                                               \
    EXPORT type p##name(__VA_ARGS__);                                                              \
    EXPORT __attribute__((weak, alias("p" #name))) type name(__VA_ARGS__);                         \
    type p##name(__VA_ARGS__)

#endif
