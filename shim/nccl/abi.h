/* SPDX-License-Identifier: MIT */
/*
 * NCCL's binary interface, as far as this library serves it: types, numbers and layouts, under the
 * names that NCCL's documentation gives them. They are facts of libnccl.so.2, versions 2.28 to
 * 2.32. With them the shim needs neither NVIDIA's header nor the CUDA toolkit.
 */
#ifndef SHIM_NCCL_ABI_H
#define SHIM_NCCL_ABI_H

#include "cuda/driver/driver_types.h"

#include <assert.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef CUstream cudaStream_t; /* of the runtime and of the driver: one type */
typedef CUevent cudaEvent_t;

typedef struct {
    char internal[128];
} ncclUniqueId;

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
} ncclResult_t;

typedef enum {
    ncclInt8 = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclUint32 = 3,
    ncclInt64 = 4,
    ncclUint64 = 5,
    ncclFloat16 = 6,
    ncclFloat32 = 7,
    ncclFloat64 = 8,
    ncclBfloat16 = 9,
    ncclFloat8e4m3 = 10,
    ncclFloat8e5m2 = 11,
    ncclNumTypes = 12,
} ncclDataType_t;

/* From ncclNumOps on: made by ncclRedOpCreatePreMulSum(). */
typedef enum {
    ncclSum = 0,
    ncclProd = 1,
    ncclMax = 2,
    ncclMin = 3,
    ncclAvg = 4,
    ncclNumOps = 5,
    ncclMaxRedOp = INT_MAX,
} ncclRedOp_t;

typedef enum {
    ncclScalarDevice = 0,
    ncclScalarHostImmediate = 1,
} ncclScalarResidence_t;

enum {
    NCCL_CONFIG_UNDEF_INT = INT_MIN,
    NCCL_SPLIT_NOCOLOR = -1,
    NCCL_SHRINK_ABORT = 1,
    NCCL_REVOKE_DEFAULT = 0,
    NCCL_SUSPEND_MEM = 1,
};
#define NCCL_API_MAGIC 0xcafebeefu
#define NCCL_SIM_MAGIC 0x74685283u

/* A program's struct may be shorter or longer: it begins with its size. */
typedef struct {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
    int cgaClusterSize;
    int minCTAs;
    int maxCTAs;
    const char *netName;
    int splitShare;
    int trafficClass;
    const char *commName;
} ncclConfig_t;
static_assert(offsetof(ncclConfig_t, blocking) == 16, "as in 2.28 and 2.32");
static_assert(offsetof(ncclConfig_t, maxCTAs) == 28, "as in 2.28 and 2.32");
static_assert(offsetof(ncclConfig_t, splitShare) == 40, "as in 2.28 and 2.32");
static_assert(offsetof(ncclConfig_t, commName) == 48, "as in 2.28 and 2.32");

typedef struct {
    size_t size;
    unsigned magic;
    unsigned version;
    void *ext;
    int minCTAs;
    int maxCTAs;
    int nvlsCTAs;
    int cgaClusterSize;
    const char *algSelection;
    int forceAlgSelection;
    int CTAPolicy;
    uint64_t userProfilerTag;
    cudaEvent_t launchCompletionEvent;
} ncclCollConfig_t;
static_assert(offsetof(ncclCollConfig_t, maxCTAs) == 28, "as in 2.32");
static_assert(offsetof(ncclCollConfig_t, algSelection) == 40, "as in 2.32");
static_assert(offsetof(ncclCollConfig_t, launchCompletionEvent) == 64, "as in 2.32");

typedef struct {
    size_t size;
    unsigned magic;
    unsigned version;
    float estimatedTime;
} ncclSimInfo_t;
static_assert(sizeof(ncclSimInfo_t) == 24, "as in 2.28 and 2.32");

typedef struct {
    size_t size;
    unsigned magic;
    unsigned version;
    int mode;
    const char *psk;
} ncclEncryptionConfig_t;
static_assert(offsetof(ncclEncryptionConfig_t, psk) == 24, "as in 2.32");

typedef enum {
    ncclStatGpuMemSuspend = 0,
    ncclStatGpuMemSuspended = 1,
    ncclStatGpuMemPersist = 2,
    ncclStatGpuMemTotal = 3,
} ncclCommMemStat_t;

typedef struct {
    int opCnt;
    int peer;
    int sigIdx;
    int ctx;
} ncclWaitSignalDesc_t;
static_assert(sizeof(ncclWaitSignalDesc_t) == 16, "as in 2.32");

typedef struct {
    int nRanks;
    int rank;
    int stride;
} ncclTeam_t;
static_assert(sizeof(ncclTeam_t) == 12, "as in 2.28 and 2.32");

typedef struct ncclParamHandle *ncclParamHandle_t;

#endif
