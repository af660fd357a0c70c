/* SPDX-License-Identifier: MIT */
/*
 * The server's thread: listens, moves bytes between sockets and sessions, and never waits for one
 * client. A client that does not read is not read from either, so that what it can make us keep is
 * bounded.
 *
 * A connection that has not introduced itself is a stranger. Whoever can reach the port must not
 * use up this process's descriptors: a stranger is closed after ten seconds. It is closed sooner,
 * the oldest first, if there are too many strangers, or if they hold descriptors that a meeting of
 * this process may need.
 */
#include "store/tcp.h"

#include "base/error.h"
#include "base/log.h"
#include "store/kind.h"
#include "store/tcp_session.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    MAX_LISTENERS = 4,
    MAX_CONNECTIONS = 4096,
    MAX_STRANGERS = 256,
    MIN_STRANGERS = 32, /* stay however few descriptors are left: a client is one at first */
    /* Descriptors that strangers leave free. A meeting of 64 ranks takes 330 in one of them: an
     * arena, a socket and a pidfd a rank, 64 connections to the channel that have not said hello,
     * and a connection of each to the store. */
    RESERVED = 384,
    MAX_ACCEPTS = 64,        /* at once, before others are served */
    INTRODUCTION_MS = 10000, /* for VALIDATE and the proof of the secret */
    ACCEPT_PAUSE_MS = 100,   /* after descriptors ran out */
};

/* What epoll's data points to. */
struct source {
    enum { SOURCE_STOP, SOURCE_LISTENER, SOURCE_CONNECTION } kind;
    int fd;
};

struct connection {
    struct source source;
    uint32_t events; /* that epoll watches */
    struct tcp_session session;
    struct list *list;
    struct connection *next, *previous;
    int64_t introduced_by_ns;
};

struct list {
    struct connection *first, *last; /* newest last */
    int count;
};

struct tcp_server {
    pthread_t thread;
    int epoll;
    struct source stop;
    struct source listeners[MAX_LISTENERS];
    int listener_count;
    struct sockaddr_storage address;
    struct tcp_space space;
    struct list strangers; /* that have not introduced themselves */
    struct list clients;
    int connection_count;
    int64_t accept_again_ns; /* DEADLINE_NEVER while accepting */
    int64_t end_ns;          /* DEADLINE_NEVER until asked to stop */
    int64_t linger_ms;       /* written before the stop event */
    char *secret;
};

/* ---- connections ------------------------------------------------------------------------------
 */

static void list_remove(struct connection *connection)
{
    struct list *list = connection->list;
    *(connection->previous ? &connection->previous->next : &list->first) = connection->next;
    *(connection->next ? &connection->next->previous : &list->last) = connection->previous;
    list->count--;
}

static void list_add(struct list *list, struct connection *connection)
{
    connection->list = list;
    connection->next = NULL;
    connection->previous = list->last;
    *(list->last ? &list->last->next : &list->first) = connection;
    list->last = connection;
    list->count++;
}

/* A forked child may hold the same socket: then close() alone ends neither its events nor the
 * connection. */
static void close_watched(struct tcp_server *server, int fd)
{
    epoll_ctl(server->epoll, EPOLL_CTL_DEL, fd, NULL);
    shutdown(fd, SHUT_RDWR);
    close(fd);
}

static void connection_destroy(struct tcp_server *server, struct connection *connection)
{
    list_remove(connection);
    server->connection_count--;
    tcp_session_fini(&connection->session);
    close_watched(server, connection->source.fd);
    free(connection);
}

static bool watch(struct tcp_server *server, struct connection *connection, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = &connection->source};
    if (connection->events == events)
        return true;
    int how = connection->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    connection->events = events;
    return epoll_ctl(server->epoll, how, connection->source.fd, &event) == 0;
}

static bool connection_create(struct tcp_server *server, int fd)
{
    int on = 1;
    struct connection *connection = calloc(1, sizeof *connection);
    if (!connection)
        return false;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    connection->source = (struct source){SOURCE_CONNECTION, fd};
    connection->introduced_by_ns = deadline_after(INTRODUCTION_MS);
    tcp_session_init(&connection->session, &server->space);
    if (!watch(server, connection, EPOLLIN)) {
        free(connection);
        return false;
    }
    list_add(&server->strangers, connection);
    server->connection_count++;
    return true;
}

