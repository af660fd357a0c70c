/* SPDX-License-Identifier: MIT */
/*
 * The ranks of a CUDA communicator as the rest of the library sees them. Shows no CUDA type. One
 * caller at a time, which api.c checks; status comes from any thread.
 *
 * The communicator also has the CPU's group, for the handle channel, faults, aborts and lives of
 * the ranks. That group runs operations only where a host thread stages. A call asks the driver for
 * the current context and for the stream's capture, then launches: three calls.
 *
 * Ranks that reach each other have arenas on their devices, else in the host's memory. The proxy
 * (staging/proxy.h) serves processes that share a device. Declined: one rank, more than eight.
 */
#ifndef TUTTI_CUDA_GROUP_H
#define TUTTI_CUDA_GROUP_H

#include "coll/request.h"
#include "cpu/transport/group.h"
#include "topology/topology.h"
#include "tutti/tutti.h"

struct cuda_group;
struct cuda_table;

enum { CUDA_UUID_BYTES = 16, CUDA_DEVICE_NAME_BYTES = 64 };

/* The device that a rank binds to, as the others hear of it. */
struct cuda_device {
    uint8_t uuid[CUDA_UUID_BYTES]; /* ordinals mean nothing: CUDA_VISIBLE_DEVICES renumbers */
    char name[CUDA_DEVICE_NAME_BYTES];
    int32_t major, minor; /* compute capability */
    int32_t multiprocessors;
    int32_t ordinal;   /* in this process */
    char bus_id[16];   /* on the PCI bus, as CUDA writes it */
    int32_t multicast; /* it supports NVLink multicast objects, which Tutti does not use */
    int32_t waits;     /* its streams can wait for a word in memory */
};

/* links[r] of rank's device to rank r's: 1 where CUDA says that NVLink leads to all of them, else
 * how many, counted by NVML, else 1 or 0 for peer access; 1 to the same device, which ranks may
 * share; TOPOLOGY_UNKNOWN_LINKS where that is not known either. *source is a static text. */
void cuda_links(const struct cuda_device *devices, int size, int rank, int16_t *links,
                const char **source);

/* Where arenas are. */
enum cuda_place {
    CUDA_PLACE_FOUND,  /* on the devices if all of them reach each other, else the host's memory */
    CUDA_PLACE_DEVICE, /* it is an error if they do not */
    CUDA_PLACE_HOST,
    CUDA_PLACE_PROXY, /* there are none: a host thread stages all operations, see proxy.h */
};

struct cuda_group_config {
    int rank;
    int size;
    const int *order;
    uint64_t remote;                      /* bit r: rank r is of another process */
    enum tutti_programmatic programmatic; /* AUTO: from compute capability 9.0 on */
    bool halved;                       /* grids leave half of the device to another communicator */
    int64_t default_timeout_ms;        /* of an operation */
    const struct cuda_device *devices; /* of all ranks, in rank order; one may be several ranks' */
    enum cuda_place place;             /* equal on all ranks */
    const char *why;                   /* HOST, PROXY: in words */
    size_t one_shot_bytes;             /* PROXY: up to which the hosts take one hop */
    const struct cuda_table *table;    /* equal on all ranks: table.h */
    enum tutti_algo by_links;          /* what goes instead of the table's; NONE: nothing */
    struct topology_ring ring;         /* this rank's part */
    struct cpu_group *host;            /* met: channel, faults and aborts between the processes */
    bool marked;                       /* kernels mark each operation: device_trace.h */
    int recorder_fd;                   /* of host->record, -1 where there is none; borrowed */
    struct tutti_exchanger *exchanger;
    const struct interrupt *interrupt; /* of the opening's waits; may be NULL */
    int64_t timeout_ms;                /* of the opening */
};

/* The current context's device, checked: compute capability 8.0 or newer, memory that can be
 * exported. Local, before the store is touched. Returns DECLINED (no driver, no kernels in this
 * library, no device, no current context, too old), CUDA. */
enum tutti_status cuda_device_current(struct cuda_device *device);

/* Collective, in the context that is current. On failure, also another rank's, nothing is held.
 * Returns DECLINED if the devices do not reach each other and are to. */
enum tutti_status cuda_group_open(const struct cuda_group_config *config,
                                  struct cuda_group **group);
