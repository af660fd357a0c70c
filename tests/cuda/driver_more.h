/* SPDX-License-Identifier: MIT */
/* Functions of the CUDA driver that only the tests call: see driver_abi.h. */
#ifndef TESTS_CUDA_DRIVER_MORE_H
#define TESTS_CUDA_DRIVER_MORE_H

#include "cuda/runtime/driver_abi.h"

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxSynchronize(void);
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags);
CUresult cuMemAllocAsync(CUdeviceptr *memory, size_t bytes, CUstream stream);
CUresult cuMemFreeAsync(CUdeviceptr memory, CUstream stream);
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
CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphExecDestroy(CUgraphExec executable);

#endif
