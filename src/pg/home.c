/* SPDX-License-Identifier: MIT */
#include "pg/home.h"

#include "cpu/local.h"
#include "order.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { IDLE_MAX = 4, NAME_BYTES = 64 };

struct pg_home {
    uint32_t references;
    struct layout_arena *arena;
    char name[NAME_BYTES];
    pthread_mutex_t lock;
    /* Under the lock: */
    bool closed;
    int count;
    struct sparse_memory idle[IDLE_MAX];
};

struct pg_home *pg_home_create(struct layout_arena *arena, const char *name)
{
    struct pg_home *home = calloc(1, sizeof *home);
    if (!home)
        return NULL;
    local_hold(arena);
    home->arena = arena;
    home->references = 1;
    snprintf(home->name, sizeof home->name, "%s", name);
    pthread_mutex_init(&home->lock, NULL);
    return home;
}

void pg_home_hold(struct pg_home *home)
{
    order_fetch_add_u32(&home->references, 1); /* by who has one: no N1 to wait for */
}

const char *pg_home_name(const struct pg_home *home)
{
    return home->name;
}

struct layout_board *pg_home_board(struct pg_home *home)
{
    return &home->arena->board;
}

void pg_home_release(struct pg_home *home)
{
    if (order_fetch_add_u32(&home->references, UINT32_MAX) != 1) /* N1, N1a if it is the last */
        return;
    pthread_mutex_destroy(&home->lock);
    local_release(home->arena);
    free(home);
}

void pg_home_close(struct pg_home *home)
{
    if (!home)
        return;
    pthread_mutex_lock(&home->lock);
    home->closed = true;
    while (home->count)
        sparse_memory_fini(&home->idle[--home->count]);
    pthread_mutex_unlock(&home->lock);
    pg_home_release(home);
}

struct sparse_memory pg_home_take(struct pg_home *home)
{
    struct sparse_memory memory = {0};
    pthread_mutex_lock(&home->lock);
    if (home->count)
        memory = home->idle[--home->count];
    pthread_mutex_unlock(&home->lock);
    return memory;
}

void pg_home_give(struct pg_home *home, struct sparse_memory memory)
{
    pthread_mutex_lock(&home->lock);
    bool keep = memory.bytes && !home->closed && home->count < IDLE_MAX;
    if (keep)
        home->idle[home->count++] = memory;
    pthread_mutex_unlock(&home->lock);
    if (!keep)
        sparse_memory_fini(&memory);
}
