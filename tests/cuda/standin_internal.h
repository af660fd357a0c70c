/* SPDX-License-Identifier: MIT */
/* What the files of the stand-in share. One lock guards everything but the run of a kernel. */
#ifndef TESTS_CUDA_STANDIN_INTERNAL_H
#define TESTS_CUDA_STANDIN_INTERNAL_H

#include "standin.h"

#include "tutti/tutti.h"

#include <pthread.h>

enum { STANDIN_DEVICES_MAX = 16, STANDIN_DEPENDENCIES = 16 };

/* X(KIND, what standin_left() calls it) */
#define STANDIN_OBJECT_MAP(X)                                                                      \
    X(ALLOCATION, "allocation")                                                                    \
    X(RESERVATION, "address range")                                                                \
    X(BUFFER, "cuMemAlloc buffer")                                                                 \
    X(PINNED, "pinned host buffer")                                                                \
    X(REGISTERED, "registered host memory")                                                        \
    X(STREAM, "stream")                                                                            \
    X(EVENT, "event")                                                                              \
    X(GRAPH, "graph")                                                                              \
    X(EXEC, "executable graph")                                                                    \
    X(USER_OBJECT, "user object")

enum object_kind {
#define OBJECT_ENUM(KIND, text) OBJECT_##KIND,
    STANDIN_OBJECT_MAP(OBJECT_ENUM)
#undef OBJECT_ENUM
        OBJECT_KINDS
};

/* Every handle except contexts, libraries, kernels and functions begins with this. */
struct object {
    struct object *next;
    enum object_kind kind;
    bool hidden; /* not the caller's: default streams */
};

struct device {
    int physical; /* before CUDA_VISIBLE_DEVICES */
    int retained; /* of its primary context */
    int resets;
    int kernels;         /* that run */
    int drains;          /* that are under way: standin_drain() */
    uint64_t put, begun; /* works in its channel */
    struct stream *legacy, *per_thread;
};

/* The primary context of a device is the device's address. */
struct device *standin_device_of(CUcontext context);
CUcontext standin_context(void);

/* A CUfunction. */
struct function {
    char name[STANDIN_NAME_BYTES];
    struct function *next;
    struct device *device;
    int resets;        /* of the device: its context is that one */
    const void *entry; /* the kernel, compiled for this machine */
    bool probe, symm, stream_wait, exchange, varied, counted, push, norm, combine, announce;
    bool slow, wrong; /* as the environment asks for */
    bool loaded;
};

/* Work of a stream, or a node of a graph. */
struct work {
    enum work_kind {
        WORK_KERNEL,
        WORK_COPY,
        WORK_SET,
        WORK_RECORD,
        WORK_WAIT,
        WORK_CALL,
        WORK_WRITE,
        WORK_AWAIT,
        WORK_END
    } kind;
    const struct function *function;
    unsigned grid, block;
    union {
        struct cuda_launch launch;
        struct cuda_exchange exchange; /* begins with the launch, as `varied` does */
        struct cuda_varied varied;
        struct cuda_counted counted;
        struct cuda_push push;
        struct cuda_rms_norm norm;
        struct cuda_combine combine;
        struct cuda_announce announce;
        struct cuda_symm_launch symm;
        struct cuda_stream_wait_launch stream_wait;
    };
    void *to;
    const void *from;
    size_t bytes;
    unsigned char value;
    uint64_t word; /* that is written, or awaited */
    struct event *event;
    uint64_t turn; /* of the event; the stream's when the work was enqueued */
    CUhostFn call;
    void *argument;
    struct exec *exec; /* that has run: WORK_END */
};

struct node {
    struct node *next;
    struct work work;
    struct node *dependencies[STANDIN_DEPENDENCIES];
    size_t dependency_count;
};

struct stream {
    struct object object;
    struct device *device;
    struct task *first, **last;
    bool busy, closing;
    int priority;
    unsigned flags;
    struct graph *capture;                   /* NULL: not capturing */
    struct node *tips[STANDIN_DEPENDENCIES]; /* what the next node depends on */
    size_t tip_count;
};

struct event {
    struct object object;
    struct device *device;
    uint64_t recorded, completed;
    int64_t completed_ns; /* when, by CLOCK_MONOTONIC */
    unsigned pending;     /* works that name it */
    bool destroyed;
    uint64_t capture; /* graph that its last record was captured into, 0 if none */
    struct node *tips[STANDIN_DEPENDENCIES];
    size_t tip_count;
};

extern bool standin_one_channel, standin_guards;
extern pthread_mutex_t standin_lock;
extern pthread_cond_t standin_changed;
extern unsigned standin_destructors; /* that run */

/* Counts the call and returns what it has to fail with. Takes the lock itself. */
CUresult standin_enter(const char *function);
/* The same for a call that may synchronise: not while a capture forbids it. */
CUresult standin_enter_unsafe(const char *function);
/* The same for a call that needs a context; returns the device of the context. */
CUresult standin_enter_context(const char *function, struct device **device);

/* All with the lock held. */
void *standin_object_create(enum object_kind kind, size_t bytes);
bool standin_object_is(const void *handle, enum object_kind kind);
void standin_object_forget(void *handle); /* takes it off the list; not freed */
void standin_object_destroy(void *handle);
struct object *standin_objects(void);
struct device *standin_device(CUdevice ordinal); /* NULL: no such */
int standin_ordinal(const struct device *device);
bool standin_peers(int physical, int other);

/* Returns NULL and sets *result if the handle or the context is wrong. */
struct stream *standin_stream(CUstream handle, CUresult *result);
/* The same for calls that also take a stream of another context. */
struct stream *standin_stream_anywhere(CUstream handle, CUresult *result);
/* Without the lock. Waits until the streams of one device after the other have no work; those of
 * the device take none meanwhile. */
void standin_drain(void);
/* With the lock held. Waits until no thread drains the stream's device. */
void standin_await_drains(const struct stream *stream);
/* Adds work to the stream, or to the graph that the stream captures. */
CUresult standin_submit(struct stream *stream, const struct work *work);
/* To the stream, capturing or not. */
void standin_enqueue(struct stream *stream, const struct work *work);
void standin_capture_into(struct graph *graph, struct stream *stream, const struct work *work);
/* Returns true if the calling thread may make an unsafe call; otherwise the captures that forbid it
 * are invalidated. */
bool standin_captures_allow(void);
void standin_capture_spoil(struct graph *graph);
uint64_t standin_capture_id(const struct graph *graph); /* 0: NULL */
/* The stream continues behind a captured event, and so is captured too. */
CUresult standin_capture_join(struct stream *stream, const struct event *event);
void standin_exec_ran(struct exec *exec);

/* memset() without the lock. */
void standin_fill(void *to, int value, size_t bytes);
/* Where the stand-in itself reaches memory of a device. */
void *standin_reach(const void *address);

/* standin_run.c. Runs a kernel, without the lock. */
void standin_run(const struct work *work);
void standin_note_launch(const CUlaunchConfig *config, const struct work *work, bool captured);
size_t standin_forget_launches(void);

#endif
