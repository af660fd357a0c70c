/* SPDX-License-Identifier: MIT */
/*
 * How a channel is opened
 *   1. Each rank listens in the private directory and tells the others its path through the store.
 *   2. It connects to its lower peers and sends hello at once. It accepts every connection.
 *   3. An accepted connection counts once three things agree: its hello, the user and process that
 *      the kernel reports, and the process that its rank told through the store. Then it gets a
 *      hello back, which is checked in the same way. A connection that fails a check, or stays
 *      silent, is dropped and delays no rank.
 *   4. Once all peers are connected the socket's file is unlinked.
 *   5. A rank that gives up before that connects to the lower peers that it has not reached, sends
 *      hello and closes. A hello on a closed connection tells the peer that the rank will not come.
 *
 * One poll() waits for all events, also for the death of any peer.
 */
#include "base/deadline.h"
#include "base/error.h"
#include "base/log.h"
#include "base/point.h"
#include "base/reminder.h"
#include "base/text.h"
#include "ipc/channel_internal.h"
#include "ipc/directory.h"
#include "ipc/process.h"
#include "ipc/random.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const uint32_t MAGIC = 0x74757474;
enum { VERSION = 1 };

/* What a rank tells the others through the store. */
struct announcement {
    uint32_t magic;
    uint32_t version;
    struct rank_set peers;  /* as in the configuration */
    uint64_t pid_namespace; /* process numbers compare within one only; 0 is unknown */
    int64_t pid;
    struct socket_path path; /* empty when it has no peers */
    int32_t status;          /* enum tutti_status: why it cannot take part; then no rank waits */
};
static_assert(sizeof(struct announcement) == 144, "read by all ranks");

/* The first packet on a connection, from both ends. */
struct hello {
    uint32_t magic;
    uint32_t version;
    uint32_t from;
    uint32_t to;
    uint8_t nonce[CHANNEL_NONCE_BYTES];
};
static_assert(sizeof(struct hello) == 32, "read by both ends");

struct opening {
    struct channel *channel;
    const struct channel_config *config;
    int64_t deadline;
    struct socket_path path;
    struct announcement all[TUTTI_MAX_RANKS];
    struct rank_set to_connect; /* lower peers that are not reached yet */
    struct rank_set to_reply;   /* lower peers whose hello has not come yet */
    struct rank_set to_accept;  /* higher peers that have not come yet */
    int64_t ask_at;             /* whether processes have ended */
    unsigned oldest;            /* the pending connection that gives way to the next one */
};

static struct rank_set missing(const struct opening *opening)
{
    return rank_set_union(opening->to_connect,
                          rank_set_union(opening->to_reply, opening->to_accept));
}

/* ---- announcements -------------------------------------------------------------------------- */

static enum tutti_status check_announcement(const struct opening *opening, int r)
{
    const struct announcement *theirs = &opening->all[r];
    int rank = opening->config->rank;
    if (theirs->magic != MAGIC || theirs->version != VERSION)
        return error_set(TUTTI_ERR_VERSION,
                         "rank %d: rank %d speaks version %u of the channel (magic %#x), this one "
                         "version %u: use one version of the library",
                         rank, r, theirs->version, theirs->magic, (unsigned)VERSION);
    if (r != rank && theirs->status != TUTTI_OK)
        return error_set((enum tutti_status)theirs->status,
                         "rank %d: rank %d could not take part (%s): look at its own error", rank,
                         r, tutti_status_text((enum tutti_status)theirs->status));
    bool we_do = rank_set_has(opening->all[rank].peers, r);
    bool they_do = rank_set_has(theirs->peers, rank);
    if (r != rank && we_do != they_do)
        return error_set(TUTTI_ERR_MISMATCH, "rank %d %s to rank %d, which %s to it", rank,
                         we_do ? "connects" : "does not connect", r, they_do ? "does" : "does not");
    return TUTTI_OK;
}

