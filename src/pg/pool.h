/* SPDX-License-Identifier: MIT */
/* Memory of results that works have given back: fresh pages cost more than most sums. It outlives
 * the group while a work does. Any thread. */
#ifndef TUTTI_PG_POOL_H
#define TUTTI_PG_POOL_H

#include "pg/sparse.h"

struct pg_pool;

/* NULL if there is no memory. */
struct pg_pool *pg_pool_create(void);
void pg_pool_hold(struct pg_pool *pool);
/* Lets go; the last one frees it. */
void pg_pool_release(struct pg_pool *pool);
/* The group lets go: from now on nothing is kept. Takes NULL. */
void pg_pool_close(struct pg_pool *pool);
/* Some memory, or none: what is too small grows. */
struct sparse_memory pg_pool_take(struct pg_pool *pool);
void pg_pool_give(struct pg_pool *pool, struct sparse_memory memory);

#endif
