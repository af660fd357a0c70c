/* SPDX-License-Identifier: MIT */
/*
 * What a server answers. The first byte chooses the call, or the meeting before it, and whether the
 * answer to a CANCEL_WAIT is still to come; the others are all that comes: a value never runs past
 * its buffer, nothing is awaited for ever, and what failed has a message.
 */
#include "store/tcp_client.c" /* a connection is static */

#include "fuzz.h"

#include <sys/socket.h>

enum { ROOM = 16, GUARD = 8, KEYS = 3 };

/* Whatever is written must stay before the guard. */
static uint8_t value[KEYS * ROOM + GUARD];

static const struct store_call call = {.name = "fuzz", .deadline = DEADLINE_NEVER};

static enum tutti_status call_set(struct tcp_store *store)
{
    return tcp_set(store, &call, "/key", (struct store_bytes){"value", 5});
}

static enum tutti_status call_get(struct tcp_store *store)
{
    const char *const keys[] = {"/key"};
    size_t size = 0;
    return tcp_get(store, &call, keys, 1, &(struct store_values){value, KEYS * ROOM, &size});
}

static enum tutti_status call_multi_get(struct tcp_store *store)
{
    const char *const keys[KEYS] = {"/a", "/b", "/c"};
    size_t sizes[KEYS];
    return tcp_get(store, &call, keys, KEYS, &(struct store_values){value, ROOM, sizes});
}

static enum tutti_status call_wait(struct tcp_store *store)
{
    const char *const keys[] = {"/a"};
    return tcp_get(store, &call, keys, 1, NULL);
}

static enum tutti_status call_add(struct tcp_store *store)
{
    int64_t result;
    return tcp_add(store, &call, "/key", 1, &result);
}

static enum tutti_status call_check(struct tcp_store *store)
{
    const char *const keys[] = {"/a", "/b"};
    bool exists;
    return tcp_check(store, &call, keys, 2, &exists);
}

static enum tutti_status call_compare_set(struct tcp_store *store)
{
    size_t size = 0;
    return tcp_compare_set(store, &call, "/key", (struct store_bytes){"old", 3},
                           (struct store_bytes){"new", 3},
                           &(struct store_values){value, KEYS * ROOM, &size});
}

static enum tutti_status call_delete(struct tcp_store *store)
{
    bool deleted;
    return tcp_delete(store, &call, "/key", &deleted);
}

static enum tutti_status call_num_keys(struct tcp_store *store)
{
    int64_t count;
    return tcp_num_keys(store, &call, &count);
}

/* A new connection, without a secret: the answer to its PING is known. */
static enum tutti_status call_meet(struct tcp_store *store)
{
    struct connection connection;
    enum tutti_status status = take(store, &call, &connection);
    if (status == TUTTI_OK)
        status = meet_plainly(&connection);
    give(store, &connection, true);
    return status;
}

/* With one. Nobody can answer who does not know it. */
static enum tutti_status call_meet_secretly(struct tcp_store *store)
{
    struct connection connection;
    enum tutti_status status = take(store, &call, &connection);
    if (status == TUTTI_OK)
        status = meet_secretly(&connection, "secret");
    fuzz_check(status != TUTTI_OK);
    give(store, &connection, true);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static enum tutti_status (*const calls[])(struct tcp_store *) = {
        call_set,         call_get,    call_multi_get, call_wait, call_add,          call_check,
        call_compare_set, call_delete, call_num_keys,  call_meet, call_meet_secretly};
    struct tcp_store store = {.name = "fuzz", .met = true, .idle_count = 1};
    int fds[2];
    if (size == 0 || size > 65536 || socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0)
        return 0;
    pthread_mutex_init(&store.lock, NULL);
    store.idle[0] = (struct connection){.fd = fds[1], .owes = bytes[0] & 0x80, .name = "fuzz"};
    fuzz_check(send(fds[0], bytes + 1, size - 1, MSG_NOSIGNAL) == (ssize_t)(size - 1));
    shutdown(fds[0], SHUT_WR);
    memset(value, 0x5a, sizeof value);
    enum tutti_status status = calls[bytes[0] % (sizeof calls / sizeof *calls)](&store);
    fuzz_check(status == TUTTI_OK || *tutti_last_error());
    for (int i = KEYS * ROOM; i < KEYS * ROOM + GUARD; i++)
        fuzz_check(value[i] == 0x5a);
    while (store.idle_count > 0)
        hang_up(store.idle[--store.idle_count].fd);
    pthread_mutex_destroy(&store.lock);
    close(fds[0]);
    return 0;
}
