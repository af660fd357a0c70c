/* SPDX-License-Identifier: MIT */
/* Numbers and functions of the CUDA driver that only the tests use: see driver_types.h and
 * driver_abi.h. */
#ifndef TESTS_CUDA_DRIVER_MORE_H
#define TESTS_CUDA_DRIVER_MORE_H

#include "cuda/driver/driver_abi.h"

#define CUDA_ERROR_NOT_INITIALIZED                ((CUresult)3)
#define CUDA_ERROR_NO_DEVICE                      ((CUresult)100)
#define CUDA_ERROR_INVALID_DEVICE                 ((CUresult)101)
#define CUDA_ERROR_INVALID_IMAGE                  ((CUresult)200)
#define CUDA_ERROR_INVALID_CONTEXT                ((CUresult)201)
#define CUDA_ERROR_PEER_ACCESS_UNSUPPORTED        ((CUresult)217)
#define CUDA_ERROR_ILLEGAL_STATE                  ((CUresult)401)
#define CUDA_ERROR_NOT_FOUND                      ((CUresult)500)
#define CUDA_ERROR_LAUNCH_FAILED                  ((CUresult)719)
#define CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED     ((CUresult)900)
#define CUDA_ERROR_STREAM_CAPTURE_INVALIDATED     ((CUresult)901)
#define CUDA_ERROR_STREAM_CAPTURE_UNMATCHED       ((CUresult)903)
#define CUDA_ERROR_STREAM_CAPTURE_ISOLATION       ((CUresult)905)
#define CUDA_ERROR_CAPTURED_EVENT                 ((CUresult)907)
#define CUDA_ERROR_UNKNOWN                        ((CUresult)999)
#define CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK ((CUdevice_attribute)1)
#define CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY   ((CUdevice_attribute)19)
#define CU_POINTER_ATTRIBUTE_CONTEXT              ((CUpointer_attribute)1)
#define CU_POINTER_ATTRIBUTE_HOST_POINTER         ((CUpointer_attribute)4)
#define CU_GRAPH_USER_OBJECT_MOVE                 1
#define CU_STREAM_CAPTURE_MODE_THREAD_LOCAL       ((CUstreamCaptureMode)1)

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxSynchronize(void);
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags);
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *argument);
CUresult cuStreamQuery(CUstream stream);
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to);
CUresult cuUserObjectRetain(CUuserObject object, unsigned count);
CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *dependencies,
                                       CUgraphEdgeData *edges, size_t *count);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph,
                                     unsigned long long flags);
CUresult cuGraphUpload(CUgraphExec executable, CUstream stream);
CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphExecDestroy(CUgraphExec executable);

#endif
