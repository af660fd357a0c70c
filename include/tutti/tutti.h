/* SPDX-License-Identifier: MIT */
/*
 * Tutti: collective operations between the ranks of one node through symmetric memory.
 *
 * Conventions of the whole interface
 *   - A fallible function returns enum tutti_status; TUTTI_OK is 0. The text of the calling
 *     thread's last error is tutti_last_error(). Besides what a function lists, NULL where an
 *     object is needed is INVALID, and so is what a parent made in its child of fork().
 *   - An [out] handle is NULL after a failure.
 *   - Structs that the caller fills begin with struct_size: set it to sizeof the struct and zero
 *     the rest. Zero is the default of every field. A field unknown to the library must be zero.
 *   - A time-out in milliseconds: 0 is the default (600 s unless TUTTI_TIMEOUT_MS says otherwise),
 *     negative never ends.
 *   - Strings are UTF-8, NUL-terminated, and copied by the callee unless it says "borrowed".
 *   - A function may be called from any thread at any time, unless it or its object says less; no
 *     call may use an object that another one destroys or closes.
 */
#ifndef TUTTI_TUTTI_H
#define TUTTI_TUTTI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TUTTI_VERSION_MAJOR 0
#define TUTTI_VERSION_MINOR 1
#define TUTTI_VERSION_PATCH 0
#define TUTTI_VERSION                                                                              \
    (TUTTI_VERSION_MAJOR * 10000 + TUTTI_VERSION_MINOR * 100 + TUTTI_VERSION_PATCH)

#if defined(__GNUC__)
#define TUTTI_API                   __attribute__((visibility("default")))
#define TUTTI_PRINTF(string, first) __attribute__((format(printf, string, first)))
#else
#define TUTTI_API
#define TUTTI_PRINTF(string, first)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status ---------------------------------------------------------------------------------- */

/* X(name, value, meaning). Values are stable. */
#define TUTTI_STATUS_MAP(X)                                                                        \
    X(OK, 0, "success")                                                                            \
    X(ERR_INVALID, 1, "an argument, option or environment variable is wrong")                      \
    X(ERR_DECLINED, 2, "the communicator does not serve this machine, group or request")           \
    X(ERR_TIMEOUT, 3, "a peer did not arrive in time")                                             \
    X(ERR_PEER_DEAD, 4, "a peer's process ended or it destroyed its communicator")                 \
    X(ERR_MISMATCH, 5, "the ranks disagree about the operation or the configuration")              \
    X(ERR_CONCURRENT, 6, "two callers used one communicator at the same time")                     \
    X(ERR_ABORTED, 7, "a rank aborted the communicator")                                           \
    X(ERR_NO_MEMORY, 8, "an allocation failed")                                                    \
    X(ERR_SYSTEM, 9, "a system call failed")                                                       \
    X(ERR_CUDA, 10, "a CUDA call failed")                                                          \
    X(ERR_VERSION, 11, "the ranks run incompatible versions of the library")

enum tutti_status {
#define TUTTI_STATUS_ENUM(name, value, text) TUTTI_##name = value,
    TUTTI_STATUS_MAP(TUTTI_STATUS_ENUM)
#undef TUTTI_STATUS_ENUM
};

/* Static: the constant's name, such as "TUTTI_ERR_TIMEOUT"; "TUTTI_UNKNOWN" for another value. */
TUTTI_API const char *tutti_status_name(enum tutti_status status);
/* Static: what the status means; "unknown status" for another value. */
TUTTI_API const char *tutti_status_text(enum tutti_status status);
/* The calling thread's last error: what failed, what was expected, what to do. "" before the first
 * one; success does not clear it. Valid until the thread's next failing call. */
TUTTI_API const char *tutti_last_error(void);
/* TUTTI_VERSION of the library that is loaded. */
TUTTI_API int tutti_version(void);

/* ---- dtypes, operations, collectives, algorithms --------------------------------------------- */

/* X(name, value, size in bytes, text) */
#define TUTTI_DTYPE_MAP(X)                                                                         \
    X(FLOAT32, 0, 4, "float32")                                                                    \
    X(FLOAT64, 1, 8, "float64")                                                                    \
    X(FLOAT16, 2, 2, "float16")                                                                    \
    X(BFLOAT16, 3, 2, "bfloat16")                                                                  \
    X(FLOAT8_E4M3, 4, 1, "float8_e4m3")                                                            \
    X(FLOAT8_E5M2, 5, 1, "float8_e5m2")                                                            \
    X(INT8, 6, 1, "int8")                                                                          \
    X(UINT8, 7, 1, "uint8")                                                                        \
    X(INT16, 8, 2, "int16")                                                                        \
    X(INT32, 9, 4, "int32")                                                                        \
    X(INT64, 10, 8, "int64")                                                                       \
    X(UINT32, 11, 4, "uint32")                                                                     \
    X(UINT64, 12, 8, "uint64")                                                                     \
    X(BOOL, 13, 1, "bool")

enum tutti_dtype {
#define TUTTI_DTYPE_ENUM(name, value, size, text) TUTTI_##name = value,
    TUTTI_DTYPE_MAP(TUTTI_DTYPE_ENUM)
#undef TUTTI_DTYPE_ENUM
};
#define TUTTI_DTYPE_COUNT 14

/* Size of one element in bytes, 0 for a value that is no dtype. */
TUTTI_API size_t tutti_dtype_size(enum tutti_dtype dtype);
/* Static: "float32"; "unknown" for a value that is no dtype. */
TUTTI_API const char *tutti_dtype_name(enum tutti_dtype dtype);

/* X(name, value, text). The kind of a reduction. */
#define TUTTI_OP_MAP(X)                                                                            \
    X(SUM, 1, "sum")                                                                               \
    X(PROD, 2, "prod")                                                                             \
    X(MIN, 3, "min")                                                                               \
    X(MAX, 4, "max")                                                                               \
    X(AVG, 5, "avg")                                                                               \
    X(BAND, 6, "band")                                                                             \
    X(BOR, 7, "bor")                                                                               \
    X(BXOR, 8, "bxor")                                                                             \
    X(PREMUL_SUM, 9, "premul_sum")

