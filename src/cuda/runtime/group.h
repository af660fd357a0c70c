/* SPDX-License-Identifier: MIT */
/*
 * The ranks of a CUDA communicator as the rest of the library sees them. Shows no CUDA type. One
 * caller at a time, which comm/run.h checks; any thread may ask for the status.
 *
 * The communicator also has a CPU group, for the handle channel, faults, aborts and the liveness of
 * the ranks. The CPU group runs operations only where a host thread stages. An operation makes
 * three driver calls: the current context, the stream's capture, the launch.
 *
 * Ranks whose devices reach each other have arenas on their devices, other ranks in host memory.
 * The proxy (staging/proxy.h) serves processes that share a device. Declined: one rank, more than
 * eight.
 */
#ifndef TUTTI_CUDA_GROUP_H
#define TUTTI_CUDA_GROUP_H

#include "coll/request.h"
#include "cpu/group.h"
#include "store/status_agree.h"
#include "topology/topology.h"
#include "tutti/tutti.h"

struct cuda_group;
struct cuda_table;

/* A set of ranks in the kernels' form: bit r is rank r. */
static inline uint16_t cuda_rank_bits(struct rank_set ranks)
{
    return (uint16_t)ranks.words[0];
}

enum { CUDA_UUID_BYTES = 16, CUDA_DEVICE_NAME_BYTES = 64 };

/* A rank's device, as the other ranks receive it. */
struct cuda_device {
    uint8_t uuid[CUDA_UUID_BYTES]; /* CUDA_VISIBLE_DEVICES changes only the ordinal */
    char name[CUDA_DEVICE_NAME_BYTES];
    int32_t major, minor; /* compute capability */
    int32_t multiprocessors;
    int32_t ordinal;   /* in this process */
    char bus_id[16];   /* on the PCI bus, as CUDA writes it */
    int32_t multicast; /* the device supports NVLink multicast objects, which Tutti does not use */
    int32_t waits;     /* its streams can wait for a word in memory */
};

/* links[r] = links from the rank's device to rank r's: 1 where CUDA reports NVLink to all of them;
 * else the number that NVML counts; else 1 or 0 for peer access. 1 if both ranks have the same
 * device. TOPOLOGY_UNKNOWN_LINKS if nothing is known. *source is a static text. */
void cuda_links(const struct cuda_device *devices, int size, int rank, int16_t *links,
                const char **source);

/* Where arenas are. */
enum cuda_place {
    CUDA_PLACE_FOUND,  /* on the devices if all of them reach each other, else in host memory */
    CUDA_PLACE_DEVICE, /* on the devices; an error if they do not reach each other */
    CUDA_PLACE_HOST,
    CUDA_PLACE_PROXY, /* no arenas: a host thread stages all operations, see proxy.h */
};

struct cuda_group_config {
    int rank;
    int size;
    const int *order;
    enum tutti_programmatic programmatic; /* AUTO: from compute capability 9.0 on */
    int64_t default_timeout_ms;           /* of an operation */
    const struct cuda_device
        *devices;          /* of all ranks, in rank order; several ranks may have one device */
    enum cuda_place place; /* equal on all ranks */
    const char *why;       /* HOST, PROXY: the reason, in words */
    const struct cuda_table *table;   /* equal on all ranks: table.h */
    const struct choice_rules *rules; /* borrowed until the close */
    struct topology_ring ring;        /* this rank's part */
    struct cpu_group *host;      /* has met: channel, faults and aborts between the processes */
    bool marked;                 /* kernels mark each operation in the recorder: device_trace.h */
    int recorder_fd;             /* of host->faults.record, -1 without a recorder; borrowed */
    const struct gather *gather; /* among the ranks; of the opening */
    const struct interrupt *interrupt; /* for the waits of the opening; may be NULL */
    int64_t timeout_ms;                /* of the opening */
};

