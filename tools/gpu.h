/* SPDX-License-Identifier: MIT */
/*
 * What the tool itself needs of libcuda, opened at run time: devices, memory, streams, graphs and
 * events. No CUDA type appears here. A function that returns false, or NULL, leaves the reason in
 * library_error(). A process that has called any of these must not fork a child that calls them
 * too, because CUDA does not survive fork().
 */
#ifndef TUTTI_TOOL_GPU_H
#define TUTTI_TOOL_GPU_H

#include "library.h"

enum { GPU_NAME_BYTES = 64, GPU_UUID_BYTES = 41, GPU_BUS_BYTES = 16 };

struct gpu_facts {
    char name[GPU_NAME_BYTES];
    char uuid[GPU_UUID_BYTES]; /* in nvidia-smi's form: "GPU-..." */
    char bus_id[GPU_BUS_BYTES];
    int major, minor; /* compute capability */
    int multiprocessors;
    size_t memory_bytes;
    bool multicast; /* whether it has multicast objects; they are not used */
};

/* Opens and initialises libcuda, or TUTTI_CUDA_LIBRARY. Any thread may call it, any number
 * of times. Call it before all functions below. */
bool gpu_open(void);
/* The number of GPUs. A child process counts them, so that the caller may still fork. 0: see
 * library_error(). */
int gpu_probe(void);
/* The driver's version: 13000 is 13.0; 0: unknown. */
int gpu_driver_version(void);
int gpu_count(void);
/* Whether ranks may share a GPU: TUTTI_ALLOW_OVERLAPPING_DEVICES is set. */
bool gpu_may_be_shared(void);
bool gpu_facts(int ordinal, struct gpu_facts *facts);

/* Makes the device's primary context current to the calling thread, and never releases it. The
 * functions below use the current context. */
bool gpu_bind(int ordinal);
void *gpu_alloc(size_t bytes);
/* This and the other functions that free take NULL. */
void gpu_free(void *memory);
/* Copies between host memory and memory of the bound device, in any combination. Returns when the
 * copy is complete. */
bool gpu_copy(void *to, const void *from, size_t bytes);
bool gpu_fill(void *memory, unsigned char byte, size_t bytes);
/* Enqueues a copy within the device's memory. */
bool gpu_copy_async(void *to, const void *from, size_t bytes, tutti_stream_t stream);

bool gpu_stream_create(tutti_stream_t *stream);
void gpu_stream_destroy(tutti_stream_t stream);
/* Waits until the stream is empty. */
bool gpu_stream_synchronize(tutti_stream_t stream);

/* Begins a capture: what the calling thread enqueues on the stream goes into a graph. */
bool gpu_capture_begin(tutti_stream_t stream);
/* Ends the capture and returns an executable graph, whose upload is on the stream. NULL, too, if
 * the capture was invalidated. */
void *gpu_capture_end(tutti_stream_t stream);
bool gpu_graph_launch(void *graph, tutti_stream_t stream);
void gpu_graph_destroy(void *graph);

void *gpu_event_create(void);
void gpu_event_destroy(void *event);
bool gpu_event_record(void *event, tutti_stream_t stream);
/* Makes the stream, not the host, wait for the event. */
bool gpu_event_await(void *event, tutti_stream_t stream);
/* The time between two events that have happened. */
bool gpu_event_elapsed(void *from, void *to, double *us);

/* Tests with a pattern whether `from` can write and read memory of `to`. Binds the calling thread
 * to `from`. */
bool gpu_try_peer(int from, int to);

#endif