enum tutti_op_kind {
#define TUTTI_OP_ENUM(name, value, text) TUTTI_OP_##name = value,
    TUTTI_OP_MAP(TUTTI_OP_ENUM)
#undef TUTTI_OP_ENUM
};
#define TUTTI_OP_COUNT 10 /* one past the last kind; 0 is none */

/*
 * A reduction: one of the constants below or made by tutti_op_create_premul_sum(). Opaque.
 *   floats    accumulate in float32 (float64 in float64), in the order of one balanced tree over
 *             the ranks, and are rounded once; min and max propagate NaN and order -0 below +0; a
 *             NaN result is canonical; float8 saturates
 *   integers  accumulate in themselves and wrap
 *   bool      sum and max are or, product and min are and
 *   avg       the sum, divided in the accumulation type before it is rounded; truncated on
 *             integers; not for bool
 *   band, bor, bxor    integers and bool
 */
typedef const struct tutti_op *tutti_op_t;
#define TUTTI_SUM  ((tutti_op_t)(uintptr_t)TUTTI_OP_SUM)
#define TUTTI_PROD ((tutti_op_t)(uintptr_t)TUTTI_OP_PROD)
#define TUTTI_MIN  ((tutti_op_t)(uintptr_t)TUTTI_OP_MIN)
#define TUTTI_MAX  ((tutti_op_t)(uintptr_t)TUTTI_OP_MAX)
#define TUTTI_AVG  ((tutti_op_t)(uintptr_t)TUTTI_OP_AVG)
#define TUTTI_BAND ((tutti_op_t)(uintptr_t)TUTTI_OP_BAND)
#define TUTTI_BOR  ((tutti_op_t)(uintptr_t)TUTTI_OP_BOR)
#define TUTTI_BXOR ((tutti_op_t)(uintptr_t)TUTTI_OP_BXOR)

/*
 * Makes an operation that multiplies every input by one scalar in the accumulation type, then sums.
 * For float dtypes. Any communicators and threads may use it at once.
 * [in] scalar  the same on every rank, else the collective fails with MISMATCH (31 bits of a hash
 *              are compared); rounded to the accumulation type
 * [out] op     to be destroyed with tutti_op_destroy() after the last call that uses it
 * Returns INVALID, NO_MEMORY (4096 live at once in a process).
 */
TUTTI_API enum tutti_status tutti_op_create_premul_sum(double scalar, tutti_op_t *op);
/* Destroys a created operation; leaves any other value alone. */
TUTTI_API void tutti_op_destroy(tutti_op_t op);
/* Static: "sum"; "unknown" for no operation. */
TUTTI_API const char *tutti_op_name(tutti_op_t op);

/* X(name, value, text) */
#define TUTTI_COLLECTIVE_MAP(X)                                                                    \
    X(ALL_REDUCE, 1, "all_reduce")                                                                 \
    X(BARRIER, 2, "barrier")

enum tutti_collective {
#define TUTTI_COLLECTIVE_ENUM(name, value, text) TUTTI_COLLECTIVE_##name = value,
    TUTTI_COLLECTIVE_MAP(TUTTI_COLLECTIVE_ENUM)
#undef TUTTI_COLLECTIVE_ENUM
};
/* Static: "all_reduce"; "unknown" for another value. */
TUTTI_API const char *tutti_collective_name(enum tutti_collective collective);

/* NONE: the measured choice, or none in strict mode. 4 to 9 are for CUDA alone; there ONE_SHOT and
 * TWO_SHOT leave the choice among 4 to 7 to the table. For few links: 3, 8, 9. */
#define TUTTI_ALGO_MAP(X)                                                                          \
    X(NONE, 0, "none")                                                                             \
    X(ONE_SHOT, 1, "one_shot")                                                                     \
    X(TWO_SHOT, 2, "two_shot")                                                                     \
    X(HYBRID_CUBE_MESH, 3, "hybrid_cube_mesh")                                                     \
    X(ONE_SHOT_LL, 4, "one_shot_ll")                                                               \
    X(ONE_SHOT_LINES, 5, "one_shot_lines")                                                         \
    X(TWO_SHOT_LINES, 6, "two_shot_lines")                                                         \
    X(TWO_SHOT_PIPELINED, 7, "two_shot_pipelined")                                                 \
    X(RING, 8, "ring")                                                                             \
    X(HOST_STAGED, 9, "host_staged")

enum tutti_algo {
#define TUTTI_ALGO_ENUM(name, value, text) TUTTI_ALGO_##name = value,
    TUTTI_ALGO_MAP(TUTTI_ALGO_ENUM)
#undef TUTTI_ALGO_ENUM
};
/* Static: "one_shot"; "unknown" for another value. */
TUTTI_API const char *tutti_algo_name(enum tutti_algo algo);

/* What a communicator's links look like: two fully linked quads, each rank with one partner across,
 * are a hybrid cube mesh. CPU ranks are fully connected unless TUTTI_TOPOLOGY_FILE is set. */
enum tutti_topology {
    TUTTI_TOPOLOGY_UNKNOWN = 0,
    TUTTI_TOPOLOGY_FULLY_CONNECTED = 1,
    TUTTI_TOPOLOGY_HYBRID_CUBE_MESH = 2,
};

