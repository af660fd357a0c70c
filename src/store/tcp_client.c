/* SPDX-License-Identifier: MIT */
/*
 * tcp://HOST:PORT, a client of PyTorch's TCPStore protocol. Ids have their store on a Unix socket,
 * with the same protocol.
 *
 * A handle keeps a few idle connections. A call takes one, or opens another if all are taken, so
 * that a caller that waits blocks no other caller. After the call the connection is kept if both
 * sides agree that the exchange is over, and closed after any failure, also of a wait.
 * A reply is read into the caller's memory. The length that the server sends never decides how much
 * is allocated.
 */
#include "store/tcp.h"
#include "store/tcp_request.h"

#include "base/error.h"
#include "base/fd.h"
#include "base/fork_mutex.h"
#include "base/log.h"
#include "base/parse.h"
#include "base/reminder.h"
#include "ipc/random.h"
#include "store/buffer.h"
#include "store/map.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    MAX_IDLE = 4,
    MAX_ADDRESSES = 8,
    STRANGER_MS = 1000, /* how long a server that hangs up at once is tried again */
    LINGER_MS = 2000,   /* how long a server waits until its clients have left */
    LINE_IDLE_S = 60,   /* between two looks of the kernel at a connection for wills */
    RETRY_NS = 50000000,
};
/* The longest value that is read, the caller's part and the rest. */
#define REPLY_BYTES ((uint64_t)64 * 1024 * 1024)

struct connection {
    int fd;
    bool unproven;           /* the server has not shown yet that it is a store */
    bool gets_late;          /* the server knows WAIT_GET */
    struct store_call *call; /* under way */
    const char *name;        /* of the store */
};

struct tcp_store {
    struct sockaddr_storage addresses[MAX_ADDRESSES];
    int address_count;
    char name[300]; /* HOST:PORT or @NAME, for messages */
    char *secret;   /* NULL is none */
    bool met;       /* a connection has worked before */
    bool follows;   /* this rank is not rank 0, which serves */
    struct tcp_server *server;
    pthread_mutex_t lock; /* over idle */
    struct connection idle[MAX_IDLE];
    int idle_count;
    pthread_mutex_t line_lock; /* over line: one call uses it at a time */
    struct connection line;    /* for wills; fd is -1 before the first one */
    unsigned line_owed;        /* answers on it that are still to come */
    struct tcp_store *next;    /* of those that have had a line */
    bool is_listed;
};

static void forget_lines(void);

/* The stores of this process that have had a line. */
static struct tcp_store *lined;
static struct fork_mutex lined_lock = FORK_MUTEX(forget_lines);

/* A child of fork() has copies of the sockets. With these the server would not see the end of the
 * parent. */
static void forget_lines(void)
{
    for (struct tcp_store *store = lined; store; store = store->next)
        fd_drop(&store->line.fd);
    lined = NULL;
}

/* Says at WARN why this process still waits for the store, if that is due. */
static void waiting_log(const char *name, struct reminder *reminder, const char *why)
{
    const int waited_s = reminder_due(reminder, deadline_now());
    if (waited_s)
        log_write(TUTTI_LOG_WARN, -1, "after %d s the store at %s still %s", waited_s, name, why);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static enum tutti_status too_late(const struct connection *connection, const char *what)
{
    return error_set(TUTTI_ERR_TIMEOUT,
                     "the store at %s did not %s in time: see whether its process is stopped, or "
                     "its host is overloaded",
                     connection->name, what);
}

static enum tutti_status await_socket(const struct connection *connection, short events,
                                      const char *what)
{
    struct store_call *call = connection->call;
    struct reminder reminder = reminder_start(deadline_now());
    for (;;) {
        struct pollfd one = {.fd = connection->fd, .events = events};
        int64_t pause = store_call_pause(call);
        if (connection->unproven)
            pause = deadline_min(pause, deadline_after(reminder_left_ms(&reminder)));
        int ready = poll(&one, 1, deadline_poll_ms(pause));
        if (ready > 0)
            return TUTTI_OK;
        if (ready < 0 && errno != EINTR)
            return error_errno("poll on the store's connection");
        if (deadline_passed(call->deadline))
            return too_late(connection, what);
        if (connection->unproven)
            waiting_log(connection->name, &reminder,
                        "does not answer: is its process stopped, or out of descriptors (ulimit "
                        "-n)?");
        enum tutti_status status = store_call_check(call);
        if (status != TUTTI_OK)
            return status;
    }
}

static enum tutti_status lost(const struct connection *connection)
{
    if (errno == 0 || errno == ECONNRESET || errno == EPIPE)
        return error_set(TUTTI_ERR_SYSTEM,
                         "the store at %s closed the connection: see whether its process runs",
                         connection->name);
    return error_errno("the connection to the store at %s", connection->name);
}

static enum tutti_status send_all(const struct connection *connection, const struct buffer *request)
{
    if (request->failed)
        return error_set(TUTTI_ERR_NO_MEMORY, "no memory for a request to the store");
    for (size_t sent = 0; sent < request->size;) {
        ssize_t bytes = send(connection->fd, request->data + sent, request->size - sent,
                             MSG_NOSIGNAL | MSG_DONTWAIT);
        if (bytes >= 0) {
            sent += (size_t)bytes;
            continue;
        }
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK)
            return lost(connection);
        enum tutti_status status = await_socket(connection, POLLOUT, "take a request");
        if (status != TUTTI_OK)
            return status;
    }
    return TUTTI_OK;
}

