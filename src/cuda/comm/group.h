/* SPDX-License-Identifier: MIT */
/*
 * The ranks of a CUDA communicator as the rest of the library sees them. Shows no CUDA type. One
 * caller at a time, which comm/run.h checks; any thread may ask for the status.
 *
 * The communicator's peers have the handle channel, faults, aborts and the lives of the ranks. They
 * run operations, as a struct cpu_group, only where a host thread stages. An operation makes three
 * driver calls: the current context, the stream's capture, the launch.
 *
 * Ranks whose devices reach each other have arenas on their devices, other ranks in host memory.
 * The proxy (pipe/proxy.h) serves processes that share a device. Ranks on several hosts have a
 * fabric of devices (fabric.h), or the proxy. A rank alone has no arena: it copies, or its kernel
 * reduces. Declined: more than eight ranks.
 */
#ifndef TUTTI_CUDA_GROUP_H
#define TUTTI_CUDA_GROUP_H

#include "cuda/driver/device.h"
#include "peers/peers.h"
#include "tutti/tutti.h"

struct cuda_group; /* the group of cuda_backend: coll/backend.h */

/* A set of ranks in the kernels' form: bit r is rank r. */
static inline uint16_t cuda_rank_bits(struct rank_set ranks)
{
    return (uint16_t)ranks.words[0];
}

/* The device's number in this process. */
int cuda_group_device(const struct cuda_group *group);

#endif
