/* SPDX-License-Identifier: MIT */
#ifndef TUTTI_CPU_DISTANCE_H
#define TUTTI_CPU_DISTANCE_H

#include "base/layout.h"
#include "tutti/tutti.h"

struct cpu_group;
struct request;

enum { DISTANCE_BITS = 6 }; /* of a rank's number */

struct cpu_distance {
    bool far;      /* copies go past the caches: copy.h */
    int probe_bit; /* the next partner differs in this bit */
    size_t work;   /* bytes since the last probe */
    int64_t round_trip_ns[DISTANCE_BITS];
    uint32_t ping_pongs[LAYOUT_RANKS]; /* with each peer */
};

/* Collective, inside an operation that has announced itself: measures one partner, sets
 * group->distance.far.
 */
enum tutti_status distance_probe(struct cpu_group *group, const struct request *request);

/* Counts the operation, and probes if enough work was done since the last probe: on all ranks or
 * none. */
enum tutti_status distance_update(struct cpu_group *group, const struct request *request);

#endif