/*
 * The stream that orders a call on a device: a CUstream or cudaStream_t, cast. DEFAULT and LEGACY
 * are both the legacy default stream of the communicator's device, PER_THREAD is the calling
 * thread's. CPU communicators complete before they return and take DEFAULT only.
 *
 * Calls on several streams of one CUDA communicator are ordered as they were made: eager ones by an
 * event, those of one capture by an edge of its graph. So a stream lives until the communicator's
 * next call on another one, or its destroy. CONCURRENT is what neither can order: an eager call
 * after one on a stream that is being captured by now, and a call of a capture that the calls of
 * eight later ones have overtaken. A captured call does nothing until it is replayed; a replay
 * counts as a call on the stream that it is launched on, which the library does not see: the caller
 * orders it with other calls and replays of the communicator, in the same order on all ranks. Two
 * that overlap are not noticed: they spoil each other's results.
 */
typedef struct tutti_stream *tutti_stream_t;
#define TUTTI_STREAM_DEFAULT    ((tutti_stream_t)(uintptr_t)0)
#define TUTTI_STREAM_LEGACY     ((tutti_stream_t)(uintptr_t)1)
#define TUTTI_STREAM_PER_THREAD ((tutti_stream_t)(uintptr_t)2)

/* ---- log ------------------------------------------------------------------------------------- */

enum tutti_log_level {
    TUTTI_LOG_NONE = 0,
    TUTTI_LOG_WARN = 1,
    TUTTI_LOG_INFO = 2,
    TUTTI_LOG_TRACE = 3,
};

/* Receives one line, without its newline, which is valid during the call. Called from any thread,
 * one line at a time; must not call Tutti. */
typedef void tutti_log_fn(void *context, enum tutti_log_level level, const char *line);
/* Sends the library's log to fn instead of stderr; NULL restores stderr. TUTTI_DEBUG sets the
 * level. The former fn is not called any more once this returns. */
TUTTI_API void tutti_log_set(tutti_log_fn *fn, void *context);

/* ---- store: rendezvous by keys --------------------------------------------------------------- */

typedef struct tutti_store tutti_store_t;

/*
 * A caller's own store. Functions get the context given to tutti_store_from_ops() and return a
 * status, which is handed on; keys are NUL-terminated, values any bytes, time-outs positive or, for
 * never, negative. Several threads may call at once: one that waits must not hold up others. What
 * has no time-out returns soon: neither a time-out nor an abort of the library's ends it.
 */
struct tutti_store_ops {
    size_t struct_size;
    /* Binds key to a copy of value. */
    enum tutti_status (*set)(void *context, const char *key, const void *value, size_t size);
    /* Waits until key exists, then copies min(*size, capacity) bytes; *size is the value's whole
     * length. */
    enum tutti_status (*get)(void *context, const char *key, int64_t timeout_ms, void *value,
                             size_t capacity, size_t *size);
    /* Waits until all keys exist, or returns TUTTI_ERR_TIMEOUT. */
    enum tutti_status (*wait)(void *context, const char *const *keys, size_t count,
                              int64_t timeout_ms);
    /* Atomically adds to a counter kept as decimal text, 0 if absent; *result is the new value. */
    enum tutti_status (*add)(void *context, const char *key, int64_t amount, int64_t *result);
    /* *exists says whether all keys exist now. */
    enum tutti_status (*check)(void *context, const char *const *keys, size_t count, bool *exists);
    /* Sets key to desired if its value is expected, or if it is absent and expected is empty. The
     * value afterwards (expected itself when the key is absent and expected is not empty) is copied
     * as get does. */
    enum tutti_status (*compare_set)(void *context, const char *key, const void *expected,
                                     size_t expected_size, const void *desired, size_t desired_size,
                                     void *value, size_t capacity, size_t *size);
    /* *deleted says whether the key existed. */
    enum tutti_status (*delete_key)(void *context, const char *key, bool *deleted);
    /* *count is the number of keys. */
    enum tutti_status (*num_keys)(void *context, int64_t *count);
    /* Called once by tutti_store_close(); may be NULL. */
    void (*close)(void *context);
};

/*
 * Opens a store by URL. Options follow '?', joined by '&':
 *   memory:NAME        shared by the threads of this process that open the same name
 *   file:PATH          a log in PyTorch's FileStore format, made with mode 0600. A link, or a file
 *                      of others, is refused. world_size=N: the last of N to close it removes it
 *   tcp://HOST:PORT    a client of PyTorch's TCPStore protocol.
 *                      server=1 also serves the store in this process (port 0 picks a free one, see
 *                      tutti_store_url());
 *                      bind=ADDRESS is what the server listens on (loopback unless given);
 *                      world_size=N joins as PyTorch does: the server waits until N have come
 *   env:               what the launcher's environment says (see tutti_info_launcher()). With
 *                      MASTER_ADDR and MASTER_PORT as PyTorch does: rank 0 serves there, or
 *                      torchrun's agent (then keys begin with "attempt_N/" after its Nth restart).
 *                      Without them, but for torchrun, rank 0 serves on loopback with a random
 *                      secret that only this user's ranks on this host can learn. Every opening is
 *                      collective and makes a new store, unless an agent serves
 * A key has at most 8191 bytes, its prefixes included, a value at most 8 MiB.
 * TUTTI_STORE_SECRET, if set, is a secret that server and clients of a tcp store must share: both
 * prove at each connection that they know it (HMAC-SHA256, our extension of the protocol), so that
 * who does not know it, PyTorch's clients included, stays out. It does not encrypt: who can read or
 * alter the traffic of the network still can. Without it a tcp store is as private as the network
 * that it listens on.
 * [in] timeout_ms  for connecting and joining, and the default of this store's later operations
 * [out] store      to be closed with tutti_store_close(). Any threads may use it at once: a caller
 *                  that waits never blocks another one.
 * Returns INVALID, TIMEOUT, NO_MEMORY, SYSTEM.
 */
TUTTI_API enum tutti_status tutti_store_open(const char *url, int64_t timeout_ms,
                                             tutti_store_t **store);
/* Wraps a caller's operations; all but close are required. The table is copied, the context is
 * borrowed until tutti_store_close(); on failure close is not called. Returns INVALID (a
 * struct_size other than this header's, too), NO_MEMORY, SYSTEM. */
