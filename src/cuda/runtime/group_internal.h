/* SPDX-License-Identifier: MIT */
/* The inside of a CUDA communicator, for the files of this directory. */
#ifndef TUTTI_CUDA_GROUP_INTERNAL_H
#define TUTTI_CUDA_GROUP_INTERNAL_H

#include "base/device_trace.h"
#include "base/reminder.h"
#include "cuda/kernels/launch.h"
#include "cuda/runtime/calls.h"
#include "cuda/runtime/group.h"
#include "cuda/runtime/kernels.h"
#include "cuda/runtime/resources.h"
#include "cuda/runtime/table.h"
#include "cuda/runtime/watcher.h"
#include "cuda/staging/proxy.h"

enum {
    CUDA_CAPTURES = 8,           /* of one communicator that may be under way at once */
    CUDA_RANGES = 8,             /* allocations whose check is remembered */
    CUDA_WEIGHTS = CUDA_THREADS, /* of a multiprocessor: residency.c */
    /* For operations of a communicator that has failed, or shrinks. */
    CUDA_GRACE_MS = 100,
};

/* The last operation of one stream capture. */
struct cuda_capture {
    uint64_t id; /* 0: none */
    uint64_t used;
    CUstream stream;
    CUgraphNode node;
    unsigned weight; /* cuda_task_weight() */
};

/* Addresses of one allocation. */
struct cuda_range {
    CUdeviceptr base;
    size_t bytes;
};

/* Those that were named last, so that the driver need not be asked again. */
struct cuda_ranges {
    struct cuda_range ranges[CUDA_RANGES];
    int devices[CUDA_RANGES];
    unsigned next;
};

/* What the driver says of an address. */
struct cuda_pointer {
    bool device, managed, pinned; /* none: memory of the host, or unknown */
    int ordinal;                  /* of the device */
    CUdeviceptr mapped;           /* where the device has it; 0: nowhere */
    struct cuda_range range;
};

struct cuda_group {
    const struct cuda_driver *driver;
    struct cuda_resources *resources; /* all that a captured graph needs as well */
    struct cuda_kernels kernels;
    struct cuda_launch launch; /* what every launch has in common */
    struct cuda_plan plan;     /* its blocks are within what fits at once on every rank */
    struct cpu_group *host;    /* borrowed from the communicator */
    CUlaunchAttribute attribute;
    bool programmatic; /* kernels may be launched ahead: residency.c */
    bool resident;     /* counted among those of the device */
    unsigned weight;   /* of the last eager operation: cuda_task_weight() */
    int64_t default_timeout_ms;
    struct cuda_device device;
    int sharing;              /* how many ranks have this device */
    uint64_t same_gpu;        /* ... as threads, which launch together, as bits; 0: nobody does */
    bool staged;              /* arenas are the host's memory */
    char why[320];            /* they are, or a host thread stages, in words */
    struct cuda_proxy *proxy; /* stages all operations; NULL: there is none */

    /* stream.c */
    CUstream last; /* of the last eager operation */
    bool enqueued; /* there was one */
    bool recorded; /* `event` is behind it */
    CUevent event;
    CUstream own;                      /* for set-up and end; not ordered with any other stream */
    const struct interrupt *interrupt; /* of waits for it, while the group opens; else NULL */
    uint64_t forgotten;                /* the latest capture that lost its place in the table */
    uint64_t uses;
    struct cuda_capture captures[CUDA_CAPTURES];

    /* operand.c */
    struct cuda_ranges ranges;

    /* watch.c */
    struct cuda_watcher watcher;
    uint32_t stopping; /* whoever takes it writes the stop words */
    uint64_t dead;     /* seen by the last look: the watcher's own */

    /* device_trace.c */
    const struct device_trace *device_trace;
    /* The watcher's own: */
    uint64_t looked_ns;       /* when a kernel's wait looked around, as seen last */
    uint64_t wait_sequence;   /* the operation whose kernel waits */
    unsigned silent_looks;    /* since a wait was seen last */
    struct reminder reminder; /* of that wait */
};

/* What an operation puts on a stream. */
struct cuda_task {
    CUfunction function;
    unsigned blocks, threads;
    struct cuda_launch *launch;
    const struct request *request;
};

/* Whether a host thread stages all, so that no kernel runs. */
static inline bool cuda_is_proxied(const struct cuda_group *group)
{
    return group->proxy;
}

