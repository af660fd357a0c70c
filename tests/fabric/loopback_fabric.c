/* SPDX-License-Identifier: MIT */
/*
 * Each rank of a link has a stream socket to each other rank. A message is a header and its bytes.
 * The receiver reads messages into memory of its own as they come, and copies the first one with
 * the right tag when it is due. So a message that nobody expects yet stops no other.
 */
#include "loopback_fabric.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/interrupt.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* The rank's listening socket: a name that the kernel chose, and so no file. */
struct address {
    uint32_t number;
    uint32_t length;
    char name[64];
};

struct engine {
    struct loopback *loopback;
    int number;
    pid_t thread;
    int listener[LOOPBACK_RANKS]; /* of address() calls whose connect() is to come */
    struct address address[LOOPBACK_RANKS];
    int listeners;
};

struct header {
    int64_t sent;
    uint64_t bytes;
    int32_t tag;
    int32_t sender; /* a rank; for the first message */
};

/* A message that arrives or has arrived. */
struct arrived {
    struct arrived *next;
    struct header header;
    size_t have;
    unsigned char bytes[];
};

/* A transfer under way. */
struct entry {
    struct entry *next;
    struct fabric_batch *batch;
    struct fabric_transfer transfer;
    struct header header;
    size_t sent; /* of header and bytes */
};

struct fabric_batch {
    struct fabric_batch *next; /* under way */
    int left;
    struct entry entries[];
};

struct peer {
    int fd;
    int number;
    bool ended;
    struct entry *sends, *receives; /* in order */
    struct arrived *arrived, *arriving;
    struct header header; /* of the message that arrives next */
    size_t have;          /* of the header */
};

struct link {
    struct fabric_link base;
    struct engine *engine;
    struct fabric_batch *running;
    int64_t progressed; /* when it last made progress */
    struct peer peers[LOOPBACK_RANKS];
};

static void append(struct entry **list, struct entry *entry)
{
    while (*list)
        list = &(*list)->next;
    *list = entry;
}

/* ---- the fabric ------------------------------------------------------------------------------ */

static enum tutti_status open_engine(const char *rest, struct tutti_fabric *fabric)
{
    (void)rest;
    struct engine *engine = calloc(1, sizeof *engine);
    if (!engine)
        return error_errno("loopback");
    engine->thread = gettid();
    fabric->engine = engine;
    snprintf(fabric->description, sizeof fabric->description, "loopback");
    return TUTTI_OK;
}

static void close_engine(struct tutti_fabric *fabric)
{
    struct engine *engine = fabric->engine;
    for (int i = 0; i < engine->listeners; i++)
        close(engine->listener[i]);
    free(engine);
}

static bool any_thread(const struct tutti_fabric *fabric)
{
    const struct engine *engine = fabric->engine;
    return !loopback_get(engine->loopback->one_thread);
}

static void check_thread(const struct engine *engine)
{
    if (loopback_get(engine->loopback->one_thread) && gettid() != engine->thread) {
        fputs("loopback: another thread uses a fabric of one thread\n", stderr);
        abort();
    }
}

static void die(const struct engine *engine, enum loopback_death where)
{
    if (loopback_get(engine->loopback->dies) == 1 + (uint32_t)engine->number &&
        loopback_get(engine->loopback->dies_in) == where)
        raise(SIGKILL);
}

static enum tutti_status make_address(struct tutti_fabric *fabric, int rank, void *to)
{
    struct engine *engine = fabric->engine;
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    socklen_t length = sizeof name.sun_family;
    check_thread(engine);
    (void)rank;
    die(engine, LOOPBACK_ADDRESS);
    if (engine->listeners == LOOPBACK_RANKS)
        return error_set(TUTTI_ERR_SYSTEM, "loopback: too many addresses without a connect");
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&name, length) < 0 || listen(fd, LOOPBACK_RANKS) < 0)
        return error_errno("loopback: cannot listen");
    length = sizeof name;
    getsockname(fd, (struct sockaddr *)&name, &length);
    struct address address = {.number = (uint32_t)engine->number, .length = length};
    memcpy(address.name, &name, length);
    memcpy(to, &address, sizeof address);
    engine->listener[engine->listeners] = fd;
    engine->address[engine->listeners++] = address;
    return TUTTI_OK;
}

/* ---- connections ----------------------------------------------------------------------------- */