TUTTI_API enum tutti_status tutti_store_from_ops(const struct tutti_store_ops *ops, void *context,
                                                 tutti_store_t **store);
/* A view of store whose keys all begin with "PREFIX/". To be closed before the base. Returns
 * INVALID, NO_MEMORY, SYSTEM. */
TUTTI_API enum tutti_status tutti_store_prefix(tutti_store_t *store, const char *prefix,
                                               tutti_store_t **view);
/* Closes a handle; takes NULL. A server ends with the handle that started it: the close waits until
 * the clients that are connected have closed theirs, at most 2 s. No other call may be using it. */
TUTTI_API void tutti_store_close(tutti_store_t *store);
/* The URL with which another process can open the same store, valid until the close; NULL for
 * memory, callers' stores, views, and what env: keeps private. */
TUTTI_API const char *tutti_store_url(const tutti_store_t *store);

/*
 * The operations of struct tutti_store_ops on a store. Out-arguments may be NULL, but for exists
 * and count. A get (or compare_set, if value is not NULL) whose value is longer than capacity
 * returns INVALID with *size set to the length needed. num_keys counts all keys of the store, those
 * outside a view and those that PyTorch's stores keep for themselves included. Return INVALID (add:
 * also if the value is no decimal number), TIMEOUT (get and wait: names a missing key), NO_MEMORY,
 * SYSTEM (also when the server is gone).
 */
TUTTI_API enum tutti_status tutti_store_set(tutti_store_t *store, const char *key,
                                            const void *value, size_t size);
TUTTI_API enum tutti_status tutti_store_get(tutti_store_t *store, const char *key,
                                            int64_t timeout_ms, void *value, size_t capacity,
                                            size_t *size);
TUTTI_API enum tutti_status tutti_store_wait(tutti_store_t *store, const char *const *keys,
                                             size_t count, int64_t timeout_ms);
TUTTI_API enum tutti_status tutti_store_add(tutti_store_t *store, const char *key, int64_t amount,
                                            int64_t *result);
TUTTI_API enum tutti_status tutti_store_check(tutti_store_t *store, const char *const *keys,
                                              size_t count, bool *exists);
TUTTI_API enum tutti_status tutti_store_compare_set(tutti_store_t *store, const char *key,
                                                    const void *expected, size_t expected_size,
                                                    const void *desired, size_t desired_size,
                                                    void *value, size_t capacity, size_t *size);
TUTTI_API enum tutti_status tutti_store_delete(tutti_store_t *store, const char *key,
                                               bool *deleted);
TUTTI_API enum tutti_status tutti_store_num_keys(tutti_store_t *store, int64_t *count);

/*
 * An exchanger: collective calls of `size` ranks over a store. The caller fills store, prefix, rank
 * and size and leaves sequence 0; every call advances it, so all ranks make the same calls in the
 * same order. The prefix names the group and its generation: two exchangers never share one. One
 * caller at a time. The keys of its last round stay in the store.
 */
struct tutti_exchanger {
    size_t struct_size;
    tutti_store_t *store; /* borrowed, as is prefix */
    const char *prefix;
    int rank;
    int size;
    uint64_t sequence;
};
/*
 * Gathers one value of `bytes` bytes from each rank; all holds size * bytes, in rank order.
 * Returns INVALID, TIMEOUT (naming the ranks that did not come), MISMATCH (a rank wrote another
 * length), NO_MEMORY, or what the store returns.
 */
TUTTI_API enum tutti_status tutti_store_all_gather(struct tutti_exchanger *exchanger,
                                                   const void *value, size_t bytes, void *all,
                                                   int64_t timeout_ms);
/* Returns when every rank has called it. Fails as tutti_store_all_gather() does. */
TUTTI_API enum tutti_status tutti_store_barrier(struct tutti_exchanger *exchanger,
                                                int64_t timeout_ms);

/* ---- communicator ---------------------------------------------------------------------------- */

#define TUTTI_MAX_RANKS           64
#define TUTTI_DEFAULT_BUFFER_SIZE ((size_t)10 << 20)

typedef struct tutti_comm tutti_comm_t;

enum tutti_device {
    TUTTI_DEVICE_CPU = 0,
    TUTTI_DEVICE_CUDA = 1,
};

enum tutti_strict {
    TUTTI_STRICT_ENV = 0, /* as TUTTI_STRICT says, else off */
    TUTTI_STRICT_OFF = 1,
    TUTTI_STRICT_ON = 2, /* the roots' rule: see tutti_comm_algorithm() */
};

/* Host memory of a communicator's handle and of its rendezvous' table; small things besides come
 * from malloc(). Called within create, rendezvous, shrink and destroy alone, by their thread. */
struct tutti_allocator {
    void *(*alloc)(void *context, size_t size, size_t alignment); /* NULL if there is none */
    void (*free)(void *context, void *pointer, size_t size);      /* the size that was asked for */
    void *context; /* borrowed until tutti_comm_destroy(), also of what was shrunk from it */
};

/* An option comes before the environment, which is read by tutti_comm_create(). What is "compared"
 * is equal on all ranks, else the rendezvous returns MISMATCH. */