/* Makes the communicator's context current until cuda_leave(). Returns CUDA. */
static inline enum tutti_status cuda_enter(struct cuda_group *group, bool *pushed)
{
    return cuda_context_enter(group->driver, group->resources->context, pushed);
}

static inline void cuda_leave(struct cuda_group *group, bool pushed)
{
    cuda_context_leave(group->driver, pushed);
}

/* fault.c: the fault that stands, as far as a caller can see without a call of any system. */
enum tutti_status cuda_group_check(struct cuda_group *group);
/* An operation, numbered `sequence`, that the peers may have enqueued cannot be enqueued here: the
 * group has failed with this status, on all ranks at once. Returns the status of the fault that
 * stands. */
enum tutti_status cuda_launch_failed(struct cuda_group *group, enum tutti_status status,
                                     uint64_t sequence);
/* Ends all waits of this rank's kernels, now and later; the first one counts. */
void cuda_stop(struct cuda_group *group, enum tutti_status status, int peer);
/* The fault that the device has recorded; false if there is none. */
bool cuda_fault_read(const struct cuda_group *group, struct tutti_fault *fault);

/* watch.c: carries faults between device and hosts until cuda_watch_stop(). */
enum tutti_status cuda_watch_start(struct cuda_group *group);
void cuda_watch_stop(struct cuda_group *group);

/* device_trace.c: moves the kernels' words for the host from the pinned page to the recorder behind
 * this descriptor. -1: there is no recorder, and the words stay in the page. */
void cuda_device_trace_open(struct cuda_group *group, int fd);
/* Called once the device has written its time. */
void cuda_device_trace_begin(struct cuda_group *group);
/* Called by the watcher: notes in the recorder for which rank a kernel waits. */
void cuda_device_trace_look(struct cuda_group *group);

/* operand.c: whether [first, last] lies in one of the ranges of that device. */
bool cuda_ranges_have(const struct cuda_ranges *ranges, int device, CUdeviceptr first,
                      CUdeviceptr last);
void cuda_ranges_add(struct cuda_ranges *ranges, int device, const struct cuda_range *range);
/* Asks the driver. Returns CUDA. */
enum tutti_status cuda_pointer_ask(const struct cuda_driver *driver, CUdeviceptr address,
                                   struct cuda_pointer *facts);
/* Whether our device reads and writes [pointer, pointer + bytes), not empty, at that address, or
 * may do so when what the stream captures is launched. */
enum tutti_status cuda_operand_check(struct cuda_group *group, const char *what,
                                     const void *pointer, size_t bytes, tutti_stream_t stream);

/* stream.c: launches behind the communicator's earlier operations. One that is of all ranks, so not
 * of a subset, takes a number. */
enum tutti_status cuda_enqueue(struct cuda_group *group, tutti_stream_t stream,
                               const struct cuda_task *task);
/* residency.c: bounds all grids by what fits at once. Returns INVALID, CUDA. */
enum tutti_status cuda_grids_limit(struct cuda_group *group, bool halved);
/* One communicator more, or less, whose kernels run on the device. */
void cuda_residents_add(struct cuda_group *group, int count);
/* What a multiprocessor gives to an operation's blocks at most, of CUDA_WEIGHTS. */
unsigned cuda_task_weight(const struct cuda_group *group, const struct cuda_task *task);
/* Whether an operation may be launched ahead of the end of the one before it. */
bool cuda_may_launch_ahead(const struct cuda_group *group, unsigned former, unsigned weight);
/* The order alone, for what goes onto a stream that is not captured: behind the former operation,
 * then as the former one of the next. Return CONCURRENT, CUDA. */
enum tutti_status cuda_eager_order(struct cuda_group *group, CUstream stream);
enum tutti_status cuda_eager_note(struct cuda_group *group, CUstream stream);
/* Waits for what is on the own stream. Returns TIMEOUT, CUDA, and what the interrupt says: then
 * something may still run. */
enum tutti_status cuda_own_finish(struct cuda_group *group, int64_t deadline);
/* Puts the event behind the last eager operation, unless it is. */
enum tutti_status cuda_stream_mark(struct cuda_group *group);
/* Lets the operations end that were enqueued, until the deadline; once the communicator has failed
 * they get CUDA_GRACE_MS. Returns TIMEOUT if something still runs, CONCURRENT, CUDA. */
enum tutti_status cuda_flush(struct cuda_group *group, int64_t deadline);
/* Waits for the event. Returns TIMEOUT, CUDA. */
enum tutti_status cuda_event_wait(struct cuda_group *group, int64_t deadline);

#endif
