/* SPDX-License-Identifier: MIT */
/* One library with one setting, its ranks alive and asleep until they are told to run a block. */
#ifndef BENCH_INSTANCE_H
#define BENCH_INSTANCE_H

#include "protocol.h"
#include "setting.h"

#include <sys/types.h>

struct instance {
    const struct setting *setting;
    int ranks;
    pid_t children[BENCH_MAX_RANKS]; /* the ranks, or their launcher alone; 0 is none */
    int sockets[BENCH_MAX_RANKS];    /* by rank; -1 is none */
    char log[256];                   /* what its processes wrote */
};

/* What all instances of a run have in common. */
struct instance_place {
    const char *programs;  /* directory of the workers */
    const char *directory; /* private, for sockets, stores and logs */
    int ranks;
    bool pinned;     /* one rank per core */
    size_t capacity; /* bytes of the largest message */
};

struct instance_block {
    double nanoseconds; /* of one operation, on the slowest rank */
    bool preempted;     /* a rank lost its core to another process meanwhile */
    char algo[24];
    bool wrong; /* of a block that failed: a rank found wrong elements */
};

/* Starts the setting's ranks. Returns -1, having said why on stderr and left nothing behind. */
int instance_start(struct instance *instance, const struct setting *setting,
                   const struct instance_place *place);
/* Has all ranks run one block. Returns -1, having said why, if a rank failed or a result is wrong:
 * the instance can then only be stopped. */
int instance_run(struct instance *instance, const struct bench_command *command,
                 struct instance_block *block);
/* Lets the ranks end, or kills them after a few seconds. Takes a stopped one. */
void instance_stop(struct instance *instance);

#endif
