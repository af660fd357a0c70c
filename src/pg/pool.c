/* SPDX-License-Identifier: MIT */
#include "pg/pool.h"

#include "order.h"

#include <pthread.h>
#include <stdlib.h>

enum { IDLE_MAX = 4 };

struct pg_pool {
    uint32_t references;
    pthread_mutex_t lock;
    /* Under the lock: */
    bool closed;
    int count;
    struct sparse_memory idle[IDLE_MAX];
};

struct pg_pool *pg_pool_create(void)
{
    struct pg_pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return NULL;
    pool->references = 1;
    pthread_mutex_init(&pool->lock, NULL);
    return pool;
}

void pg_pool_hold(struct pg_pool *pool)
{
    order_fetch_add_u32(&pool->references, 1);
}

void pg_pool_release(struct pg_pool *pool)
{
    if (order_fetch_add_u32(&pool->references, UINT32_MAX) != 1)
        return;
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

void pg_pool_close(struct pg_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->closed = true;
    while (pool->count)
        sparse_memory_fini(&pool->idle[--pool->count]);
    pthread_mutex_unlock(&pool->lock);
    pg_pool_release(pool);
}

struct sparse_memory pg_pool_take(struct pg_pool *pool)
{
    struct sparse_memory memory = {0};
    pthread_mutex_lock(&pool->lock);
    if (pool->count)
        memory = pool->idle[--pool->count];
    pthread_mutex_unlock(&pool->lock);
    return memory;
}

void pg_pool_give(struct pg_pool *pool, struct sparse_memory memory)
{
    pthread_mutex_lock(&pool->lock);
    bool keep = memory.bytes && !pool->closed && pool->count < IDLE_MAX;
    if (keep)
        pool->idle[pool->count++] = memory;
    pthread_mutex_unlock(&pool->lock);
    if (!keep)
        sparse_memory_fini(&memory);
}