/* Sends what the socket takes. False if the connection is over. */
static bool flush(struct tcp_server *server, struct connection *connection)
{
    struct tcp_session *session = &connection->session;
    size_t sent = 0;
    while (sent < session->out.size) {
        ssize_t bytes = send(connection->source.fd, session->out.data + sent,
                             session->out.size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (bytes < 0 && errno == EINTR)
            continue;
        if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (bytes < 0)
            return false;
        sent += (size_t)bytes;
    }
    tcp_session_sent(session, sent);
    if (session->out.size > 0)
        return watch(server, connection, EPOLLOUT);
    return session->state != SESSION_CLOSING && watch(server, connection, EPOLLIN);
}

static bool receive(struct connection *connection)
{
    size_t size;
    uint8_t *room = tcp_session_room(&connection->session, &size);
    if (!room)
        return false;
    ssize_t bytes = recv(connection->source.fd, room, size, MSG_DONTWAIT);
    if (bytes < 0)
        return errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK;
    return bytes > 0 && tcp_session_feed(&connection->session, (size_t)bytes);
}

static struct connection *connection_of(struct tcp_session *session)
{
    return (struct connection *)(void *)((char *)session - offsetof(struct connection, session));
}

/* A request may have answered other clients too. */
static void flush_ready(struct tcp_server *server)
{
    struct tcp_session *session;
    while ((session = tcp_space_next_ready(&server->space)))
        if (!flush(server, connection_of(session)))
            connection_destroy(server, connection_of(session));
}

static void serve_connection(struct tcp_server *server, struct connection *connection,
                             uint32_t events)
{
    bool alive = true;
    if (events & EPOLLOUT)
        alive = flush(server, connection);
    else if (events & EPOLLIN)
        alive = receive(connection);
    else
        alive = false;
    if (!alive) {
        connection_destroy(server, connection);
    } else if (connection->list == &server->strangers &&
               connection->session.state == SESSION_OPEN) {
        list_remove(connection);
        list_add(&server->clients, connection);
    }
    flush_ready(server);
}

/* ---- listening --------------------------------------------------------------------------------
 */

static void listen_again(struct tcp_server *server, bool on)
{
    for (int i = 0; i < server->listener_count; i++) {
        struct epoll_event event = {.events = on ? EPOLLIN : 0, .data.ptr = &server->listeners[i]};
        epoll_ctl(server->epoll, EPOLL_CTL_MOD, server->listeners[i].fd, &event);
    }
    server->accept_again_ns = on ? DEADLINE_NEVER : deadline_after(ACCEPT_PAUSE_MS);
}

static void close_listeners(struct tcp_server *server)
{
    for (int i = 0; i < server->listener_count; i++)
        close_watched(server, server->listeners[i].fd);
    server->listener_count = 0;
}

/* At least how many descriptors this process may still open, at most `most`. They are looked for
 * from the limit downwards, as the kernel hands out the lowest first. */
static int descriptors_free(int most)
{
    enum { LOOKS = 8192 }; /* bounds the time: so many system calls take a millisecond */
    struct rlimit limit;
    int count = 0;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return most;
    int fd = limit.rlim_cur < INT_MAX ? (int)limit.rlim_cur : INT_MAX;
    for (int looks = 0; --fd >= 0 && looks < LOOKS && count < most; looks++)
        count += fcntl(fd, F_GETFD) < 0;
    return count;
}

static int strangers_most(const struct tcp_server *server)
{
    int count = descriptors_free(RESERVED + MAX_STRANGERS) + server->strangers.count - RESERVED;
    count = count < MAX_STRANGERS ? count : MAX_STRANGERS;
    return count > MIN_STRANGERS ? count : MIN_STRANGERS;
}

/* Closes the oldest stranger, unless what it has sent by now makes a client of it. */
static void stranger_shed(struct tcp_server *server)
{
    struct connection *oldest = server->strangers.first;
    serve_connection(server, oldest, EPOLLIN);
    if (server->strangers.first == oldest)
        connection_destroy(server, oldest);
}

/* Takes the accepted socket. */
static void admit(struct tcp_server *server, int fd)
{
    if (server->connection_count >= MAX_CONNECTIONS && server->strangers.first)
        stranger_shed(server);
    if (server->connection_count < MAX_CONNECTIONS && connection_create(server, fd))
        return;
    log_write(TUTTI_LOG_WARN, -1, "store server: a connection was turned away (%d)",
              server->connection_count);
    close(fd);
}

static void accept_some(struct tcp_server *server, int listener)
{
    int most = -1; /* strangers; not counted yet */
    for (int accepted = 0; accepted < MAX_ACCEPTS; accepted++) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            admit(server, fd);
            if (most < 0 && server->strangers.count > MIN_STRANGERS)
                most = strangers_most(server);
            while (most >= 0 && server->strangers.count > most)
                stranger_shed(server);
            continue;
        }
        if (errno == EINTR || errno == ECONNABORTED)
            continue;
        if ((errno == EMFILE || errno == ENFILE) && server->strangers.first) {
            stranger_shed(server);
            continue;
        }
        if (errno != EAGAIN && errno != EWOULDBLOCK) {
            log_write(TUTTI_LOG_WARN, -1, "store server: accept: %s", strerrordesc_np(errno));
            listen_again(server, false);
        }
        return;
    }
}

