/* SPDX-License-Identifier: MIT */
#include "cpu/transport/local.h"

#include "base/error.h"
#include "base/fork_mutex.h"

#include <stdlib.h>
#include <string.h>

struct shared {
    uint8_t nonce[16];
    int rank;
    int holders;
    struct segment segment;
    struct shared *next;
};

static struct fork_mutex lock = FORK_MUTEX(NULL);
static struct shared *list;

enum tutti_status local_publish(const uint8_t *nonce, int rank, const struct segment *segment)
{
    struct shared *entry = malloc(sizeof *entry);
    if (!entry)
        return error_set(TUTTI_ERR_NO_MEMORY, "no memory for %zu bytes", sizeof *entry);
    memcpy(entry->nonce, nonce, sizeof entry->nonce);
    entry->rank = rank;
    entry->holders = 1;
    entry->segment = *segment;
    fork_mutex_lock(&lock);
    entry->next = list;
    list = entry;
    fork_mutex_unlock(&lock);
    return TUTTI_OK;
}

void *local_acquire(const uint8_t *nonce, int rank)
{
    void *base = NULL;
    fork_mutex_lock(&lock);
    for (struct shared *entry = list; entry && !base; entry = entry->next) {
        if (entry->rank == rank && memcmp(entry->nonce, nonce, sizeof entry->nonce) == 0) {
            entry->holders++;
            base = entry->segment.base;
        }
    }
    fork_mutex_unlock(&lock);
    return base;
}

void local_hold(void *base)
{
    fork_mutex_lock(&lock);
    for (struct shared *entry = list; entry; entry = entry->next)
        if (entry->segment.base == base)
            entry->holders++;
    fork_mutex_unlock(&lock);
}

void local_release(void *base)
{
    struct shared *dead = NULL;
    fork_mutex_lock(&lock);
    for (struct shared **link = &list; *link; link = &(*link)->next) {
        struct shared *entry = *link;
        if (entry->segment.base != base)
            continue;
        if (--entry->holders == 0) {
            *link = entry->next;
            dead = entry;
        }
        break;
    }
    fork_mutex_unlock(&lock);
    if (dead) {
        segment_unmap(&dead->segment);
        free(dead);
    }
}
