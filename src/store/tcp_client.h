/* SPDX-License-Identifier: MIT */
/* Opens a tcp store with more than a URL can say, for env: (env_store.c). */
#ifndef TUTTI_STORE_TCP_CLIENT_H
#define TUTTI_STORE_TCP_CLIENT_H

#include "store/kind.h"

struct tcp_options {
    const char *secret; /* NULL or "" is none */
    int64_t connect_ms; /* for reaching the server */
    int64_t timeout_ms; /* for joining, and the default of later waits */
    /* A client does not join (SYSTEM) where world_size ranks have joined: that server belongs to
     * the store that they opened before this one. */
    bool exclusive;
    /* Called once this process serves, before it waits for others to join; may be NULL. */
    enum tutti_status (*announce)(void *context, uint16_t port);
    void *context;
};

enum tutti_status tcp_open_with(const struct store_url *url, const struct tcp_options *options,
                                tutti_store_t **store);

#endif
