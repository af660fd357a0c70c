/* SPDX-License-Identifier: MIT */
/* The transports of an all-reduce, one file each; all_reduce.c chooses. */
#ifndef TUTTI_CPU_ALL_REDUCE_H
#define TUTTI_CPU_ALL_REDUCE_H

#include "coll/request.h"
#include "cpu/transport/group.h"

/* One-shot of up to a mail's payload. Announces itself: what is short in one_shot_begin(), which
 * comes first. */
void one_shot_begin(struct cpu_group *group, const struct request *request);
enum tutti_status one_shot_mail(struct cpu_group *group, const struct request *request);
/* Any size; announced by the caller. */
enum tutti_status one_shot_pieces(struct cpu_group *group, const struct request *request);
enum tutti_status two_shot_pieces(struct cpu_group *group, const struct request *request);
/* Of a one-shot: a piece of up to LAYOUT_SWAP_BYTES between two ranks; and all ranks' inputs of
 * some elements, in leaf order, into the output. */
enum tutti_status swap_piece(struct cpu_group *group, const struct request *request, size_t first,
                             size_t count);
void one_shot_reduce(const struct cpu_group *group, const struct request *request, size_t first,
                     size_t count, const void *const *in);
/* The same along the links of a hybrid cube mesh, where not all ranks reach each other. */
enum tutti_status mesh_pieces(struct cpu_group *group, const struct request *request);
/* *done says whether all ranks had operands that all can reach; if not, nothing has happened. */
enum tutti_status direct_all_reduce(struct cpu_group *group, const struct request *request,
                                    bool *done);
/* After a failed operation whose operands are addresses of this process: returns when no thread is
 * inside them. They touch without waiting, so this ends. */
void direct_leave_failed(struct cpu_group *group);

/* After a failed one of any kind: whether a rank that lives is inside. */
bool direct_is_touched(struct cpu_group *group);

#endif
