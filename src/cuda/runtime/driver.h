/* SPDX-License-Identifier: MIT */
/*
 * libcuda, opened at run time by the first caller that needs it, and never closed. No other file
 * knows its name. A machine without it has the CPU back end.
 *
 * Functions are found by the names of their symbols, version included (cuStreamGetCaptureInfo_v3):
 * such a name is one interface for good, and it gives the function its type. A driver that lacks a
 * name is declined with that name. A driver for CUDA 12.4 has all names; the kernels need a driver
 * for CUDA 13, unless a ptxas of CUDA 12 has assembled them. A child of fork() is declined once its
 * parent has opened the driver.
 */
#ifndef TUTTI_CUDA_DRIVER_H
#define TUTTI_CUDA_DRIVER_H

#include "cuda/runtime/driver_abi.h"
#include "tutti/tutti.h"

#include <stdbool.h>

enum {
    CUDA_DRIVER_LEAST =
        12040,            /* the oldest driver with all functions below: 1000 major + 10 minor */
    CUDA_NVCC_LEAST = 13, /* the nvcc that compiles the kernels */
};

/* X(member, symbol): what the library calls. */
#define CUDA_DRIVER_MAP(X)                                                                         \
    X(init, cuInit)                                                                                \
    X(driver_version, cuDriverGetVersion)                                                          \
    X(error_name, cuGetErrorName)                                                                  \
    X(error_string, cuGetErrorString)                                                              \
    X(device_count, cuDeviceGetCount)                                                              \
    X(device_get, cuDeviceGet)                                                                     \
    X(device_attribute, cuDeviceGetAttribute)                                                      \
    X(device_name, cuDeviceGetName)                                                                \
    X(device_uuid, cuDeviceGetUuid_v2)                                                             \
    X(device_pci_bus_id, cuDeviceGetPCIBusId)                                                      \
    X(device_can_access_peer, cuDeviceCanAccessPeer)                                               \
    X(device_p2p_attribute, cuDeviceGetP2PAttribute)                                               \
    X(ctx_current, cuCtxGetCurrent)                                                                \
    X(ctx_device, cuCtxGetDevice)                                                                  \
    X(ctx_id, cuCtxGetId)                                                                          \
    X(primary_retain, cuDevicePrimaryCtxRetain)                                                    \
    X(primary_release, cuDevicePrimaryCtxRelease_v2)                                               \
    X(primary_state, cuDevicePrimaryCtxGetState)                                                   \
    X(ctx_push, cuCtxPushCurrent_v2)                                                               \
    X(ctx_pop, cuCtxPopCurrent_v2)                                                                 \
    X(pointer_attributes, cuPointerGetAttributes)                                                  \
    X(mem_alloc, cuMemAlloc_v2)                                                                    \
    X(mem_free, cuMemFree_v2)                                                                      \
    X(mem_granularity, cuMemGetAllocationGranularity)                                              \
    X(mem_info, cuMemGetInfo_v2)                                                                   \
    X(mem_create, cuMemCreate)                                                                     \
    X(mem_release, cuMemRelease)                                                                   \
    X(mem_export, cuMemExportToShareableHandle)                                                    \
    X(mem_import, cuMemImportFromShareableHandle)                                                  \
    X(mem_reserve, cuMemAddressReserve)                                                            \
    X(mem_unreserve, cuMemAddressFree)                                                             \
    X(mem_map, cuMemMap)                                                                           \
    X(mem_unmap, cuMemUnmap)                                                                       \
    X(mem_set_access, cuMemSetAccess)                                                              \
    X(mem_host_alloc, cuMemHostAlloc)                                                              \
    X(mem_host_free, cuMemFreeHost)                                                                \
    X(mem_host_device_pointer, cuMemHostGetDevicePointer_v2)                                       \
    X(mem_host_register, cuMemHostRegister_v2)                                                     \
    X(mem_host_unregister, cuMemHostUnregister)                                                    \
    X(memset_d8_async, cuMemsetD8Async)                                                            \
    X(memcpy_async, cuMemcpyAsync)                                                                 \
    X(memcpy_2d_async, cuMemcpy2DAsync_v2)                                                         \
    X(library_load, cuLibraryLoadData)                                                             \
    X(library_kernel, cuLibraryGetKernel)                                                          \
    X(kernel_function, cuKernelGetFunction)                                                        \
    X(function_load, cuFuncLoad)                                                                   \
    X(occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor)                                      \
    X(launch, cuLaunchKernelEx)                                                                    \
    X(stream_create, cuStreamCreateWithPriority)                                                   \
    X(stream_destroy, cuStreamDestroy_v2)                                                          \
    X(stream_synchronize, cuStreamSynchronize)                                                     \
    X(stream_context, cuStreamGetCtx)                                                              \
    X(stream_wait_event, cuStreamWaitEvent)                                                        \
    X(stream_write_64, cuStreamWriteValue64_v2)                                                    \
    X(stream_wait_64, cuStreamWaitValue64_v2)                                                      \
    X(stream_capture_info, cuStreamGetCaptureInfo_v3)                                              \
    X(stream_capture_depend, cuStreamUpdateCaptureDependencies_v2)                                 \
    X(capture_mode_exchange, cuThreadExchangeStreamCaptureMode)                                    \
    X(event_create, cuEventCreate)                                                                 \
    X(event_destroy, cuEventDestroy_v2)                                                            \
    X(event_record, cuEventRecord)                                                                 \
    X(event_query, cuEventQuery)                                                                   \
    X(event_synchronize, cuEventSynchronize)                                                       \
    X(user_object_create, cuUserObjectCreate)                                                      \
    X(user_object_release, cuUserObjectRelease)                                                    \
    X(graph_retain_user_object, cuGraphRetainUserObject)

struct cuda_driver {
#define CUDA_DRIVER_MEMBER(member, symbol) __typeof__(symbol) *member;
    CUDA_DRIVER_MAP(CUDA_DRIVER_MEMBER)
#undef CUDA_DRIVER_MEMBER
};

/* The symbol of each member, for messages. */
extern const struct cuda_names {
#define CUDA_NAME_MEMBER(member, symbol) const char *member;
    CUDA_DRIVER_MAP(CUDA_NAME_MEMBER)
#undef CUDA_NAME_MEMBER
} cuda_names;

/*
 * Opens libcuda on the first call, never closes it. From any thread. TUTTI_CUDA_LIBRARY names
 * another file than libcuda.so.1. Returns DECLINED and says what is missing: no library, no device,
 * a driver that is too old, no kernels in this build. A child of fork() after the first success
 * gets DECLINED, because CUDA does not survive a fork.
 */
enum tutti_status cuda_driver_open(const struct cuda_driver **driver);

/* Returns true if this process has opened libcuda, by Tutti or by the program. */
bool cuda_driver_in_use(void);

#endif
