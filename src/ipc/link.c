/* SPDX-License-Identifier: MIT */
/* Links, and the registry of all channels and links, whose descriptors the child of a fork()
 * closes. One lock guards the registry, the holders and the queues. It is never held in a wait. */
#include "ipc/link.h"

#include "base/error.h"
#include "base/fd.h"
#include "base/fork_mutex.h"
#include "ipc/fork.h"
#include "ipc/random.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A packet that waits for its rank. PACKET_LEFT is one of our own: this process has closed the
 * channel, and the peer's PACKET_LEAVE has not come yet. */
enum { PACKET_LEFT = 0 };
struct message {
    struct message *next;
    struct packet packet;
    int fd; /* or LINK_NO_FD, LINK_FULL */
};

struct link {
    struct link *next; /* in the registry */
    uint8_t key[CHANNEL_ID_BYTES];
    int holders;
    int socket;
    pid_t pid;  /* of the process at the other end; 0: another pid namespace */
    int pidfd;  /* readable once the peer's process has ended; -1 if unknown or our own */
    bool ended; /* nothing more can be read */
    struct message *queue;
};

static void close_in_child(void);
static struct fork_mutex lock = FORK_MUTEX(close_in_child);
static struct channel *channels;
static struct link *links;

/* ---- registry ------------------------------------------------------------------------------- */

void channel_stop_listening(struct channel *channel)
{
    fd_drop(&channel->listener);
    for (int i = 0; i < CHANNEL_PENDING; i++)
        fd_drop(&channel->pending[i]);
}

/* Calls nothing but close(): another thread may have held the allocator's lock at the fork(). */
static void close_in_child(void)
{
    for (struct channel *channel = channels; channel; channel = channel->next)
        channel_stop_listening(channel);
    for (struct link *link = links; link; link = link->next) {
        fd_drop(&link->socket);
        fd_drop(&link->pidfd);
        for (struct message *message = link->queue; message; message = message->next)
            fd_drop(&message->fd);
    }
    channels = NULL;
    links = NULL;
}

enum tutti_status channel_create(struct channel **channel)
{
    uint32_t epoch;
    enum tutti_status status = fork_epoch(&epoch);
    if (status != TUTTI_OK)
        return status;
    struct channel *new = malloc(sizeof *new);
    if (!new)
        return error_errno("cannot allocate a channel");
    *new = (struct channel){.epoch = epoch, .listener = -1};
    memset(new->pending, -1, sizeof new->pending);
    fork_mutex_lock(&lock);
    new->is_first = channels == NULL;
    new->next = channels;
    channels = new;
    fork_mutex_unlock(&lock);
    *channel = new;
    return TUTTI_OK;
}

/* ---- packets -------------------------------------------------------------------------------- */

struct packet packet_to(const struct channel *channel, int peer, enum packet_kind kind)
{
    struct packet packet = {.magic = PACKET_MAGIC,
                            .version = PACKET_VERSION,
                            .kind = kind,
                            .from = (uint32_t)channel->rank,
                            .to = (uint32_t)peer};
    memcpy(packet.nonce, channel->nonce, sizeof packet.nonce);
    return packet;
}

struct packet packet_from(const struct channel *channel, int peer)
{
    struct packet packet = packet_to(channel, channel->rank, PACKET_HELLO);
    packet.from = (uint32_t)peer;
    return packet;
}

bool packet_valid(const struct packet *packet, size_t bytes)
{
    return bytes == sizeof *packet && packet->magic == PACKET_MAGIC &&
           packet->version == PACKET_VERSION && packet->kind >= PACKET_HELLO &&
           packet->kind <= PACKET_SEND;
}

/* Compares channel and ranks. */
static bool packet_matches(const struct packet *packet, const struct packet *other)
{
    return packet->from == other->from && packet->to == other->to &&
           secret_equal(packet->nonce, other->nonce, sizeof packet->nonce);
}

/* ---- queue: the caller has the lock --------------------------------------------------------- */

/* The link to the oldest packet like `from` of this kind (ANY: of any kind), else the queue's end.
 */
enum { PACKET_ANY = -1 };
static struct message **find(struct link *link, const struct packet *from, int kind)
{
    struct message **at = &link->queue;
    while (*at && !(packet_matches(&(*at)->packet, from) &&
                    (kind == PACKET_ANY || (*at)->packet.kind == (uint32_t)kind)))
        at = &(*at)->next;
    return at;
}

