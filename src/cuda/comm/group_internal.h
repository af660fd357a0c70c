/* SPDX-License-Identifier: MIT */
/* The inside of a CUDA communicator, for the files of this directory. */
#ifndef TUTTI_CUDA_GROUP_INTERNAL_H
#define TUTTI_CUDA_GROUP_INTERNAL_H

#include "base/device_trace.h"
#include "base/reminder.h"
#include "coll/backend.h"
#include "cuda/comm/engines.h"
#include "cuda/comm/group.h"
#include "cuda/comm/resources.h"
#include "cuda/driver/kernels.h"
#include "cuda/driver/watcher.h"
#include "cuda/driver/wrappers.h"
#include "cuda/kernels/launch.h"
#include "cuda/pipe/proxy.h"
#include "cuda/tuning/table.h"

enum {
    CUDA_RANGES = 8,             /* allocations that passed the check and are remembered */
    CUDA_WEIGHTS = CUDA_THREADS, /* parts of a multiprocessor: residency.c */
    /* Time for operations of a communicator that has failed, or shrinks. */
    CUDA_GRACE_MS = 100,
};

/* How data goes from rank to rank. The first three: through arenas. */
enum cuda_route {
    CUDA_ROUTE_FOUND,  /* on the devices if all of them reach each other, else in host memory */
    CUDA_ROUTE_DEVICE, /* on the devices; an error if they do not reach each other */
    CUDA_ROUTE_HOST,
    CUDA_ROUTE_PROXY,  /* no arenas: a host thread stages all operations, see proxy.h; the only one
                        * of ranks on several hosts */
    CUDA_ROUTE_FABRIC, /* no arenas: ranks on several hosts, joined by a fabric of devices: fabric.h
                        */
    CUDA_ROUTE_ALONE,  /* no arenas: one rank, which copies or reduces on its stream */
};

/* struct backend_opening's setup. */
struct cuda_setup {
    struct cuda_table table;                /* equal on all ranks */
    struct cuda_device devices[CUDA_RANKS]; /* of all ranks; several may have one device */
    enum cuda_route route;                  /* equal on all ranks */
    const char *why;                        /* HOST, PROXY: the reason, in words */
    struct backend_hosts hosts;             /* PROXY, FABRIC */
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
    struct cuda_mesh mesh;     /* this rank's part, if the communicator has a hybrid cube mesh */
    struct cuda_ring ring;     /* ... or a ring */
    struct cuda_plan plan;     /* no grid has more blocks than fit at once on any rank */
    unsigned channels;         /* cuda_exchange_channels() of that plan */
    const struct choice_rules *rules;
    struct peers *peers;        /* borrowed from the communicator */
    struct backend_hosts hosts; /* run operations for the proxy */
    bool many_hosts;      /* the ranks run on several hosts, and `peers` are those of this one */
    struct peers *beside; /* those of `hosts` if kernels use `peers`; else NULL */
    uint32_t quits;       /* this rank has ended the hosts' operations alone */
    CUlaunchAttribute attribute;
    bool programmatic; /* kernels may be launched ahead: residency.c */
    bool resident;     /* counted among the communicators of the device */
    unsigned weight;   /* cuda_task_weight() of the last eager operation */
    int64_t default_timeout_ms;
    struct cuda_device device;
    int sharing;    /* number of ranks on this device */
    int max_blocks; /* of a kernel, the least option of all ranks; 0: no limit */
    /* The ranks on this device that are threads of this process. They launch together. Empty: this
     * rank launches alone. */
    struct rank_set same_gpu;
    bool shares_queues;         /* other threads of this process use this device for its ranks */
    bool on_host;               /* arenas are in host memory */
    char why[320];              /* the reason for `on_host` or `proxied`, in words */
    bool proxied;               /* the proxy stages all operations */
    struct cuda_fabric *fabric; /* CUDA_ROUTE_FABRIC; else NULL */
    struct cuda_proxy *proxy;   /* the host thread that stages operations without a kernel; NULL:
                                 * there is none, since a device's streams cannot wait for a word */