/* Lets the operations that were enqueued end, until the time-out (negative: none). Returns TIMEOUT
 * if they still run, CONCURRENT (the last one's stream is being captured), CUDA, or the fault that
 * stands, by which the wait ends early. */
enum tutti_status cuda_group_finish(struct cuda_group *group, int64_t timeout_ms);
/* Lets this rank's operations end for the communicator's time-out, or 0.1 s if it has failed, then
 * ends their waits. What a captured graph still needs lives until the graph is gone. Takes NULL.
 * *fault (may be NULL; left alone if all is well) is how operations ended that nobody has asked
 * about. */
void cuda_group_close(struct cuda_group *group, struct tutti_fault *fault);

/* Has the context in which the communicator lives current until cuda_group_leave(). Returns
 * CUDA. */
enum tutti_status cuda_group_enter(struct cuda_group *group, bool *pushed);
void cuda_group_leave(struct cuda_group *group, bool pushed);
/* The device's number in this process. */
int cuda_group_device(const struct cuda_group *group);
/* The number of the last operation that was enqueued: the caller's own. */
uint64_t cuda_group_sequence(const struct cuda_group *group);
/* Whether all goes through the host's memory, so that links are nothing to it. */
bool cuda_group_is_staged(const struct cuda_group *group);

/*
 * The two steps by which a group ends that others are to succeed, in any context. First, no caller
 * being inside: operations under way get a moment, then their waits end; *completed is the number
 * of the last operation that ended well on this device (where a subset's barrier was ended, it may
 * be the one before). Returns TIMEOUT (the device does not come to an end), CUDA. Then, for good:
 * every launch from now on, replays too, returns at once.
 */
enum tutti_status cuda_group_retire(struct cuda_group *group, uint64_t *completed);
void cuda_group_invalidate(struct cuda_group *group);

/* In a child of fork(): frees the handle alone, for the rest is its parent's. */
void cuda_group_forget(struct cuda_group *group);

/*
 * Enqueue; no host synchronisation. Check what concerns pointers and streams; request->algo is what
 * is asked for (NONE: the table's), request->signature gets the transport that is taken. Return
 * INVALID (a host pointer, a pointer on another device: both ordinals named; an algorithm that does
 * not serve), CONCURRENT, CUDA, or the fault that stands.
 */
enum tutti_status cuda_all_reduce(struct cuda_group *group, struct request *request,
                                  tutti_stream_t stream);
/* Of the ranks whose bits are set, the own one among them; 0 is all. */
enum tutti_status cuda_barrier(struct cuda_group *group, uint64_t subset,
                               const struct request *request, tutti_stream_t stream);
/* The transport that an all-reduce takes. Returns INVALID. */
enum tutti_status cuda_algorithm(const struct cuda_group *group, enum tutti_algo asked,
                                 enum tutti_dtype dtype, size_t bytes, enum tutti_algo *algo,
                                 const char **reason);

/* The fault that stands on the device or between the hosts: OK when there is none. From any thread.
 * An abort needs no call of its own: who aborts the host group wakes the watchers of all ranks. */
enum tutti_status cuda_group_status(struct cuda_group *group, struct tutti_fault *fault);

/*
 * A point on a stream: may be recorded again and again, outlives the group, and is asked, awaited
 * and destroyed from any thread. The time between the creation and the first record is its maker's
 * alone.
 */
struct cuda_work;
/* Returns NO_MEMORY, CUDA. */
enum tutti_status cuda_work_create(struct cuda_group *group, struct cuda_work **work);
/* Puts it behind what is on the stream now. Returns CUDA, or the fault of the group that stands. */
enum tutti_status cuda_work_record(struct cuda_group *group, struct cuda_work *work,
                                   tutti_stream_t stream);
/* Whether the stream has passed it. Returns INVALID (it is part of a capture), CUDA. */
enum tutti_status cuda_work_test(const struct cuda_work *work, bool *done);
/* Has the stream, of any device, wait for it. Returns INVALID (one of the two is part of a capture
 * that the other is not), CUDA. */
enum tutti_status cuda_work_wait(const struct cuda_work *work, tutti_stream_t stream);
void cuda_work_destroy(struct cuda_work *work);
/* In a child of fork(). */
void cuda_work_forget(struct cuda_work *work);

/* Writes lines of "key: value" about device, memory and plan, as snprintf does. */
int cuda_group_describe(const struct cuda_group *group, char *text, size_t size);

#endif
