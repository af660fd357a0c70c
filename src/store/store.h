/* SPDX-License-Identifier: MIT */
/*
 * A store inside the library: a handle on a kind of store (kind.h has the kinds' side).
 *
 * A store may stop answering: the process that serves it is stopped, or another process holds the
 * file's lock. A call must still end at its time-out. So set-ups, shrinks, members of a group and
 * rendezvous of memory use their store through a view on the stack (store_bounded()) with their
 * deadline and their interrupt. The tcp and the file store look at both while they wait for the
 * server or the lock; own.c does while a caller's function has not returned.
 *
 * A call that begins after the deadline, or after an abort, still gets STORE_GRACE_MS. In that time
 * a rank reads what is there and tells the others how the call ended. When a wait times out, either
 * the key is missing or the store does not answer. So the store is asked once more before a rank is
 * blamed.
 */
#ifndef TUTTI_STORE_STORE_H
#define TUTTI_STORE_STORE_H

#include "base/interrupt.h"
#include "tutti/tutti.h"

struct store_kind;

struct tutti_store {
    const struct store_kind *kind;
    void *context;                     /* the kind's own */
    int64_t timeout_ms;                /* what 0 means on this handle */
    uint32_t epoch;                    /* of the process: a child of fork() owns nothing */
    bool is_view;                      /* another handle closes the context */
    bool is_bounded;                   /* made by store_bounded() */
    bool serves;                       /* this process serves it: it ends with the process */
    char *url;                         /* NULL if no other process can open the store */
    char *prefix;                      /* goes before each key; NULL: nothing */
    int64_t deadline;                  /* of store_bounded(), else never */
    const struct interrupt *interrupt; /* of store_bounded(); may be NULL */
};

enum { STORE_GRACE_MS = 250 };

/* A view of a store, on the caller's stack, which is not closed. The deadline and the interrupt,
 * which may be NULL, end all calls on it. */
struct tutti_store store_bounded(const tutti_store_t *store, int64_t deadline,
                                 const struct interrupt *interrupt);

/* INVALID if there is no store, or if it was opened before a fork(). */
enum tutti_status store_check(const tutti_store_t *store, const char *call);

/* Appends `prefix` to the handle's prefix, which goes before all keys. The caller frees the memory
 * of the old prefix. */
enum tutti_status store_prefix_add(tutti_store_t *store, const char *prefix);

/* 0 becomes the default, TUTTI_TIMEOUT_MS or 600 s; INVALID when that variable is no number. */
enum tutti_status store_default_timeout(int64_t *timeout_ms);

/* Waits for all keys. Copies min(length, each) bytes of value i to values + i * each, its whole
 * length to sizes[i]. */
enum tutti_status store_multi_get(tutti_store_t *store, const char *const *keys, size_t count,
                                  int64_t timeout_ms, void *values, size_t each, size_t *sizes);

/* Whether the store has this key. `there` is unchanged when the store does not answer. */
enum tutti_status store_has(tutti_store_t *store, const char *key, bool *there);

/* Reads a value of exactly `bytes` bytes, two or more, if the key is there. One call of the store:
 * a rank that deletes the key meanwhile does no harm, and nothing waits. */
enum tutti_status store_look_up(tutti_store_t *store, const char *key, void *value, size_t bytes,
                                bool *there);

/*
 * Wills. A tcp store of ours sets the key to the value, unless it is there, once this process has
 * ended, however it did. Until then it costs a connection for each process and store, which carries
 * nothing. DECLINED: the store keeps no wills, being a file or one of PyTorch's.
 */
enum tutti_status store_will(tutti_store_t *store, const char *key, const void *value, size_t size);
/* Takes back all wills of this process whose keys begin so. */
void store_wills_end(tutti_store_t *store, const char *beginning);
/* Of a process that has made a will: whether the process that serves the store has been killed, or
 * has ended without closing it. Costs a call of the kernel, and sends nothing. False if the network
 * broke. */
bool store_server_has_died(const tutti_store_t *store);

/*
 * Every rank whose last round has succeeded calls this. The last rank deletes what that round has
 * left in the store. The call waits for no rank, and at most a second for a store that has stopped.
 * Keys that cannot be deleted stay.
 */
void exchanger_end(const struct tutti_exchanger *exchanger, int64_t deadline);

/* VERSION unless the value of a key of ours has as many bytes as this library gives it. */
enum tutti_status store_value_check(const char *key, size_t size, size_t bytes);

#endif