/* Checks the device of the current context: compute capability 8.0 or newer, memory that can be
 * exported. Local; call it before the store is used. Returns DECLINED (no driver, no kernels in
 * this library, no device, no current context, too old), CUDA. */
enum tutti_status cuda_device_current(struct cuda_device *device);

/* Collective; in the current context. After a failure of any rank, nothing is held. Returns
 * DECLINED if the devices must reach each other and do not. */
enum tutti_status cuda_group_open(const struct cuda_group_config *config,
                                  struct cuda_group **group);
/* Waits until the enqueued operations have ended, or the time-out (negative: none). Returns TIMEOUT
 * if they still run, CONCURRENT (the stream of the last one is being captured), CUDA, or the
 * group's fault, which ends the wait early. */
enum tutti_status cuda_group_finish(void *group, int64_t timeout_ms);
/* Waits for this rank's operations, for the communicator's time-out, or 0.1 s if it has failed;
 * then ends their waits. What a captured graph still needs lives as long as the graph. Takes NULL.
 * *fault (may be NULL; unchanged if all is well): the fault that the caller has not asked for. */
void cuda_group_close(void *group, struct tutti_fault *fault);

/* Makes the communicator's context current until cuda_group_leave(). Returns CUDA. */
enum tutti_status cuda_group_enter(struct cuda_group *group, bool *pushed);
void cuda_group_leave(struct cuda_group *group, bool pushed);
/* The device's number in this process. */
int cuda_group_device(const struct cuda_group *group);
/* The number of the last enqueued operation. Only the caller of operations may ask. */
uint64_t cuda_group_sequence(const void *group);
/* Returns true if a host thread runs the operations: staging/proxy.h. */
bool cuda_group_is_proxied(const struct cuda_group *group);
/* Returns true if all data goes through host memory, so that links do not matter. */
bool cuda_group_is_staged(const struct cuda_group *group);

/*
 * The two steps that end a group before its ranks go on in a smaller one. In any context, with no
 * caller inside. Retire: operations under way get a short time, then their waits end. *completed is
 * the number of the last operation that succeeded on this device (if a subset's barrier was
 * ended, perhaps one less). Returns TIMEOUT (the device does not end the operations), CUDA.
 * Invalidate: from then on every launch, of replays too, returns at once.
 */
enum tutti_status cuda_group_retire(struct cuda_group *group, uint64_t *completed);
void cuda_group_invalidate(struct cuda_group *group);

/* In a child of fork(): frees the handle alone; the rest belongs to the parent. */
void cuda_group_forget(struct cuda_group *group);

/* The fault of the device or of the host group; OK if there is none. Any thread may call it.
 * An abort needs no call here: the watches of all ranks see the abort of the host group. */
enum tutti_status cuda_group_status(void *group, struct tutti_fault *fault);

/*
 * A point on a stream. It may be recorded again, and outlives the group. Any thread may test it,
 * wait for it and destroy it. Between creation and first record only its creator uses it.
 */
struct cuda_work;
/* Returns NO_MEMORY, CUDA. */
enum tutti_status cuda_work_create(struct cuda_group *group, struct cuda_work **work);
/* Puts the point behind the work that is on the stream now. Returns CUDA, or the group's
 * fault. */
enum tutti_status cuda_work_record(struct cuda_group *group, struct cuda_work *work,
                                   tutti_stream_t stream);
/* *done: the stream has passed the point. Returns INVALID (the point is part of a capture),
 * CUDA. */
enum tutti_status cuda_work_test(const struct cuda_work *work, bool *done);
/* Makes the stream, of any device, wait for the point. Returns INVALID (one of the two is part of a
 * capture and the other is not), CUDA. */
enum tutti_status cuda_work_wait(const struct cuda_work *work, tutti_stream_t stream);
void cuda_work_destroy(struct cuda_work *work);
/* In a child of fork(). */
void cuda_work_forget(struct cuda_work *work);

#endif