static void drop_message(struct message **at)
{
    struct message *message = *at;
    *at = message->next;
    fd_drop(&message->fd);
    free(message);
}

static void forget(struct link *link, const struct packet *from)
{
    for (struct message **at; *(at = find(link, from, PACKET_ANY));)
        drop_message(at);
}

/* Returns false if there is no memory. Then the descriptor is still the caller's. */
static bool append(struct link *link, const struct message *received)
{
    if (*find(link, &received->packet, PACKET_LEFT)) { /* no rank takes it */
        int fd = received->fd;
        fd_drop(&fd);
        if (received->packet.kind == PACKET_LEAVE)
            forget(link, &received->packet);
        return true;
    }
    struct message *message = malloc(sizeof *message);
    if (!message)
        return false;
    struct message **at = &link->queue;
    while (*at)
        at = &(*at)->next;
    *message = *received;
    message->next = NULL;
    *at = message;
    return true;
}

/* Takes the descriptor out of a received message. The kernel has closed those that had no room. */
static int unpack(struct msghdr *message)
{
    const struct cmsghdr *part = CMSG_FIRSTHDR(message);
    int fd = -1;
    if (part && part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(part), sizeof fd);
    else if (!(message->msg_flags & MSG_CTRUNC))
        return LINK_NO_FD;
    fd = fd_lift(fd);
    return fd < 0 ? LINK_FULL : fd;
}

/* Reads one packet. False if there is none for the moment, or no more. */
static bool receive(struct link *link)
{
    union {
        char bytes[CMSG_LEN(sizeof(int))]; /* of one descriptor: CMSG_SPACE() may have two */
        struct cmsghdr align;
    } control;
    struct message received = {.fd = LINK_NO_FD};
    struct iovec payload = {.iov_base = &received.packet, .iov_len = sizeof received.packet};
    struct msghdr header = {.msg_iov = &payload,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = CMSG_LEN(sizeof(int))};
    if (link->ended)
        return false;
    ssize_t bytes = recvmsg(link->socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);
    /* After a reset the peer has died with packets unread. There may be some to read here. */
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNRESET))
        return errno != EAGAIN;
    if (bytes > 0) {
        received.fd = unpack(&header);
        if (packet_valid(&received.packet, (size_t)bytes) && append(link, &received))
            return true;
        fd_drop(&received.fd);
        shutdown(link->socket, SHUT_RDWR); /* this is no process of ours, or it cannot be served */
    }
    link->ended = true;
    return false;
}

static void drain(struct link *link)
{
    while (receive(link)) {
    }
}

/* ---- links ---------------------------------------------------------------------------------- */

/* A pidfd of the process at the other end of a connected socket, -1 if the kernel gives none. */
static int peer_pidfd(int socket, const struct ucred *peer)
{
    if (peer->pid <= 0 || peer->pid == getpid())
        return -1;
    int pidfd = fd_lift((int)syscall(SYS_pidfd_open, peer->pid, 0));
    /* The number may have passed to a new process. If the socket is still open now, the peer was
     * alive when we asked. */
    struct pollfd hangup = {.fd = socket};
    if (poll(&hangup, 1, 0) != 0)
        fd_drop(&pidfd);
    return pidfd;
}

struct link *link_hold(const uint8_t key[CHANNEL_ID_BYTES], const struct packet *from)
{
    struct link *found = NULL;
    fork_mutex_lock(&lock);
    for (struct link *link = links; link; link = link->next) {
        if (memcmp(link->key, key, sizeof link->key) != 0)
            continue;
        drain(link);
        const bool has_packet = *find(link, from, PACKET_ANY) != NULL;
        if (has_packet || !link->ended)
            found = link;
        if (has_packet)
            break;
    }
    if (found)
        found->holders++;
    fork_mutex_unlock(&lock);
    return found;
}

struct link *link_make(const uint8_t key[CHANNEL_ID_BYTES], int socket, const struct ucred *peer,
                       const struct packet *first)
{
    const struct message message = {.packet = first ? *first : (struct packet){0},
                                    .fd = LINK_NO_FD};
    struct link *link = malloc(sizeof *link);
    if (!link) {
        close(socket);
        return NULL;
    }
    *link = (struct link){
        .holders = 1, .socket = socket, .pid = peer->pid, .pidfd = peer_pidfd(socket, peer)};
    memcpy(link->key, key, sizeof link->key);
    fork_mutex_lock(&lock);
    link->next = links;
    links = link;
    const bool complete = !first || append(link, &message);
    fork_mutex_unlock(&lock);
    if (complete)
        return link;
    link_release(link);
    return NULL;
}

