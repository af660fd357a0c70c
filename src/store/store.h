/* SPDX-License-Identifier: MIT */
/*
 * What a store is inside the library: a handle with an operations table, one file per kind.
 *
 * The public calls (store.c) check the handle, the keys and the sizes and resolve time-outs; the
 * kinds see only what passed: keys of at most STORE_KEY_BYTES, values of at most STORE_VALUE_BYTES,
 * time-outs that are positive or, for never, negative.
 */
#ifndef TUTTI_STORE_STORE_H
#define TUTTI_STORE_STORE_H

#include "interrupt.h"
#include "tutti/tutti.h"

/* The limits of PyTorch's server; the key loses one byte to the "/" that goes before it. */
#define STORE_KEY_BYTES   ((size_t)8 * 1024 - 1)
#define STORE_VALUE_BYTES ((size_t)8 * 1024 * 1024)
#define STORE_MAX_KEYS    ((size_t)128 * 1024)

/*
 * A caller's table and what only our own kinds have. multi_get may be NULL; it waits for all keys,
 * copies min(length, each) bytes of value i to values + i * each, its whole length to sizes[i].
 */
struct store_ops {
    struct tutti_store_ops base;
    enum tutti_status (*multi_get)(void *context, const char *const *keys, size_t count,
                                   int64_t timeout_ms, void *values, size_t each, size_t *sizes);
};

struct tutti_store {
    struct store_ops ops;
    void *context;                     /* the kind's own; freed by its close */
    int64_t timeout_ms;                /* what 0 means on this handle */
    uint32_t epoch;                    /* of the process: a child of fork() owns nothing */
    char *url;                         /* NULL if no other process can open the store */
    const struct interrupt *interrupt; /* of waits; may be NULL */
};

/* A view of a store, on the caller's stack, whose waits the interrupt ends. Not to be closed. */
struct tutti_store store_interruptible(const tutti_store_t *store,
                                       const struct interrupt *interrupt);

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

/* TIMEOUT that names a key which is missing. */
enum tutti_status store_timed_out(const char *call, const char *key, size_t count,
                                  int64_t timeout_ms);

/* VERSION unless the value of a key of ours has as many bytes as this library gives it. */
enum tutti_status store_value_check(const char *key, size_t size, size_t bytes);

/* Text to a number within bounds; false for anything but plain decimal digits. */
bool store_parse_number(const char *text, long long least, long long most, long long *number);

/* tutti_store_prefix(), but the view closes the base with itself; not on failure. */
enum tutti_status prefix_open(tutti_store_t *store, const char *prefix, tutti_store_t **view);

/* The kinds. Each returns what tutti_store_open() does. */
enum tutti_status memory_open(const struct store_url *url, int64_t timeout_ms,
                              tutti_store_t **store);
enum tutti_status file_open(const struct store_url *url, int64_t timeout_ms, tutti_store_t **store);
enum tutti_status tcp_open(const struct store_url *url, int64_t timeout_ms, tutti_store_t **store);
enum tutti_status env_open(const struct store_url *url, int64_t timeout_ms, tutti_store_t **store);

#endif