static enum tutti_status receive(const struct connection *connection, void *to, size_t size)
{
    for (size_t got = 0; got < size;) {
        enum tutti_status status = await_socket(connection, POLLIN, "answer");
        if (status != TUTTI_OK)
            return status;
        ssize_t bytes = recv(connection->fd, (char *)to + got, size - got, MSG_DONTWAIT);
        if (bytes > 0) {
            got += (size_t)bytes;
        } else if (bytes == 0 || (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK)) {
            if (bytes == 0)
                errno = 0;
            return lost(connection);
        }
    }
    return TUTTI_OK;
}

/* Sends the request, whose memory it frees, and receives the reply. */
static enum tutti_status exchange(const struct connection *connection, struct buffer *request,
                                  void *reply, size_t bytes)
{
    enum tutti_status status = send_all(connection, request);
    buffer_fini(request);
    return status == TUTTI_OK ? receive(connection, reply, bytes) : status;
}

/* Reads value i of the call: what does not fit is read and dropped. */
static enum tutti_status receive_value(const struct connection *connection, struct store_call *call,
                                       size_t i)
{
    uint64_t length;
    enum tutti_status status = receive(connection, &length, sizeof length);
    if (status != TUTTI_OK)
        return status;
    if (!call->is_there)
        store_call_found(call);
    if (length > REPLY_BYTES)
        return error_set(TUTTI_ERR_SYSTEM,
                         "the store at %s announced a value of %llu bytes, more than %llu: is it a "
                         "TCPStore?",
                         connection->name, (unsigned long long)length,
                         (unsigned long long)REPLY_BYTES);
    call->sizes[i] = length;
    const size_t fits = length < call->each ? length : call->each;
    if (fits > 0)
        status = receive(connection, (char *)call->values + i * call->each, fits);
    for (uint64_t rest = length - fits; rest > 0 && status == TUTTI_OK;) {
        char unused[4096];
        size_t part = rest < sizeof unused ? rest : sizeof unused;
        status = receive(connection, unused, part);
        rest -= part;
    }
    return status;
}

/* ---- meeting the server ---------------------------------------------------------------------- */

static enum tutti_status stranger(const struct connection *connection, const char *what)
{
    return error_set(TUTTI_ERR_SYSTEM, "the store at %s %s", connection->name, what);
}

static struct buffer greeting(enum tcp_op op)
{
    struct buffer request = {0};
    buffer_put_u8(&request, TCP_VALIDATE);
    buffer_put_u32(&request, TCP_MAGIC);
    buffer_put_u8(&request, (uint8_t)op);
    return request;
}

static enum tutti_status meet_plainly(struct connection *connection)
{
    struct buffer request = greeting(TCP_PING);
    uint32_t answer = 0;
    buffer_put_u32(&request, TCP_ASK);
    enum tutti_status status = exchange(connection, &request, &answer, sizeof answer);
    connection->gets_late = answer == TCP_ASK + 1;
    if (status != TUTTI_OK || answer == TCP_ASK || connection->gets_late)
        return status;
    if (answer == ~TCP_ASK)
        return error_set(TUTTI_ERR_INVALID,
                         "the store at %s wants a secret: set TUTTI_STORE_SECRET to that of its "
                         "server",
                         connection->name);
    return stranger(connection, "gave a wrong answer: no TCPStore?");
}

