/* SPDX-License-Identifier: MIT */
/*
 * Handle channel: passes descriptors between ranks over Unix-domain sockets, and tells whether a
 * peer has died or has closed its channel.
 *
 * All channels between two processes share one connection, a link (link.h). A rank listens on a
 * socket in a private directory until all its peers have come. It makes a link to the process of a
 * lower peer only if there is none. On the link both ranks send the channel's nonce.
 */
#ifndef TUTTI_IPC_CHANNEL_H
#define TUTTI_IPC_CHANNEL_H

#include "base/interrupt.h"
#include "base/rank_set.h"
#include "ipc/directory.h"
#include "ipc/process.h"
#include "tutti/tutti.h"

#define CHANNEL_NONCE_BYTES 16
#define CHANNEL_ID_BYTES    16

struct channel;

/* What a rank tells the others, through the store, before a channel opens. */
struct channel_address {
    uint8_t id[CHANNEL_ID_BYTES]; /* of its process: random */
    struct process process;
    struct socket_path path; /* where it listens */
    int32_t status;          /* enum tutti_status: why it does not listen */
    int32_t unused;
};

struct channel_config {
    int rank;
    int size;                           /* 1 to NODE_RANKS */
    struct rank_set peers;              /* ranks of other processes; symmetric among the ranks */
    uint8_t nonce[CHANNEL_NONCE_BYTES]; /* the same secret on all ranks, random per channel */
    const struct channel_address *addresses; /* by rank; all listen */
    /* Why this rank cannot have a channel, with its message. Then no peer waits for it. */
    enum tutti_status local_status;
    int64_t timeout_ms;                /* of opening; negative never ends */
    const struct interrupt *interrupt; /* of its waits; may be NULL: channel_interrupt() */
};

/*
 * The private directory: TUTTI_DIR, else $XDG_RUNTIME_DIR/tutti, else /tmp/tutti-UID. Created 0700;
 * refused (SYSTEM) if it is a link, belongs to another user or is open to others. Sockets that
 * crashed processes have left there are removed if `sweeps`.
 */
enum tutti_status channel_directory(char *path, size_t size, bool sweeps);

/* The address of a rank that does not listen. Valid once fork_epoch() has succeeded. */
struct channel_address channel_address_own(void);
/* Local: makes a channel that listens, and its address. directory: NULL is channel_directory()'s.
 * On failure *channel is NULL and the address says that the rank does not listen. Returns INVALID,
 * NO_MEMORY, SYSTEM. */
enum tutti_status channel_listen(const char *directory, struct channel **channel,
                                 struct channel_address *address);
/* Collective: connects a channel that listens with its peers'. On failure it is closed, and
 * *channel is NULL. Returns INVALID, TIMEOUT (naming the ranks that did not come), PEER_DEAD,
 * MISMATCH, NO_MEMORY, SYSTEM. */
enum tutti_status channel_open(struct channel **channel, const struct channel_config *config);
/*
 * Local: makes a channel of some ranks of an open one. It shares the links, so that no rank listens
 * and no rank waits. Of config, addresses, local_status and timeout_ms are not used.
 * [in] ranks  ranks[r] is the rank of `from` that is rank r of the new channel
 * Returns INVALID, NO_MEMORY, SYSTEM.
 */
enum tutti_status channel_split(const struct channel *from, const int *ranks,
                                const struct channel_config *config, struct channel **channel);
/* Sets what may end the channel's waits early; NULL: nothing. Returns the former one. Without a
 * channel it does nothing and returns NULL. */
const struct interrupt *channel_interrupt(struct channel *channel,
                                          const struct interrupt *interrupt);
/* Local; peers see it as this rank's death. Takes NULL, and the parent's channel in a child of
 * fork(). */
void channel_close(struct channel *channel);

/*
 * A received descriptor is close-on-exec, and the receiver closes it. A sent one stays the
 * sender's; in place of -1 the peer gets SYSTEM. Messages between two ranks arrive in order.
 * Every wait ends at timeout_ms with TIMEOUT, or with PEER_DEAD if the peer has gone.
 */
enum tutti_status channel_send_fd(struct channel *channel, int peer, int fd, int64_t timeout_ms);
enum tutti_status channel_recv_fd(struct channel *channel, int peer, int *fd, int64_t timeout_ms);

/*
 * Returns false once a connected peer has closed its channel or its process has ended. Both the
 * socket and the process are checked: a child that inherited the socket keeps it open, and a
 * process in another pid namespace cannot be checked. Returns true for ranks that are not
 * connected. Does not wait. Thread-safe.
 */
bool channel_peer_alive(struct channel *channel, int peer);
/* The same as channel_peer_alive(), quicker while nothing has come from the peer. */
bool channel_peer_runs(struct channel *channel, int peer);
/* The number of a connected peer's process, as the kernel told it; 0: the process is not seen from
 * this one's pid namespace. Returns 0 for ranks that are not connected. */
int64_t channel_peer_pid(const struct channel *channel, int peer);

/*
 * In the child of a fork() the descriptors of all channels are closed. There the calls return
 * INVALID, and channel_peer_alive() returns false. (The first channel_listen() installs this with
 * pthread_atfork().)
 */

#endif
