/* SPDX-License-Identifier: MIT */
/*
 * What works need of their group, and keep while they live, even when it is gone: the board by
 * which they wake its thread, and memory for results. That is used again, since fresh pages cost
 * more than most sums. Any thread.
 */
#ifndef TUTTI_PG_HOME_H
#define TUTTI_PG_HOME_H

#include "layout.h"
#include "pg/sparse.h"

struct pg_home;

/* Of the rank with this arena, which stays mapped. The name, up to 63 bytes, is that of the list of
 * members by whose places ranks are numbered; "" if there is none. NULL if there is no memory. */
struct pg_home *pg_home_create(struct layout_arena *arena, const char *name);
void pg_home_hold(struct pg_home *home);
const char *pg_home_name(const struct pg_home *home);
/* Its board. */
struct layout_board *pg_home_board(struct pg_home *home);
/* Lets go; the last one frees it. */
void pg_home_release(struct pg_home *home);
/* The group lets go: from now on nothing is kept. Takes NULL. */
void pg_home_close(struct pg_home *home);
/* Some memory, or none: what is too small grows. */
struct sparse_memory pg_home_take(struct pg_home *home);
void pg_home_give(struct pg_home *home, struct sparse_memory memory);

#endif