    /* stream.c */
    CUstream last; /* the stream of the last eager operation */
    bool enqueued; /* there was an eager operation */
    bool recorded; /* `event` is behind it on the stream */
    bool marks;    /* each eager operation records `event`: its stream may be gone later */
    CUevent event;
    CUstream own;                      /* for set-up and end; no order with other streams */
    const struct interrupt *interrupt; /* of waits for `own` while the group opens; else NULL */
    struct cuda_capture capture;
    struct cuda_engines engines;

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

/* What an operation puts on a stream: copies and a kernel behind them, a kernel, or a copy. Without
 * bytes it puts nothing there and takes its number in the order. */
struct cuda_task {
    CUfunction function; /* NULL: a copy */
    unsigned blocks, threads;
    struct cuda_launch *launch;
    const struct cuda_copies *copies; /* NULL: none before the kernel */
    CUdeviceptr to, from;
    size_t bytes;
    const struct request *request;
};

static inline bool cuda_is_alone(const struct cuda_group *group)
{
    return group->launch.size == 1;
}

/* Returns false if the rank is alone, a host thread stages all operations, or a fabric joins the
 * devices. */
static inline bool cuda_has_kernels(const struct cuda_group *group)
{
    return !group->proxied && !group->fabric && !cuda_is_alone(group);
}

/* Makes the communicator's context current until cuda_leave(). Returns CUDA. */
static inline enum tutti_status cuda_enter(void *opaque, bool *pushed)
{
    const struct cuda_group *group = opaque;
    return cuda_context_enter(group->driver, group->resources->context, pushed);
}

static inline void cuda_leave(void *group, bool pushed)
{
    cuda_context_leave(((struct cuda_group *)group)->driver, pushed);
}

/* Returns true if the rank is another thread of this process. Then a call of CUDA on its thread may
 * wait for a kernel that waits for that rank: docs/streams.md. */
static inline bool cuda_is_thread(const struct cuda_group *group, int rank)
{
    return rank != group->launch.rank && !rank_set_has(peers_ranks(group->peers)->remote, rank);
}

/* The functions of cuda_backend: coll/backend.h. open.c: */
enum tutti_status cuda_record_make(bool overlapping, void *setup, struct backend_record *record);
enum tutti_status cuda_records_compare(const struct backend_record *const *records, int rank,
                                       int size);
void cuda_records_links(const struct backend_record *const *records, int size, int rank,
                        int16_t *links, const char **source);
enum tutti_status cuda_prepare(const struct backend_opening *opening,
                               struct backend_arenas *arenas);
/* group.c: */
enum tutti_status cuda_group_open(const struct backend_opening *opening, void **group);
uint64_t cuda_group_sequence(const void *group);
enum tutti_status cuda_check_split(const void *group, const char *name);
enum tutti_status cuda_group_retire(void *group, uint64_t *completed);
void cuda_group_invalidate(void *group);
/* Waits for this rank's operations, for the communicator's time-out, or 0.1 s if it has failed;
 * then ends their waits. What a captured graph still needs lives as long as the graph. */
void cuda_group_close(void *group, struct tutti_fault *fault);
void cuda_group_forget(void *group);
/* fault.c, group.c, describe.c, work.c: */
enum tutti_status cuda_group_status(void *group, struct tutti_fault *fault);
enum tutti_status cuda_group_finish(void *group, int64_t timeout_ms);
int cuda_group_describe(const void *group, char *text, size_t size);
extern const struct backend_points cuda_points;

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
/* Ends the operations that the hosts run, and all later ones, on this rank alone. By any thread. */
void cuda_hosts_quit(struct cuda_group *group);
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
/* Checks one operand, of at least one byte, of a call. Returns INVALID, CUDA. */
enum tutti_status cuda_operand_check(struct cuda_group *group, const char *call, const char *what,
                                     const void *pointer, size_t bytes, tutti_stream_t stream);

/* enqueue.c: the algorithms of choices, and messages: coll/backend.h. */
extern const struct algorithm cuda_algo_kernel, cuda_algo_barrier, cuda_algo_staged, cuda_algo_copy,
    cuda_algo_message, cuda_algo_exchange, cuda_algo_exchange_counted, cuda_algo_reduce_varied,
    cuda_algo_reduce_counted, cuda_algo_reduce_alone, cuda_algo_push, cuda_algo_fabric;
enum tutti_status cuda_send_recv(void *group, struct request *const *requests, int count,
                                 tutti_stream_t stream);
enum tutti_status cuda_send_own(void *group, struct request *send, struct request *recv,
                                tutti_stream_t stream);
/* Completes the launch template. For a request with the communicator's own time-out,
 * kernels read the time-out from the page, so that a graph does not keep it. */
struct cuda_launch cuda_launch_make(const struct cuda_group *group, const struct request *request,
                                    enum tutti_algo algo);
/* Ends a call with `status`: records an operation that was enqueued. A captured one has no number;
 * its record has `former`, the sequence before the call. Returns the status, or the group's fault
 * if the context is broken. */
enum tutti_status cuda_operation_ended(struct cuda_group *group, struct request *request,
                                       uint64_t former, enum tutti_status status);

/* rms_norm.c: coll/backend.h. */
size_t cuda_rms_norm_rows(const void *group, const struct tutti_rms_norm *norm);
enum tutti_status cuda_rms_norm(void *group, struct request *request,
                                const struct tutti_rms_norm *norm, unsigned max_blocks,
                                bool is_more, tutti_stream_t stream);

/* stream.c: launches the task behind the communicator's earlier operations. An operation of all
 * ranks takes a number, one of a subset none. The second is for a caller that has entered the
 * context and knows that the stream is not being captured. */
typedef enum tutti_status cuda_enqueue_fn(struct cuda_group *group, tutti_stream_t stream,
                                          const struct cuda_task *task);
cuda_enqueue_fn cuda_enqueue, cuda_enqueue_eager;
/* exchange.c. The channels of a chain: as many as have a block of their own on every rank's device
 * if all chains have messages, at least 1; 0: no kernel serves messages. The same on all ranks. */
unsigned cuda_exchange_channels(const struct cuda_group *group);
/* Enqueues messages that run at the same time, in one launch if they are few. The operands are
 * checked. Returns NO_MEMORY, CUDA. */
enum tutti_status cuda_exchange_enqueue(struct cuda_group *group, struct request *const *requests,
                                        int count, tutti_stream_t stream);
/* Enqueues a v-form that copies. Returns CUDA. */
enum tutti_status cuda_exchange_collective(struct cuda_group *group, const struct request *request,
                                           const struct cuda_launch *launch, tutti_stream_t stream);

/* The same for v-forms whose counts are in memory of the device: up to EXCHANGE_CALLS, of one
 * choice, as one operation. The launch is that of the operation. */
enum tutti_status cuda_exchange_counted(struct cuda_group *group, struct request *const *requests,
                                        int count, const struct cuda_launch *launch,
                                        tutti_stream_t stream);

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
/* The same for a stream that is captured: before, which also makes the graph hold the resources,
 * and after. Return CONCURRENT, CUDA. */
enum tutti_status cuda_captured_order(struct cuda_group *group, CUstream stream, uint64_t id,
                                      CUgraph graph);
enum tutti_status cuda_captured_note(struct cuda_group *group, CUstream stream);
/* Waits for the work on the group's own stream. Returns TIMEOUT, CUDA, or the interrupt's
 * status; then work may still run. */
enum tutti_status cuda_own_finish(struct cuda_group *group, int64_t deadline);
/* Waits until the enqueued operations have ended, or the deadline. If the communicator has failed,
 * they get CUDA_GRACE_MS. Returns TIMEOUT if something still runs, CONCURRENT, CUDA. */
enum tutti_status cuda_flush(struct cuda_group *group, int64_t deadline);
/* Waits for the event. Returns TIMEOUT, CUDA. */
enum tutti_status cuda_event_wait(struct cuda_group *group, int64_t deadline);

#endif
