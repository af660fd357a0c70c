/* SPDX-License-Identifier: MIT */
/*
 * The server's thread: listens, moves bytes between sockets and sessions, and never waits for one
 * client. It does not read from a client that does not read its replies, so that the memory for a
 * client is bounded.
 *
 * A connection that has not introduced itself is a stranger. Strangers must not use up the
 * descriptors of this process: each is closed after ten seconds, the oldest one sooner if there are
 * too many or if no descriptor is left.
 */
#include "store/tcp.h"

#include "base/error.h"
#include "base/fd.h"
#include "base/fork_mutex.h"
#include "base/log.h"
#include "base/thread.h"
#include "store/kind.h"
#include "store/tcp_session.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    MAX_CONNECTIONS = 4096,
    MAX_STRANGERS = 128,     /* a client begins as one */
    MAX_ACCEPTS = 64,        /* at once, before others are served */
    INTRODUCTION_MS = 10000, /* for VALIDATE and the proof of the secret */
    ACCEPT_PAUSE_MS = 100,   /* after descriptors ran out */
};

struct connection {
    int fd;
    bool blocked; /* it does not take its output: epoll watches for that, and nothing is read */
    struct tcp_session session;
    int64_t introduced_by_ns;
};

struct tcp_server {
    pthread_t thread;
    int epoll;
    int stop; /* an eventfd */
    int listener;
    struct sockaddr_storage address;
    struct tcp_space space;
    struct connection *connections[MAX_CONNECTIONS]; /* oldest first */
    int count;
    int64_t accept_again_ns; /* DEADLINE_NEVER while accepting */
    int64_t end_ns;          /* DEADLINE_NEVER until asked to stop */
    int64_t linger_ms;       /* written before the stop event */
    char *secret;
    struct tcp_server *next;
};

static void forget_servers(void);

/* The servers of this process. The lock guards the list, and the opening and closing of sockets. */
static struct tcp_server *servers;
static struct fork_mutex lock = FORK_MUTEX(forget_servers);

/* A child of fork() has copies of the sockets and closes them here. Otherwise clients would not see
 * the end of a killed server. */
static void forget_servers(void)
{
    for (struct tcp_server *server = servers; server; server = server->next) {
        for (int i = 0; i < server->count; i++)
            close(server->connections[i]->fd);
        fd_drop(&server->listener);
        fd_drop(&server->stop);
        fd_drop(&server->epoll);
    }
    servers = NULL;
}

/* Lets epoll watch a descriptor. `source` comes with its events. */
static bool watch(const struct tcp_server *server, int how, int fd, uint32_t events, void *source)
{
    struct epoll_event event = {.events = events, .data.ptr = source};
    return epoll_ctl(server->epoll, how, fd, &event) == 0;
}

/* ---- connections ----------------------------------------------------------------------------- */

static void connection_destroy(struct tcp_server *server, int i)
{
    struct connection *connection = server->connections[i];
    fork_mutex_lock(&lock);
    server->count--;
    memmove(&server->connections[i], &server->connections[i + 1],
            (size_t)(server->count - i) * sizeof connection);
    tcp_session_fini(&connection->session);
    watch(server, EPOLL_CTL_DEL, connection->fd, 0, NULL); /* a forked child may hold it, too */
    tcp_hang_up(connection->fd);
    fork_mutex_unlock(&lock);
    free(connection);
}

