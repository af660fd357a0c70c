/* SPDX-License-Identifier: MIT */
#include "pg/op_pool.h"

#include "base/order.h"
#include "cpu/transport/local.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { IDLE_MAX = 4, NAME_BYTES = 64 };

struct pg_op_pool {
    uint32_t references;
    struct layout_arena *arena;
    char name[NAME_BYTES];
    pthread_mutex_t lock;
    /* Guarded by the lock: */
    bool closed;
    int count;
    struct sparse_memory idle[IDLE_MAX];
};

struct pg_op_pool *pg_op_pool_create(struct layout_arena *arena, const char *name)
{
    struct pg_op_pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return NULL;
    local_hold(arena);
    pool->arena = arena;
    pool->references = 1;
    snprintf(pool->name, sizeof pool->name, "%s", name);
    pthread_mutex_init(&pool->lock, NULL);
    return pool;
}

void pg_op_pool_hold(struct pg_op_pool *pool)
{
    /* N1 needs no order here: the caller already has a reference. */
    order_fetch_add_u32(&pool->references, 1);
}

const char *pg_op_pool_name(const struct pg_op_pool *pool)
{
    return pool->name;
}

struct layout_control_ring *pg_op_pool_control_ring(struct pg_op_pool *pool)
{
    return &pool->arena->control_ring;
}

void pg_op_pool_release(struct pg_op_pool *pool)
{
    if (order_fetch_add_u32(&pool->references, UINT32_MAX) != 1) /* N1, N1a if it is the last */
        return;
    pthread_mutex_destroy(&pool->lock);
    local_release(pool->arena);
    free(pool);
}

void pg_op_pool_close(struct pg_op_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->closed = true;
    while (pool->count)
        sparse_memory_fini(&pool->idle[--pool->count]);
    pthread_mutex_unlock(&pool->lock);
    pg_op_pool_release(pool);
}

struct sparse_memory pg_op_pool_take(struct pg_op_pool *pool)
{
    struct sparse_memory memory = {0};
    pthread_mutex_lock(&pool->lock);
    if (pool->count)
        memory = pool->idle[--pool->count];
    pthread_mutex_unlock(&pool->lock);
    return memory;
}

void pg_op_pool_give(struct pg_op_pool *pool, struct sparse_memory memory)
{
    pthread_mutex_lock(&pool->lock);
    bool keep = memory.bytes && !pool->closed && pool->count < IDLE_MAX;
    if (keep)
        pool->idle[pool->count++] = memory;
    pthread_mutex_unlock(&pool->lock);
    if (!keep)
        sparse_memory_fini(&memory);
}