/* Exchanges the announcements. listening: the status of start_listening(). */
static enum tutti_status exchange(struct opening *opening, enum tutti_status listening)
{
    const struct channel_config *config = opening->config;
    const struct rank_set lower = rank_set_all(config->rank);
    const struct rank_set others =
        rank_set_minus(rank_set_all(config->size), rank_set_of(config->rank));
    const struct rank_set peers = rank_set_common(config->peers, others);
    struct announcement mine = {.magic = MAGIC,
                                .version = VERSION,
                                .peers = peers,
                                .pid_namespace = process_namespace("pid"),
                                .pid = getpid(),
                                .path = opening->path,
                                .status = (int32_t)listening};
    int64_t left = deadline_left_ms(opening->deadline);
    enum tutti_status status = tutti_exchanger_all_gather(config->exchanger, &mine, sizeof mine,
                                                          opening->all, left == 0 ? 1 : left);
    if (status != TUTTI_OK)
        return error_context(status, "opening a channel");
    for (int r = 0; r < config->size && status == TUTTI_OK; r++) {
        /* A path from outside: see that it ends. */
        opening->all[r].path.text[sizeof opening->all[r].path.text - 1] = 0;
        status = check_announcement(opening, r);
    }
    opening->to_connect = rank_set_common(peers, lower);
    opening->to_accept = rank_set_minus(peers, lower);
    return status;
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

/* Gets pidfds of the peers, so that the death of a rank that never connects is noticed. If a peer
 * has died and another process has its number already, the deadline ends the wait. */
static enum tutti_status watch_missing(struct opening *opening)
{
    const struct announcement *mine = &opening->all[opening->config->rank];
    for (int r = 0; r < opening->config->size; r++) {
        const struct announcement *theirs = &opening->all[r];
        if (!rank_set_has(missing(opening), r) || theirs->pid == mine->pid || theirs->pid <= 0 ||
            theirs->pid_namespace == 0 || theirs->pid_namespace != mine->pid_namespace)
            continue;
        int *pidfd = &opening->channel->links[r].pidfd;
        *pidfd = (int)syscall(SYS_pidfd_open, (pid_t)theirs->pid, 0);
        if (*pidfd < 0 && errno == ESRCH)
            return peer_gone(opening, r);
    }
    return TUTTI_OK;
}

/* ---- handshake ------------------------------------------------------------------------------ */

static bool send_hello(const struct opening *opening, int socket, int to)
{
    struct hello hello = {.magic = MAGIC,
                          .version = VERSION,
                          .from = (uint32_t)opening->config->rank,
                          .to = (uint32_t)to};
    memcpy(hello.nonce, opening->config->nonce, sizeof hello.nonce);
    return send(socket, &hello, sizeof hello, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof hello;
}

/* Checks a hello from one of the `expected` ranks. Returns NULL and sets *from to the rank, or
 * returns what is wrong. */
static const char *judge_hello(const struct opening *opening, const struct hello *hello,
                               ssize_t bytes, struct rank_set expected, int *from)
{
    if (bytes != sizeof *hello)
        return "no hello of this library";
    if (hello->magic != MAGIC || hello->version != VERSION)
        return "another protocol or version";
    if (!secret_equal(hello->nonce, opening->config->nonce, sizeof hello->nonce))
        return "a wrong nonce";
    if (hello->to != (uint32_t)opening->config->rank || hello->from >= TUTTI_MAX_RANKS ||
        !rank_set_has(expected, (int)hello->from))
        return "a rank that is not expected";
    *from = (int)hello->from;
    return NULL;
}

/* Compares the process at the other end with the one that the rank announced. Returns NULL, or what
 * is wrong. */
static const char *judge_process(const struct opening *opening, int socket, int peer,
                                 struct ucred *credentials)
{
    const struct announcement *theirs = &opening->all[peer];
    const struct announcement *mine = &opening->all[opening->config->rank];
    socklen_t length = sizeof *credentials;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, credentials, &length) != 0)
        return "no credentials";
    if (credentials->uid != geteuid())
        return "another user (start all ranks as one user)";
    if (theirs->pid_namespace != 0 && theirs->pid_namespace == mine->pid_namespace &&
        credentials->pid != theirs->pid)
        return "another process than the one announced";
    return NULL;
}

/* The link has passed: it gets the pidfd of the process that made the connection. */
static void adopt(struct opening *opening, int peer, int socket, const struct ucred *credentials)
{
    struct channel_link *link = &opening->channel->links[peer];
    int pidfd = channel_peer_pidfd(socket, credentials);
    if (pidfd >= 0) {
        channel_drop(&link->pidfd);
        link->pidfd = pidfd;
    }
    link->socket = socket;
    rank_set_add(&opening->channel->connected, peer);
}

