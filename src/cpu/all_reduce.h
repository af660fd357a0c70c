/* SPDX-License-Identifier: MIT */
/* The transports of an all-reduce, one file each; all_reduce.c chooses. */
#ifndef TUTTI_CPU_ALL_REDUCE_H
#define TUTTI_CPU_ALL_REDUCE_H

#include "algo.h"
#include "cpu/group.h"

/* One-shot of up to a mail's payload. Announces itself. */
enum tutti_status one_shot_mail(struct cpu_group *group, const struct request *request);
/* Any size; announced by the caller. */
enum tutti_status one_shot_pieces(struct cpu_group *group, const struct request *request);
enum tutti_status two_shot_pieces(struct cpu_group *group, const struct request *request);
/* *done says whether all ranks had operands that all can reach; if not, nothing has happened. */
enum tutti_status direct_all_reduce(struct cpu_group *group, const struct request *request,
                                    bool *done);
/* After a failed operation whose operands are addresses of this process: returns when no thread is
 * inside them. They touch without waiting, so this ends. */
void direct_leave_failed(struct cpu_group *group);

/* Elements of the chunk that one of `size` ranks owns of `count` elements: whole lines, so that no
 * line has two writers. */
static inline size_t chunk_elements(size_t count, int size, size_t element_bytes)
{
    size_t line = LAYOUT_LINE / element_bytes;
    size_t lines = (count + line - 1) / line;
    return (lines + (size_t)size - 1) / (size_t)size * line;
}

/* A rank's part of `count` elements cut into chunks: its first element in *first, its length
 * returned. */
static inline size_t chunk_of(size_t count, size_t chunk, int rank, size_t *first)
{
    *first = chunk * (size_t)rank < count ? chunk * (size_t)rank : count;
    return count - *first < chunk ? count - *first : chunk;
}

#endif
