/* SPDX-License-Identifier: MIT */
/*
 * The kinds of store: memory, file and tcp, and a caller's own functions; env opens a tcp store.
 * store.c makes a struct store_call of the caller's arguments, and the kind serves that call. No
 * kind calls store.c's public functions.
 */
#ifndef TUTTI_STORE_KIND_H
#define TUTTI_STORE_KIND_H

#include "base/deadline.h"
#include "store/store.h"

#include <string.h>

/* The limits of PyTorch's server; the key loses one byte to the "/" that goes before it. */
#define STORE_KEY_BYTES   ((size_t)8 * 1024 - 1)
#define STORE_VALUE_BYTES ((size_t)8 * 1024 * 1024)
#define STORE_MAX_KEYS    ((size_t)128 * 1024)

enum store_op {
    STORE_SET,
    STORE_GET, /* waits for all keys, then reads their values */
    STORE_WAIT,
    STORE_ADD,
    STORE_CHECK,
    STORE_COMPARE_SET, /* reads what the key has afterwards */
    STORE_DELETE,
    STORE_NUM_KEYS,
};

/* A SET may be a will: store.h. */
enum store_will {
    STORE_WILL_NONE,
    STORE_WILL_MAKE,
    STORE_WILL_END, /* of all keys that begin with this one */
};

struct store_bytes {
    const void *data;
    size_t size;
};

struct store_call {
    enum store_op op;
    const char *name;        /* for messages */
    const char *const *keys; /* each is "/", the handle's prefix and the caller's key */
    size_t count;
    struct store_bytes value, expected; /* of SET and COMPARE_SET */
    enum store_will will;               /* with SET: not now */
    int64_t amount;                     /* of ADD */
    bool is_there;                      /* GET: all keys have been seen */
    /* Results. The first `each` bytes of value i go to values + i * each, its length to sizes[i].
     * `number` is the sum of ADD and the count of NUM_KEYS; of CHECK and DELETE it is 0 or 1. */
    void *values;
    size_t each;
    size_t *sizes;
    int64_t number;
    /* What ends the call. */
    int64_t timeout_ms; /* for messages */
    int64_t deadline;
    int64_t ask_at;                    /* when the interrupt is asked next */
    const struct interrupt *interrupt; /* may be NULL */
    bool is_bounded;                   /* of a handle that store_bounded() made */
    bool is_pointless;                 /* as ask_pointless() says: only one more look is left */
};

struct store_kind {
    enum tutti_status (*serve)(void *context, struct store_call *call);
    void (*close)(void *context);
    /* NULL: the kind keeps no wills. */
    enum tutti_status (*will)(void *context, struct store_call *call);
    bool (*server_has_died)(void *context);
};

static inline void store_call_put(const struct store_call *call, size_t i, struct store_bytes value)
{
    size_t bytes = value.size < call->each ? value.size : call->each;
    if (bytes > 0)
        memcpy((char *)call->values + i * call->each, value.data, bytes);
    call->sizes[i] = value.size;
}

/* Until when a kind may sleep before it asks store_call_check() again. */
int64_t store_call_pause(const struct store_call *call);
/* OK, or why the interrupt ends the call before its deadline. The kind holds no lock here, because
 * the interrupt may use the store, too. */
enum tutti_status store_call_check(struct store_call *call);
/* A GET has waited for its keys. Reading their values gets at least STORE_GRACE_MS. */
void store_call_found(struct store_call *call);
/* TIMEOUT that names a missing key. */
enum tutti_status store_timed_out(const struct store_call *call, const char *key);
/* INVALID: the value of the key is no counter, or would not be one any more. */
enum tutti_status store_no_number(const char *key);

/* Makes a handle. It takes the context, which it closes after a failure, and the URL, which is
 * malloc'ed or NULL. */
enum tutti_status store_create(const struct store_kind *kind, void *context, int64_t timeout_ms,
                               char *url, tutti_store_t **store);

/* A parsed URL. The strings are bounded copies, so that a URL may be of any length. */
struct store_url {
    enum store_url_kind { STORE_MEMORY, STORE_FILE, STORE_TCP, STORE_ENV } kind;
    char text[4096]; /* memory: the name, file: the path, tcp: the host without brackets */
    uint16_t port;   /* 0 is any free one */
    bool server;
    bool is_unix;   /* tcp_open_with() alone: text is the abstract name of a Unix socket */
    char bind[256]; /* "" is loopback */
    int world_size; /* 0: do not join (tcp), leave the file (file) */
    int rank;       /* that joins; -1: not given */
};

/* Returns INVALID, saying what of the URL is wrong. Parses bytes from outside: has a fuzzer. */
enum tutti_status store_url_parse(const char *text, struct store_url *url);

/* The name of a host for getaddrinfo(): NULL, which means loopback, for localhost. RFC 6761 makes
 * that name the loopback everywhere, also where no /etc/hosts and no name server says so. */
const char *store_url_node(const char *host);

/* Each returns what tutti_store_open() does. */
enum tutti_status memory_open(const struct store_url *url, int64_t timeout_ms,
                              tutti_store_t **store);
enum tutti_status file_open(const struct store_url *url, int64_t timeout_ms, tutti_store_t **store);
enum tutti_status tcp_open(const struct store_url *url, int64_t timeout_ms, tutti_store_t **store);
enum tutti_status env_open(const struct store_url *url, int64_t timeout_ms, tutti_store_t **store);

#endif