/* ---- events --------------------------------------------------------------------------------- */

static enum tutti_status on_pending(struct opening *opening, int slot)
{
    struct channel *channel = opening->channel;
    int socket = channel->pending[slot];
    struct hello hello;
    /* No room for descriptors: if any come along, the kernel closes them. */
    ssize_t bytes = recv(socket, &hello, sizeof hello, MSG_DONTWAIT | MSG_TRUNC);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR))
        return TUTTI_OK;
    int from = -1;
    struct ucred credentials;
    const char *wrong = judge_hello(opening, &hello, bytes, opening->to_accept, &from);
    if (!wrong)
        wrong = judge_process(opening, socket, from, &credentials);
    if (!wrong && !send_hello(opening, socket, from))
        return peer_gone(opening, from); /* it has come, and gone again */
    if (wrong) {
        /* A connection that closes without a byte is a sweep's check whether this rank listens. */
        if (bytes > 0)
            log_write(TUTTI_LOG_WARN, opening->config->rank, "dropped a connection with %s", wrong);
        channel_drop(&channel->pending[slot]);
        return TUTTI_OK;
    }
    channel->pending[slot] = -1;
    adopt(opening, from, socket, &credentials);
    rank_set_remove(&opening->to_accept, from);
    return TUTTI_OK;
}

/* A hello is usually there when the connection is accepted. So only strangers wait in the slots,
 * and a new connection may take the slot of the oldest one. */
static enum tutti_status on_listener(struct opening *opening, int unused)
{
    (void)unused;
    struct channel *channel = opening->channel;
    for (;;) {
        int socket = accept4(channel->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (socket < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (socket < 0)
            return errno == EAGAIN ? TUTTI_OK : error_errno("cannot accept a connection");
        int slot = opening->oldest++ % CHANNEL_PENDING;
        channel_drop(&channel->pending[slot]);
        channel->pending[slot] = socket;
        enum tutti_status status = on_pending(opening, slot);
        if (status != TUTTI_OK)
            return status;
    }
}

static enum tutti_status on_reply(struct opening *opening, int peer)
{
    int socket = opening->channel->links[peer].socket;
    struct hello hello;
    ssize_t bytes = recv(socket, &hello, sizeof hello, MSG_DONTWAIT | MSG_TRUNC);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR))
        return TUTTI_OK;
    if (bytes <= 0)
        return peer_gone(opening, peer);
    int from = -1;
    struct ucred credentials;
    const char *wrong = judge_hello(opening, &hello, bytes, rank_set_of(peer), &from);
    if (!wrong)
        wrong = judge_process(opening, socket, peer, &credentials);
    if (wrong)
        return error_set(TUTTI_ERR_MISMATCH, "rank %d: the socket of rank %d (%s) answers with %s",
                         opening->config->rank, peer, opening->all[peer].path.text, wrong);
    adopt(opening, peer, socket, &credentials);
    rank_set_remove(&opening->to_reply, peer);
    return TUTTI_OK;
}

/* The death of a connected peer counts, too: the ranks that are still to come may know of it, and
 * not come. */
static enum tutti_status on_death(struct opening *opening, int peer)
{
    return peer_gone(opening, peer);
}

/* ---- connecting ----------------------------------------------------------------------------- */

/* The peer listens no more: it has ended or given up, perhaps because this rank is late. */
static enum tutti_status nobody_listens(const struct opening *opening, int peer)
{
    return deadline_passed(opening->deadline)
               ? error_set(TUTTI_ERR_TIMEOUT,
                           "rank %d came to rank %d after the time-out, and finds it gone: look at "
                           "what kept it, or raise TUTTI_TIMEOUT_MS",
                           opening->config->rank, peer)
               : peer_gone(opening, peer);
}

static enum tutti_status connect_by_path(const struct opening *opening, int peer, int *socket)
{
    const struct socket_path *theirs = &opening->all[peer].path;
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
    /* If the directory is this rank's, too, the peer has removed the socket as it gave up. */
    const char *end = strrchr(opening->path.text, '/');
    const size_t bytes = end ? (size_t)(end - opening->path.text) + 1 : 0;
    return error_set(strncmp(theirs->text, opening->path.text, bytes) == 0 ? TUTTI_ERR_PEER_DEAD
                                                                           : TUTTI_ERR_SYSTEM,
                     "rank %d does not find the socket %s of rank %d: look at rank %d's own "
                     "error, or, if it has none, give all ranks one directory (TUTTI_DIR)",
                     opening->config->rank, theirs->text, peer, peer);
}