struct tutti_comm_options {
    size_t struct_size;
    /* 1 to 63 bytes without '/', "default" if NULL: ranks that give another name do not meet. */
    const char *name;
    enum tutti_device device;
    /* Strict mode's limit in bytes; else TUTTI_BUFFER_SIZE, else 10 MiB. Compared. */
    size_t buffer_size;
    /* Of the rendezvous, its store included, and of each operation; else TUTTI_TIMEOUT_MS. */
    int64_t timeout_ms;
    enum tutti_strict strict; /* compared */
    /* Forced for every call that forces none; else TUTTI_ALGO, else the measured choice. Compared.
     */
    enum tutti_algo algo;
    /* create does not meet the others: call tutti_comm_rendezvous(). */
    bool defer;
    /* world_size ranks, a permutation: the order of the reduction's leaves. NULL is rank order, on
     * a hybrid cube mesh the order of its quads. Copied, compared. */
    const int *leaf_order;
    const struct tutti_allocator *allocator; /* copied; NULL is malloc */
    /* CUDA only, as are all that follow: refused on CPU. For now DECLINED unless 0, both: */
    void *device_arena; /* peers cannot map what was not made to be exported */
    size_t device_arena_bytes;
    int stream_priority; /* operations run on the caller's streams: give those the priority */
    /* A kernel's start may overlap the end of what ran before it on its stream (programmatic stream
     * serialization): faster, if what runs before ends by triggering, or is Tutti's. */
    bool programmatic_launch;
};

/* What made a communicator fail: the same on all ranks that take it over. Its text is
 * tutti_fault_format(). */
struct tutti_fault {
    size_t struct_size;
    enum tutti_status status;
    int rank;          /* that noticed it */
    int peer;          /* that caused it, -1 if none */
    uint64_t sequence; /* of rank's operation, counted from 1; 0 before the first one. On CUDA
                        * replays count in what a device notices, not in what a host does. */
    struct tutti_signature {
        enum tutti_collective collective;
        enum tutti_dtype dtype;
        enum tutti_op_kind op;
        enum tutti_algo algo;
        uint64_t count;
        uint32_t parameter; /* hash of the scalar or of the subset of ranks, 0 if none */
    } expected, seen; /* Of a MISMATCH: rank's side, peer's side. Of a TIMEOUT, where it is known:
                       * seen.count is its length in ms, seen.parameter what set it. */
};

/*
 * Creates a communicator of world_size ranks (CPU: 1 to 64, CUDA: 2 to 8; processes, or threads
 * that each call this) and, unless options->defer, meets the others: every rank calls this with a
 * store of the same contents and the same world_size, and creates the communicators of one name in
 * the same order. Checked in this order: arguments, options, world size, environment and, on CUDA,
 * driver, device (compute capability 8.0 or newer) and tuning file, before the store is touched;
 * that all ranks come; version and configuration of all ranks (MISMATCH names the difference); same
 * host; on CUDA, a device of its own for each rank, by UUID; that their topology files agree; that
 * processes, and devices, reach each other. A rank that fails in the last makes all fail. Allocates
 * an arena of a few MiB a rank; on CUDA besides one of 64 MiB on the device whose context is
 * current during the meeting, which outlives the communicator, and a thread that watches.
 *
 * - [in] store: borrowed until the rendezvous has ended
 * - [in] options: NULL is all defaults; copied
 * - [out] comm: to be destroyed with tutti_comm_destroy()
 *
 * Returns INVALID, DECLINED, TIMEOUT, PEER_DEAD, MISMATCH, ABORTED, NO_MEMORY, SYSTEM, CUDA,
 * VERSION (an unknown option, too), or what a caller's own store returns.
 */
TUTTI_API enum tutti_status tutti_comm_create(tutti_store_t *store, int rank, int world_size,
                                              const struct tutti_comm_options *options,
                                              tutti_comm_t **comm);
/* Meets the other ranks; idempotent: OK if they have met, the first failure again if they did not.
 * A communicator that failed to meet holds its handle only. One caller at a time. Fails as
 * tutti_comm_create() does. */
TUTTI_API enum tutti_status tutti_comm_rendezvous(tutti_comm_t *comm);
/* Local; takes NULL. On CUDA, operations under way get the communicator's time-out to end, 0.1 s if
 * it has failed; then their waits end, and what they write is undefined. Peers that still need this
 * rank get PEER_DEAD. In the child of a fork() it frees the copy of the handle. A graph that
 * captured operations may be replayed afterwards: they do nothing; it holds the device's memory
 * until it is gone and another communicator of the process is created or destroyed. */
TUTTI_API void tutti_comm_destroy(tutti_comm_t *comm);
/* Lets the operations end that this rank enqueued, before the destroy. The communicator takes no
 * more of them (INVALID). Local; returns at once on CPU. Replays count that are on the last
 * operation's stream. Returns TIMEOUT (they still run: it may be called again), CONCURRENT (a
 * caller is inside, a process group lives, that stream is being captured), CUDA, or the fault. */
TUTTI_API enum tutti_status tutti_comm_finalize(tutti_comm_t *comm, int64_t timeout_ms);
/* Ends all waits of operations on all ranks with ABORTED, and this rank's later operations; a
 * peer's that needs no wait may succeed. From any thread or a signal handler; never blocks. Takes
 * NULL. While the ranks meet it ends this rank's wait; the others' ends at its time-out. */
TUTTI_API void tutti_comm_abort(tutti_comm_t *comm);
/* OK, or why the communicator has failed, with the details in *fault (may be NULL; struct_size is
 * the caller's). Looks, without waiting, for aborts, for peers' faults and for dead processes, so
 * that it may be what makes the communicator fail. From any thread. Returns INVALID or the fault's
 * status. */
TUTTI_API enum tutti_status tutti_comm_status(tutti_comm_t *comm, struct tutti_fault *fault);
/* Writes the fault as one sentence; returns the length that it has, as snprintf does, 0 for NULL.
 * Text may be NULL if size is 0, here and below. */
TUTTI_API int tutti_fault_format(const struct tutti_fault *fault, char *text, size_t size);
/* Writes a description (name, state, rank, world size, device, leaf order, algorithm, generation,
 * topology and why, links where they are known, memory) as lines of "key: value"; returns the
 * length that it has, as snprintf does, 0 for NULL. Not during a rendezvous. */
TUTTI_API int tutti_comm_describe(const tutti_comm_t *comm, char *text, size_t size);
/* Whether the library may be used at all: false when TUTTI_DISABLE is set to other than 0, off,
 * false or no. */