/* ---- the loop ---------------------------------------------------------------------------------
 */

static int64_t next_deadline(const struct tcp_server *server)
{
    int64_t deadline = deadline_min(server->accept_again_ns, server->end_ns);
    struct connection *oldest = server->strangers.first;
    return oldest ? deadline_min(deadline, oldest->introduced_by_ns) : deadline;
}

static void expire(struct tcp_server *server)
{
    struct connection *oldest;
    while ((oldest = server->strangers.first) && deadline_passed(oldest->introduced_by_ns))
        connection_destroy(server, oldest);
    if (deadline_passed(server->accept_again_ns))
        listen_again(server, true);
}

static void serve_event(struct tcp_server *server, struct source *source, uint32_t events)
{
    uint64_t count;
    switch (source->kind) {
    case SOURCE_CONNECTION:
        serve_connection(server, (struct connection *)(void *)source, events);
        break;
    case SOURCE_LISTENER:
        accept_some(server, source->fd);
        break;
    case SOURCE_STOP:
        if (read(source->fd, &count, sizeof count) < 0)
            break;
        close_listeners(server);
        server->end_ns = deadline_after(server->linger_ms);
        break;
    }
}

static void *server_main(void *argument)
{
    struct tcp_server *server = argument;
    struct epoll_event event;
    while (!deadline_passed(server->end_ns) &&
           (server->end_ns == DEADLINE_NEVER || server->connection_count > 0)) {
        int timeout_ms = deadline_poll_ms(next_deadline(server));
        /* One event at a time: serving it may close any other connection. */
        int count = epoll_wait(server->epoll, &event, 1, timeout_ms);
        if (count < 0 && errno != EINTR)
            break;
        if (count == 1)
            serve_event(server, event.data.ptr, event.events);
        expire(server);
    }
    return NULL;
}

/* ---- starting and stopping --------------------------------------------------------------------
 */

static int open_listener(const struct addrinfo *address)
{
    int on = 1;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    if (bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0)
        return fd;
    int code = errno;
    close(fd);
    errno = code;
    return -1;
}

static void set_port(struct sockaddr *address, in_port_t port)
{
    if (address->sa_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)address)->sin6_port = port;
    else
        ((struct sockaddr_in *)(void *)address)->sin_port = port;
}

static in_port_t port_of(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)address)->sin6_port
                                          : ((const struct sockaddr_in *)address)->sin_port;
}

/* One listener an address, all on one port. An address family that the machine lacks is left out.
 * Returns 0 or errno. */
static int listen_on(struct tcp_server *server, const struct addrinfo *addresses)
{
    int code = EADDRNOTAVAIL;
    for (const struct addrinfo *one = addresses; one && server->listener_count < MAX_LISTENERS;
         one = one->ai_next) {
        if (server->listener_count > 0)
            set_port(one->ai_addr, port_of(&server->address));
        int fd = open_listener(one);
        if (fd < 0) {
            code = errno;
            if (code == EADDRNOTAVAIL || code == EAFNOSUPPORT)
                continue;
            return code;
        }
        if (server->listener_count == 0) {
            socklen_t size = sizeof server->address;
            if (getsockname(fd, (struct sockaddr *)&server->address, &size) < 0) {
                code = errno;
                close(fd);
                return code;
            }
        }
        server->listeners[server->listener_count++] = (struct source){SOURCE_LISTENER, fd};
    }
    return server->listener_count > 0 ? 0 : code;
}

