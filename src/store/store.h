/* SPDX-License-Identifier: MIT */
/*
 * What a store is inside the library: a handle with an operations table, one file per kind. The
 * public calls (store.c) check the handle, the keys and the sizes and resolve time-outs. The kinds
 * get keys of at most STORE_KEY_BYTES, values of at most STORE_VALUE_BYTES, and time-outs that are
 * positive or, for never, negative.
 *
 * A store can stand still: the process that serves it is stopped, or another process holds the
 * file's lock. A call must not last longer than its time-out for that. So set-ups, shrinks, members
 * of a group and rendezvous of memory use their store through a view on the stack (store_bounded())
 * with their deadline and their interrupt. Operations that can stand still (tcp, file, their
 * prefixes) look at both. A caller's own table of functions does not: its waits are cut into
 * slices.
 *
 * An operation that begins after the deadline, or after an abort, still gets 250 ms: in that time a
 * rank reads what is there and tells the others how the call ended. When a wait times out, either
 * the key is missing or the store does not answer. So the store is asked once more before a rank is
 * blamed.
 */
#ifndef TUTTI_STORE_STORE_H
#define TUTTI_STORE_STORE_H

#include "base/interrupt.h"
#include "tutti/tutti.h"

/* The limits of PyTorch's server; the key loses one byte to the "/" that goes before it. */
#define STORE_KEY_BYTES   ((size_t)8 * 1024 - 1)
#define STORE_VALUE_BYTES ((size_t)8 * 1024 * 1024)
#define STORE_MAX_KEYS    ((size_t)128 * 1024)

/*
 * A caller's table and what only our own kinds have.
 * - bounded: all operations keep the handle's bounds, or the view's. So it is the handle, or view,
 *   that they get as their context (but close, which gets the kind's own): see store_limit().
 * - multi_get: may be NULL; waits for all keys, copies min(length, each) bytes of value i to
 *   values + i * each, its whole length to sizes[i].
 */
struct store_ops {
    struct tutti_store_ops base;
    bool bounded;
    enum tutti_status (*multi_get)(void *context, const char *const *keys, size_t count,
                                   int64_t timeout_ms, void *values, size_t each, size_t *sizes);
};

struct tutti_store {
    struct store_ops ops;
    void *context;                     /* the kind's own; freed by its close */
    int64_t timeout_ms;                /* what 0 means on this handle */
    uint32_t epoch;                    /* of the process: a child of fork() owns nothing */
    char *url;                         /* NULL if no other process can open the store */
    int64_t deadline;                  /* of views, see store_bounded(); else never */
    const struct interrupt *interrupt; /* of views; may be NULL */
};

/* What an operation may take, though it begins when the view's deadline has passed or the interrupt
 * would end it: by then a rank still reads what is there and tells the others how it came out. */
enum { STORE_GRACE_MS = 250 };

/*
 * A view of a store, on the caller's stack, not to be closed: the deadline or the interrupt, which
 * may be NULL, ends all that is done with it, even if the store does not answer, or keeps its lock.
 * Of a caller's table that holds for waits; no time-out bounds its other operations.
 */
struct tutti_store store_bounded(const tutti_store_t *store, int64_t deadline,
                                 const struct interrupt *interrupt);

/* What bounds one operation of a kind. */
struct store_limit {
    int64_t deadline;
    int64_t grace; /* nobody asks the interrupt before */
    const struct interrupt *interrupt;
};

/* That of an operation which begins now; the time-out is the caller's, 0 the store's own. */
struct store_limit store_limit(const tutti_store_t *store, int64_t timeout_ms);
/* Until when to wait: for the deadline, or else until store_limit_ask(). */
int64_t store_limit_pause(const struct store_limit *limit);
/* Before the deadline: OK, or why the interrupt ends the operation. To be called without a lock,
 * for it may use the store, too. */
enum tutti_status store_limit_ask(const struct store_limit *limit);

/* A parsed URL. The strings are bounded copies, so that a URL may be of any length. */
struct store_url {
    enum store_kind { STORE_MEMORY, STORE_FILE, STORE_TCP, STORE_ENV } kind;
    char text[4096]; /* memory: the name, file: the path, tcp: the host without brackets */
    uint16_t port;   /* 0 is any free one */
    bool server;
    char bind[256]; /* "" is loopback */
    int world_size; /* 0: do not join (tcp), leave the file (file) */
};

/* Returns INVALID, saying what of the URL is wrong. Parses bytes from outside: has a fuzzer. */
/* The name of a host as getaddrinfo() is to be asked: NULL, which is the loopback, for localhost.
 * That name is the loopback everywhere (RFC 6761), also where no /etc/hosts and no server of names
 * says so. */
const char *store_url_node(const char *host);

enum tutti_status store_url_parse(const char *text, struct store_url *url);

/*
 * Makes a handle. It takes the context (calling ops->base.close on failure too, so that the kind
 * has one way to let go) and the URL, which is malloc'ed or NULL.
 */
enum tutti_status store_create(const struct store_ops *ops, void *context, int64_t timeout_ms,
                               char *url, tutti_store_t **store);

/* 0 becomes the default, TUTTI_TIMEOUT_MS or 600 s; INVALID when that variable is no number. */
enum tutti_status store_default_timeout(int64_t *timeout_ms);

/* struct store_ops' multi_get on any store. */
enum tutti_status store_multi_get(tutti_store_t *store, const char *const *keys, size_t count,
                                  int64_t timeout_ms, void *values, size_t each, size_t *sizes);

/* Of a wait for this key that has timed out: OK if it was the key that did not come, and not the
 * store that does not answer, which this call then says. */
enum tutti_status store_answers(tutti_store_t *store, const char *key);

/* Reads a key of ours that nobody deletes, if it is there, which *there says: a value of exactly so
 * many bytes. */
enum tutti_status store_look_up(tutti_store_t *store, const char *key, void *value, size_t bytes,
                                bool *there);

/*
 * To be called by every rank whose last round so far has succeeded: the last of them deletes what
 * that round has left in the store, and the key `also`, which no rank reads any more. Waits for no
 * rank, and for a second at most for a store that has stopped; what cannot be deleted stays.
 */
void exchanger_end(const struct tutti_exchanger *exchanger, const char *also, int64_t deadline);

/* TIMEOUT that names a key which is missing. */
enum tutti_status store_timed_out(const char *call, const char *key, size_t count,
                                  int64_t timeout_ms);

/* VERSION unless the value of a key of ours has as many bytes as this library gives it. */
enum tutti_status store_value_check(const char *key, size_t size, size_t bytes);

/* Text to a number within bounds; false for anything but plain decimal digits. */
bool store_parse_number(const char *text, long long least, long long most, long long *number);

/* Whether it is there, and this process's own. Returns INVALID. */
enum tutti_status store_check(const tutti_store_t *store, const char *call);

/* tutti_store_prefix(), but the view closes the base with itself; not on failure. */
enum tutti_status prefix_open(tutti_store_t *store, const char *prefix, tutti_store_t **view);

/* The kinds. Each returns what tutti_store_open() does. */
enum tutti_status memory_open(const struct store_url *url, int64_t timeout_ms,
                              tutti_store_t **store);
enum tutti_status file_open(const struct store_url *url, int64_t timeout_ms, tutti_store_t **store);
enum tutti_status tcp_open(const struct store_url *url, int64_t timeout_ms, tutti_store_t **store);
enum tutti_status env_open(const struct store_url *url, int64_t timeout_ms, tutti_store_t **store);

#endif