/* Takes the listening socket of the address. */
static int take_listener(struct engine *engine, const struct address *address)
{
    for (int i = 0; i < engine->listeners; i++)
        if (memcmp(&engine->address[i], address, sizeof *address) == 0) {
            const int fd = engine->listener[i];
            engine->listeners--;
            engine->listener[i] = engine->listener[engine->listeners];
            engine->address[i] = engine->address[engine->listeners];
            return fd;
        }
    return -1;
}

static enum tutti_status call(struct link *link, int peer, const struct address *address)
{
    const struct header hello = {.sender = link->base.rank};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    memcpy(&name, address->name, address->length);
    link->peers[peer].fd = fd;
    if (fd < 0 || connect(fd, (struct sockaddr *)&name, address->length) < 0 ||
        send(fd, &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello)
        return error_errno("loopback: cannot connect to rank %d", peer);
    return TUTTI_OK;
}

/* Accepts the connections of the higher ranks. */
static enum tutti_status answer(struct link *link, int listener, int64_t deadline,
                                const struct interrupt *interrupt)
{
    int missing = link->base.size - 1 - link->base.rank;
    while (missing) {
        struct pollfd ready = {.fd = listener, .events = POLLIN};
        struct header hello;
        enum tutti_status status = interrupt_ask(interrupt);
        if (status == TUTTI_OK)
            status = interrupt_ask_pointless(interrupt);
        if (status != TUTTI_OK)
            return status;
        if (deadline_passed(deadline))
            return error_set(TUTTI_ERR_TIMEOUT, "loopback: %d ranks have not connected", missing);
        if (poll(&ready, 1, 10) < 1)
            continue;
        const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 || recv(fd, &hello, sizeof hello, MSG_WAITALL) != sizeof hello ||
            hello.sender <= link->base.rank || hello.sender >= link->base.size)
            return error_set(TUTTI_ERR_SYSTEM, "loopback: a strange caller");
        link->peers[hello.sender].fd = fd;
        missing--;
    }
    return TUTTI_OK;
}

static bool close_link(struct fabric_link *base, int64_t deadline)
{
    struct link *link = (struct link *)base;
    const bool quiet = !link->running;
    (void)deadline;
    for (int r = 0; r < base->size; r++) {
        struct peer *peer = &link->peers[r];
        if (peer->fd >= 0)
            close(peer->fd);
        free(peer->arriving);
        for (struct arrived *next, *one = peer->arrived; one; one = next) {
            next = one->next;
            free(one);
        }
    }
    for (struct fabric_batch *next, *one = link->running; one; one = next) {
        next = one->next;
        free(one);
    }
    free(link);
    return quiet; /* an engine might go on with what has not ended; this one does not */
}

static enum tutti_status open_link(struct tutti_fabric *fabric, int rank, int size,
                                   const void *addresses, int64_t deadline,
                                   const struct interrupt *interrupt, struct fabric_link **made)
{
    struct engine *engine = fabric->engine;
    check_thread(engine);
    die(engine, LOOPBACK_CONNECT);
    if (size > LOOPBACK_RANKS || loopback_get(engine->loopback->fail_connect))
        return error_set(TUTTI_ERR_SYSTEM, "loopback: this connection is to fail");
    struct address *all = calloc((size_t)size, sizeof *all);
    struct link *link = calloc(1, sizeof *link);
    if (!all || !link)
        abort();
    memcpy(all, addresses, (size_t)size * sizeof *all);
    link->base = (struct fabric_link){.fabric = fabric, .rank = rank, .size = size};
    link->engine = engine;
    for (int r = 0; r < size; r++)
        link->peers[r] = (struct peer){.fd = -1, .number = (int)all[r].number};
    const int listener = take_listener(engine, &all[rank]);
    enum tutti_status status = TUTTI_OK;
    if (listener < 0)
        status = error_set(TUTTI_ERR_SYSTEM, "loopback: this is not the rank's own address");
    for (int r = 0; r < rank && status == TUTTI_OK; r++)
        status = call(link, r, &all[r]);
    if (status == TUTTI_OK)
        status = answer(link, listener, deadline, interrupt);
    die(engine, LOOPBACK_CONNECTED);
    if (listener >= 0)
        close(listener);
    free(all);
    if (status == TUTTI_OK)
        *made = &link->base;
    else
        close_link(&link->base, 0);
    return status;
}

/* ---- transfers ------------------------------------------------------------------------------- */