static enum tutti_status connect_lower(struct opening *opening)
{
    const struct rank_set peers = opening->to_connect;
    for (int r = rank_set_next(peers, -1); r >= 0; r = rank_set_next(peers, r)) {
        int socket;
        enum tutti_status status = connect_by_path(opening, r, &socket);
        if (status != TUTTI_OK) {
            /* The peer may have given up because of another rank, which has told this one, too. */
            enum tutti_status told = on_listener(opening, 0);
            return told != TUTTI_OK ? told : status;
        }
        if (socket < 0)
            continue; /* the listener's queue is full for the moment */
        opening->channel->links[r].socket = socket;
        struct ucred credentials;
        const char *wrong = judge_process(opening, socket, r, &credentials);
        if (wrong)
            return error_set(TUTTI_ERR_MISMATCH, "rank %d: at the socket of rank %d listens %s",
                             opening->config->rank, r, wrong);
        if (!send_hello(opening, socket, r))
            return peer_gone(opening, r);
        rank_set_remove(&opening->to_connect, r);
        rank_set_add(&opening->to_reply, r);
    }
    return TUTTI_OK;
}

/* After a failure: tells the lower peers that this rank has not reached, which would wait for it.
 * They find its hello, and no reader of theirs, even before the socket is closed. Best effort. */
static void take_leave(const struct opening *opening)
{
    const struct rank_set peers = opening->to_connect;
    for (int r = rank_set_next(peers, -1); r >= 0; r = rank_set_next(peers, r)) {
        struct ucred credentials;
        int socket = -1;
        if (directory_connect(&opening->all[r].path, &socket) != TUTTI_OK || socket < 0)
            continue;
        if (!judge_process(opening, socket, r, &credentials) && shutdown(socket, SHUT_RD) == 0)
            (void)send_hello(opening, socket, r);
        close(socket);
    }
}

typedef enum tutti_status event_fn(struct opening *opening, int index);

/* Everything that one poll() waits for: no more entries than there are descriptors, because poll()
 * refuses more than RLIMIT_NOFILE. */
struct events {
    int count;
    struct pollfd polls[1 + CHANNEL_PENDING + 2 * TUTTI_MAX_RANKS];
    struct {
        event_fn *fn;
        int index;
    } handlers[1 + CHANNEL_PENDING + 2 * TUTTI_MAX_RANKS];
};

static void await(struct events *events, int fd, event_fn *fn, int index)
{
    if (fd < 0)
        return;
    events->polls[events->count] = (struct pollfd){.fd = fd, .events = POLLIN};
    events->handlers[events->count].fn = fn;
    events->handlers[events->count].index = index;
    events->count++;
}

/* Waits for the next events and serves them: first those that may complete a peer, its death
 * last. */
static enum tutti_status serve(struct opening *opening)
{
    struct channel *channel = opening->channel;
    struct events events = {.count = 0};
    for (int i = 0; i < CHANNEL_PENDING; i++)
        await(&events, channel->pending[i], on_pending, i);
    await(&events, channel->listener, on_listener, 0);
    for (int r = 0; r < opening->config->size; r++)
        if (rank_set_has(opening->to_reply, r))
            await(&events, channel->links[r].socket, on_reply, r);
    for (int r = 0; r < opening->config->size; r++)
        await(&events, channel->links[r].pidfd, on_death, r);

    int64_t left = interrupt_slice(channel->interrupt, deadline_left_ms(opening->deadline));
    if (left < 0 || left > 1000)
        left = 1000; /* a long wait is to be logged */
    if (!rank_set_empty(opening->to_connect) && left > 1)
        left = 1;
    if (poll(events.polls, (nfds_t)events.count, (int)left) < 0)
        return errno == EINTR ? TUTTI_OK : error_errno("cannot wait for the other ranks");
    enum tutti_status status = TUTTI_OK;
    for (int i = 0; i < events.count && status == TUTTI_OK; i++)
        if (events.polls[i].revents)
            status = events.handlers[i].fn(opening, events.handlers[i].index);
    return status;
}