static enum tutti_status meet_secretly(const struct connection *connection, const char *secret)
{
    uint8_t own[TCP_NONCE_BYTES], proof[SHA256_BYTES], answer;
    struct {
        uint8_t nonce[TCP_NONCE_BYTES], proof[SHA256_BYTES];
    } server;
    enum tutti_status status = random_fill(own, TCP_NONCE_BYTES);
    if (status != TUTTI_OK)
        return status;
    struct buffer request = greeting(TCP_AUTH);
    buffer_put(&request, own, TCP_NONCE_BYTES);
    status = exchange(connection, &request, &answer, sizeof answer);
    if (status == TUTTI_OK && answer == TCP_AUTH_REFUSED)
        return error_set(TUTTI_ERR_INVALID,
                         "the store at %s has no secret but TUTTI_STORE_SECRET is set here: set "
                         "it for all ranks or none",
                         connection->name);
    if (status == TUTTI_OK)
        status = receive(connection, &server, sizeof server);
    if (status != TUTTI_OK)
        return status;
    tcp_proof(secret, TCP_SERVER_LABEL, own, server.nonce, proof);
    if (!secret_equal(proof, server.proof, sizeof proof))
        return error_set(TUTTI_ERR_INVALID,
                         "the store at %s has another secret: TUTTI_STORE_SECRET must be the same "
                         "for all ranks",
                         connection->name);
    tcp_proof(secret, TCP_CLIENT_LABEL, own, server.nonce, proof);
    buffer_put_u8(&request, TCP_PROOF);
    buffer_put(&request, proof, sizeof proof);
    status = exchange(connection, &request, &answer, sizeof answer);
    return status == TUTTI_OK && answer != TCP_AUTH_GOES_ON
               ? stranger(connection, "refused our proof of the secret")
               : status;
}

/* ---- connecting ------------------------------------------------------------------------------ */

/* The error of a connection that failed with errno. *hopeless: a server that starts later
 * could not be reached either, because the loopback interface is down, no descriptor is left, or
 * there is no permission. */
static enum tutti_status connect_failed(const struct connection *connection,
                                        const struct sockaddr_storage *address, bool *hopeless)
{
    const bool full = errno == EMFILE || errno == ENFILE;
    const bool down = tcp_is_loopback(address) && (errno == ENETUNREACH || errno == EADDRNOTAVAIL);
    *hopeless = full || down || errno == EACCES || errno == EPERM || errno == EAFNOSUPPORT;
    return error_errno("cannot connect to the store at %s%s", connection->name,
                       full   ? ": close descriptors, or raise ulimit -n"
                       : down ? ": the loopback interface is down: bring it up (ip link set lo up)"
                       : address->ss_family == AF_UNIX
                           ? "; see whether its process runs, in this network namespace"
                           : "; see whether its process runs");
}

/* Begins to connect. *code: 0 or the errno of connect(). A Unix socket whose queue is full refuses
 * by EAGAIN, and no event tells when it has room: the client asks again. */
static enum tutti_status connect_begin(const struct connection *connection,
                                       const struct sockaddr_storage *address, int *code)
{
    int64_t nap_ns = 1000000;
    enum tutti_status status = TUTTI_OK;
    const socklen_t bytes = tcp_address_bytes(address);
    for (;;) {
        *code = connect(connection->fd, (const struct sockaddr *)address, bytes) == 0 ? 0 : errno;
        if (*code != EAGAIN)
            return TUTTI_OK;
        if (deadline_passed(connection->call->deadline))
            return too_late(connection, "take a connection");
        status = store_call_check(connection->call);
        if (status != TUTTI_OK)
            return status;
        deadline_nap(connection->call->deadline, &nap_ns, RETRY_NS);
    }
}

/* Sets the connection's descriptor, to -1 on failure. */
static enum tutti_status connect_once(const struct sockaddr_storage *address,
                                      struct connection *connection, bool *hopeless)
{
    *hopeless = false;
    int on = 1, code = 0;
    socklen_t size = sizeof code;
    int fd = fd_lift(socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    connection->fd = fd;
    if (fd < 0)
        return connect_failed(connection, address, hopeless);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    enum tutti_status status = connect_begin(connection, address, &code);
    if (status == TUTTI_OK && (code == EINPROGRESS || code == EINTR)) {
        status = await_socket(connection, POLLOUT, "take a connection");
        if (status == TUTTI_OK && getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &size) < 0)
            code = errno;
    }
    if (status == TUTTI_OK && code != 0) {
        errno = code;
        status = connect_failed(connection, address, hopeless);
    }
    if (status != TUTTI_OK)
        fd_drop(&connection->fd);
    return status;
}

