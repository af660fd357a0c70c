/* SPDX-License-Identifier: MIT */
/* What of the tcp client others use: the launcher's secret, and the fuzzer's replies. */
#ifndef TUTTI_STORE_TCP_CLIENT_H
#define TUTTI_STORE_TCP_CLIENT_H

#include "store/store.h"

#include <sys/socket.h>

struct reminder;

struct tcp_connection {
    int fd;
    bool unproven;            /* the server has not shown yet that it is a store */
    bool owes;                /* the answer to a CANCEL_WAIT is still to come */
    struct store_limit limit; /* of the exchange under way */
    const char *name;         /* HOST:PORT */
};

/* Reads a value: min(its length, capacity) bytes go to value, the rest nowhere, *size is its
 * length. */
enum tutti_status tcp_receive_value(const struct tcp_connection *connection, void *value,
                                    size_t capacity, size_t *size);

/* The error of a connection that failed with errno. *hopeless says that no server which starts
 * later could be reached either: the loopback interface is down, no descriptor is left, no
 * permission. */
enum tutti_status tcp_connect_failed(const struct tcp_connection *connection,
                                     const struct sockaddr_storage *address, bool *hopeless);

/* Says at WARN why this process still waits for the store, if that is due. */
void tcp_waiting_log(const char *name, struct reminder *reminder, const char *why);

struct tcp_options {
    const char *secret; /* NULL or "" is none */
    int64_t connect_ms; /* for reaching the server */
    int64_t timeout_ms; /* for joining, and the default of later waits */
    /* A client refuses (SYSTEM) to join where world_size ranks have joined: it is their last store.
     */
    bool exclusive;
    /* Called once this process serves, before it waits for others to join; may be NULL. */
    enum tutti_status (*announce)(void *context, uint16_t port);
    void *context;
};

enum tutti_status tcp_open_with(const struct store_url *url, const struct tcp_options *options,
                                tutti_store_t **store);

#endif
