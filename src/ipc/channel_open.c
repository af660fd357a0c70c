/* SPDX-License-Identifier: MIT */
/*
 * How a channel is opened
 *   1. Each rank listens in the private directory. The store tells the others its address.
 *   2. For each lower peer a rank takes a link to the peer's process, or connects to the peer's
 *      socket, which makes a link. It sends hello on the link and awaits a hello.
 *   3. A rank finds the hello of a higher peer on a link, or accepts the connection on which the
 *      hello comes. Such a connection becomes a link once its first packet (nonce and ranks), the
 *      user that the kernel reports and the process that the peer announced agree. The rank answers
 *      with hello. A connection that fails a check, or stays silent, is dropped and delays no rank.
 *   4. The last holder of a link may close the link before the hello on it is read. Then the rank
 *      that sent the hello connects to the socket.
 *   5. Once all peers are connected the socket is closed, and its file is unlinked.
 *   6. A rank that gives up sends LEAVE on its links, and by a new connection to each lower peer
 *      without one.
 */
#include "base/deadline.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/point.h"
#include "base/reminder.h"
#include "base/text.h"
#include "ipc/fork.h"
#include "ipc/link.h"
#include "ipc/random.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct opening {
    struct channel *channel;
    const struct channel_config *config;
    int64_t deadline;
    struct rank_set to_connect; /* lower peers that hello was not sent to */
    struct rank_set to_reply;   /* lower peers whose hello has not come yet */
    struct rank_set to_accept;  /* higher peers whose hello was not answered */
    struct rank_set fresh;      /* this opening has made links[r] */
    int64_t ask_at;             /* when to check next whether processes have ended */
    unsigned oldest;            /* the pending connection that gives way to the next one */
};

static struct rank_set missing(const struct opening *opening)
{
    return rank_set_union(opening->to_connect,
                          rank_set_union(opening->to_reply, opening->to_accept));
}

static enum tutti_status peer_gone(const struct opening *opening, int peer)
{
    enum tutti_status why = interrupt_ask_why(opening->config->interrupt);
    if (why != TUTTI_OK)
        return why;
    return error_set(TUTTI_ERR_PEER_DEAD,
                     "rank %d: rank %d ended, or gave up, while the channel was opened: look at "
                     "rank %d's log, then restart the group",
                     opening->config->rank, peer, peer);
}

/* The key of links to the peer's process. */
static void key_make(const struct opening *opening, int peer, uint8_t key[CHANNEL_ID_BYTES])
{
    const struct channel_address *addresses = opening->config->addresses;
    for (int i = 0; i < CHANNEL_ID_BYTES; i++)
        key[i] = addresses[opening->config->rank].id[i] ^ addresses[peer].id[i];
}

/* Compares the process at the other end with the one that the rank announced. Returns NULL, or what
 * is wrong. */
static const char *judge_process(const struct opening *opening, int socket, int peer,
                                 struct ucred *credentials)
{
    const struct process *theirs = &opening->config->addresses[peer].process;
    socklen_t length = sizeof *credentials;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, credentials, &length) != 0)
        return "no credentials";
    if (credentials->uid != geteuid())
        return "another user (start all ranks as one user)";
    if (theirs->spaces && theirs->spaces == opening->channel->self.spaces &&
        credentials->pid != theirs->pid)
        return "another process than the one announced";
    return NULL;
}

/* ---- higher peers --------------------------------------------------------------------------- */

/* Checks the first packet on a connection. Returns NULL and sets *from to the rank, or returns what
 * is wrong. */
static const char *judge_first(const struct opening *opening, const struct packet *packet,
                               size_t bytes, int *from)
{
    if (!packet_valid(packet, bytes) || packet->kind > PACKET_LEAVE)
        return "no packet of this version of the library";
    if (!secret_equal(packet->nonce, opening->channel->nonce, sizeof packet->nonce))
        return "a wrong nonce";
    if (packet->to != (uint32_t)opening->config->rank || packet->from >= NODE_RANKS ||
        !rank_set_has(opening->to_accept, (int)packet->from))
        return "a rank that is not expected";
    *from = (int)packet->from;
    return NULL;
}