/* Any of the addresses. */
static enum tutti_status connect_any(struct tcp_store *store, struct connection *connection,
                                     bool *hopeless)
{
    enum tutti_status status = TUTTI_ERR_SYSTEM;
    *hopeless = true;
    for (int i = 0; i < store->address_count && status == TUTTI_ERR_SYSTEM; i++) {
        bool one;
        status = connect_once(&store->addresses[i], connection, &one);
        *hopeless = *hopeless && one;
    }
    return status;
}

/* Opens a connection and introduces it. The first one is tried until the deadline, because the
 * server may not be up yet. A server that closes a connection before the introduction may have had
 * too many strangers, so the client tries again for a second. */
static enum tutti_status connection_open(struct tcp_store *store, struct connection *connection)
{
    int64_t stranger_ns = deadline_after(STRANGER_MS), nap_ns = 1000000;
    struct reminder reminder = reminder_start(deadline_now());
    for (;;) {
        bool hopeless;
        enum tutti_status status = connect_any(store, connection, &hopeless);
        bool reached = status == TUTTI_OK;
        if (reached) {
            connection->unproven = true;
            status =
                store->secret ? meet_secretly(connection, store->secret) : meet_plainly(connection);
            connection->unproven = false;
            if (status == TUTTI_OK)
                return status;
            tcp_hang_up(connection->fd);
            connection->fd = -1;
        }
        if (status != TUTTI_ERR_SYSTEM || ((store->met || hopeless) && !reached))
            return status;
        if (reached && deadline_passed(stranger_ns))
            return error_context(status,
                                 "no meeting (is TUTTI_STORE_SECRET the same everywhere, and "
                                 "has the server descriptors left, see ulimit -n?)");
        if (deadline_passed(connection->call->deadline)) {
            error_context(status, store->follows ? "rank 0, which serves the store, has not come"
                                                 : "no store came up in time; is rank 0 running?");
            return TUTTI_ERR_TIMEOUT;
        }
        waiting_log(connection->name, &reminder, "cannot be reached: is rank 0 running?");
        deadline_nap(connection->call->deadline, &nap_ns, RETRY_NS);
    }
}

/* Ends the use of a connection. keep: its exchange is over. Otherwise replies may still come, so
 * the connection is closed. */
static void give(struct tcp_store *store, struct connection *connection, bool keep)
{
    if (connection->fd < 0)
        return;
    pthread_mutex_lock(&store->lock);
    const bool kept = keep && store->idle_count < MAX_IDLE;
    if (kept)
        store->idle[store->idle_count++] = *connection;
    pthread_mutex_unlock(&store->lock);
    if (!kept)
        tcp_hang_up(connection->fd);
    connection->fd = -1;
}

