/* SPDX-License-Identifier: MIT */
/* What of the tcp client others use: the launcher's secret, and the fuzzer's replies. */
#ifndef TUTTI_STORE_TCP_CLIENT_H
#define TUTTI_STORE_TCP_CLIENT_H

#include "store/store.h"

struct tcp_connection {
    int fd;
    int64_t deadline_ns; /* of the exchange under way */
    const char *name;    /* HOST:PORT */
};

/* Reads a value: min(its length, capacity) bytes go to value, the rest nowhere, *size is its
 * length. */
enum tutti_status tcp_receive_value(const struct tcp_connection *connection, void *value,
                                    size_t capacity, size_t *size);

/* tcp_open() with a given secret in place of TUTTI_STORE_SECRET; NULL is none. */
enum tutti_status tcp_open_with(const struct store_url *url, const char *secret, int64_t timeout_ms,
                                tutti_store_t **store);

#endif
