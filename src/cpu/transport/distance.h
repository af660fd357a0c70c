/* SPDX-License-Identifier: MIT */
#ifndef TUTTI_CPU_DISTANCE_H
#define TUTTI_CPU_DISTANCE_H

#include "base/layout.h"
#include "tutti/tutti.h"

struct cpu_group;
struct cpu_state;
struct request;

enum {
    DISTANCE_BITS = 6,       /* of a rank's number */
    DISTANCE_PING_PONGS = 8, /* round trips of a measurement */
};

struct cpu_distance {
    bool far;      /* copies go past the caches: copy.h */
    int probe_bit; /* the next partner differs in this bit */
    size_t work;   /* bytes since the last probe */
    int64_t round_trip_ns[DISTANCE_BITS];
    uint32_t ping_pongs[NODE_RANKS]; /* with each peer */
};

/* A measurement of one partner, inside an operation in which both wait for each other. */
struct distance_probe {
    int partner;
    int bit;
    int done;       /* round trips; -1: before the first one, which is not timed */
    bool begun;     /* a round trip is under way */
    bool disturbed; /* one of this run was */
    int64_t start;  /* of the run */
    int64_t best;
};

/* Counts the operation. Begins a measurement if enough work was done since the last one: on all
 * ranks or on none. Without a measurement distance_step() returns true at once. */
struct distance_probe distance_begin(struct cpu_group *group, const struct request *request);
/* Continues the measurement. Returns false if it waits for the partner. Sets group->distance.far at
 * the end. */
bool distance_step(struct cpu_group *group, struct cpu_state *state, struct distance_probe *probe);
/* Measures the next partner; waits for it. Collective. */
enum tutti_status distance_measure(struct cpu_group *group, const struct request *request);

#endif