static enum tutti_status on_pending(struct opening *opening, int slot)
{
    struct channel *channel = opening->channel;
    const int socket = channel->pending[slot];
    uint8_t key[CHANNEL_ID_BYTES];
    struct packet packet;
    struct ucred credentials;
    int from = -1;
    /* No room for descriptors: if any come along, the kernel closes them. */
    ssize_t bytes = recv(socket, &packet, sizeof packet, MSG_DONTWAIT | MSG_TRUNC);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR))
        return TUTTI_OK;
    const char *wrong = judge_first(opening, &packet, bytes > 0 ? (size_t)bytes : 0, &from);
    if (!wrong)
        wrong = judge_process(opening, socket, from, &credentials);
    if (wrong) {
        /* A connection that closes without a byte is a sweep's check whether this rank listens. */
        if (bytes > 0)
            log_write(TUTTI_LOG_WARN, opening->config->rank, "dropped a connection with %s", wrong);
        fd_drop(&channel->pending[slot]);
        return TUTTI_OK;
    }
    key_make(opening, from, key);
    struct link *link = link_make(key, socket, &credentials, &packet);
    channel->pending[slot] = -1;
    if (!link)
        return error_set(TUTTI_ERR_NO_MEMORY, "no memory for a link to rank %d", from);
    link_release(channel->links[from]);
    channel->links[from] = link;
    return TUTTI_OK;
}

/* A hello is usually there when the connection is accepted. So only strangers wait in the slots,
 * and a new connection may take the slot of the oldest one. */