static enum tutti_status take(struct tcp_store *store, struct store_call *call,
                              struct connection *connection)
{
    *connection = (struct connection){.fd = -1, .name = store->name};
    pthread_mutex_lock(&store->lock);
    if (store->idle_count > 0)
        *connection = store->idle[--store->idle_count];
    pthread_mutex_unlock(&store->lock);
    connection->call = call;
    return connection->fd < 0 ? connection_open(store, connection) : TUTTI_OK;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Reads the reply to anything but a WAIT. */
static enum tutti_status reply_read(const struct connection *connection, struct store_call *call)
{
    enum tutti_status status = TUTTI_OK;
    uint32_t pong;
    uint8_t answer;
    switch (call->op) {
    case STORE_SET:
        return receive(connection, &pong, sizeof pong);
    case STORE_CHECK:
        status = receive(connection, &answer, sizeof answer);
        call->number = status == TUTTI_OK && answer == TCP_READY;
        return status;
    case STORE_DELETE:
        status = receive(connection, &call->number, sizeof call->number);
        call->number = call->number > 0;
        return status;
    case STORE_ADD:
    case STORE_NUM_KEYS:
        return receive(connection, &call->number, sizeof call->number);
    case STORE_GET:
    case STORE_COMPARE_SET:
        for (size_t i = 0; i < call->count && status == TUTTI_OK; i++)
            status = receive_value(connection, call, i);
        break;
    case STORE_WAIT:
        break;
    }
    return status;
}

static enum tutti_status tcp_serve(void *context, struct store_call *call);

/* Whether the server answers that the key is there. */
static bool is_there(struct tcp_store *store, const char *key)
{
    struct store_call check = {
        .op = STORE_CHECK, .keys = &key, .count = 1, .deadline = deadline_after(STORE_GRACE_MS)};
    return tcp_serve(store, &check) == TUTTI_OK && check.number;
}

/* After a wait that has timed out: the server does not say which key is missing, so each is
 * checked, until a check fails. A wait with an interrupt needs no name. */
static enum tutti_status wait_timed_out(struct tcp_store *store, const struct store_call *call)
{
    size_t i = 0;
    if (!call->interrupt && !call->is_pointless)
        while (i < call->count - 1 && is_there(store, call->keys[i]))
            i++;
    return store_timed_out(call, call->keys[i]);
}

/* Waits for all keys. *late: the keys did not come in time. */
static enum tutti_status wait_on(struct connection *connection, bool *late)
{
    uint8_t answer;
    struct buffer request = tcp_request_make(connection->call, STORE_WAIT, false);
    enum tutti_status status = send_all(connection, &request);
    buffer_fini(&request);
    if (status != TUTTI_OK)
        return status;
    status = receive(connection, &answer, sizeof answer);
    *late = status == TUTTI_ERR_TIMEOUT;
    return status == TUTTI_OK && answer != TCP_STOP_WAITING
               ? stranger(connection, "answered a wait with nonsense")
               : status;
}

/* PyTorch's protocol has no error for this: if a client adds to a value that is no number, the
 * server closes the connection. So another connection reads the value; if that fails too, the
 * server is gone. */
static enum tutti_status add_failed(struct tcp_store *store, const struct store_call *add)
{
    char text[MAP_NUMBER_BYTES] = "";
    size_t size = 0;
    int64_t number = 0;
    struct store_call look = *add;
    look.op = STORE_CHECK;
    enum tutti_status status = tcp_serve(store, &look);
    look.op = STORE_GET;
    look.values = text;
    look.each = sizeof text - 1;
    look.sizes = &size;
    look.deadline = deadline_after(STORE_GRACE_MS);
    if (status == TUTTI_OK && look.number)
        status = tcp_serve(store, &look);
    if (status != TUTTI_OK)
        return status;
    bool plain =
        size == strlen(text) && (size == 0 || parse_number(text, INT64_MIN, INT64_MAX, &number));
    if (plain && !__builtin_add_overflow(number, add->amount, &number))
        return error_set(TUTTI_ERR_SYSTEM, "tutti_store_add(%s): the store closed the connection",
                         *add->keys + 1);
    return store_no_number(*add->keys);
}

/* *gone: a key was deleted between the wait and the read, whose reply has an empty value then. A
 * request that changes nothing has an empty reply only if the key is there. */
static enum tutti_status find_deleted(const struct connection *connection,
                                      const struct store_call *call, bool *gone)
{
    static const struct store_bytes absent = {"-", 1};
    enum tutti_status status = TUTTI_OK;
    for (size_t i = 0; i < call->count && status == TUTTI_OK && !*gone; i++) {
        size_t size = 0;
        struct store_call look = *call;
        if (call->sizes[i] > 0)
            continue;
        look.keys = &call->keys[i];
        look.count = 1;
        look.expected = look.value = absent;
        look.each = 0;
        look.sizes = &size;
        struct buffer request = tcp_request_make(&look, STORE_COMPARE_SET, false);
        status = send_all(connection, &request);
        buffer_fini(&request);
        if (status == TUTTI_OK)
            status = receive_value(connection, &look, 0);
        *gone = size > 0;
    }
    return status;
}

static enum tutti_status serve_once(struct tcp_store *store, struct store_call *call, bool *gone)
{
    struct connection connection;
    bool late = false;
    enum tutti_status status = take(store, call, &connection);
    const bool taken = status == TUTTI_OK;
    const bool gets_late = connection.gets_late && call->op == STORE_GET;
    if (taken && !gets_late && (call->op == STORE_WAIT || call->op == STORE_GET))
        status = wait_on(&connection, &late);
    if (status == TUTTI_OK && call->op == STORE_GET && !gets_late)
        store_call_found(call);
    if (status == TUTTI_OK && call->op != STORE_WAIT) {
        struct buffer request = tcp_request_make(call, call->op, gets_late);
        status = send_all(&connection, &request);
        buffer_fini(&request);
        if (status == TUTTI_OK)
            status = reply_read(&connection, call);
        late = gets_late && !call->is_there && status == TUTTI_ERR_TIMEOUT;
    }
    if (status == TUTTI_OK && call->op == STORE_GET && !gets_late)
        status = find_deleted(&connection, call, gone);
    give(store, &connection, status == TUTTI_OK);
    if (late)
        return wait_timed_out(store, call);
    if (taken && status == TUTTI_ERR_SYSTEM && call->op == STORE_ADD && **call->keys == '/')
        return add_failed(store, call);
    return status;
}

static enum tutti_status tcp_serve(void *context, struct store_call *call)
{
    const struct store_call begun = *call; /* without what store_call_found() adds */
    for (;;) {
        bool gone = false;
        const enum tutti_status status = serve_once(context, call, &gone);
        if (status != TUTTI_OK || !gone)
            return status;
        *call = begun;
    }
}

/* ---- wills ----------------------------------------------------------------------------------- */

/* Opens the line, for the call. A child of a fork() in another thread meanwhile closes it, too.
 * Now and then the kernel sends something, or a router on the way might forget the connection. */
static enum tutti_status line_open(struct tcp_store *store, struct store_call *call)
{
    int on = 1, idle_s = LINE_IDLE_S;
    store->line = (struct connection){.fd = -1, .name = store->name, .call = call};
    fork_mutex_lock(&lined_lock);
    if (!store->is_listed) {
        store->next = lined;
        lined = store;
    }
    store->is_listed = true;
    fork_mutex_unlock(&lined_lock);
    const enum tutti_status status = connection_open(store, &store->line);
    if (status == TUTTI_OK) {
        setsockopt(store->line.fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
        setsockopt(store->line.fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    }
    if (status != TUTTI_OK || store->line.gets_late || store->secret)
        return status;
    return error_set(TUTTI_ERR_DECLINED, "the server at %s does not notice the end of a process",
                     store->name);
}

static void line_close(struct tcp_store *store)
{
    if (store->line.fd >= 0)
        tcp_hang_up(store->line.fd);
    store->line.fd = -1;
    store->line_owed = 0;
}

/* Sends a request, and receives its answer and those that came late. The line stays where the
 * server is late: its end would tell the others that this process is dead. */
static enum tutti_status line_exchange(struct tcp_store *store, struct buffer *request)
{
    uint8_t answer; /* or a goodbye of the server's: either ends the call */
    enum tutti_status status = send_all(&store->line, request);
    bool broken = status != TUTTI_OK;
    buffer_fini(request);
    store->line_owed++;
    while (status == TUTTI_OK && store->line_owed) {
        status = receive(&store->line, &answer, sizeof answer);
        store->line_owed -= status == TUTTI_OK;
    }
    if (broken || status == TUTTI_ERR_SYSTEM)
        line_close(store);
    return status;
}

static enum tutti_status tcp_will(void *context, struct store_call *call)
{
    struct tcp_store *store = context;
    const bool makes = call->will == STORE_WILL_MAKE;
    enum tutti_status status = TUTTI_OK;
    pthread_mutex_lock(&store->line_lock);
    if (makes && store->line.fd < 0)
        status = line_open(store, call);
    if (status != TUTTI_OK)
        line_close(store);
    if (status == TUTTI_OK && store->line.fd >= 0) {
        struct buffer request = {0};
        buffer_put_u8(&request, makes ? TCP_WILL : TCP_WILL_END);
        buffer_put_string(&request, *call->keys, strlen(*call->keys));
        if (makes)
            buffer_put_string(&request, call->value.data, call->value.size);
        store->line.call = call;
        status = line_exchange(store, &request);
    }
    store->line.call = NULL;
    pthread_mutex_unlock(&store->line_lock);
    return status;
}

/* A server that is closed says goodbye, which stays unread. */
static bool tcp_server_has_died(void *context)
{
    struct tcp_store *store = context;
    uint8_t goodbye;
    if (pthread_mutex_trylock(&store->line_lock) != 0)
        return false; /* a call is under way: look again later */
    while (store->line_owed && recv(store->line.fd, &goodbye, 1, MSG_DONTWAIT) == 1)
        store->line_owed--;
    const bool died =
        store->line.fd >= 0 && recv(store->line.fd, &goodbye, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
    pthread_mutex_unlock(&store->line_lock);
    return died;
}

/* ---- opening and closing --------------------------------------------------------------------- */

/* Clients first, then the server that they talk to. */
static void tcp_close(void *context)
{
    struct tcp_store *store = context;
    while (store->idle_count > 0)
        tcp_hang_up(store->idle[--store->idle_count].fd);
    fork_mutex_lock(&lined_lock);
    for (struct tcp_store **link = &lined; store->is_listed && *link; link = &(*link)->next)
        if (*link == store) {
            *link = store->next;
            break;
        }
    line_close(store);
    fork_mutex_unlock(&lined_lock);
    tcp_server_stop(store->server, LINGER_MS);
    pthread_mutex_destroy(&store->line_lock);
    pthread_mutex_destroy(&store->lock);
    tcp_secret_free(store->secret);
    free(store);
}

/* The server, if it is to be here, and the first connection. */
static enum tutti_status start(struct tcp_store *store, const struct store_url *url,
                               const struct tcp_options *options)
{
    struct tcp_server_config config = {.bind = tcp_bind_host(url),
                                       .port = url->port,
                                       .unix_name = url->is_unix ? url->text : NULL,
                                       .secret = options->secret,
                                       .waits = url->world_size > 0};
    struct connection connection;
    enum tutti_status status = TUTTI_OK;
    if (!tcp_secret_copy(options->secret, &store->secret))
        return error_errno("opening a tcp store");
    if (url->server)
        status = tcp_server_start(&config, &store->server);
    if (status == TUTTI_OK && store->server)
        store->addresses[store->address_count++] = *tcp_server_address(store->server);
    else if (status == TUTTI_OK)
        status = tcp_resolve(url, store->addresses, MAX_ADDRESSES, &store->address_count);
    if (status != TUTTI_OK)
        return status;
    store->met = options->is_up;
    store->follows = url->world_size > 0 && url->rank > 0 && !url->server;
    tcp_name(url, tcp_server_address(store->server), store->name, sizeof store->name);
    struct store_call call = {.deadline = deadline_after(options->connect_ms)};
    status = take(store, &call, &connection);
    store->met = status == TUTTI_OK;
    give(store, &connection, status == TUTTI_OK);
    return status;
}

enum tutti_status tcp_open_with(const struct store_url *url, const struct tcp_options *options,
                                tutti_store_t **store)
{
    static const struct store_kind kind = {
        .serve = tcp_serve,
        .close = tcp_close,
        .will = tcp_will,
        .server_has_died = tcp_server_has_died,
    };
    struct tcp_store *self = calloc(1, sizeof *self);
    if (!self)
        return error_errno("opening a tcp store");
    pthread_mutex_init(&self->lock, NULL);
    pthread_mutex_init(&self->line_lock, NULL);
    self->line.fd = -1;
    enum tutti_status status = start(self, url, options);
    if (status == TUTTI_OK && options->announce)
        status = options->announce(options->context, tcp_port(tcp_server_address(self->server)));
    if (status == TUTTI_OK && url->world_size)
        status = tcp_join(tcp_serve, self, self->name, url, options);
    char *text =
        status == TUTTI_OK && !url->is_unix ? tcp_url(url, tcp_server_address(self->server)) : NULL;
    if (status == TUTTI_OK && !text && !url->is_unix)
        status = error_errno("opening a tcp store");
    if (status != TUTTI_OK) {
        tcp_close(self);
        return status;
    }
    status = store_create(&kind, self, options->timeout_ms, text, store);
    if (status == TUTTI_OK)
        (*store)->serves = url->server;
    return status;
}

enum tutti_status tcp_open(const struct store_url *url, int64_t timeout_ms, tutti_store_t **store)
{
    struct tcp_options options = {
        .secret = getenv("TUTTI_STORE_SECRET"), .connect_ms = timeout_ms, .timeout_ms = timeout_ms};
    return tcp_open_with(url, &options, store);
}
