/* SPDX-License-Identifier: MIT */
/* The CPU's ways of an all-reduce, one file each; choose.c chooses. `group` is a struct cpu_group.
 */
#ifndef TUTTI_CPU_ALL_REDUCE_H
#define TUTTI_CPU_ALL_REDUCE_H

#include "coll/request.h"
#include "cpu/transport/group.h"

/* struct transport's `run`: one-shot of a small message; anything longer. */
enum tutti_status one_shot_small(void *group, struct request *request, tutti_stream_t stream);
enum tutti_status cpu_run_announced(void *group, struct request *request, tutti_stream_t stream);

/* struct transport's `copies`. */
enum tutti_status one_shot_pieces(void *group, const struct request *request);
enum tutti_status swap_pieces(void *group, const struct request *request);
enum tutti_status two_shot_pieces(void *group, const struct request *request);
enum tutti_status mesh_pieces(void *group, const struct request *request);

/* Reduces all ranks' inputs of some elements, in leaf order, into the output. */
void one_shot_reduce(const struct cpu_group *group, const struct request *request, size_t first,
                     size_t count, const void *const *in);
/* *done says whether all ranks had operands that all can reach; if not, nothing has happened. */
enum tutti_status direct_all_reduce(struct cpu_group *group, const struct request *request,
                                    bool *done);
/* After a failed operation whose operands are addresses of this process: returns when no thread is
 * inside them. A thread inside does not wait, so this ends. */
void direct_leave_failed(struct cpu_group *group);

#endif
