/* SPDX-License-Identifier: MIT */
/*
 * The kinds of store: memory, file and tcp each have a table of operations; env opens a tcp store;
 * a caller's own functions have a table that passes calls on. store.c checks what the caller gave,
 * and calls the table; no kind calls store.c.
 */
#ifndef TUTTI_STORE_KIND_H
#define TUTTI_STORE_KIND_H

#include "store/nap.h"
#include "store/store.h"

#include <string.h>

/* The limits of PyTorch's server; the key loses one byte to the "/" that goes before it. */
#define STORE_KEY_BYTES   ((size_t)8 * 1024 - 1)
#define STORE_VALUE_BYTES ((size_t)8 * 1024 * 1024)
#define STORE_MAX_KEYS    ((size_t)128 * 1024)

/* One call: its name, for messages, and what ends it. */
struct store_call {
    const char *name;
    int64_t timeout_ms; /* for messages */
    int64_t deadline;
    int64_t grace;                     /* the interrupt is not asked before this time */
    const struct interrupt *interrupt; /* may be NULL */
};

/* Until when a kind may sleep before it asks store_call_check() again. */
int64_t store_call_pause(const struct store_call *call);
/* OK, or why the interrupt ends the call before its deadline. The kind holds no lock here, because
 * the interrupt may use the store, too. */
enum tutti_status store_call_check(const struct store_call *call);

struct store_bytes {
    const void *data;
    size_t size;
};

/* Where the values of several keys go: see store_multi_get(). */
struct store_values {
    void *data;
    size_t each;
    size_t *sizes;
};

static inline void store_values_put(const struct store_values *values, size_t i,
                                    struct store_bytes value)
{
    size_t bytes = value.size < values->each ? value.size : values->each;
    if (bytes > 0)
        memcpy((char *)values->data + i * values->each, value.data, bytes);
    values->sizes[i] = value.size;
}

/*
 * The operations, on the kind's own context. Each key is "/", the handle's prefix and the caller's
 * key. The messages leave the "/" out.
 * - get waits for all keys, as wait does in struct tutti_store_ops; then it reads the values,
 *   unless `values` is NULL
 * - compare_set puts what the key has afterwards into *value
 */
struct store_kind {
    enum tutti_status (*set)(void *context, const struct store_call *call, const char *key,
                             struct store_bytes value);
    enum tutti_status (*get)(void *context, const struct store_call *call, const char *const *keys,
                             size_t count, const struct store_values *values);
    enum tutti_status (*add)(void *context, const struct store_call *call, const char *key,
                             int64_t amount, int64_t *result);
    enum tutti_status (*check)(void *context, const struct store_call *call,
                               const char *const *keys, size_t count, bool *exists);
    enum tutti_status (*compare_set)(void *context, const struct store_call *call, const char *key,
                                     struct store_bytes expected, struct store_bytes desired,
                                     const struct store_values *value);
    enum tutti_status (*delete_key)(void *context, const struct store_call *call, const char *key,
                                    bool *deleted);
    enum tutti_status (*num_keys)(void *context, const struct store_call *call, int64_t *count);
    void (*close)(void *context);
};

/* Makes a handle. It takes the context, which it closes after a failure, and the URL, which is
 * malloc'ed or NULL. */
enum tutti_status store_create(const struct store_kind *kind, void *context, int64_t timeout_ms,
                               char *url, tutti_store_t **store);

/* TIMEOUT that names a missing key. */
enum tutti_status store_timed_out(const struct store_call *call, const char *key, size_t count);
/* INVALID: the value of the key is no counter, or would not be one any more. */
enum tutti_status store_no_number(const char *key);

/* A parsed URL. The strings are bounded copies, so that a URL may be of any length. */
struct store_url {
    enum store_url_kind { STORE_MEMORY, STORE_FILE, STORE_TCP, STORE_ENV } kind;
    char text[4096]; /* memory: the name, file: the path, tcp: the host without brackets */
    uint16_t port;   /* 0 is any free one */
    bool server;
    char bind[256]; /* "" is loopback */
    int world_size; /* 0: do not join (tcp), leave the file (file) */
};

/* Returns INVALID, saying what of the URL is wrong. Parses bytes from outside: has a fuzzer. */
enum tutti_status store_url_parse(const char *text, struct store_url *url);

/* The name of a host for getaddrinfo(): NULL, which means loopback, for localhost. RFC 6761 makes
 * that name the loopback everywhere, also where no /etc/hosts and no name server says so. */
const char *store_url_node(const char *host);

/* Text to a number within bounds; false for anything but plain decimal digits. */
bool store_parse_number(const char *text, long long least, long long most, long long *number);

/* Each returns what tutti_store_open() does. */
enum tutti_status memory_open(const struct store_url *url, int64_t timeout_ms,
                              tutti_store_t **store);
enum tutti_status file_open(const struct store_url *url, int64_t timeout_ms, tutti_store_t **store);
enum tutti_status tcp_open(const struct store_url *url, int64_t timeout_ms, tutti_store_t **store);
enum tutti_status env_open(const struct store_url *url, int64_t timeout_ms, tutti_store_t **store);

#endif
