/* SPDX-License-Identifier: MIT */
/* The inside of a CUDA communicator, for the files of this directory. */
#ifndef TUTTI_CUDA_GROUP_INTERNAL_H
#define TUTTI_CUDA_GROUP_INTERNAL_H

#include "base/device_trace.h"
#include "base/reminder.h"
#include "cpu/choose.h"
#include "cuda/kernels/launch.h"
#include "cuda/runtime/calls.h"
#include "cuda/runtime/group.h"
#include "cuda/runtime/kernels.h"
#include "cuda/runtime/resources.h"
#include "cuda/runtime/table.h"
#include "cuda/runtime/watcher.h"
#include "cuda/staging/proxy.h"

enum {
    CUDA_RANGES = 8,             /* allocations that passed the check and are remembered */
    CUDA_WEIGHTS = CUDA_THREADS, /* parts of a multiprocessor: residency.c */
    /* Time for operations of a communicator that has failed, or shrinks. */
    CUDA_GRACE_MS = 100,
};

/* The last operation of the latest stream capture. */
struct cuda_capture {
    uint64_t id; /* 0: none */
    CUstream stream;
    CUgraphNode node;
    unsigned weight; /* cuda_task_weight() */
};

/* The addresses of one allocation. */
struct cuda_range {
    CUdeviceptr base;
    size_t bytes;
};

/* The ranges that the driver named last. Addresses in them need no new query. */
struct cuda_ranges {
    struct cuda_range ranges[CUDA_RANGES];
    int devices[CUDA_RANGES];
    unsigned next;
};

/* What the driver knows of an address. */
struct cuda_pointer {
    bool device, managed, pinned; /* all false: host memory, or unknown */
    int ordinal;                  /* number of the device */
    CUdeviceptr mapped;           /* the address on the device; 0: none */
    struct cuda_range range;
};

struct cuda_group {
    const struct cuda_driver *driver;
    struct cuda_resources *resources; /* captured graphs need them, too */
    struct cuda_kernels kernels;
    struct cuda_launch launch; /* the template of every launch */
    struct cuda_plan plan;     /* no grid has more blocks than fit at once on any rank */
    const struct choice_rules *rules;
    struct cpu_group *host; /* borrowed from the communicator */
    CUlaunchAttribute attribute;
    bool programmatic; /* kernels may be launched ahead: residency.c */
    bool resident;     /* counted among the communicators of the device */
    unsigned weight;   /* cuda_task_weight() of the last eager operation */
    int64_t default_timeout_ms;
    struct cuda_device device;
    int sharing; /* number of ranks on this device */
    /* The ranks on this device that are threads of this process. They launch together. Empty: this
     * rank launches alone. */
    struct rank_set same_gpu;
    bool staged;              /* arenas are in host memory */
    char why[320];            /* the reason for `staged` or `proxy`, in words */
    struct cuda_proxy *proxy; /* the host thread that stages all operations; NULL: there is none */

    /* stream.c */
    CUstream last; /* the stream of the last eager operation */
    bool enqueued; /* there was an eager operation */
    bool recorded; /* `event` is behind it on the stream */
    CUevent event;
    CUstream own;                      /* for set-up and end; no order with other streams */
    const struct interrupt *interrupt; /* of waits for `own` while the group opens; else NULL */
    struct cuda_capture capture;

    /* operand.c */
    struct cuda_ranges ranges;

    /* watch.c */
    struct cuda_watch watch;
    uint32_t stopping;    /* the thread that sets it writes the stop words */
    struct rank_set dead; /* ranks that were dead at the last look; used by the watch alone */

    /* device_trace.c */
    const struct device_trace *device_trace;
    /* Used by the watch alone: */
    uint64_t looked_ns;       /* the last `looked_ns` of a kernel's wait that was seen */
    uint64_t wait_sequence;   /* the operation whose kernel waits */
    unsigned silent_looks;    /* looks since a wait was last seen */
    struct reminder reminder; /* of that wait */
};

/* What an operation puts on a stream. */
struct cuda_task {
    CUfunction function;
    unsigned blocks, threads;
    struct cuda_launch *launch;
    const struct request *request;
};

/* Returns true if a host thread stages all operations, so that no kernel runs. */
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

/* Returns true if the rank is another thread of this process. Then a call of CUDA on its thread may
 * wait for a kernel that waits for that rank: docs/streams.md. */
static inline bool cuda_is_thread(const struct cuda_group *group, int rank)
{
    return rank != group->launch.rank && !rank_set_has(cpu_group_ranks(group->host)->remote, rank);
}

