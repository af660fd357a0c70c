/* SPDX-License-Identifier: MIT */
/*
 * A link: the connection to another process that channels share, a socket of sequenced packets.
 *
 * Each packet names the channel (by its nonce), the sending and the receiving rank. Any thread of
 * the process may read a packet. The packet waits in the link's queue until its rank takes it. So a
 * thread that sleeps in poll() may miss that a packet for it has come: no sleep is longer than
 * LINK_SLICE_MS.
 *
 * A link's key is made of the ids of both processes. It has one holder for each peer of a channel.
 * The last holder closes it. Two processes may have several links: two threads that open channels
 * at the same time may both connect. A rank finds a packet on any of them.
 */
#ifndef TUTTI_IPC_LINK_H
#define TUTTI_IPC_LINK_H

#include "ipc/channel.h"

#include <assert.h>
#include <poll.h>
#include <sys/socket.h>

enum { LINK_SLICE_MS = 5 };

/* Connections that have sent no packet yet. A stranger's may stay silent for ever. */
#define CHANNEL_PENDING 64

static const uint32_t PACKET_MAGIC = 0x74757474;
enum { PACKET_VERSION = 2 };

enum packet_kind {
    PACKET_HELLO = 1, /* from both ranks: the channel opens */
    PACKET_LEAVE,     /* the sender has closed its channel, or gives up opening it */
    PACKET_SEND,      /* carries a descriptor */
};

struct packet {
    uint32_t magic;
    uint32_t version;
    uint32_t kind; /* enum packet_kind */
    uint32_t from; /* rank */
    uint32_t to;
    uint8_t nonce[CHANNEL_NONCE_BYTES];
};
static_assert(sizeof(struct packet) == 36, "read by both ends");

/* Every descriptor of a channel lies here or in a link as soon as it exists, so that the child of a
 * fork() finds all of them. -1 is none. */
struct channel {
    struct channel *next; /* in the registry */
    uint32_t epoch;       /* of the process that it belongs to, see fork.h */
    bool is_first;        /* there was no other in the process: sweeps the directory */
    struct process self;
    int rank;
    int size;
    uint8_t nonce[CHANNEL_NONCE_BYTES];
    const struct interrupt *interrupt;
    struct rank_set connected;      /* links[r] has passed the handshake */
    struct link *links[NODE_RANKS]; /* held; NULL: none */
    struct socket_path path;        /* while it listens */
    int listener;
    int pending[CHANNEL_PENDING];
};

/* An empty channel in the registry; channel_close() ends it. */
enum tutti_status channel_create(struct channel **channel);
/* Closes the listener and what has connected to it. */
void channel_stop_listening(struct channel *channel);

/* A packet of this channel to a peer; one from the peer, to compare with (its kind is ignored). */
struct packet packet_to(const struct channel *channel, int peer, enum packet_kind kind);
struct packet packet_from(const struct channel *channel, int peer);
/* Checks the bytes of a packet that has arrived. */
bool packet_valid(const struct packet *packet, size_t bytes);

/* Holds a link of the key: one on which a packet like `from` has come, else one that lives,
 * else NULL. */
struct link *link_hold(const uint8_t key[CHANNEL_ID_BYTES], const struct packet *from);
/* A new link with one holder, which owns the socket and closes it on failure. first: a packet that
 * has been read from it, or NULL. Returns NULL if there is no memory. */
struct link *link_make(const uint8_t key[CHANNEL_ID_BYTES], int socket, const struct ucred *peer,
                       const struct packet *first);
/* Adds a holder to a link that has one. */
void link_hold_again(struct link *link);
/* Takes NULL. */
void link_release(struct link *link);

/* Sends a packet on all links of the key. Returns whether at least one took it. */
bool link_leave(const uint8_t key[CHANNEL_ID_BYTES], const struct packet *leave);
/* Sends a packet without waiting; fd: -1 is none. Returns false with errno. */
bool link_send(struct link *link, const struct packet *packet, int fd);

enum link_news {
    LINK_NOTHING,
    LINK_PACKET,
    LINK_LEFT,  /* the peer has left: no more packets */
    LINK_ENDED, /* the link has ended: no more packets */
};
/* In place of a descriptor: the packet had none; the descriptor table was full. */
enum { LINK_NO_FD = -1, LINK_FULL = -2 };
/* Takes the oldest packet like `from`. *fd: its first descriptor, which the caller closes. packet:
 * NULL takes none, and returns LINK_LEFT or LINK_ENDED although there are packets. */
enum link_news link_take(struct link *link, const struct packet *from, struct packet *packet,
                         int *fd);
/* The process at the other end, as the kernel named it in this process's pid namespace; 0: it is
 * not seen from here. */
int64_t link_pid(const struct link *link);
/* Fills two entries for poll(): the socket with these events, and the process' end. */
void link_polls(const struct link *link, short events, struct pollfd polls[2]);

#endif