/* Finds the ends of processes for which there is no pidfd. */
static enum tutti_status ask_ends(struct opening *opening)
{
    const struct interrupt *interrupt = opening->channel->interrupt;
    if (!interrupt || deadline_now() < opening->ask_at)
        return TUTTI_OK;
    opening->ask_at = deadline_after(INTERRUPT_MS);
    return interrupt_ask_pointless(interrupt);
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
    enum tutti_status status = watch_missing(opening);
    struct reminder reminder = reminder_start(deadline_now());
    while (status == TUTTI_OK && !rank_set_empty(missing(opening))) {
        status = connect_lower(opening);
        if (status == TUTTI_OK && deadline_passed(opening->deadline)) {
            char ranks[256];
            return error_set(TUTTI_ERR_TIMEOUT,
                             "rank %d: %s did not connect within %" PRIi64
                             " ms: look at what it does, or raise TUTTI_TIMEOUT_MS",
                             opening->config->rank,
                             text_ranks(missing(opening), ranks, sizeof ranks),
                             opening->config->timeout_ms);
        }
        if (status == TUTTI_OK)
            status = interrupt_ask(opening->channel->interrupt);
        waiting_log(opening, &reminder);
        if (status == TUTTI_OK)
            status = serve(opening);
        /* After serve(): what has arrived counts before what will not come. */
        if (status == TUTTI_OK && !rank_set_empty(missing(opening)))
            status = ask_ends(opening);
    }
    return status;
}

static enum tutti_status check_config(const struct channel_config *config)
{
    if (config->size < 1 || config->size > TUTTI_MAX_RANKS || config->rank < 0 ||
        config->rank >= config->size)
        return error_set(TUTTI_ERR_INVALID,
                         "rank %d of %d: a channel has 1 to %d ranks, counted from 0", config->rank,
                         config->size, TUTTI_MAX_RANKS);
    return TUTTI_OK;
}

/* Makes the channel, which listens if this rank has peers. */
static enum tutti_status start_listening(struct opening *opening)
{
    char directory[256];
    const struct channel_config *config = opening->config;
    const char *path = config->directory;
    enum tutti_status status = channel_create(config->rank, config->size, &opening->channel);
    if (status != TUTTI_OK)
        return status;
    opening->channel->interrupt = config->interrupt;
    if (rank_set_empty(rank_set_minus(config->peers, rank_set_of(config->rank))))
        return TUTTI_OK;
    status = path ? directory_open(path) : channel_directory(directory, sizeof directory);
    if (status != TUTTI_OK)
        return status;
    return directory_listen(path ? path : directory, &opening->path, &opening->channel->listener);
}

enum tutti_status channel_open(const struct channel_config *config, struct channel **channel)
{
    struct opening opening = {.config = config, .deadline = deadline_after(config->timeout_ms)};
    *channel = NULL;
    enum tutti_status listening = config->local_status;
    char reason[512];
    snprintf(reason, sizeof reason, "%.*s", (int)sizeof reason - 1, tutti_last_error());
    enum tutti_status status = check_config(config);
    if (status != TUTTI_OK)
        return status;
    if (listening == TUTTI_OK) {
        listening = start_listening(&opening);
        snprintf(reason, sizeof reason, "%.*s", (int)sizeof reason - 1, tutti_last_error());
    }
    status = exchange(&opening, listening);
    if (listening != TUTTI_OK)
        status = error_set(listening, "%s", reason);
    POINT("channel.announced");
    if (status == TUTTI_OK)
        status = connect_all(&opening);
    if (opening.path.text[0])
        unlink(opening.path.text);
    if (status != TUTTI_OK)
        goto err_close;
    channel_drop(&opening.channel->listener);
    for (int i = 0; i < CHANNEL_PENDING; i++)
        channel_drop(&opening.channel->pending[i]);
    *channel = opening.channel;
    return TUTTI_OK;

err_close:
    interrupt_tell(config->interrupt, status); /* a peer that finds the channel closed reads it */
    snprintf(reason, sizeof reason, "%.*s", (int)sizeof reason - 1, tutti_last_error());
    channel_close(opening.channel); /* first: there may be no descriptor left */
    take_leave(&opening);
    return error_set(status, "%s", reason);
}