static enum tutti_status accept_all(struct opening *opening)
{
    struct channel *channel = opening->channel;
    enum tutti_status status = TUTTI_OK;
    for (int slot = 0; slot < CHANNEL_PENDING && status == TUTTI_OK; slot++)
        if (channel->pending[slot] >= 0)
            status = on_pending(opening, slot);
    while (status == TUTTI_OK) {
        int socket = fd_lift(accept4(channel->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (socket < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (socket < 0)
            return errno == EAGAIN ? TUTTI_OK : error_errno("cannot accept a connection");
        int slot = (int)(opening->oldest++ % CHANNEL_PENDING);
        fd_drop(&channel->pending[slot]);
        channel->pending[slot] = socket;
        status = on_pending(opening, slot);
    }
    return status;
}

/* Answers the peer's hello, if it has come. The link's queue may be full for a moment. */
static enum tutti_status accept_higher(struct opening *opening, int peer)
{
    struct channel *channel = opening->channel;
    const struct packet from = packet_from(channel, peer);
    const struct packet hello = packet_to(channel, peer, PACKET_HELLO);
    struct link *before = channel->links[peer];
    uint8_t key[CHANNEL_ID_BYTES];
    struct packet packet;
    int fd;
    key_make(opening, peer, key);
    channel->links[peer] = link_hold(key, &from);
    link_release(before);
    if (!channel->links[peer])
        return TUTTI_OK;
    const enum link_news news = link_take(channel->links[peer], &from, NULL, NULL);
    if (news == LINK_LEFT)
        return peer_gone(opening, peer);
    if (news != LINK_PACKET)
        return TUTTI_OK;
    if (!link_send(channel->links[peer], &hello, -1))
        return errno == EAGAIN ? TUTTI_OK : peer_gone(opening, peer);
    (void)link_take(channel->links[peer], &from, &packet, &fd);
    fd_drop(&fd);
    rank_set_remove(&opening->to_accept, peer);
    rank_set_add(&channel->connected, peer);
    return TUTTI_OK;
}

/* ---- lower peers ---------------------------------------------------------------------------- */

/* The peer no longer listens: it has ended or given up, perhaps because this rank is late. */
static enum tutti_status nobody_listens(const struct opening *opening, int peer)
{
    return deadline_passed(opening->deadline)
               ? error_set(
                     TUTTI_ERR_TIMEOUT,
                     "rank %d connected to rank %d after the time-out, when rank %d had gone: "
                     "look at what delayed rank %d, or raise TUTTI_TIMEOUT_MS",
                     opening->config->rank, peer, peer, opening->config->rank)
               : peer_gone(opening, peer);
}

static enum tutti_status connect_by_path(const struct opening *opening, int peer, int *socket)
{
    const struct socket_path *theirs = &opening->config->addresses[peer].path;
    const char *mine = opening->channel->path.text;
    enum tutti_status status = directory_connect(theirs, socket);
    if (status == TUTTI_OK)
        return status;
    if (errno == ECONNREFUSED || (errno == ENOENT && deadline_passed(opening->deadline)))
        return nobody_listens(opening, peer);
    if (errno != ENOENT)
        return status;
    enum tutti_status why = interrupt_ask_why(opening->config->interrupt);
    if (why != TUTTI_OK)
        return why;
    /* If both ranks have one directory, the peer removed the socket when it gave up. */
    const char *end = strrchr(mine, '/');
    const size_t bytes = end ? (size_t)(end - mine) + 1 : 0;
    return error_set(strncmp(theirs->text, mine, bytes) == 0 ? TUTTI_ERR_PEER_DEAD
                                                             : TUTTI_ERR_SYSTEM,
                     "rank %d does not find the socket %s of rank %d: look at rank %d's own "
                     "error, or, if it has none, give all ranks one directory (TUTTI_DIR)",
                     opening->config->rank, theirs->text, peer, peer);
}

/* Connects to the peer's socket, says hello and makes a link; makes none while the listener's queue
 * is full. The hello comes first: another thread of this process may use a link as soon as it is
 * there, and the peer refuses a connection whose first packet is for another rank. */
static enum tutti_status connect_fresh(struct opening *opening, int peer)
{
    const struct packet hello = packet_to(opening->channel, peer, PACKET_HELLO);
    int socket;
    struct ucred credentials;
    uint8_t key[CHANNEL_ID_BYTES];
    enum tutti_status status = connect_by_path(opening, peer, &socket);
    if (status != TUTTI_OK || socket < 0)
        return status;
    const char *wrong = judge_process(opening, socket, peer, &credentials);
    if (wrong)
        status = error_set(TUTTI_ERR_MISMATCH, "rank %d: at the socket of rank %d listens %s",
                           opening->config->rank, peer, wrong);
    else if (send(socket, &hello, sizeof hello, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        status = peer_gone(opening, peer);
    if (status != TUTTI_OK) {
        close(socket);
        return status;
    }
    key_make(opening, peer, key);
    opening->channel->links[peer] = link_make(key, socket, &credentials, NULL);
    if (!opening->channel->links[peer])
        return error_set(TUTTI_ERR_NO_MEMORY, "no memory for a link to rank %d", peer);
    rank_set_add(&opening->fresh, peer);
    rank_set_remove(&opening->to_connect, peer);
    rank_set_add(&opening->to_reply, peer);
    return TUTTI_OK;
}

/* The link has ended. If this opening did not make it, the rank connects again. */
static enum tutti_status link_lost(struct opening *opening, int peer)
{
    if (rank_set_has(opening->fresh, peer))
        return peer_gone(opening, peer);
    link_release(opening->channel->links[peer]);
    opening->channel->links[peer] = NULL;
    rank_set_remove(&opening->to_reply, peer);
    rank_set_add(&opening->to_connect, peer);
    return TUTTI_OK;
}

static enum tutti_status connect_lower(struct opening *opening, int peer)
{
    struct channel *channel = opening->channel;
    const struct packet from = packet_from(channel, peer);
    const struct packet hello = packet_to(channel, peer, PACKET_HELLO);
    uint8_t key[CHANNEL_ID_BYTES];
    key_make(opening, peer, key);
    if (!channel->links[peer])
        channel->links[peer] = link_hold(key, &from);
    if (!channel->links[peer])
        return connect_fresh(opening, peer);
    if (link_send(channel->links[peer], &hello, -1)) {
        rank_set_remove(&opening->to_connect, peer);
        rank_set_add(&opening->to_reply, peer);
        return TUTTI_OK;
    }
    return errno == EAGAIN ? TUTTI_OK : link_lost(opening, peer);
}

static enum tutti_status await_reply(struct opening *opening, int peer)
{
    struct channel *channel = opening->channel;
    const struct packet from = packet_from(channel, peer);
    struct packet packet;
    int fd;
    switch (link_take(channel->links[peer], &from, &packet, &fd)) {
    case LINK_PACKET:
        fd_drop(&fd);
        rank_set_remove(&opening->to_reply, peer);
        rank_set_add(&channel->connected, peer);
        return TUTTI_OK;
    case LINK_LEFT:
        return peer_gone(opening, peer);
    case LINK_ENDED:
        return link_lost(opening, peer);
    case LINK_NOTHING:
        break;
    }
    return TUTTI_OK;
}

/* ---- all peers ------------------------------------------------------------------------------ */

typedef enum tutti_status step_fn(struct opening *opening, int peer);

static enum tutti_status for_each(struct opening *opening, struct rank_set peers, step_fn *step)
{
    enum tutti_status status = TUTTI_OK;
    for (int r = rank_set_next(peers, -1); r >= 0 && status == TUTTI_OK;
         r = rank_set_next(peers, r))
        status = step(opening, r);
    return status;
}

/* Does all that can be done now. */
static enum tutti_status advance(struct opening *opening)
{
    enum tutti_status status = for_each(opening, opening->to_connect, connect_lower);
    /* A peer that cannot be reached may have given up because of another rank, whose LEAVE may
     * have come here, too. */
    enum tutti_status accepted = accept_all(opening);
    if (accepted == TUTTI_OK)
        accepted = for_each(opening, opening->to_accept, accept_higher);
    if (accepted != TUTTI_OK || status != TUTTI_OK)
        return accepted != TUTTI_OK ? accepted : status;
    return for_each(opening, opening->to_reply, await_reply);
}

/* Waits for the next event. No more entries than there are descriptors: poll() refuses more than
 * RLIMIT_NOFILE. */
static enum tutti_status await_event(const struct opening *opening)
{
    const struct channel *channel = opening->channel;
    const struct rank_set absent = missing(opening);
    struct pollfd polls[1 + CHANNEL_PENDING + NODE_RANKS], link[2];
    nfds_t count = 0;
    polls[count++] = (struct pollfd){.fd = channel->listener, .events = POLLIN};
    for (int i = 0; i < CHANNEL_PENDING; i++)
        if (channel->pending[i] >= 0)
            polls[count++] = (struct pollfd){.fd = channel->pending[i], .events = POLLIN};
    for (int r = rank_set_next(absent, -1); r >= 0; r = rank_set_next(absent, r))
        if (channel->links[r]) {
            link_polls(channel->links[r], POLLIN, link);
            polls[count++] = link[0];
        }
    const int64_t left = deadline_left_ms(opening->deadline);
    int64_t slice = rank_set_empty(opening->to_connect) ? LINK_SLICE_MS : 1;
    if (left >= 0 && left < slice)
        slice = left;
    if (poll(polls, count, (int)slice) < 0 && errno != EINTR)
        return error_errno("cannot wait for the other ranks");
    return TUTTI_OK;
}

/* Connected peers are checked, too: if one has ended, missing ranks may know it and not come. */
static enum tutti_status check_end(struct opening *opening, int peer)
{
    return process_has_ended(&opening->config->addresses[peer].process, &opening->channel->self)
               ? peer_gone(opening, peer)
               : TUTTI_OK;
}

static enum tutti_status check_ends(struct opening *opening)
{
    if (deadline_now() < opening->ask_at)
        return TUTTI_OK;
    opening->ask_at = deadline_after(INTERRUPT_MS);
    enum tutti_status status = for_each(opening, opening->config->peers, check_end);
    return status == TUTTI_OK ? interrupt_ask_pointless(opening->config->interrupt) : status;
}

static void waiting_log(const struct opening *opening, struct reminder *reminder)
{
    char ranks[256];
    const int waited_s = reminder_due(reminder, deadline_now());
    if (waited_s)
        log_write(TUTTI_LOG_WARN, opening->config->rank,
                  "rank %d has waited %d s in the set-up: not connected: %s", opening->config->rank,
                  waited_s, text_ranks(missing(opening), ranks, sizeof ranks));
}

static enum tutti_status connect_all(struct opening *opening)
{
    struct reminder reminder = reminder_start(deadline_now());
    for (;;) {
        enum tutti_status status = advance(opening);
        if (status != TUTTI_OK || rank_set_empty(missing(opening)))
            return status;
        if (deadline_passed(opening->deadline)) {
            char ranks[256];
            return error_set(TUTTI_ERR_TIMEOUT,
                             "rank %d: %s did not connect within %" PRIi64
                             " ms: look at what it does, or raise TUTTI_TIMEOUT_MS",
                             opening->config->rank,
                             text_ranks(missing(opening), ranks, sizeof ranks),
                             opening->config->timeout_ms);
        }
        status = interrupt_ask(opening->config->interrupt);
        if (status == TUTTI_OK)
            status = check_ends(opening); /* after advance(): a peer may send and then end */
        if (status == TUTTI_OK)
            status = await_event(opening);
        if (status != TUTTI_OK)
            return status;
        waiting_log(opening, &reminder);
    }
}

/* Tells a peer that this rank gives up. Best effort. */
static enum tutti_status take_leave(struct opening *opening, int peer)
{
    const struct channel_address *address = &opening->config->addresses[peer];
    const struct packet leave = packet_to(opening->channel, peer, PACKET_LEAVE);
    struct ucred credentials;
    uint8_t key[CHANNEL_ID_BYTES];
    int socket;
    key_make(opening, peer, key);
    if (rank_set_has(opening->channel->connected, peer)) /* channel_close() tells it */
        return TUTTI_OK;
    if (link_leave(key, &leave) || peer > opening->config->rank ||
        directory_connect(&address->path, &socket) != TUTTI_OK || socket < 0)
        return TUTTI_OK;
    if (!judge_process(opening, socket, peer, &credentials))
        (void)send(socket, &leave, sizeof leave, MSG_NOSIGNAL | MSG_DONTWAIT);
    close(socket);
    return TUTTI_OK;
}

struct channel_address channel_address_own(void)
{
    struct channel_address address = {.status = TUTTI_OK};
    process_identify(&address.process);
    memcpy(address.id, fork_process_nonce(), sizeof address.id);
    return address;
}

enum tutti_status channel_listen(const char *directory, struct channel **channel,
                                 struct channel_address *address)
{
    char path[256];
    *channel = NULL;
    memset(address, 0, sizeof *address);
    struct channel *made = NULL;
    enum tutti_status status = channel_create(&made);
    if (status == TUTTI_OK) {
        *address = channel_address_own();
        made->self = address->process;
        status = directory ? directory_open(directory, made->is_first)
                           : channel_directory(path, sizeof path, made->is_first);
    }
    if (status == TUTTI_OK)
        status = directory_listen(directory ? directory : path, &made->path, &made->listener);
    address->status = (int32_t)status;
    if (status != TUTTI_OK) {
        channel_close(made);
        return status;
    }
    address->path = made->path;
    *channel = made;
    return TUTTI_OK;
}

static enum tutti_status check_config(const struct channel_config *config)
{
    if (config->size < 1 || config->size > NODE_RANKS || config->rank < 0 ||
        config->rank >= config->size)
        return error_set(TUTTI_ERR_INVALID,
                         "rank %d of %d: a channel has 1 to %d ranks, counted from 0", config->rank,
                         config->size, NODE_RANKS);
    return TUTTI_OK;
}

enum tutti_status channel_open(struct channel **channel, const struct channel_config *config)
{
    struct opening opening = {.channel = *channel,
                              .config = config,
                              .deadline = deadline_after(config->timeout_ms),
                              .ask_at = deadline_after(INTERRUPT_MS)};
    struct channel *opened = *channel;
    char reason[512];
    enum tutti_status status = check_config(config);
    *channel = NULL;
    if (status != TUTTI_OK)
        goto err_close;
    opened->rank = config->rank;
    opened->size = config->size;
    opened->interrupt = config->interrupt;
    memcpy(opened->nonce, config->nonce, sizeof opened->nonce);
    opening.to_connect = rank_set_common(config->peers, rank_set_all(config->rank));
    opening.to_accept = rank_set_minus(config->peers, opening.to_connect);
    status = config->local_status;
    if (status == TUTTI_OK) {
        POINT("channel.announced");
        status = connect_all(&opening);
    }
    if (status != TUTTI_OK)
        goto err_leave;
    channel_stop_listening(opened);
    unlink(opened->path.text);
    opened->path.text[0] = 0;
    *channel = opened;
    return TUTTI_OK;

err_leave:
    interrupt_tell(config->interrupt, status); /* a peer that reads the LEAVE asks for the cause */
    snprintf(reason, sizeof reason, "%.*s", (int)sizeof reason - 1, tutti_last_error());
    channel_stop_listening(opened); /* first: there may be no descriptor left */
    (void)for_each(&opening, config->peers, take_leave);
    error_set(status, "%s", reason);
err_close:
    channel_close(opened);
    return status;
}

enum tutti_status channel_split(const struct channel *from, const int *ranks,
                                const struct channel_config *config, struct channel **channel)
{
    struct channel *made;
    *channel = NULL;
    enum tutti_status status = check_config(config);
    if (status == TUTTI_OK)
        status = channel_create(&made);
    if (status != TUTTI_OK)
        return status;
    made->self = from->self;
    made->rank = config->rank;
    made->size = config->size;
    made->interrupt = config->interrupt;
    memcpy(made->nonce, config->nonce, sizeof made->nonce);
    made->connected = config->peers;
    for (int r = rank_set_next(config->peers, -1); r >= 0; r = rank_set_next(config->peers, r)) {
        made->links[r] = from->links[ranks[r]];
        link_hold_again(made->links[r]);
    }
    *channel = made;
    return TUTTI_OK;
}
