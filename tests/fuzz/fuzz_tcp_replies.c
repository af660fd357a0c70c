/* SPDX-License-Identifier: MIT */
/*
 * What a server answers. The first byte chooses the call, or the meeting before it; the others are
 * all that comes: a value never runs past its buffer, nothing is awaited for ever, and what failed
 * has a message.
 */
#include "store/tcp_client.c" /* a connection is static */

#include "fuzz.h"

#include <sys/socket.h>

enum { ROOM = 16, GUARD = 8, KEYS = 3 };

/* Whatever is written must stay before the guard. */
static uint8_t value[KEYS * ROOM + GUARD];

static struct store_call meeting = {.name = "fuzz", .deadline = DEADLINE_NEVER};

static enum tutti_status call_one(struct tcp_store *store, enum store_op op)
{
    static const char *const keys[KEYS] = {"/a", "/b", "/c"};
    size_t sizes[KEYS];
    const bool many = op == STORE_GET || op == STORE_CHECK || op == STORE_WAIT;
    struct store_call call = {.op = op,
                              .name = "fuzz",
                              .keys = keys,
                              .count = op == STORE_NUM_KEYS ? 0
                                       : many               ? KEYS
                                                            : 1,
                              .value = {"new", 3},
                              .expected = {"old", 3},
                              .amount = 1,
                              .values = value,
                              .each = many ? ROOM : KEYS * ROOM,
                              .sizes = sizes,
                              .deadline = DEADLINE_NEVER};
    return tcp_serve(store, &call);
}

/* A new connection, without a secret: the answer to its PING is known. */
static enum tutti_status call_meet(struct tcp_store *store)
{
    struct connection connection;
    enum tutti_status status = take(store, &meeting, &connection);
    if (status == TUTTI_OK)
        status = meet_plainly(&connection);
    give(store, &connection, true);
    return status;
}

/* With one. Nobody can answer who does not know it. */
static enum tutti_status call_meet_secretly(struct tcp_store *store)
{
    struct connection connection;
    enum tutti_status status = take(store, &meeting, &connection);
    if (status == TUTTI_OK)
        status = meet_secretly(&connection, "secret");
    fuzz_check(status != TUTTI_OK);
    give(store, &connection, true);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    enum { OPS = STORE_NUM_KEYS + 1 };
    struct tcp_store store = {.name = "fuzz", .met = true, .idle_count = 1};
    int fds[2];
    if (size == 0 || size > 65536 || socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0)
        return 0;
    pthread_mutex_init(&store.lock, NULL);
    store.idle[0] = (struct connection){.fd = fds[1], .gets_late = bytes[0] >= 128, .name = "fuzz"};
    fuzz_check(send(fds[0], bytes + 1, size - 1, MSG_NOSIGNAL) == (ssize_t)(size - 1));
    shutdown(fds[0], SHUT_WR);
    memset(value, 0x5a, sizeof value);
    const int chosen = bytes[0] % (OPS + 2);
    enum tutti_status status = chosen < OPS    ? call_one(&store, (enum store_op)chosen)
                               : chosen == OPS ? call_meet(&store)
                                               : call_meet_secretly(&store);
    fuzz_check(status == TUTTI_OK || *tutti_last_error());
    for (int i = KEYS * ROOM; i < KEYS * ROOM + GUARD; i++)
        fuzz_check(value[i] == 0x5a);
    while (store.idle_count > 0)
        tcp_hang_up(store.idle[--store.idle_count].fd);
    pthread_mutex_destroy(&store.lock);
    close(fds[0]);
    return 0;
}
