/* SPDX-License-Identifier: MIT */
/*
 * What works need from their group, also after the group is destroyed: the control ring, by which
 * they wake the group's thread, and memory for results. The pool keeps result memory for reuse,
 * since fresh pages cost more than most sums. Any thread may call these functions.
 */
#ifndef TUTTI_PG_OP_POOL_H
#define TUTTI_PG_OP_POOL_H

#include "base/layout.h"
#include "pg/sparse.h"

struct pg_op_pool;

/* The pool of the rank with this arena, which stays mapped while the pool exists. The name, up to
 * 63 bytes, is that of the members' list which numbers the ranks; "" if there is no list. Return
 * NULL if there is no memory. */
struct pg_op_pool *pg_op_pool_create(struct layout_arena *arena, const char *name);
void pg_op_pool_hold(struct pg_op_pool *pool);
const char *pg_op_pool_name(const struct pg_op_pool *pool);
/* Return the rank's control ring. */
struct layout_control_ring *pg_op_pool_control_ring(struct pg_op_pool *pool);
/* Give back a reference. The last one frees the pool. */
void pg_op_pool_release(struct pg_op_pool *pool);
/* The group gives back its reference; from now on the pool keeps no memory. Takes NULL. */
void pg_op_pool_close(struct pg_op_pool *pool);
/* Return memory of any size, or none. The caller grows it if it is too small. */
struct sparse_memory pg_op_pool_take(struct pg_op_pool *pool);
void pg_op_pool_give(struct pg_op_pool *pool, struct sparse_memory memory);

#endif
