/* SPDX-License-Identifier: MIT */
/* Chooses how the CPU runs a call: one pure function, called once for each call. It reads the
 * group's limits. */
#ifndef TUTTI_CPU_CHOOSE_H
#define TUTTI_CPU_CHOOSE_H

#include "base/layout.h"
#include "coll/choice.h"

enum direct_kind {
    DIRECT_GATHER,
    DIRECT_SCATTER,
    DIRECT_ALL_TO_ALL,
    DIRECT_MESSAGE,
    DIRECT_OTHER,
    DIRECT_KINDS
};

/* Equal on all ranks. Constant after the group's opening. */
struct cpu_limits {
    size_t small_bytes; /* up to here `small`, unless the call forces an algorithm; 0: never */
    struct choice small;
    const struct choice_rules *rules;
    int world_size;
    size_t one_shot_bytes;             /* up to here one-shot is measured to be faster */
    size_t copied_bytes;               /* up to here one-shot is faster than zero-copy */
    size_t offered_bytes;              /* from here on a block is offered where it lies: pair.c */
    size_t direct_bytes[DIRECT_KINDS]; /* from here on the kernel copies blocks from one process to
                                          another; SIZE_MAX: never */
    const struct algorithm *one_hop;   /* of an operation that is longer than a small message */
    bool pushes; /* two-shot: the owner of a chunk writes the result to all ranks, if the arena has
                    room */
    const char *two_shot_reason;
};

/* `rules` must outlive the limits. */
void cpu_limits_set(const struct choice_rules *rules, int world_size, bool oversubscribed,
                    struct cpu_limits *limits);
/* The kernel copies between the ranks' processes. `queue_bytes`: of the places for messages from
 * one rank to another. `always`: also where that is not quicker. */
void cpu_limits_set_direct(struct cpu_limits *limits, bool oversubscribed, size_t queue_bytes,
                           bool always);
/* `group` is a struct cpu_group. Returns OK. */
enum tutti_status cpu_choose(const void *group, const struct choice_call *call,
                             struct choice *choice);

#endif
