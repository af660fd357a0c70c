/* SPDX-License-Identifier: MIT */
/*
 * Functions of the CUDA driver that the library calls, each under the name of its symbol in
 * libcuda.so.1, version included. The interface of such a name never changes. All of them are in a
 * driver for CUDA 12.4. tests/cuda/driver_more.h has those that only the tests call.
 *
 * tests/build/driver_abi.sh has a compiler compare each declaration with the toolkit's.
 */
#ifndef TUTTI_CUDA_DRIVER_ABI_H
#define TUTTI_CUDA_DRIVER_ABI_H

#include "cuda/driver/driver_types.h"

/* X(member of struct cuda_driver, symbol, arguments) */
/* clang-format off: it takes pointers for products */
#define CUDA_DRIVER_MAP(X)                                                                         \
    X(init, cuInit, (unsigned flags))                                                              \
    X(driver_version, cuDriverGetVersion, (int *version))                                          \
    X(error_name, cuGetErrorName, (CUresult result, const char **name))                            \
    X(error_string, cuGetErrorString, (CUresult result, const char **text))                        \
    X(device_count, cuDeviceGetCount, (int *count))                                                \
    X(device_attribute, cuDeviceGetAttribute,                                                      \
      (int *value, CUdevice_attribute attribute, CUdevice device))                                 \
    X(device_name, cuDeviceGetName, (char *name, int size, CUdevice device))                       \
    X(device_uuid, cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice device))                           \
    X(device_pci_bus_id, cuDeviceGetPCIBusId, (char *text, int size, CUdevice device))             \
    X(device_can_access_peer, cuDeviceCanAccessPeer, (int *can, CUdevice device, CUdevice peer))   \
    X(device_p2p_attribute, cuDeviceGetP2PAttribute,                                               \
      (int *value, CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to))                   \
    X(ctx_current, cuCtxGetCurrent, (CUcontext * context))                                         \
    X(ctx_device, cuCtxGetDevice, (CUdevice * device))                                             \
    X(ctx_id, cuCtxGetId, (CUcontext context, unsigned long long *id))                             \
    X(primary_retain, cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))            \
    X(primary_release, cuDevicePrimaryCtxRelease_v2, (CUdevice device))                            \
    X(ctx_push, cuCtxPushCurrent_v2, (CUcontext context))                                          \
    X(ctx_pop, cuCtxPopCurrent_v2, (CUcontext * context))                                          \
    X(pointer_attributes, cuPointerGetAttributes,                                                  \
      (unsigned count, CUpointer_attribute *attributes, void **values, CUdeviceptr pointer))       \
    X(mem_alloc, cuMemAlloc_v2, (CUdeviceptr * memory, size_t bytes))                              \
    X(mem_free, cuMemFree_v2, (CUdeviceptr memory))                                                \
    X(mem_alloc_async, cuMemAllocAsync, (CUdeviceptr * memory, size_t bytes, CUstream stream))     \
    X(mem_free_async, cuMemFreeAsync, (CUdeviceptr memory, CUstream stream))                       \
    X(mem_granularity, cuMemGetAllocationGranularity,                                              \
      (size_t * bytes, const CUmemAllocationProp *properties,                                      \
       CUmemAllocationGranularity_flags option))                                                   \
    X(mem_info, cuMemGetInfo_v2, (size_t * unused, size_t * total))                                \
    X(mem_create, cuMemCreate,                                                                     \
      (CUmemGenericAllocationHandle * handle, size_t bytes, const CUmemAllocationProp *properties, \
       unsigned long long flags))                                                                  \
    X(mem_release, cuMemRelease, (CUmemGenericAllocationHandle handle))                            \
    X(mem_export, cuMemExportToShareableHandle,                                                    \
      (void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,       \
       unsigned long long flags))                                                                  \
    X(mem_import, cuMemImportFromShareableHandle,                                                  \
      (CUmemGenericAllocationHandle * handle, void *shareable, CUmemAllocationHandleType type))    \
    X(mem_reserve, cuMemAddressReserve,                                                            \
      (CUdeviceptr * address, size_t bytes, size_t alignment, CUdeviceptr wanted,                  \
       unsigned long long flags))                                                                  \
    X(mem_unreserve, cuMemAddressFree, (CUdeviceptr address, size_t bytes))                        \
    X(mem_map, cuMemMap,                                                                           \
      (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,      \
       unsigned long long flags))                                                                  \
    X(mem_unmap, cuMemUnmap, (CUdeviceptr address, size_t bytes))                                  \
    X(mem_set_access, cuMemSetAccess,                                                              \
      (CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count))            \
    X(mem_host_alloc, cuMemHostAlloc, (void **memory, size_t bytes, unsigned flags))               \
    X(mem_host_free, cuMemFreeHost, (void *memory))                                                \
    X(mem_host_device_pointer, cuMemHostGetDevicePointer_v2,                                       \
      (CUdeviceptr * address, void *memory, unsigned flags))                                       \
    X(mem_host_register, cuMemHostRegister_v2, (void *memory, size_t bytes, unsigned flags))       \
    X(mem_host_unregister, cuMemHostUnregister, (void *memory))                                    \
    X(memset_d8_async, cuMemsetD8Async,                                                            \
      (CUdeviceptr to, unsigned char value, size_t count, CUstream stream))                        \
    X(memcpy_async, cuMemcpyAsync,                                                                 \
      (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                           \
    X(memcpy_2d_async, cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *copy, CUstream stream))           \
    X(library_load, cuLibraryLoadData,                                                             \
      (CUlibrary * library, const void *code, CUjit_option *jit_options, void **jit_values,        \
       unsigned jit_count, CUlibraryOption *options, void **values, unsigned count))               \
    X(library_kernel, cuLibraryGetKernel,                                                          \
      (CUkernel * kernel, CUlibrary library, const char *name))                                    \
    X(kernel_function, cuKernelGetFunction, (CUfunction * function, CUkernel kernel))              \
    X(function_load, cuFuncLoad, (CUfunction function))                                            \
    X(occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor,                                      \
      (int *blocks, CUfunction function, int threads, size_t dynamic_bytes))                       \
    X(launch, cuLaunchKernelEx,                                                                    \
      (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra))        \
    X(stream_create, cuStreamCreateWithPriority,                                                   \
      (CUstream * stream, unsigned flags, int priority))                                           \
    X(stream_destroy, cuStreamDestroy_v2, (CUstream stream))                                       \
    X(stream_synchronize, cuStreamSynchronize, (CUstream stream))                                  \
    X(stream_context, cuStreamGetCtx, (CUstream stream, CUcontext * context))                      \
    X(stream_wait_event, cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags))      \
    X(stream_write_64, cuStreamWriteValue64_v2,                                                    \
      (CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags))                      \
    X(stream_wait_64, cuStreamWaitValue64_v2,                                                      \
      (CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags))                      \
    X(stream_capture_info, cuStreamGetCaptureInfo_v3,                                              \
      (CUstream stream, CUstreamCaptureStatus * status, uint64_t * id, CUgraph * graph,            \
       const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count))            \
    X(stream_capture_depend, cuStreamUpdateCaptureDependencies_v2,                                 \
      (CUstream stream, CUgraphNode * dependencies, const CUgraphEdgeData *edges, size_t count,    \
       unsigned flags))                                                                            \
    X(capture_mode_exchange, cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode))      \
    X(event_create, cuEventCreate, (CUevent * event, unsigned flags))                              \
    X(event_destroy, cuEventDestroy_v2, (CUevent event))                                           \
    X(event_record, cuEventRecord, (CUevent event, CUstream stream))                               \
    X(event_query, cuEventQuery, (CUevent event))                                                  \
    X(user_object_create, cuUserObjectCreate,                                                      \
      (CUuserObject * object, void *pointer, CUhostFn destroy, unsigned count, unsigned flags))    \
    X(user_object_release, cuUserObjectRelease, (CUuserObject object, unsigned count))             \
    X(graph_retain_user_object, cuGraphRetainUserObject,                                           \
      (CUgraph graph, CUuserObject object, unsigned count, unsigned flags))
/* clang-format on */

#define CUDA_DRIVER_FUNCTION(member, symbol, arguments) CUresult symbol arguments;
CUDA_DRIVER_MAP(CUDA_DRIVER_FUNCTION)
#undef CUDA_DRIVER_FUNCTION

#endif
