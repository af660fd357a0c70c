/* SPDX-License-Identifier: MIT */
/* What a communicator keeps for its work objects. It outlives the communicator while one of those
 * does. */
#ifndef TUTTI_WORK_H
#define TUTTI_WORK_H

#include "tutti/tutti.h"

struct tutti_comm;
struct work_pool;

/* Returns NO_MEMORY. */
enum tutti_status work_pool_create(struct tutti_comm *comm, struct work_pool **pool);
/* The communicator is about to end its operations: until work_pool_end() says how they did, no work
 * is done that was not before. Takes NULL. */
void work_pool_suspend(struct work_pool *pool);
/* They ended so, OK or not; the communicator gives the pool up. Takes NULL. */
void work_pool_end(struct work_pool *pool, const struct tutti_fault *fault);
/* In a child of fork(): gives up the copy. Takes NULL. */
void work_pool_forget(struct work_pool *pool);

#endif