static enum tutti_status open_listeners(struct tcp_server *server,
                                        const struct tcp_server_config *config)
{
    enum { TRIES = 8 }; /* a free port of one family may be taken in the other */
    bool loopback = !config->bind || !*config->bind;
    const char *name = loopback ? "localhost" : config->bind;
    struct addrinfo v6 = {.ai_family = AF_INET6}, v4 = {.ai_family = AF_INET, .ai_next = &v6};
    struct sockaddr_in v4_address = {.sin_family = AF_INET,
                                     .sin_port = htons(config->port),
                                     .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 v6_address = {.sin6_family = AF_INET6,
                                      .sin6_port = htons(config->port),
                                      .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    char port[8];
    v4.ai_addr = (struct sockaddr *)&v4_address, v4.ai_addrlen = sizeof v4_address;
    v6.ai_addr = (struct sockaddr *)&v6_address, v6.ai_addrlen = sizeof v6_address;
    snprintf(port, sizeof port, "%u", config->port);
    int code = loopback ? 0 : getaddrinfo(store_url_node(name), port, &hints, &found);
    if (code != 0)
        return error_set(TUTTI_ERR_INVALID, "bind=%s: %s", name, gai_strerror(code));

    for (int i = 0; i < TRIES; i++) {
        code = listen_on(server, loopback ? &v4 : found);
        if (code != EADDRINUSE || config->port != 0)
            break;
        close_listeners(server);
        v4_address.sin_port = v6_address.sin6_port = 0;
        for (struct addrinfo *one = found; one; one = one->ai_next)
            set_port(one->ai_addr, 0);
    }
    if (found)
        freeaddrinfo(found);
    if (code == 0)
        return TUTTI_OK;
    errno = code;
    return error_errno("listening on %s, port %u%s", name, config->port,
                       code == EADDRINUSE ? " (another store or program uses it: take another port)"
                                          : "");
}

/* The events of the listeners and of the stop. */
static bool watch_sources(struct tcp_server *server)
{
    server->stop = (struct source){SOURCE_STOP, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    server->epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &server->stop};
    bool fine = server->stop.fd >= 0 && server->epoll >= 0 &&
                epoll_ctl(server->epoll, EPOLL_CTL_ADD, server->stop.fd, &event) == 0;
    for (int i = 0; i < server->listener_count && fine; i++) {
        event.data.ptr = &server->listeners[i];
        fine = epoll_ctl(server->epoll, EPOLL_CTL_ADD, server->listeners[i].fd, &event) == 0;
    }
    return fine;
}

/* With all signals blocked: they are the program's business. */
static int start_thread(struct tcp_server *server)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int code = pthread_create(&server->thread, NULL, server_main, server);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (code == 0)
        pthread_setname_np(server->thread, "tutti-store");
    return code;
}

static void server_free(struct tcp_server *server)
{
    while (server->strangers.first)
        connection_destroy(server, server->strangers.first);
    while (server->clients.first)
        connection_destroy(server, server->clients.first);
    tcp_space_fini(&server->space);
    close_listeners(server);
    if (server->stop.fd >= 0)
        close(server->stop.fd);
    if (server->epoll >= 0)
        close(server->epoll);
    if (server->secret)
        explicit_bzero(server->secret, strlen(server->secret));
    free(server->secret);
    free(server);
}

enum tutti_status tcp_server_start(const struct tcp_server_config *config,
                                   struct tcp_server **server)
{
    struct tcp_server *self = calloc(1, sizeof *self);
    if (!self)
        return error_errno("starting a store server");
    self->epoll = self->stop.fd = -1;
    self->accept_again_ns = self->end_ns = DEADLINE_NEVER;
    enum tutti_status status = TUTTI_OK;
    if (config->secret && *config->secret) {
        self->space.secret = self->secret = strdup(config->secret);
        if (!self->secret)
            status = error_errno("starting a store server");
    }
    if (status == TUTTI_OK)
        status = open_listeners(self, config);
    if (status == TUTTI_OK && !watch_sources(self))
        status = error_errno("starting a store server");
    if (status == TUTTI_OK) {
        errno = start_thread(self);
        if (errno != 0)
            status = error_errno("starting a store server's thread");
    }
    if (status != TUTTI_OK) {
        server_free(self);
        return status;
    }
    *server = self;
    return TUTTI_OK;
}

const struct sockaddr_storage *tcp_server_address(const struct tcp_server *server)
{
    return &server->address;
}

uint16_t tcp_server_port(const struct tcp_server *server)
{
    return ntohs(port_of(&server->address));
}

void tcp_server_stop(struct tcp_server *server, int64_t linger_ms)
{
    uint64_t one = 1;
    if (!server)
        return;
    server->linger_ms = linger_ms;
    ssize_t written = write(server->stop.fd, &one, sizeof one);
    (void)written; /* cannot fail: the counter is 0 and there is room */
    pthread_join(server->thread, NULL);
    server_free(server);
}