TUTTI_API bool tutti_comm_is_enabled(void);
/* UNKNOWN before the ranks have met, and for NULL. */
TUTTI_API enum tutti_topology tutti_comm_topology(const tutti_comm_t *comm);
/* Bytes, as agreed by the ranks; 0 for NULL. */
TUTTI_API size_t tutti_comm_buffer_size(const tutti_comm_t *comm);
/* -1 for NULL. */
TUTTI_API int tutti_comm_rank(const tutti_comm_t *comm);
/* 0 for NULL. */
TUTTI_API int tutti_comm_world_size(const tutti_comm_t *comm);

/* ---- collectives ----------------------------------------------------------------------------- */

enum tutti_call_flags {
    /* Take the copying path also for symmetric buffers; any rank's flag decides for all. */
    TUTTI_CALL_NO_ZERO_COPY = 1,
};

struct tutti_call_options {
    size_t struct_size;
    enum tutti_algo algo;    /* NONE: the communicator's choice; equal on all ranks */
    int64_t timeout_ms;      /* of the operation, from its first wait on; 0: the communicator's */
    uint32_t flags;          /* enum tutti_call_flags */
    uint64_t storage_offset; /* elements before send in its storage: for strict mode */
};

/*
 * recv[i] on every rank = op over all ranks' send[i], for count elements; the same bits on every
 * rank, and by every algorithm but RING. Any count from 0, any address that the dtype allows,
 * nothing to register. send == recv is in place; any other overlap is refused; meanwhile nobody
 * writes to send or touches recv. Blocks until recv is written and send may be reused. One caller
 * per communicator at a time; all ranks make their calls in the same order. dtype, op, count and
 * algorithm are equal on all ranks, else all get MISMATCH. options may be NULL.
 *
 * On CUDA it returns once the operation is enqueued on the stream, and "blocks" is what the stream
 * does; send and recv are memory of the communicator's device (allocated there, or by the capture),
 * managed, or pinned memory of the host, and live until the stream has passed the operation.
 * INVALID names other memory of the host, or both devices of a pointer elsewhere. It may be
 * captured in a graph; where processes share a device only if an algorithm of devices is forced
 * (DECLINED). Threads that share one return once all have called. What goes wrong later (TIMEOUT,
 * PEER_DEAD, MISMATCH by the next operation, ABORTED) ends what waits, on all ranks, with no error
 * of CUDA: recv is undefined, and every later call returns it.
 *
 * Returns INVALID (an algorithm that the links do not allow, too), VERSION (an unknown option),
 * DECLINED (as above; no algorithm in strict mode), CONCURRENT or CUDA (a call of it), having done
 * nothing; or TIMEOUT, PEER_DEAD, MISMATCH, ABORTED, or, where the launch failed or the context is
 * broken, CUDA, after which recv is undefined and the communicator stays failed, on every rank. A
 * rank that needs nothing more of the ranks that have failed returns OK with the right recv, also
 * one that came too late for them. Its next call that all ranks take part in returns their fault.
 */
