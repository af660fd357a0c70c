/* SPDX-License-Identifier: MIT */
/* The memory and the file store: keys and values in a map of this process, under a lock. */
#ifndef TUTTI_MAP_STORE_H
#define TUTTI_MAP_STORE_H

#include "store/kind.h"
#include "store/map.h"

struct map_store;

struct map_store_ops {
    /* Takes the lock and brings the map up to date. `writes`: it will be changed. */
    enum tutti_status (*lock)(struct map_store *base, bool writes, struct store_call *call);
    void (*unlock)(struct map_store *base);
    /* With the lock. value: NULL deletes the key, which is there. */
    enum tutti_status (*put)(struct map_store *base, const char *key,
                             const struct store_bytes *value);
    /* With the lock, which is released on return: waits until the map may have changed, and no
     * longer than store_call_pause(). */
    void (*await_change)(struct map_store *base, const struct store_call *call);
};

/* The first member of the kind's context. */
struct map_store {
    const struct map_store_ops *ops;
    struct map map;
};

/* The serve of both kinds, also for keys without a "/", which are the store's own. */
enum tutti_status map_store_serve(void *context, struct store_call *call);

#endif