/* fault.c: the first returns true if the group is known, without a system or driver call, to have
 * failed or been aborted; the second returns the status of that fault. */
bool cuda_group_has_failed(const struct cuda_group *group);
enum tutti_status cuda_group_check(struct cuda_group *group);
/* Fails the group with this status, on all ranks at once: operation `sequence` cannot be done here,
 * and peers may have begun it. `what` is added to the last error. Returns the status of the group's
 * fault. */
enum tutti_status cuda_group_fail(struct cuda_group *group, enum tutti_status status,
                                  uint64_t sequence, const char *what);
/* The same for an operation that cannot be enqueued. */
enum tutti_status cuda_launch_failed(struct cuda_group *group, enum tutti_status status,
                                     uint64_t sequence);
/* Ends all waits of this rank's kernels, now and later. Only the first call has an effect. */
void cuda_stop(struct cuda_group *group, enum tutti_status status, int peer);
/* Reads the fault that the device has recorded. Returns false if there is none. */
bool cuda_fault_read(const struct cuda_group *group, struct tutti_fault *fault);

/* watch.c: starts to carry faults between device and hosts, until cuda_watch_remove(). Returns
 * SYSTEM, NO_MEMORY. */
enum tutti_status cuda_watch_start(struct cuda_group *group);

/* device_trace.c: moves the words that kernels and host share into the recorder of this descriptor.
 * With -1 they stay in the page. */
void cuda_device_trace_open(struct cuda_group *group, int fd);
/* Call once the device has written its time. */
void cuda_device_trace_begin(struct cuda_group *group);
/* Called by the watch: notes in the recorder for which rank a kernel waits, and reports long waits.
 */
void cuda_device_trace_look(struct cuda_group *group);

/* describe.c: lines of "key: value" about device, memory and plan, as snprintf() writes. */
int cuda_group_describe(const void *group, char *text, size_t size);

/* operand.c: returns true if [first, last] lies in a remembered range of that device. */
bool cuda_ranges_have(const struct cuda_ranges *ranges, int device, CUdeviceptr first,
                      CUdeviceptr last);
void cuda_ranges_add(struct cuda_ranges *ranges, int device, const struct cuda_range *range);
/* Asks the driver about an address. Returns CUDA. */
enum tutti_status cuda_pointer_ask(const struct cuda_driver *driver, CUdeviceptr address,
                                   struct cuda_pointer *facts);
/* Checks that the group has not failed, and that its device can read and write the operands at
 * their addresses. In a capture: that it may do so at launch. Returns the fault, INVALID, CUDA. */
enum tutti_status cuda_operands_check(struct cuda_group *group, const struct request *request,
                                      tutti_stream_t stream);

/* stream.c: launches the task behind the communicator's earlier operations. An operation of all
 * ranks takes a number, one of a subset none. */
enum tutti_status cuda_enqueue(struct cuda_group *group, tutti_stream_t stream,
                               const struct cuda_task *task);
/* residency.c: limits all grids to what fits at once. Returns INVALID, CUDA. */
enum tutti_status cuda_grids_limit(struct cuda_group *group);
/* Counts one communicator more, or less, whose kernels run on the device. */
void cuda_residents_add(struct cuda_group *group, int count);
/* The part of a multiprocessor, of CUDA_WEIGHTS, that the operation's blocks take at most. */
unsigned cuda_task_weight(const struct cuda_group *group, const struct cuda_task *task);
/* Returns true if an operation may be launched before the one before it has ended. */
bool cuda_may_launch_ahead(const struct cuda_group *group, unsigned former, unsigned weight);
/* Order work that is no launch, on a stream that is not captured. Before the work, the first puts
 * the stream behind the last operation. After the work, the second notes it as the last operation.
 * Return CONCURRENT, CUDA. */
enum tutti_status cuda_eager_order(struct cuda_group *group, CUstream stream);
enum tutti_status cuda_eager_note(struct cuda_group *group, CUstream stream);
/* Waits for the work on the group's own stream. Returns TIMEOUT, CUDA, or the interrupt's
 * status; then work may still run. */
enum tutti_status cuda_own_finish(struct cuda_group *group, int64_t deadline);
/* Waits until the enqueued operations have ended, or the deadline. If the communicator has failed,
 * they get CUDA_GRACE_MS. Returns TIMEOUT if something still runs, CONCURRENT, CUDA. */
enum tutti_status cuda_flush(struct cuda_group *group, int64_t deadline);
/* Waits for the event. Returns TIMEOUT, CUDA. */
enum tutti_status cuda_event_wait(struct cuda_group *group, int64_t deadline);

#endif