static enum tutti_status check(const struct link *link)
{
    const struct loopback *loopback = link->engine->loopback;
    check_thread(link->engine);
    if (fabric_link_is_aborted(&link->base))
        return error_set(TUTTI_ERR_ABORTED, "loopback: the link was aborted");
    for (int r = 0; r < link->base.size; r++) {
        const int own = link->engine->number, other = link->peers[r].number;
        if (loopback_get(loopback->cut[own][other]) == LOOPBACK_BROKEN ||
            loopback_get(loopback->cut[other][own]) == LOOPBACK_BROKEN)
            return error_set(TUTTI_ERR_SYSTEM, "loopback: the connection to rank %d is cut", r);
    }
    return TUTTI_OK;
}

static enum tutti_status start(struct fabric_link *base, const struct fabric_transfer *transfers,
                               int count, struct fabric_batch **made)
{
    struct link *link = (struct link *)base;
    struct loopback *loopback = link->engine->loopback;
    enum tutti_status status = check(link);
    if (status != TUTTI_OK)
        return status;
    struct fabric_batch *batch = calloc(1, sizeof *batch + (size_t)count * sizeof *batch->entries);
    if (!batch)
        abort();
    batch->left = count;
    batch->next = link->running;
    link->running = batch;
    for (int i = 0; i < count; i++) {
        const struct fabric_transfer *transfer = &transfers[i];
        struct peer *peer = &link->peers[transfer->peer];
        if (transfer->peer == base->rank || transfer->peer < 0 || transfer->peer >= base->size ||
            transfer->tag < 0 || transfer->tag >= FABRIC_TAGS) {
            fputs("loopback: a wrong peer or tag\n", stderr);
            abort();
        }
        batch->entries[i] = (struct entry){.batch = batch, .transfer = *transfer};
        batch->entries[i].header =
            (struct header){deadline_now(), transfer->bytes, transfer->tag, base->rank};
        append(transfer->is_send ? &peer->sends : &peer->receives, &batch->entries[i]);
        if (transfer->is_send) {
            const int from = link->engine->number;
            __atomic_fetch_add(&loopback->messages[from][peer->number], 1, __ATOMIC_SEQ_CST);
            __atomic_fetch_add(&loopback->bytes[from][peer->number], transfer->bytes,
                               __ATOMIC_SEQ_CST);
        }
    }
    *made = batch;
    return TUTTI_OK;
}

/* Asks the kernel once which sockets have something, since a recv() of each one takes longer. */
static void find_ready(const struct link *link, struct pollfd *sockets)
{
    for (int r = 0; r < link->base.size; r++)
        sockets[r] = (struct pollfd){.fd = link->peers[r].fd, .events = POLLIN};
    if (poll(sockets, (nfds_t)link->base.size, 0) < 0)
        abort();
}