TUTTI_API enum tutti_status tutti_all_reduce(const void *send, void *recv, size_t count,
                                             enum tutti_dtype dtype, tutti_op_t op,
                                             tutti_comm_t *comm, tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_all_reduce_with(const void *send, void *recv, size_t count,
                                                  enum tutti_dtype dtype, tutti_op_t op,
                                                  tutti_comm_t *comm, tutti_stream_t stream,
                                                  const struct tutti_call_options *options);
/*
 * Returns once every rank of the subset has called it. ranks == NULL and count == 0 mean all ranks.
 * A subset that lacks the caller, names a rank twice or out of range is INVALID; ranks outside take
 * no part. What a rank wrote before is visible after. One caller per communicator at a time. Of
 * options, which may be NULL, the time-out counts. On CUDA it is enqueued, as tutti_all_reduce()
 * is. Returns what tutti_all_reduce() does, DECLINED for a capture alone.
 */
TUTTI_API enum tutti_status tutti_barrier(tutti_comm_t *comm, const int *ranks, int count,
                                          tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_barrier_with(tutti_comm_t *comm, const int *ranks, int count,
                                               tutti_stream_t stream,
                                               const struct tutti_call_options *options);
/*
 * The algorithm that tutti_all_reduce_with() would take; *reason (may be NULL) is a static
 * sentence. A forced one goes first. On CUDA it is the transport (but in strict mode). Strict mode
 * knows the roots' rule only: float32 and bfloat16, storage offset and count both multiples of 4
 * bytes; among fully connected ranks one-shot up to 256 KiB, two-shot up to 10 MiB, on a hybrid
 * cube mesh that up to 256 KiB, all at most the buffer size; else NONE. It is NONE in no other
 * mode. Local; from any thread once the ranks have met. Returns INVALID, VERSION.
 */
TUTTI_API enum tutti_status tutti_comm_algorithm(tutti_comm_t *comm, size_t count,
                                                 enum tutti_dtype dtype, tutti_op_t op,
                                                 const struct tutti_call_options *options,
                                                 enum tutti_algo *algo, const char **reason);
/* Calls of all-reduce, also of process groups, and barrier in this process, refused ones too. */
TUTTI_API uint64_t tutti_call_count(void);

/* ---- work ------------------------------------------------------------------------------------ */

/*
 * A point on a stream, behind what was on it when the work was recorded, or an operation of a
 * process group (tutti/pg.h; what differs is said). Any number of threads may use one at once. It
 * holds no operands: those live until it is done. It may be used and destroyed after its
 * communicator or group. docs/streams.md says what is ordered with what.
 *
 * In a capture a work is edges of the graph: recorded on a stream that is being captured, it can be
 * awaited by streams of the same capture, and nothing else. Another work than one of the same
 * capture is not awaited by a stream that is being captured.
 */
typedef struct tutti_work tutti_work_t;

/*
 * Records a work on the stream, one that comm's operations may be on. Costs about an event; up to
 * 32 destroyed works a communicator are kept for use again. On CPU it is done at once. Unlike
 * operations it may be called by several threads of one communicator.
 * [out] work  to be destroyed with tutti_work_destroy()
 * Returns INVALID, CUDA, NO_MEMORY, or the fault with which the communicator has failed.
 */
TUTTI_API enum tutti_status tutti_work_record(tutti_comm_t *comm, tutti_stream_t stream,
                                              tutti_work_t **work);
/*
 * Whether the stream has passed the work; does not wait. If so, *done is true and the status is
 * that of the operations before it: OK, or the fault of the communicator, also one that came
 * between the work's end and the first call that found it done. OK stays OK. If the communicator
 * was destroyed with such operations under way it is ABORTED, unless another fault came first.
 * Returns INVALID (recorded in a capture, too), CUDA, both with *done false; TIMEOUT, PEER_DEAD,
 * MISMATCH, ABORTED.
 */
TUTTI_API enum tutti_status tutti_work_test(tutti_work_t *work, bool *done);
/*
 * Has the stream wait until the work is done; the host does not wait, and there is no time-out but
 * that of the operations before the work. Says nothing of how those end: ask tutti_work_result().
 * For an operation of a group on CPU tensors it is the host that waits, and gets its status.
 * [in] stream  of any device; DEFAULT, LEGACY and PER_THREAD are those of the communicator's
 *              device. Work of a CPU communicator or group takes DEFAULT only.
 * Returns INVALID (a capture that is not the work's, too), CUDA.
 */
TUTTI_API enum tutti_status tutti_work_wait(tutti_work_t *work, tutti_stream_t stream);
/*
 * Waits on the host until the work is done, and returns what tutti_work_test() then does.
 * [in] timeout_ms  0 is the communicator's or group's time-out. TIMEOUT that comes of it, where
 *                  tutti_work_test() says that the work is not done, changes nothing: wait again.
 */
TUTTI_API enum tutti_status tutti_work_result(tutti_work_t *work, int64_t timeout_ms);
/* Done or not, before or after the communicator; what waits for it goes on waiting. Takes NULL. In
 * the child of a fork() it frees the copy of the handle. */
TUTTI_API void tutti_work_destroy(tutti_work_t *work);

/* ---- symmetric memory ------------------------------------------------------------------------ */

typedef struct tutti_symm_group tutti_symm_group_t;

/* One rank's view of a rendezvoused allocation. The arrays and the addresses in them are valid in
 * this process until the free. */
struct tutti_symm_info {
    size_t struct_size;
    int rank;
    int world_size;
    size_t buffer_bytes;          /* of each rank, as asked for */
    size_t signal_pad_bytes;      /* of each rank, at least 2048 */
    void *const *buffers;         /* world_size addresses, in rank order */
    uint32_t *const *signal_pads; /* likewise */
    int channels;                 /* of barrier, put and wait: 0 to channels - 1 */
    enum tutti_device device;     /* whose addresses these are */
    /* The two tables again as arrays in device memory, for kernels; NULL on CPU. */
    void *const *device_buffers;
    uint32_t *const *device_signal_pads;
};

/*
 * Registers a group of 1 to 64 ranks under a name that is unique in the process (per rank, for
 * thread ranks) and equal on all its ranks, of at most 63 bytes. Local.
 * [in] store   borrowed until tutti_symm_group_destroy()
 * [out] group  to be destroyed with tutti_symm_group_destroy()
 * Returns INVALID (the name is taken, too), NO_MEMORY, SYSTEM.
 */
TUTTI_API enum tutti_status tutti_symm_group(const char *name, int rank, int world_size,
                                             tutti_store_t *store, tutti_symm_group_t **group);
/* Frees the group and what was allocated in it, as tutti_symm_free() does; local; takes NULL.
 * Peers' waits for this rank get PEER_DEAD. */
TUTTI_API void tutti_symm_group_destroy(tutti_symm_group_t *group);
/*
 * Allocates bytes (more than 0) of memory to be shared, zeroed, 4096-byte aligned. Local. To be
 * freed with tutti_symm_free() or with its group.
 *
 * - [in] device: CUDA is memory of the device whose context is current in the calling thread, in
 *   whole pages of it (2 MiB), for groups of at most 8 ranks, a device each. The context outlives
 *   the buffer
 * - [out] buffer: an address of that device. Collectives of a CUDA communicator take it as any
 * other memory of the device; those of a CPU one refuse it
 *
 * Returns INVALID, NO_MEMORY (what limits it is named), SYSTEM; on CUDA also DECLINED (built
 * without kernels; no driver, device or current context, a device too old, too many ranks), CUDA.
 */
TUTTI_API enum tutti_status tutti_symm_alloc(tutti_symm_group_t *group, enum tutti_device device,
                                             size_t bytes, void **buffer);
/*
 * Frees this rank's allocation and its views of the peers' ones. Local; takes NULL. Peers keep
 * their views; their waits for this rank get PEER_DEAD. On CUDA it is bounded: calls under way on
 * streams get 0.1 s to end, then their waits are ended; whoever launches a graph of such calls has
 * waited for it. The graph may be launched again afterwards: those calls do nothing; it holds the
 * device's memory until it is gone and another communicator or allocation of the process comes or
 * goes. Returns INVALID.
 */
TUTTI_API enum tutti_status tutti_symm_free(void *buffer);
/*
 * Collective over the group, idempotent: maps every peer's allocation. All ranks call it for their
 * allocations in the same order, one call at a time, and with the same kind of device and size
 * (else MISMATCH, after which the group works on, as it does after two ranks' memory was found to
 * be of one device, by UUID; any other failure of the meeting stays). On CUDA a rank reads
 * something of each peer's memory, so that a link that does not work is found here; in a group of
 * several processes its first such meeting starts a thread that watches whether they live.
 *
 * - [in] buffer: as tutti_symm_alloc() gave it, here and below
 * - [out] info: may be NULL; struct_size is the caller's
 *
 * Returns INVALID, DECLINED (another host, one device for two), TIMEOUT, PEER_DEAD, MISMATCH,
 * CONCURRENT, NO_MEMORY, SYSTEM, VERSION, CUDA (a peer's memory cannot be mapped, too).
 */
TUTTI_API enum tutti_status tutti_symm_rendezvous(void *buffer, int64_t timeout_ms,
                                                  struct tutti_symm_info *info);
/*
 * The address of element storage_offset in rank's buffer, checked to hold a dense tensor of the
 * given sizes. After the rendezvous; valid until the free.
 * [in] sizes  dims extents, each at least 0; dims 0 is one element
 * Returns INVALID, also for a negative or overflowing extent, or one that reaches past the end.
 */
TUTTI_API enum tutti_status tutti_symm_buffer(void *buffer, int rank, const int64_t *sizes,
                                              int dims, enum tutti_dtype dtype,
                                              int64_t storage_offset, void **view);
/* The same for count words of rank's signal pad from word offset. The channels' words come first.
 */
TUTTI_API enum tutti_status tutti_symm_signal_pad(void *buffer, int rank, int64_t offset,
                                                  int64_t count, uint32_t **view);
/*
 * Signals. In host memory the three calls block, take TUTTI_STREAM_DEFAULT only, and return TIMEOUT
 * or PEER_DEAD themselves.
 *
 * On CUDA they enqueue on the stream, any one of the buffer's device, and return at once: it is the
 * stream that waits. They may be captured in graphs, which may be launched any number of times.
 * Calls on one channel are made in the order in which the streams come to them; Tutti does not
 * order streams here. A call whose wait ends with TIMEOUT or PEER_DEAD (within 0.1 s of the death,
 * or of the peer's free) lets its stream go on, without an error of CUDA, and fails this rank's
 * buffer for good: all waits under way end, later calls, replays too, do nothing, and
 * tutti_symm_status() and these three return that error. Peers hear nothing of it; the memory and
 * its views stay.
 *
 * - [in] timeout_ms: of the call, on CUDA from its first wait on; there 0, the group's default, is
 *   no part of a graph
 */
/* All ranks of the allocation's group meet on a channel: what one wrote before, all see after. One
 * caller a channel; not mixed with signals that are still raised on it. Returns INVALID, TIMEOUT,
 * PEER_DEAD, CUDA; after a failure the channel may hold signals of ranks that came. */
TUTTI_API enum tutti_status tutti_symm_barrier(void *buffer, int channel, int64_t timeout_ms,
                                               tutti_stream_t stream);
/* Waits until the peer has taken the previous signal on this channel, then raises it. Releases
 * earlier writes. One caller a peer and channel. Returns INVALID, TIMEOUT, PEER_DEAD, CUDA. */
TUTTI_API enum tutti_status tutti_symm_put_signal(void *buffer, int peer, int channel,
                                                  int64_t timeout_ms, tutti_stream_t stream);
/* Waits for the peer's signal on this channel and takes it. Acquires the peer's earlier writes. One
 * caller a peer and channel. Returns INVALID, TIMEOUT, PEER_DEAD, CUDA. */
TUTTI_API enum tutti_status tutti_symm_wait_signal(void *buffer, int peer, int channel,
                                                   int64_t timeout_ms, tutti_stream_t stream);
/*
 * OK, or how this rank's buffer has failed, with the details in *fault (may be NULL; struct_size is
 * the caller's): rank is this one, peer the one that was waited for, expected.parameter the
 * channel. Its text, with the call and what to do, is tutti_last_error(), not tutti_fault_format().
 * In host memory nothing fails for good: OK. Does not wait; from any thread. Returns INVALID,
 * TIMEOUT, PEER_DEAD.
 */
TUTTI_API enum tutti_status tutti_symm_status(void *buffer, struct tutti_fault *fault);

/* ---- information ----------------------------------------------------------------------------- */

/* What the launcher's environment says of this process. */
struct tutti_launcher {
    size_t struct_size;
    const char *name; /* static: "torchrun", "openmpi", "hydra", "slurm" */
    int rank;
    int world_size;
    int local_rank; /* -1 if it does not say */
    int local_size; /* -1 if it does not say */
};
/* Looks for the launchers in the order above. Returns INVALID: no launcher is recognised (the
 * variables looked for are named), a variable is malformed, struct_size is not this header's. */
TUTTI_API enum tutti_status tutti_info_launcher(struct tutti_launcher *launcher);
/* Static: the instruction set of the CPU reductions, "baseline", "avx2", "avx512" or "neon": the
 * best one, or the one that TUTTI_ISA names if the processor has it. */
TUTTI_API const char *tutti_info_isa(void);
/* Static: the symmetric-memory back end that TUTTI_SYMM_BACKEND asks for, "cpu" or "cuda"; "cpu" if
 * unset. A query only: tutti_symm_alloc() is told the device. Another name is INVALID. */
TUTTI_API enum tutti_status tutti_info_symm_backend(const char **name);
/* Whether the device supports NVLink multicast objects: a query only, false on CPU. */
TUTTI_API bool tutti_info_multicast(enum tutti_device device);
/*
 * links[i * count + j] = NVLinks from device i to device j, through NVML; a link that ends in an
 * NVSwitch counts as one to every device on it. 0 on the diagonal.
 * [in] bus_ids  PCI bus ids of count devices, as CUDA writes them: "0000:01:00.0"
 * Returns INVALID, DECLINED (no NVML here), NO_MEMORY, SYSTEM (NVML's error).
 */
TUTTI_API enum tutti_status tutti_info_links(const char *const *bus_ids, int count, int *links);

#ifdef __cplusplus
}
#endif

#endif
