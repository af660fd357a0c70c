/* SPDX-License-Identifier: MIT */
/*
 * The ranks of a CUDA communicator as comm.c and api.c see them; shows no CUDA type, so that a
 * library built without nvcc has the same interface, whose calls decline (none.c). One caller at a
 * time, which api.c sees to; abort and status come from anywhere.
 */
#ifndef TUTTI_CUDA_GROUP_H
#define TUTTI_CUDA_GROUP_H

#include "algo.h"
#include "cpu/group.h"
#include "tutti/tutti.h"

struct cuda_group;

enum { CUDA_UUID_BYTES = 16, CUDA_DEVICE_NAME_BYTES = 64 };

/* The device that a rank binds to, as the others hear of it. */
struct cuda_device {
    uint8_t uuid[CUDA_UUID_BYTES]; /* ordinals mean nothing: CUDA_VISIBLE_DEVICES renumbers */
    char name[CUDA_DEVICE_NAME_BYTES];
    int32_t major, minor; /* compute capability */
    int32_t multiprocessors;
    int32_t ordinal; /* in this process */
};

struct cuda_group_config {
    int rank;
    int size;
    const int *order;
    uint64_t remote;   /* bit r: rank r is of another process */
    bool programmatic; /* launch kernels programmatically: their start overlaps what ran before */
    int64_t default_timeout_ms;        /* of an operation */
    const struct cuda_device *devices; /* of all ranks, in rank order */
    struct cpu_group *host;            /* met: channel, faults and aborts between the processes */
    struct tutti_exchanger *exchanger;
    const uint8_t *nonce;
    int64_t timeout_ms; /* of the opening */
};

/* The current context's device, checked: compute capability 8.0 or newer. Local, before the store
 * is touched. Returns DECLINED (no driver, no device, no current context, too old), CUDA. */
enum tutti_status cuda_device_current(struct cuda_device *device);

/* Collective, in the context that is current. On failure, also another rank's, nothing is held. */
enum tutti_status cuda_group_open(const struct cuda_group_config *config,
                                  struct cuda_group **group);
/* Local and bounded: ends this rank's kernels first. What a captured graph still needs lives until
 * the graph is gone. Takes NULL. */
void cuda_group_close(struct cuda_group *group);

/* Enqueue; no host synchronisation. Checks what concerns pointers and streams. Returns INVALID (a
 * host pointer, a pointer on another device: both ordinals named), CONCURRENT, CUDA, or the fault
 * that stands. */
enum tutti_status cuda_all_reduce(struct cuda_group *group, const struct request *request,
                                  tutti_stream_t stream);
/* Of the ranks whose bits are set, the own one among them. */
enum tutti_status cuda_barrier(struct cuda_group *group, uint64_t subset,
                               const struct request *request, tutti_stream_t stream);

/* The fault that stands on the device or between the hosts: OK when there is none. */
enum tutti_status cuda_group_status(struct cuda_group *group, struct tutti_fault *fault);
/* Ends the waits of kernels, on all ranks. From any thread or signal handler. */
void cuda_group_abort(struct cuda_group *group);

#endif
