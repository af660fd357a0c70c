/* SPDX-License-Identifier: MIT */
/* The reduction that the owner of a chunk does for all ranks. */
#ifndef TUTTI_CPU_OWNER_H
#define TUTTI_CPU_OWNER_H

#include "coll/request.h"
#include "cpu/transport/group.h"

/* Reduces `count` elements of all inputs in[leaf] into all outputs out[rank]. An output may be the
 * input of its rank. `ahead`: reduction.h. */
void owner_reduce(const struct cpu_group *group, const struct request *request,
                  const void *const *in, unsigned char *const *out, size_t count, bool ahead);

#endif
