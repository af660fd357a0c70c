/* SPDX-License-Identifier: MIT */
/* An open channel: each descriptor is one packet with SCM_RIGHTS, on one sequenced-packet socket
 * for each pair of ranks. A registry of the channels closes them in the child of a fork(). */
#include "ipc/channel.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/log.h"
#include "base/reminder.h"
#include "ipc/channel_internal.h"
#include "ipc/fork.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

/* The one packet that carries a descriptor. */
enum parcel_kind { PARCEL_SEND = 1, PARCEL_ALL_GATHER = 2, PARCEL_BROADCAST = 3 };
struct parcel {
    uint32_t magic;
    uint32_t kind; /* enum parcel_kind: ranks that disagree about the call find out */
};
static const uint32_t PARCEL_MAGIC = 0x74756664;

/* More than one, so that a packet with too many differs from a full descriptor table. */
enum { PARCEL_FDS = 8 };

/* ---- registry ------------------------------------------------------------------------------- */

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct channel *registry;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
    pthread_mutex_lock(&registry_lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&registry_lock);
}

static void close_all(struct channel *channel)
{
    channel_drop(&channel->listener);
    for (int i = 0; i < CHANNEL_PENDING; i++)
        channel_drop(&channel->pending[i]);
    for (int r = 0; r < TUTTI_MAX_RANKS; r++) {
        channel_drop(&channel->links[r].socket);
        channel_drop(&channel->links[r].pidfd);
    }
}

/* Calls nothing but close(): another thread may have held the allocator's lock at the fork(). */
static void after_fork_in_child(void)
{
    for (struct channel *channel = registry; channel; channel = channel->next)
        close_all(channel);
    registry = NULL;
    pthread_mutex_unlock(&registry_lock);
}

static void install_fork_handlers(void)
{
    (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

enum tutti_status channel_create(int rank, int size, struct channel **channel)
{
    uint32_t epoch;
    enum tutti_status status = fork_epoch(&epoch);
    if (status != TUTTI_OK)
        return status;
    pthread_once(&once, install_fork_handlers);
    struct channel *new = malloc(sizeof *new);
    if (!new)
        return error_errno("cannot allocate a channel");
    *new = (struct channel){.epoch = epoch, .rank = rank, .size = size, .listener = -1};
    memset(new->pending, -1, sizeof new->pending);
    memset(new->links, -1, sizeof new->links);

    pthread_mutex_lock(&registry_lock);
    new->next = registry;
    registry = new;
    pthread_mutex_unlock(&registry_lock);
    *channel = new;
    return TUTTI_OK;
}

void channel_drop(int *fd)
{
    int old = *fd;
    *fd = -1;
    if (old >= 0)
        close(old);
}

void channel_close(struct channel *channel)
{
    if (!channel)
        return;
    pthread_mutex_lock(&registry_lock);
    for (struct channel **link = &registry; *link; link = &(*link)->next)
        if (*link == channel) {
            *link = channel->next;
            break;
        }
    pthread_mutex_unlock(&registry_lock);
    /* A child that inherited a socket keeps it open, so shutdown() tells the peers. In the child
     * (of a bare clone(), which runs no handlers) it must not. */
    if (!fork_detected(channel->epoch))
        for (int r = 0; r < channel->size; r++)
            if (channel->links[r].socket >= 0)
                shutdown(channel->links[r].socket, SHUT_RDWR);
    close_all(channel);
    free(channel);
}

/* ---- life ----------------------------------------------------------------------------------- */

int channel_peer_pidfd(int socket, const struct ucred *credentials)
{
    if (credentials->pid <= 0 || credentials->pid == getpid())
        return -1;
    int pidfd = -1;
    socklen_t length = sizeof pidfd;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) == 0 && pidfd >= 0)
        return pidfd;
    pidfd = (int)syscall(SYS_pidfd_open, credentials->pid, 0);
    if (pidfd < 0)
        return -1;
    /* The number may have passed to a new process. If the socket is still open now, the peer was
     * alive when we asked. */
    struct pollfd hangup = {.fd = socket};
    if (poll(&hangup, 1, 0) != 0)
        channel_drop(&pidfd);
    return pidfd;
}