void link_hold_again(struct link *link)
{
    fork_mutex_lock(&lock);
    link->holders++;
    fork_mutex_unlock(&lock);
}

void link_release(struct link *link)
{
    if (!link)
        return;
    fork_mutex_lock(&lock);
    if (--link->holders == 0) {
        struct link **at = &links;
        while (*at != link)
            at = &(*at)->next;
        *at = link->next;
        shutdown(link->socket, SHUT_RDWR); /* a child that inherited the socket keeps it open */
        fd_drop(&link->socket);
        fd_drop(&link->pidfd);
        while (link->queue)
            drop_message(&link->queue);
        free(link);
    }
    fork_mutex_unlock(&lock);
}

bool link_send(struct link *link, const struct packet *packet, int fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof fd)];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec payload = {.iov_base = (void *)(uintptr_t)packet, .iov_len = sizeof *packet};
    struct msghdr message = {.msg_iov = &payload, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        *rights = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    }
    ssize_t bytes;
    do
        bytes = sendmsg(link->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (bytes < 0 && errno == EINTR);
    return bytes >= 0;
}

bool link_leave(const uint8_t key[CHANNEL_ID_BYTES], const struct packet *leave)
{
    bool found = false;
    fork_mutex_lock(&lock);
    for (struct link *link = links; link; link = link->next) {
        if (link->ended || memcmp(link->key, key, sizeof link->key) != 0)
            continue;
        found |= link_send(link, leave, -1);
    }
    fork_mutex_unlock(&lock);
    return found;
}

enum link_news link_take(struct link *link, const struct packet *from, struct packet *packet,
                         int *fd)
{
    enum link_news news = LINK_NOTHING;
    fork_mutex_lock(&lock);
    struct message **at = find(link, from, PACKET_ANY);
    while ((!packet || !*at) && receive(link))
        at = find(link, from, PACKET_ANY);
    const bool left = *find(link, from, PACKET_LEAVE) != NULL;
    if (*at && (*at)->packet.kind != PACKET_LEAVE && (packet || !(left || link->ended)))
        news = LINK_PACKET;
    else if (left)
        news = LINK_LEFT; /* the LEAVE stays in the queue */
    else if (link->ended)
        news = LINK_ENDED;
    if (news == LINK_PACKET && packet) {
        *packet = (*at)->packet;
        *fd = (*at)->fd;
        (*at)->fd = LINK_NO_FD;
        drop_message(at);
    }
    fork_mutex_unlock(&lock);
    return news;
}

int64_t link_pid(const struct link *link)
{
    return link->pid;
}

void link_polls(const struct link *link, short events, struct pollfd polls[2])
{
    polls[0] = (struct pollfd){.fd = link->socket, .events = events};
    polls[1] = (struct pollfd){.fd = link->pidfd, .events = POLLIN};
}

/* ---- the end of a channel ------------------------------------------------------------------- */

/* Drops all packets like `from`, also those that are still to come. */
static void link_forget(struct link *link, const struct packet *from)
{
    struct message left = {.packet = *from, .fd = LINK_NO_FD};
    left.packet.kind = PACKET_LEFT;
    fork_mutex_lock(&lock);
    drain(link);
    const bool both = *find(link, from, PACKET_LEAVE) != NULL;
    forget(link, from);
    if (!both)
        (void)append(link, &left);
    fork_mutex_unlock(&lock);
}

void channel_close(struct channel *channel)
{
    if (!channel)
        return;
    fork_mutex_lock(&lock);
    for (struct channel **at = &channels; *at; at = &(*at)->next)
        if (*at == channel) {
            *at = channel->next;
            break;
        }
    fork_mutex_unlock(&lock);
    const bool mine = !fork_detected(channel->epoch);
    if (mine && channel->path.text[0])
        unlink(channel->path.text);
    channel_stop_listening(channel);
    for (int r = 0; r < channel->size; r++) {
        const struct packet leave = packet_to(channel, r, PACKET_LEAVE);
        const struct packet theirs = packet_from(channel, r);
        if (!channel->links[r] || !mine)
            continue;
        if (rank_set_has(channel->connected, r))
            (void)link_send(channel->links[r], &leave, -1);
        link_forget(channel->links[r], &theirs);
        link_release(channel->links[r]);
    }
    free(channel);
}
