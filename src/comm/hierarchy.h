/* SPDX-License-Identifier: MIT */
/*
 * A communicator whose ranks run on several hosts. On each host its ranks have a communicator of
 * their own, the node; a link of a fabric joins all ranks. An operation consists of operations of
 * the node, and of messages between ranks of different hosts.
 *
 * Sums: the tree of all ranks is cut into the largest subtrees whose leaves are on one host: one
 * for a host with 1, 2, 4 or 8 neighbouring leaves, two for 3, 6 or 12, two or three for 5 or 7.
 * A host computes the partial result of each of its subtrees, in the accumulation type. A rank that
 * has the partial results of all hosts combines them as the tree says. So a result does not depend
 * on how the ranks are spread over hosts; the engine adds nothing.
 *
 * A hierarchy is the group of hierarchy_backend: coll/backend.h. That is the back end of a CPU
 * communicator. A CUDA communicator's back end copies through the host, and has a hierarchy run the
 * operations there (cuda/pipe/proxy.h): its thread is the hierarchy's caller of operations. If the
 * fabric moves memory of devices, a hierarchy runs no operation: the back end has its link, and
 * asks it for faults of other hosts (cuda/comm/fabric.h).
 */
#ifndef TUTTI_HIERARCHY_H
#define TUTTI_HIERARCHY_H

#include "base/rank_set.h"
#include "comm/comm.h"

struct tutti_store;

/* struct comm_assembly's join_hosts(). */
enum tutti_status hierarchy_open(struct tutti_comm *comm, const struct comm_meeting *met);
/* Collective: each rank's bytes, by ranks, for the caller of operations while none runs. Takes no
 * operation number. For a communicator whose calls are enqueued. */
enum tutti_status hierarchy_values_gather(struct hierarchy *hierarchy, const void *own,
                                          size_t bytes, void *all, int64_t timeout_ms);
/* A view of the store on which the ranks of a communicator of several hosts have met, for those of
 * this color of its last split. The caller frees its prefix. Returns NO_MEMORY. */
enum tutti_status hierarchy_split_store(const struct tutti_comm *comm, int color,
                                        struct tutti_store *store);
/* struct agree's left_elsewhere(). */
struct rank_set hierarchy_left(void *hierarchy);

#endif