/* Waits for `events` on the peer's socket. *gone: the peer has ended. */
static enum tutti_status wait_peer(const struct channel *channel, int peer, short events,
                                   int64_t deadline, bool *gone)
{
    struct pollfd polls[2] = {
        {.fd = channel->links[peer].socket, .events = events},
        {.fd = channel->links[peer].pidfd, .events = POLLIN},
    };
    struct reminder reminder = reminder_start(deadline_now());
    for (;;) {
        enum tutti_status status = interrupt_ask(channel->interrupt);
        if (status != TUTTI_OK)
            return status;
        int64_t left = interrupt_slice(channel->interrupt, deadline_left_ms(deadline));
        int ready = poll(polls, 2, left < 0 || left > 1000 ? 1000 : (int)left);
        if (ready < 0 && errno != EINTR)
            return error_errno("cannot wait for rank %d", peer);
        if (ready > 0) {
            *gone = polls[1].revents != 0 || (polls[0].revents & (POLLHUP | POLLERR | POLLNVAL));
            return TUTTI_OK;
        }
        const int waited_s = reminder_due(&reminder, deadline_now());
        if (waited_s)
            log_write(TUTTI_LOG_WARN, channel->rank,
                      "rank %d has waited %d s for rank %d to %s a descriptor", channel->rank,
                      waited_s, peer, events == POLLIN ? "send" : "take");
        if (deadline_passed(deadline))
            return error_set(TUTTI_ERR_TIMEOUT,
                             "rank %d: rank %d did not %s a descriptor in time: look at what it "
                             "does, or raise TUTTI_TIMEOUT_MS",
                             channel->rank, peer, events == POLLIN ? "send" : "take");
    }
}

bool channel_peer_alive(struct channel *channel, int peer)
{
    if (peer < 0 || peer >= channel->size || !rank_set_has(channel->connected, peer))
        return true;
    struct pollfd polls[2] = {
        {.fd = channel->links[peer].socket, .events = POLLRDHUP},
        {.fd = channel->links[peer].pidfd, .events = POLLIN},
    };
    return polls[0].fd >= 0 && poll(polls, 2, 0) <= 0;
}