/* Sends what the socket takes. */
static void flush(struct link *link, struct peer *peer)
{
    const uint32_t *cut = &link->engine->loopback->cut[link->engine->number][peer->number];
    while (peer->sends) {
        struct entry *entry = peer->sends;
        if (!entry->sent && loopback_get(*cut) != LOOPBACK_WHOLE)
            return;
        const size_t head = sizeof entry->header, all = head + entry->transfer.bytes;
        const char *from = entry->sent < head
                               ? (const char *)&entry->header + entry->sent
                               : (const char *)entry->transfer.buffer + (entry->sent - head);
        const size_t left = entry->sent < head ? head - entry->sent : all - entry->sent;
        const ssize_t sent = left ? send(peer->fd, from, left, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
        if (sent < 0) {
            peer->ended |= errno != EAGAIN && errno != EINTR;
            return;
        }
        entry->sent += (size_t)sent;
        if (entry->sent < all)
            continue;
        peer->sends = entry->next;
        entry->batch->left--;
    }
}

/* Reads what the socket has. */
static void fill(struct peer *peer)
{
    for (;;) {
        struct arrived *one = peer->arriving;
        if (one && one->have == one->header.bytes) {
            struct arrived **last = &peer->arrived;
            while (*last)
                last = &(*last)->next;
            *last = one;
            peer->arriving = NULL;
            continue;
        }
        char *to = one ? (char *)one->bytes + one->have : (char *)&peer->header + peer->have;
        const size_t left = one ? one->header.bytes - one->have : sizeof peer->header - peer->have;
        const ssize_t got = recv(peer->fd, to, left, MSG_DONTWAIT);
        if (got <= 0) {
            peer->ended |= got == 0 || (errno != EAGAIN && errno != EINTR);
            return;
        }
        *(one ? &one->have : &peer->have) += (size_t)got;
        if (one || peer->have < sizeof peer->header)
            continue;
        peer->arriving = calloc(1, sizeof *one + peer->header.bytes);
        if (!peer->arriving)
            abort();
        peer->arriving->header = peer->header;
        peer->have = 0;
    }
}

/* Hands arrived messages to the receives that wait for them. */
static enum tutti_status deliver(struct link *link, struct peer *peer)
{
    const int64_t delay = (int64_t)loopback_get(link->engine->loopback->delay_us) * 1000;
    const int64_t now = deadline_now(); /* one time for all, so that no message overtakes another */
    for (struct entry *entry, **at = &peer->receives; (entry = *at);) {
        struct arrived *one, **from = &peer->arrived;
        while ((one = *from) && one->header.tag != entry->transfer.tag)
            from = &one->next;
        if (!one || now < one->header.sent + delay) {
            at = &entry->next;
            continue;
        }
        if (one->header.bytes != entry->transfer.bytes)
            return error_set(
                TUTTI_ERR_MISMATCH, "loopback: rank %d sent %zu bytes, this rank expected %zu",
                entry->transfer.peer, (size_t)one->header.bytes, entry->transfer.bytes);
        if (one->have)
            memcpy(entry->transfer.buffer, one->bytes, one->have);
        *from = one->next;
        *at = entry->next;
        entry->batch->left--;
        free(one);
    }
    return TUTTI_OK;
}

static enum tutti_status progress(struct link *link)
{
    enum tutti_status status = check(link);
    struct pollfd sockets[LOOPBACK_RANKS];
    find_ready(link, sockets);
    for (int r = 0; r < link->base.size && status == TUTTI_OK; r++) {
        struct peer *peer = &link->peers[r];
        if (peer->fd < 0)
            continue;
        flush(link, peer);
        if (sockets[r].revents)
            fill(peer);
        status = deliver(link, peer);
        if (status == TUTTI_OK && peer->ended && (peer->sends || peer->receives) &&
            !loopback_get(link->engine->loopback->silent_deaths))
            status = error_set(TUTTI_ERR_SYSTEM, "loopback: rank %d has closed its connection", r);
    }
    return status;
}

/* Whether a test may do without progress. A rank that tests a batch of each of many peers in turn
 * makes progress once for all of them. */
static bool is_soon(struct link *link, const struct fabric_batch *batch)
{
    enum { FEW = 16, EVERY_NS = 20000 };
    const int64_t now = deadline_now();
    if (!batch || link->base.size <= FEW || now - link->progressed >= EVERY_NS) {
        link->progressed = now;
        return false;
    }
    return true;
}

static enum tutti_status test(struct fabric_link *base, struct fabric_batch *batch, bool *done)
{
    struct link *link = (struct link *)base;
    const enum tutti_status status = is_soon(link, batch) ? check(link) : progress(link);
    *done = status == TUTTI_OK && (!batch || batch->left == 0);
    if (*done && batch) {
        struct fabric_batch **at = &link->running;
        while (*at != batch)
            at = &(*at)->next;
        *at = batch->next;
        free(batch);
    }
    return status;
}

/* ---- for tests ------------------------------------------------------------------------------- */

static const struct fabric_ops loopback_ops = {
    .name = "loopback",
    .device_memory = false,
    .address_bytes = sizeof(struct address),
    .open = open_engine,
    .close = close_engine,
    .threads = any_thread,
    .address = make_address,
    .connect = open_link,
    .disconnect = close_link,
    .start = start,
    .test = test,
    .enqueue = NULL,
};

struct loopback *loopback_create(void)
{
    void *memory = mmap(NULL, sizeof(struct loopback), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        abort();
    return memory;
}

enum tutti_status loopback_open(struct loopback *loopback, int number, tutti_fabric_t **fabric)
{
    enum tutti_status status = fabric_create(&loopback_ops, "", fabric);
    if (status != TUTTI_OK)
        return status;
    struct engine *engine = (*fabric)->engine;
    engine->loopback = loopback;
    engine->number = number;
    return TUTTI_OK;
}

void loopback_cut_hosts(struct loopback *loopback, int first, enum loopback_cut cut)
{
    for (int a = 0; a < LOOPBACK_RANKS; a++)
        for (int b = 0; b < LOOPBACK_RANKS; b++)
            if ((a < first) != (b < first))
                loopback_set(loopback->cut[a][b], cut);
}
