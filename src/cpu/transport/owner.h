/* SPDX-License-Identifier: MIT */
/* What the owner of a chunk does for all ranks. */
#ifndef TUTTI_CPU_OWNER_H
#define TUTTI_CPU_OWNER_H

#include "coll/request.h"
#include "cpu/transport/group.h"

/* Reduces `count` elements of everybody's inputs in[leaf] into everybody's outputs out[rank]. An
 * output may equal the input of its rank. Ahead: reduce.h. */
void owner_reduce(const struct cpu_group *group, const struct request *request,
                  const void *const *in, unsigned char *const *out, size_t count, bool ahead);

#endif