void channel_settle(struct channel *channel)
{
    if (channel)
        channel->interrupt = NULL;
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

static enum tutti_status send_parcel(struct channel *channel, int peer, enum parcel_kind kind,
                                     int fd, int64_t deadline)
{
    union {
        char bytes[CMSG_SPACE(sizeof fd)];
        struct cmsghdr align;
    } control = {{0}};
    struct parcel parcel = {.magic = PARCEL_MAGIC, .kind = kind};
    struct iovec payload = {.iov_base = &parcel, .iov_len = sizeof parcel};
    struct msghdr message = {.msg_iov = &payload,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    *rights = (struct cmsghdr){
        .cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(rights), &fd, sizeof fd);

    for (bool gone = false;;) {
        if (sendmsg(channel->links[peer].socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
            return TUTTI_OK;
        if (errno == EPIPE || errno == ECONNRESET || gone)
            return peer_dead(channel, peer);
        if (errno == EAGAIN) {
            enum tutti_status status = wait_peer(channel, peer, POLLOUT, deadline, &gone);
            if (status != TUTTI_OK)
                return status;
        } else if (errno != EINTR) {
            return error_errno("rank %d cannot send descriptor %d to rank %d", channel->rank, fd,
                               peer);
        }
    }
}

/* Takes the descriptors out of a received message. Returns how many there were. One alone goes to
 * *fd; several are closed. */
static int unpack(struct msghdr *message, int *fd)
{
    int count = 0;
    *fd = -1;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        size_t bytes = part->cmsg_len - CMSG_LEN(0);
        for (size_t at = 0; at + sizeof(int) <= bytes; at += sizeof(int)) {
            int next;
            memcpy(&next, CMSG_DATA(part) + at, sizeof next);
            if (count++ == 0)
                *fd = next;
            else
                channel_drop(&next);
        }
    }
    if (count > 1)
        channel_drop(fd);
    return count;
}

/* Checks a packet that has arrived. After a failure none of its descriptors is open. */
static enum tutti_status open_parcel(const struct channel *channel, int peer, enum parcel_kind kind,
                                     struct msghdr *message, const struct parcel *parcel,
                                     size_t bytes, int *fd)
{
    int count = unpack(message, fd);
    enum tutti_status status = TUTTI_OK;
    if (bytes != sizeof *parcel || parcel->magic != PARCEL_MAGIC)
        status = error_set(TUTTI_ERR_MISMATCH, "rank %d: rank %d sent %zu bytes that are no parcel",
                           channel->rank, peer, bytes);
    else if (parcel->kind != (uint32_t)kind)
        status = error_set(TUTTI_ERR_MISMATCH,
                           "rank %d: rank %d made another channel call (kind %u, expected %u): all "
                           "ranks make the same calls in the same order",
                           channel->rank, peer, parcel->kind, (unsigned)kind);
    else if (count == 0 && (message->msg_flags & MSG_CTRUNC))
        status = error_set(TUTTI_ERR_SYSTEM,
                           "rank %d cannot take a descriptor from rank %d: its table is full, see "
                           "ulimit -n",
                           channel->rank, peer);
    else if (count != 1)
        status = error_set(TUTTI_ERR_MISMATCH,
                           "rank %d: rank %d sent %d descriptors at once, expected 1",
                           channel->rank, peer, count);
    if (status != TUTTI_OK)
        channel_drop(fd);
    return status;
}

static enum tutti_status recv_parcel(struct channel *channel, int peer, enum parcel_kind kind,
                                     int *fd, int64_t deadline)
{
    union {
        char bytes[CMSG_SPACE(PARCEL_FDS * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct parcel parcel = {0};
    struct iovec payload = {.iov_base = &parcel, .iov_len = sizeof parcel};

    *fd = -1;
    for (bool gone = false;;) {
        struct msghdr message = {.msg_iov = &payload,
                                 .msg_iovlen = 1,
                                 .msg_control = control.bytes,
                                 .msg_controllen = sizeof control.bytes};
        ssize_t got = recvmsg(channel->links[peer].socket, &message,
                              MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);
        if (got > 0)
            return open_parcel(channel, peer, kind, &message, &parcel, (size_t)got, fd);
        if (got == 0)
            return peer_dead(channel, peer);
        if (errno == EAGAIN) {
            /* What a peer sent before it died has been read by now. */
            if (gone)
                return peer_dead(channel, peer);
            enum tutti_status status = wait_peer(channel, peer, POLLIN, deadline, &gone);
            if (status != TUTTI_OK)
                return status;
        } else if (errno != EINTR && errno != ECONNRESET) {
            /* After a reset the peer has died with parcels unread. This rank may still have some to
             * read. */
            return error_errno("rank %d cannot receive from rank %d", channel->rank, peer);
        }
    }
}

static enum tutti_status duplicate(int fd, int *out)
{
    *out = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return *out >= 0 ? TUTTI_OK : error_errno("cannot duplicate descriptor %d", fd);
}

enum tutti_status channel_send_fd(struct channel *channel, int peer, int fd, int64_t timeout_ms)
{
    enum tutti_status status = check_peer(channel, peer);
    if (status != TUTTI_OK)
        return status;
    return send_parcel(channel, peer, PARCEL_SEND, fd, deadline_after(timeout_ms));
}

enum tutti_status channel_recv_fd(struct channel *channel, int peer, int *fd, int64_t timeout_ms)
{
    *fd = -1;
    enum tutti_status status = check_peer(channel, peer);
    if (status != TUTTI_OK)
        return status;
    return recv_parcel(channel, peer, PARCEL_SEND, fd, deadline_after(timeout_ms));
}

enum tutti_status channel_all_gather_fds(struct channel *channel, int fd, int *fds,
                                         int64_t timeout_ms)
{
    int64_t deadline = deadline_after(timeout_ms);
    memset(fds, -1, (size_t)channel->size * sizeof *fds);
    enum tutti_status status = check_channel(channel);
    if (status == TUTTI_OK)
        status = duplicate(fd, &fds[channel->rank]);
    for (int r = 0; r < channel->size && status == TUTTI_OK; r++)
        if (rank_set_has(channel->connected, r))
            status = send_parcel(channel, r, PARCEL_ALL_GATHER, fd, deadline);
    for (int r = 0; r < channel->size && status == TUTTI_OK; r++)
        if (rank_set_has(channel->connected, r))
            status = recv_parcel(channel, r, PARCEL_ALL_GATHER, &fds[r], deadline);
    if (status != TUTTI_OK)
        for (int r = 0; r < channel->size; r++)
            channel_drop(&fds[r]);
    return status;
}

enum tutti_status channel_broadcast_fd(struct channel *channel, int root, int fd, int *out,
                                       int64_t timeout_ms)
{
    int64_t deadline = deadline_after(timeout_ms);
    *out = -1;
    if (root != channel->rank) {
        enum tutti_status status = check_peer(channel, root);
        if (status != TUTTI_OK)
            return status;
        return recv_parcel(channel, root, PARCEL_BROADCAST, out, deadline);
    }
    enum tutti_status status = check_channel(channel);
    if (status == TUTTI_OK)
        status = duplicate(fd, out);
    for (int r = 0; r < channel->size && status == TUTTI_OK; r++)
        if (rank_set_has(channel->connected, r))
            status = send_parcel(channel, r, PARCEL_BROADCAST, fd, deadline);
    if (status != TUTTI_OK)
        channel_drop(out);
    return status;
}
