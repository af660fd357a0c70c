/* SPDX-License-Identifier: MIT */
/*
 * Long operations in parts, which the caller's threads run at the same time. A part has some
 * elements of every block, the same ones on all ranks. It is an operation of a group of its own,
 * whose arenas lie behind those of the whole group. So no part waits for another one, and ranks may
 * have any number of threads: a thread takes the next part that no thread of its rank has taken.
 * All ranks take the parts in the same order, so all ranks run the first part that has not ended.
 */
#ifndef TUTTI_CPU_PARTS_H
#define TUTTI_CPU_PARTS_H

#include "cpu/algo/algo.h"

/* The groups of the parts, and the running operation. */
struct part {
    struct cpu_group *group;
    struct cpu_group *runs_in; /* that group, or the whole one */
    struct request request;
    enum tutti_status status;
    bool ended;
    struct cpu_state *state; /* of a group of calls */
};

struct cpu_parts {
    tutti_parallel_t parallel; /* NULL: the calling thread runs all parts */
    void *context;
    int threads;
    int count; /* the most parts of an operation */
    /* The running operation. */
    int used;
    uint32_t next;   /* part that no thread has taken */
    uint32_t caller; /* thread_number() */
    /* The whole group's, as the call began. */
    int (*progress)(void *context);
    void *progress_context;
    const bool *progress_soon;
    bool progress_often;
    struct part part[];
};

/* ---- part_groups.c --------------------------------------------------------------------------- */

/* Bytes of all parts' arenas in a rank's arena; 0: operations are not cut. */
size_t parts_arenas_bytes(const struct backend_opening *opening);
/* Local, with the same result on all ranks but for NO_MEMORY. The group is open; `offset`: of the
 * parts' arenas. Sets group->parts, NULL if operations are not cut. */
enum tutti_status parts_open(const struct backend_opening *opening, size_t offset,
                             struct cpu_group *group);
/* Also of a group without parts. */
void parts_close(struct cpu_group *group);

/* ---- parts.c --------------------------------------------------------------------------------- */

/* How an operation runs that is longer than a small message, if it is not cut. */
const struct algorithm *parts_plain(const struct cpu_group *group, const struct request *request);
/* In how many parts the operation runs; 1: it is not cut. Equal on all ranks. */
int parts_count(const struct cpu_group *group, const struct choice_call *call,
                const struct algorithm *plain);

extern const struct algorithm cpu_parts;

#endif