static bool connection_create(struct tcp_server *server, int fd)
{
    int on = 1;
    struct connection *connection = calloc(1, sizeof *connection);
    if (!connection || !watch(server, EPOLL_CTL_ADD, fd, EPOLLIN, connection)) {
        free(connection);
        return false;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    connection->fd = fd;
    connection->introduced_by_ns = deadline_after(INTRODUCTION_MS);
    tcp_session_init(&connection->session, &server->space);
    fork_mutex_lock(&lock);
    server->connections[server->count++] = connection;
    fork_mutex_unlock(&lock);
    return true;
}

static bool is_stranger(const struct connection *connection)
{
    return connection->session.state != SESSION_OPEN;
}

static int strangers(const struct tcp_server *server)
{
    int count = 0;
    for (int i = 0; i < server->count; i++)
        count += is_stranger(server->connections[i]);
    return count;
}

/* -1: none. */
static int oldest_stranger(const struct tcp_server *server)
{
    int i = 0;
    while (i < server->count && !is_stranger(server->connections[i]))
        i++;
    return i < server->count ? i : -1;
}

/* Sends what the socket takes. False if the connection is over. */
static bool flush(struct tcp_server *server, struct connection *connection)
{
    struct tcp_session *session = &connection->session;
    while (session->out.size > 0) {
        ssize_t bytes =
            send(connection->fd, session->out.data, session->out.size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (bytes > 0)
            tcp_session_sent(session, (size_t)bytes);
        else if (bytes < 0 && errno != EINTR)
            break;
    }
    const bool blocked = session->out.size > 0;
    if (blocked && errno != EAGAIN && errno != EWOULDBLOCK)
        return false;
    if (blocked != connection->blocked)
        watch(server, EPOLL_CTL_MOD, connection->fd, blocked ? EPOLLOUT : EPOLLIN, connection);
    connection->blocked = blocked;
    return blocked || session->state != SESSION_CLOSING;
}

static bool receive(struct connection *connection)
{
    size_t size;
    uint8_t *room = tcp_session_room(&connection->session, &size);
    if (!room)
        return false;
    ssize_t bytes = recv(connection->fd, room, size, MSG_DONTWAIT);
    if (bytes < 0) /* the client may live */
        return errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK;
    if (bytes == 0)
        tcp_session_bequeath(&connection->session);
    return bytes > 0 && tcp_session_feed(&connection->session, (size_t)bytes);
}

/* Sends the replies to a request, and to the waits of other clients that the request ended. */
static void serve_connection(struct tcp_server *server, int i, uint32_t events)
{
    struct connection *connection = server->connections[i];
    const bool alive =
        connection->blocked ? flush(server, connection) : events & EPOLLIN && receive(connection);
    if (!alive)
        connection_destroy(server, i);
    for (int k = server->count - 1; k >= 0; k--) {
        connection = server->connections[k];
        if (connection->session.out.size > 0 && !connection->blocked && !flush(server, connection))
            connection_destroy(server, k);
    }
}

/* ---- listening ------------------------------------------------------------------------------- */

/* Closes the oldest stranger, unless it has introduced itself by now. False if there is none. */
static bool stranger_shed(struct tcp_server *server)
{
    const int i = oldest_stranger(server);
    if (i < 0)
        return false;
    const struct connection *oldest = server->connections[i];
    serve_connection(server, i, EPOLLIN);
    if (oldest_stranger(server) == i && server->connections[i] == oldest)
        connection_destroy(server, i);
    return true;
}

/* Takes the accepted socket. */
static void admit(struct tcp_server *server, int fd)
{
    if (server->count >= MAX_CONNECTIONS)
        stranger_shed(server);
    if (server->count < MAX_CONNECTIONS && connection_create(server, fd))
        return;
    log_write(TUTTI_LOG_WARN, -1, "store server: a connection was refused (%d are open)",
              server->count);
    close(fd);
}

static void accept_some(struct tcp_server *server)
{
    for (int accepted = 0; accepted < MAX_ACCEPTS; accepted++) {
        int fd = fd_lift(accept4(server->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (fd >= 0) {
            admit(server, fd);
            if (strangers(server) > MAX_STRANGERS)
                stranger_shed(server);
            continue;
        }
        if (errno == EINTR || errno == ECONNABORTED)
            continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return;
        const int code = errno;
        if ((code == EMFILE || code == ENFILE) && stranger_shed(server))
            continue;
        log_write(TUTTI_LOG_WARN, -1, "store server: accept: %s", strerrordesc_np(code));
        watch(server, EPOLL_CTL_MOD, server->listener, 0, &server->listener);
        server->accept_again_ns = deadline_after(ACCEPT_PAUSE_MS);
        return;
    }
}

/* ---- the loop -------------------------------------------------------------------------------- */

static int64_t next_deadline(const struct tcp_server *server)
{
    const int64_t deadline = deadline_min(server->accept_again_ns, server->end_ns);
    const int oldest = oldest_stranger(server);
    return oldest < 0 ? deadline
                      : deadline_min(deadline, server->connections[oldest]->introduced_by_ns);
}

/* Clients that have left a will learn that the server is closed, not killed. */
static void say_goodbye(struct tcp_server *server)
{
    for (int i = server->count - 1; i >= 0; i--) {
        struct connection *connection = server->connections[i];
        if (!connection->session.wills)
            continue;
        buffer_put_u8(&connection->session.out, TCP_READY);
        if (!connection->blocked && !flush(server, connection))
            connection_destroy(server, i);
    }
}

static void serve_event(struct tcp_server *server, const struct epoll_event *event)
{
    uint64_t count;
    int i = 0;
    if (event->data.ptr == &server->listener) {
        accept_some(server);
    } else if (event->data.ptr != &server->stop) {
        while (server->connections[i] != event->data.ptr)
            i++;
        serve_connection(server, i, event->events);
    } else if (read(server->stop, &count, sizeof count) > 0) {
        watch(server, EPOLL_CTL_DEL, server->listener, 0, NULL);
        fork_mutex_lock(&lock);
        tcp_hang_up(server->listener);
        server->listener = -1;
        fork_mutex_unlock(&lock);
        server->end_ns = deadline_after(server->linger_ms);
        say_goodbye(server);
    }
}

static void expire(struct tcp_server *server)
{
    int i;
    while ((i = oldest_stranger(server)) >= 0 &&
           deadline_passed(server->connections[i]->introduced_by_ns))
        connection_destroy(server, i);
    if (deadline_passed(server->accept_again_ns)) {
        watch(server, EPOLL_CTL_MOD, server->listener, EPOLLIN, &server->listener);
        server->accept_again_ns = DEADLINE_NEVER;
    }
}

static void *server_main(void *argument)
{
    struct tcp_server *server = argument;
    while (!deadline_passed(server->end_ns) &&
           (server->end_ns == DEADLINE_NEVER || server->count > 0)) {
        struct epoll_event event; /* one at a time: serving it may close any other connection */
        const int timeout_ms = deadline_poll_ms(next_deadline(server));
        const int ready = epoll_wait(server->epoll, &event, 1, timeout_ms);
        if (ready < 0 && errno != EINTR)
            break;
        if (ready > 0)
            serve_event(server, &event);
        expire(server);
    }
    return NULL;
}

/* ---- starting and stopping ------------------------------------------------------------------- */

/* Returns a socket that listens at the address, or -1. */
static int listen_at(const struct addrinfo *address)
{
    int on = 1, off = 0;
    int fd = fd_lift(socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->ai_family == AF_INET6) /* bind=:: serves both families */
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0)
        return fd;
    fd_drop(&fd);
    return fd;
}

static enum tutti_status open_unix_listener(struct tcp_server *server, const char *name)
{
    server->address = tcp_unix_address(name);
    const struct addrinfo address = {.ai_family = AF_UNIX,
                                     .ai_addr = (struct sockaddr *)&server->address,
                                     .ai_addrlen = tcp_address_bytes(&server->address)};
    server->listener = listen_at(&address);
    return server->listener >= 0 ? TUTTI_OK : error_errno("listening on the Unix socket @%s", name);
}

/* Listens at the first of the host's addresses that this machine has. */
static enum tutti_status open_listener(struct tcp_server *server,
                                       const struct tcp_server_config *config)
{
    const char *host = config->bind && *config->bind ? config->bind : "localhost";
    const char *node = store_url_node(host) ? host : "127.0.0.1";
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    socklen_t size = sizeof server->address;
    char port[8];
    snprintf(port, sizeof port, "%u", config->port);
    int code = getaddrinfo(node, port, &hints, &found);
    if (code != 0)
        return error_set(TUTTI_ERR_INVALID, "bind=%s: %s", host, gai_strerror(code));
    errno = EADDRNOTAVAIL;
    for (struct addrinfo *one = found;
         one && server->listener < 0 && (errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT);
         one = one->ai_next)
        server->listener = listen_at(one);
    code = errno;
    freeaddrinfo(found);
    errno = code;
    if (server->listener >= 0 &&
        getsockname(server->listener, (struct sockaddr *)&server->address, &size) == 0)
        return TUTTI_OK;
    return error_errno(
        "listening on %s, port %u%s", host, config->port,
        errno == EADDRINUSE ? " (another store or program uses it: take another port)" : "");
}

static bool watch_sources(struct tcp_server *server)
{
    server->stop = fd_lift(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    server->epoll = fd_lift(epoll_create1(EPOLL_CLOEXEC));
    return server->stop >= 0 && server->epoll >= 0 &&
           watch(server, EPOLL_CTL_ADD, server->stop, EPOLLIN, &server->stop) &&
           watch(server, EPOLL_CTL_ADD, server->listener, EPOLLIN, &server->listener);
}

static void server_free(struct tcp_server *server)
{
    while (server->count > 0)
        connection_destroy(server, server->count - 1);
    fork_mutex_lock(&lock);
    for (struct tcp_server **link = &servers; *link; link = &(*link)->next)
        if (*link == server) {
            *link = server->next;
            break;
        }
    tcp_space_fini(&server->space);
    if (server->listener >= 0)
        tcp_hang_up(server->listener);
    fd_drop(&server->stop);
    fd_drop(&server->epoll);
    fork_mutex_unlock(&lock);
    tcp_secret_free(server->secret);
    free(server);
}

enum tutti_status tcp_server_start(const struct tcp_server_config *config,
                                   struct tcp_server **server)
{
    struct tcp_server *self = calloc(1, sizeof *self);
    if (!self)
        return error_errno("starting a store server");
    self->epoll = self->stop = self->listener = -1;
    self->accept_again_ns = self->end_ns = DEADLINE_NEVER;
    enum tutti_status status = TUTTI_OK;
    if (!tcp_secret_copy(config->secret, &self->secret))
        status = error_errno("starting a store server");
    self->space.secret = self->secret;
    if (status == TUTTI_OK)
        status = config->unix_name ? open_unix_listener(self, config->unix_name)
                                   : open_listener(self, config);
    if (status == TUTTI_OK && config->waits &&
        !map_put(&self->space.values, TCP_OPEN_KEY, strlen(TCP_OPEN_KEY), false, TCP_OPEN_WAITING,
                 strlen(TCP_OPEN_WAITING)))
        status = error_errno("starting a store server");
    if (status == TUTTI_OK && !watch_sources(self))
        status = error_errno("starting a store server");
    if (status == TUTTI_OK && !thread_start(&self->thread, server_main, self))
        status = error_errno("starting a store server's thread");
    if (status != TUTTI_OK) {
        server_free(self);
        return status;
    }
    pthread_setname_np(self->thread, "tutti-store");
    fork_mutex_lock(&lock);
    self->next = servers;
    servers = self;
    fork_mutex_unlock(&lock);
    *server = self;
    return TUTTI_OK;
}

const struct sockaddr_storage *tcp_server_address(const struct tcp_server *server)
{
    return server ? &server->address : NULL;
}

void tcp_server_stop(struct tcp_server *server, int64_t linger_ms)
{
    uint64_t one = 1;
    if (!server)
        return;
    server->linger_ms = linger_ms;
    ssize_t written = write(server->stop, &one, sizeof one);
    (void)written; /* cannot fail: the counter is 0 and there is room */
    pthread_join(server->thread, NULL);
    server_free(server);
}
