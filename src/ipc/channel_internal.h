/* SPDX-License-Identifier: MIT */
/* What channel.c (a channel at work) and channel_open.c (how it comes to be) share. */
#ifndef TUTTI_IPC_CHANNEL_INTERNAL_H
#define TUTTI_IPC_CHANNEL_INTERNAL_H

#include "base/rank_set.h"
#include "ipc/channel.h"

#include <sys/socket.h>

/* Connections that have sent no hello yet. A stranger's may stay silent for ever. */
#define CHANNEL_PENDING 64

/* Every descriptor of a channel lies here as soon as it exists, so that the child of a fork() finds
 * all of them. -1 is none. */
struct channel {
    struct channel *next; /* in the registry */
    uint32_t epoch;       /* of the process that it belongs to, see fork.h */
    int rank;
    int size;
    struct rank_set connected; /* links[r] has passed the handshake */
    const struct interrupt *interrupt;
    int listener; /* while opening */
    int pending[CHANNEL_PENDING];
    struct channel_link {
        int socket;
        int pidfd; /* readable once the peer's process has ended; -1 if unknown or our own */
    } links[TUTTI_MAX_RANKS];
};

/* An empty channel in the registry; channel_close() ends it. */
enum tutti_status channel_create(int rank, int size, struct channel **channel);

/* Closes *fd unless it is -1, and makes it -1. */
void channel_drop(int *fd);

/* A pidfd of the process at the other end of a connected socket, -1 if there is none to have. */
int channel_peer_pidfd(int socket, const struct ucred *credentials);

#endif
