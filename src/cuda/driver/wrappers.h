/* SPDX-License-Identifier: MIT */
/* Calls of the driver that several files need in the same form. No function here keeps state. */
#ifndef TUTTI_CUDA_WRAPPERS_H
#define TUTTI_CUDA_WRAPPERS_H

#include "cuda/driver/driver.h"

/* Sets the thread's last error to "call: NAME (number: text)", for a result that is not
 * CUDA_SUCCESS. Returns CUDA; NO_MEMORY for CUDA_ERROR_OUT_OF_MEMORY. */
enum tutti_status cuda_failed(const struct cuda_driver *driver, CUresult result, const char *call);

static inline enum tutti_status cuda_check(const struct cuda_driver *driver, CUresult result,
                                           const char *call)
{
    return __builtin_expect(result == CUDA_SUCCESS, 1) ? TUTTI_OK
                                                       : cuda_failed(driver, result, call);
}

/* Calls a driver function, named by its member of struct cuda_driver, and checks its result. */
#define CUDA_CALL(driver, member, ...)                                                             \
    cuda_check((driver), (driver)->member(__VA_ARGS__), cuda_names.member)

/* Launches one block, of a kernel whose one parameter, copied now, is *launch. Returns CUDA. */
enum tutti_status cuda_launch_block(const struct cuda_driver *driver, CUfunction function,
                                    unsigned threads, void *launch, CUstream stream);

/* A time-out as kernels read it: UINT64_MAX never ends. */
static inline uint64_t cuda_timeout_ns(int64_t timeout_ms)
{
    return timeout_ms < 0 || timeout_ms > INT64_MAX / 1000000 ? UINT64_MAX
                                                              : (uint64_t)timeout_ms * 1000000;
}

/* An address in the driver's type; pinned memory has the same address on the device. */
static inline CUdeviceptr cuda_address(const void *memory)
{
    return (CUdeviceptr)(uintptr_t)memory;
}

/* A stream in the driver's type. */
static inline CUstream cuda_stream_of(tutti_stream_t stream)
{
    return stream == TUTTI_STREAM_DEFAULT ? CU_STREAM_LEGACY : (CUstream)(void *)stream;
}

/* ---- contexts and captures ------------------------------------------------------------------- */

/* Makes the context current until cuda_context_leave(). Returns CUDA. */
enum tutti_status cuda_context_enter(const struct cuda_driver *driver, CUcontext context,
                                     bool *pushed);
void cuda_context_leave(const struct cuda_driver *driver, bool pushed);

/* Between these two calls, no call of this thread disturbs a capture of any thread. */
void cuda_captures_ignore(const struct cuda_driver *driver, CUstreamCaptureMode *mode);
void cuda_captures_heed(const struct cuda_driver *driver, CUstreamCaptureMode *mode);

/* Enters the context and ignores captures: for calls that create, free or query. Returns CUDA. */
struct cuda_visit {
    CUstreamCaptureMode mode;
    bool pushed;
};
enum tutti_status cuda_visit_begin(const struct cuda_driver *driver, CUcontext context,
                                   struct cuda_visit *visit);
void cuda_visit_end(const struct cuda_driver *driver, struct cuda_visit *visit);

/* The capture that the stream is part of, and its graph (may be NULL); *id is 0 if there is none.
 * Returns CUDA, also for a capture that an error has spoiled. */
enum tutti_status cuda_capture_of(const struct cuda_driver *driver, CUstream stream, uint64_t *id,
                                  CUgraph *graph);
/* Within the stream's context. Returns DECLINED, with this reason (the stream is being captured),
 * CUDA. */
enum tutti_status cuda_uncaptured_check(const struct cuda_driver *driver, CUstream stream,
                                        const char *why);

/* ---- streams and pinned memory --------------------------------------------------------------- */

/* Makes a stream of ours and an event, without an order to any other stream. On failure the caller
 * destroys what was created. Returns CUDA. */
enum tutti_status cuda_own_create(const struct cuda_driver *driver, CUstream *stream,
                                  CUevent *event);
/* Polls the event until the deadline. Returns TIMEOUT, CUDA. */
enum tutti_status cuda_event_await(const struct cuda_driver *driver, CUevent event, CUdevice device,
                                   int64_t deadline);
/* Waits for the work on a stream of ours, with an event of ours. Returns TIMEOUT, CUDA. */
enum tutti_status cuda_stream_finish(const struct cuda_driver *driver, CUstream stream,
                                     CUevent event, CUdevice device, int64_t deadline);

/* Pinned memory, which the driver frees with mem_host_free(). `flags` are CU_MEMHOSTALLOC_ ones.
 * Returns NO_MEMORY, CUDA. */
enum tutti_status cuda_pinned_alloc(const struct cuda_driver *driver, size_t bytes, unsigned flags,
                                    void **memory);
/* The same for the current context's device alone, zeroed; *address is the device's. On failure
 * *memory, if it is not NULL, is the caller's to free. */
enum tutti_status cuda_page_alloc(const struct cuda_driver *driver, size_t bytes, void **memory,
                                  CUdeviceptr *address);

#endif
