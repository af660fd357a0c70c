/* SPDX-License-Identifier: MIT */
/*
 * What the tool itself needs of libcuda, opened at run time: devices, memory, streams, graphs and
 * events. Shows no CUDA type. A function that returns false, or NULL, leaves the reason in
 * gpu_error(). Nothing here may be called before a fork() whose child uses it too: CUDA does not
 * survive one.
 */
#ifndef TUTTI_TOOL_GPU_H
#define TUTTI_TOOL_GPU_H

#include "tutti/tutti.h"

enum { GPU_NAME_BYTES = 64, GPU_UUID_BYTES = 41, GPU_BUS_BYTES = 16 };

struct gpu_facts {
    char name[GPU_NAME_BYTES];
    char uuid[GPU_UUID_BYTES]; /* as nvidia-smi writes it: "GPU-..." */
    char bus_id[GPU_BUS_BYTES];
    int major, minor; /* compute capability */
    int multiprocessors;
    size_t memory_bytes;
    bool multicast; /* multicast objects: a query only */
};

/* The calling thread's last error. */
const char *gpu_error(void);

/* Opens and initialises libcuda, or TUTTI_CUDA_LIBRARY; again and from any thread. False: what is
 * missing. The functions below come after it. */
bool gpu_open(void);
/* The number of GPUs, as a child process finds it: the caller may still fork. 0: gpu_error(). */
int gpu_probe(void);
/* As CUDA numbers it: 13000 is 13.0; 0 when the driver does not say. */
int gpu_driver_version(void);
int gpu_count(void);
/* Whether ranks may share one: TUTTI_ALLOW_OVERLAPPING_DEVICES is set. */
bool gpu_may_be_shared(void);
bool gpu_facts(int ordinal, struct gpu_facts *facts);

/* Makes the device's primary context, which it retains for good, current to the calling thread: the
 * functions below work on it. */
bool gpu_bind(int ordinal);
void *gpu_alloc(size_t bytes);
/* Takes NULL, as all that follow that free. */
void gpu_free(void *memory);
/* Host or device memory of the bound device on either side; returns when it is done. */
bool gpu_copy(void *to, const void *from, size_t bytes);
bool gpu_fill(void *memory, unsigned char byte, size_t bytes);
/* Enqueues a copy within the device's memory. */
bool gpu_copy_async(void *to, const void *from, size_t bytes, tutti_stream_t stream);

bool gpu_stream_create(tutti_stream_t *stream);
void gpu_stream_destroy(tutti_stream_t stream);
/* Waits until the stream is empty. */
bool gpu_stream_synchronize(tutti_stream_t stream);

/* What the calling thread enqueues on the stream from now on goes into a graph. */
bool gpu_capture_begin(tutti_stream_t stream);
/* An executable graph; NULL also if the capture was spoilt. It is over in either case. */
void *gpu_capture_end(tutti_stream_t stream);
bool gpu_graph_launch(void *graph, tutti_stream_t stream);
void gpu_graph_destroy(void *graph);

void *gpu_event_create(void);
void gpu_event_destroy(void *event);
bool gpu_event_record(void *event, tutti_stream_t stream);
/* Makes the stream, not the host, wait for the event. */
bool gpu_event_await(void *event, tutti_stream_t stream);
/* From one event to another, both of which have happened. */
bool gpu_event_elapsed(void *from, void *to, double *us);

/* Whether `from` can write to memory of `to` and read it, tried with a pattern in both directions
 * through mapped memory. Binds the calling thread to `from`. */
bool gpu_try_peer(int from, int to);

#endif
