/* SPDX-License-Identifier: MIT */
#ifndef TUTTI_CPU_DISTANCE_H
#define TUTTI_CPU_DISTANCE_H

#include "coll/request.h"
#include "cpu/transport/group.h"

/* Collective, inside an operation that has announced itself: measures one partner, sets group->far.
 */
enum tutti_status distance_probe(struct cpu_group *group, const struct request *request);

/* The same, if it is time to look again, which is so on all ranks or none; counts the operation. */
enum tutti_status distance_update(struct cpu_group *group, const struct request *request);

#endif
