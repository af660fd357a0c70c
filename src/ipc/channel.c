/* SPDX-License-Identifier: MIT */
/* An open channel: each descriptor is one packet with SCM_RIGHTS, on the link to the peer's process
 * (link.h). */
#include "ipc/channel.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/reminder.h"
#include "ipc/fork.h"
#include "ipc/link.h"

#include <errno.h>
#include <poll.h>

/* ---- life ----------------------------------------------------------------------------------- */

/* Waits for `events` on the peer's link, for a moment. *gone: the peer's process has ended. */
static enum tutti_status wait_peer(const struct channel *channel, int peer, short events,
                                   int64_t deadline, struct reminder *reminder, bool *gone)
{
    struct pollfd polls[2];
    enum tutti_status status = interrupt_ask(channel->interrupt);
    if (status != TUTTI_OK)
        return status;
    link_polls(channel->links[peer], events, polls);
    const int64_t left = deadline_left_ms(deadline);
    int ready = poll(polls, 2, left < 0 || left > LINK_SLICE_MS ? LINK_SLICE_MS : (int)left);
    if (ready < 0 && errno != EINTR)
        return error_errno("cannot wait for rank %d", peer);
    *gone = ready > 0 && (polls[1].revents || (polls[0].revents & (POLLHUP | POLLERR | POLLNVAL)));
    if (ready > 0)
        return TUTTI_OK;
    const char *verb = events == POLLIN ? "send" : "take";
    const int waited_s = reminder_due(reminder, deadline_now());
    if (waited_s)
        log_write(TUTTI_LOG_WARN, channel->rank,
                  "rank %d has waited %d s for rank %d to %s a descriptor", channel->rank, waited_s,
                  peer, verb);
    if (deadline_passed(deadline))
        return error_set(TUTTI_ERR_TIMEOUT,
                         "rank %d: rank %d did not %s a descriptor in time: look at what it does, "
                         "or raise TUTTI_TIMEOUT_MS",
                         channel->rank, peer, verb);
    return TUTTI_OK;
}

bool channel_peer_alive(struct channel *channel, int peer)
{
    struct pollfd polls[2];
    if (peer < 0 || peer >= channel->size || !rank_set_has(channel->connected, peer))
        return true;
    if (fork_detected(channel->epoch))
        return false;
    const struct packet from = packet_from(channel, peer);
    link_polls(channel->links[peer], POLLIN, polls);
    if (poll(polls, 2, 0) > 0 && polls[1].revents)
        return false;
    const enum link_news news = link_take(channel->links[peer], &from, NULL, NULL);
    return news != LINK_LEFT && news != LINK_ENDED;
}

/* An open socket on which nothing has come, and a process that has not ended. */
bool channel_peer_runs(struct channel *channel, int peer)
{
    struct pollfd polls[2];
    if (peer < 0 || peer >= channel->size || !rank_set_has(channel->connected, peer) ||
        fork_detected(channel->epoch))
        return channel_peer_alive(channel, peer);
    link_polls(channel->links[peer], POLLIN, polls);
    return poll(polls, 2, 0) == 0 || channel_peer_alive(channel, peer);
}

int64_t channel_peer_pid(const struct channel *channel, int peer)
{
    return peer >= 0 && peer < channel->size && rank_set_has(channel->connected, peer)
               ? link_pid(channel->links[peer])
               : 0;
}

const struct interrupt *channel_interrupt(struct channel *channel,
                                          const struct interrupt *interrupt)
{
    if (!channel)
        return NULL;
    const struct interrupt *former = channel->interrupt;
    channel->interrupt = interrupt;
    return former;
}

static enum tutti_status peer_dead(const struct channel *channel, int peer)
{
    enum tutti_status why = interrupt_ask_why(channel->interrupt);
    if (why != TUTTI_OK)
        return why;
    return error_set(TUTTI_ERR_PEER_DEAD,
                     "rank %d: rank %d has ended or closed its channel; restart the group",
                     channel->rank, peer);
}

/* ---- descriptors ---------------------------------------------------------------------------- */

static enum tutti_status check_channel(const struct channel *channel)
{
    if (fork_detected(channel->epoch))
        return error_set(TUTTI_ERR_INVALID,
                         "this channel belongs to the parent process: open one after fork()");
    return TUTTI_OK;
}

static enum tutti_status check_peer(const struct channel *channel, int peer)
{
    enum tutti_status status = check_channel(channel);
    if (status != TUTTI_OK)
        return status;
    if (peer < 0 || peer >= channel->size || !rank_set_has(channel->connected, peer))
        return error_set(TUTTI_ERR_INVALID, "rank %d of %d has no connection to rank %d",
                         channel->rank, channel->size, peer);
    return TUTTI_OK;
}

enum tutti_status channel_send_fd(struct channel *channel, int peer, int fd, int64_t timeout_ms)
{
    const int64_t deadline = deadline_after(timeout_ms);
    const struct packet packet = packet_to(channel, peer, PACKET_SEND);
    struct reminder reminder = reminder_start(deadline_now());
    enum tutti_status status = check_peer(channel, peer);
    if (status == TUTTI_OK && !channel_peer_alive(channel, peer))
        status = peer_dead(channel, peer);
    for (bool gone = false; status == TUTTI_OK;) {
        if (link_send(channel->links[peer], &packet, fd))
            return TUTTI_OK;
        if (errno == EPIPE || errno == ECONNRESET || gone)
            return peer_dead(channel, peer);
        if (errno != EAGAIN)
            return error_errno("rank %d cannot send descriptor %d to rank %d", channel->rank, fd,
                               peer);
        status = wait_peer(channel, peer, POLLOUT, deadline, &reminder, &gone);
    }
    return status;
}

/* Checks a packet that was taken. After a failure its descriptor is closed. */
static enum tutti_status check_packet(const struct channel *channel, int peer,
                                      const struct packet *packet, int *fd)
{
    enum tutti_status status = TUTTI_OK;
    if (*fd == LINK_FULL)
        status = error_set(TUTTI_ERR_SYSTEM,
                           "rank %d cannot receive a descriptor from rank %d: its table of "
                           "descriptors is full, see ulimit -n",
                           channel->rank, peer);
    else if (packet->kind != PACKET_SEND || *fd == LINK_NO_FD)
        status = error_set(TUTTI_ERR_SYSTEM,
                           "rank %d: rank %d sent no descriptor: look at rank %d's log",
                           channel->rank, peer, peer);
    if (status != TUTTI_OK)
        fd_drop(fd);
    return status;
}

enum tutti_status channel_recv_fd(struct channel *channel, int peer, int *fd, int64_t timeout_ms)
{
    const int64_t deadline = deadline_after(timeout_ms);
    const struct packet from = packet_from(channel, peer);
    struct reminder reminder = reminder_start(deadline_now());
    *fd = -1;
    enum tutti_status status = check_peer(channel, peer);
    for (bool gone = false; status == TUTTI_OK;) {
        struct packet packet;
        const enum link_news news = link_take(channel->links[peer], &from, &packet, fd);
        if (news == LINK_PACKET)
            return check_packet(channel, peer, &packet, fd);
        /* What a peer sent before it died has been read by now. */
        if (news != LINK_NOTHING || gone)
            return peer_dead(channel, peer);
        status = wait_peer(channel, peer, POLLIN, deadline, &reminder, &gone);
    }
    return status;
}
