/* SPDX-License-Identifier: MIT */
#ifndef TUTTI_CPU_DISTANCE_H
#define TUTTI_CPU_DISTANCE_H

#include "algo.h"
#include "cpu/group.h"

/* Whether it is time to look at the cores' distance again; counts an operation of that many bytes.
 * The same answer on all ranks. */
bool distance_due(struct cpu_group *group, size_t bytes);

/* Collective, inside an operation that has announced itself: measures one partner, sets group->far.
 */
enum tutti_status distance_probe(struct cpu_group *group, const struct request *request);

#endif
