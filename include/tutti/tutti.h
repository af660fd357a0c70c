/* SPDX-License-Identifier: MIT */
/*
 * Tutti: collective operations between the ranks of one node through symmetric memory.
 *
 * Conventions of the whole interface
 *   - A function that can fail returns enum tutti_status; TUTTI_OK is 0. tutti_last_error() is the
 *     message. Comments list statuses without the prefix TUTTI_ERR_. Besides those listed, a call
 *     returns INVALID for a NULL object, and for an object of the parent in a child of fork().
 *   - An [out] handle is NULL after a failure.
 *   - A struct that begins with struct_size may have another size in the library's version than in
 *     the program's. The caller sets struct_size to sizeof the struct and zeroes the rest; zero is
 *     the default of every field. Fields that the program's struct lacks are zero to the library,
 *     or are not written. A field that the library does not know must be zero, else VERSION; the
 *     library writes zero to it. The structs of an array have one size.
 *   - A time-out is in milliseconds. 0 is the default, which is TUTTI_TIMEOUT_MS or 600 s. A
 *     negative time-out never ends.
 *   - Strings are UTF-8 and NUL-terminated. The callee copies them, unless its comment says
 *     "borrowed": then the caller keeps them valid.
 *   - Any thread may call any function at any time, unless a comment restricts this. No call may
 *     use an object while another call destroys or closes it; tutti_comm_destroy() notices most.
 *   - A calling thread has a stack of 64 KiB or more.
 */
#ifndef TUTTI_TUTTI_H
#define TUTTI_TUTTI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TUTTI_VERSION_MAJOR 0
#define TUTTI_VERSION_MINOR 2
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

/* Static: the name of the constant, "TUTTI_ERR_TIMEOUT"; "TUTTI_UNKNOWN" for another value. */
TUTTI_API const char *tutti_status_name(enum tutti_status status);
/* Static: the meaning of the status; "unknown status" for another value. */
TUTTI_API const char *tutti_status_text(enum tutti_status status);
/* The message of the calling thread's last error: what was wrong, what was expected, what to do. ""
 * before the first error. A success does not clear it. Valid until the thread's next error. */
TUTTI_API const char *tutti_last_error(void);
/* TUTTI_VERSION of the loaded library. */
TUTTI_API int tutti_version(void);
/* Static: the version of the loaded library as text, "0.2.0". */
TUTTI_API const char *tutti_version_string(void);

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
    X(BOOL, 13, 1, "bool")                                                                         \
    X(COMPLEX64, 14, 8, "complex64")                                                               \
    X(COMPLEX128, 15, 16, "complex128")

enum tutti_dtype {
#define TUTTI_DTYPE_ENUM(name, value, size, text) TUTTI_##name = value,
    TUTTI_DTYPE_MAP(TUTTI_DTYPE_ENUM)
#undef TUTTI_DTYPE_ENUM
};
#define TUTTI_DTYPE_COUNT 16

/* Size of one element in bytes; 0 for a value that is no dtype. */
TUTTI_API size_t tutti_dtype_size(enum tutti_dtype dtype);
/* Static: "float32"; "unknown" for a value that is no dtype. */
TUTTI_API const char *tutti_dtype_name(enum tutti_dtype dtype);

/* X(name, value, text). The value is that of the constant TUTTI_SUM..., as an integer. */
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

/*
 * A reduction: one of the constants below, or created by tutti_op_create_premul_sum(). Opaque.
 *   floats    are accumulated in float32 (float64 in float64) by one balanced tree over the ranks
 *             and rounded once. Min and max return NaN if an input is NaN, and order -0 below +0.
 *             A NaN result has one canonical bit pattern. float8 saturates
 *   integers  are accumulated in their own type and wrap
 *   bool      sum and max are "or"; product and min are "and"
 *   complex   are two floats, float32 or float64, as in C: so they are aligned and reduced. They
 *             have sum, avg and premul_sum
 *   avg       is the sum divided in the accumulation type before the rounding; truncated for
 *             integers; not for bool
 *   band, bor, bxor    are for integers and bool
 */
typedef const struct tutti_op *tutti_op_t;
#define TUTTI_SUM  ((tutti_op_t)(uintptr_t)1)
#define TUTTI_PROD ((tutti_op_t)(uintptr_t)2)
#define TUTTI_MIN  ((tutti_op_t)(uintptr_t)3)
#define TUTTI_MAX  ((tutti_op_t)(uintptr_t)4)
#define TUTTI_AVG  ((tutti_op_t)(uintptr_t)5)
#define TUTTI_BAND ((tutti_op_t)(uintptr_t)6)
#define TUTTI_BOR  ((tutti_op_t)(uintptr_t)7)
#define TUTTI_BXOR ((tutti_op_t)(uintptr_t)8)
/* Stands in a struct tutti_fault for any created premultiplied sum. As an argument it is refused.
 */
#define TUTTI_PREMUL_SUM ((tutti_op_t)(uintptr_t)9)

/*
 * Creates an operation for float and complex dtypes: multiply each input by one scalar in the
 * accumulation type, then sum. Several communicators and threads may use it at once.
 *
 * - [in] scalar: rounded to the accumulation type. Equal on all ranks, else the collective returns
 *   MISMATCH (a hash of 31 bits is compared)
 * - [out] op: destroy it with tutti_op_destroy() after the last call that uses it
 *
 * Returns INVALID, NO_MEMORY (a process has at most 4096 at once).
 */
TUTTI_API enum tutti_status tutti_op_create_premul_sum(double scalar, tutti_op_t *op);
/* Destroys a created operation. Ignores any other value. */
TUTTI_API void tutti_op_destroy(tutti_op_t op);
/* Static: "sum"; "unknown" for a value that is no operation. */
TUTTI_API const char *tutti_op_name(tutti_op_t op);

/* X(name, value, text) */
#define TUTTI_COLLECTIVE_MAP(X)                                                                    \
    X(ALL_REDUCE, 1, "all_reduce")                                                                 \
    X(BARRIER, 2, "barrier")                                                                       \
    X(ALL_GATHER, 3, "all_gather")                                                                 \
    X(REDUCE_SCATTER, 4, "reduce_scatter")                                                         \
    X(ALL_TO_ALL, 5, "all_to_all")                                                                 \
    X(BROADCAST, 6, "broadcast")                                                                   \
    X(REDUCE, 7, "reduce")                                                                         \
    X(GATHER, 8, "gather")                                                                         \
    X(SCATTER, 9, "scatter")                                                                       \
    X(SEND, 10, "send")                                                                            \
    X(RECV, 11, "recv")                                                                            \
    X(ALL_GATHER_V, 12, "all_gather_v")                                                            \
    X(REDUCE_SCATTER_V, 13, "reduce_scatter_v")                                                    \
    X(ALL_TO_ALL_V, 14, "all_to_all_v")                                                            \
    X(GATHER_V, 15, "gather_v")                                                                    \
    X(SCATTER_V, 16, "scatter_v")                                                                  \
    X(SPLIT, 17, "split")

enum tutti_collective {
#define TUTTI_COLLECTIVE_ENUM(name, value, text) TUTTI_COLLECTIVE_##name = value,
    TUTTI_COLLECTIVE_MAP(TUTTI_COLLECTIVE_ENUM)
#undef TUTTI_COLLECTIVE_ENUM
};
/* Static: "all_reduce"; "unknown" for another value. */
TUTTI_API const char *tutti_collective_name(enum tutti_collective collective);

/* As an argument NONE means the measured choice; as a result, that strict mode has no algorithm. 4
 * to 9 are for CUDA only. On CUDA, ONE_SHOT and TWO_SHOT let the tuning table choose among 4 to 7.
 * 3, 8 and 9 are for ranks that are not fully linked. */
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

/* What joins a communicator's ranks. A hybrid cube mesh is two fully linked quads; each rank is
 * also linked to one partner in the other quad. CPU ranks are fully connected unless
 * TUTTI_TOPOLOGY_FILE is set. */
enum tutti_topology {
    TUTTI_TOPOLOGY_UNKNOWN = 0,
    TUTTI_TOPOLOGY_FULLY_CONNECTED = 1,
    TUTTI_TOPOLOGY_HYBRID_CUBE_MESH = 2,
};

/*
 * The stream of a call on a device: a CUstream or cudaStream_t, cast. DEFAULT and LEGACY are both
 * the legacy default stream of the communicator's device; PER_THREAD is the calling thread's
 * default stream. Calls of a CPU communicator complete before they return and accept DEFAULT only.
 *
 * The library orders the calls of one CUDA communicator on several streams as they were made: eager
 * calls by an event, calls of one capture by an edge of its graph. So a stream must live until the
 * communicator's next call on another stream, or its destroy. Two cases cannot be ordered and
 * return CONCURRENT: an eager call if the previous call's stream is another one and is now being
 * captured, and a call of a capture after a call of a later capture.
 *
 * A captured call does nothing until its graph is launched. Each launch counts as a call on the
 * stream of the launch. The library does not see it: the caller orders launches with the other
 * calls and launches of the communicator, in the same order on all ranks. Launches that overlap are
 * not noticed; their results are wrong.
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

/* Receives one line without its newline. The line is valid during the call. Any thread may call it,
 * one at a time. It must not call Tutti. */
typedef void tutti_log_fn(void *context, enum tutti_log_level level, const char *line);
/* Sends the library's log to fn instead of stderr; NULL restores stderr. TUTTI_DEBUG sets the
 * level, WARN unless set. After the return the previous fn is no longer called. */
TUTTI_API void tutti_log_set(tutti_log_fn *fn, void *context);

/* ---- store: rendezvous by keys --------------------------------------------------------------- */

typedef struct tutti_store tutti_store_t;

/*
 * A caller's own store. Each function gets the context of tutti_store_from_ops(). The library
 * passes on the status that it returns. Keys are NUL-terminated, values are any bytes. A time-out
 * is positive, or negative for no limit. Several threads may call at once; a call that waits must
 * not block the others. Functions without a time-out must return soon. A set-up calls them in
 * threads of its own. It leaves a function alone that has not returned by its deadline; after such
 * a call, close is called when the function has returned.
 */
struct tutti_store_ops {
    size_t struct_size;
    /* Binds key to a copy of value. */
    enum tutti_status (*set)(void *context, const char *key, const void *value, size_t size);
    /* Waits until key exists. Sets *size to the length of the value and copies at most capacity
     * bytes of it. */
    enum tutti_status (*get)(void *context, const char *key, int64_t timeout_ms, void *value,
                             size_t capacity, size_t *size);
    /* Waits until all keys exist, or returns TUTTI_ERR_TIMEOUT. */
    enum tutti_status (*wait)(void *context, const char *const *keys, size_t count,
                              int64_t timeout_ms);
    /* Atomically adds to a counter in decimal text, 0 if absent. *result is the new value. */
    enum tutti_status (*add)(void *context, const char *key, int64_t amount, int64_t *result);
    /* Sets *exists to whether all keys exist now. */
    enum tutti_status (*check)(void *context, const char *const *keys, size_t count, bool *exists);
    /* Atomically sets key to desired if its value is expected, or if it is absent and expected is
     * empty. Then copies the key's value as get does; if the key is absent, it copies expected. */
    enum tutti_status (*compare_set)(void *context, const char *key, const void *expected,
                                     size_t expected_size, const void *desired, size_t desired_size,
                                     void *value, size_t capacity, size_t *size);
    /* Sets *deleted to whether the key existed. */
    enum tutti_status (*delete_key)(void *context, const char *key, bool *deleted);
    /* Sets *count to the number of keys. */
    enum tutti_status (*num_keys)(void *context, int64_t *count);
    /* Called once by tutti_store_close(); may be NULL. */
    void (*close)(void *context);
};

/*
 * Opens a store by URL. Options follow '?', joined by '&':
 *   memory:NAME        shared by the threads of this process that open the same name
 *   file:PATH          a log in PyTorch's FileStore format, created with mode 0600. A link, or a
 *                      file that another user owns or may write, is refused. With world_size=N the
 *                      last of N processes that closes it removes the file
 *   tcp://HOST:PORT    a client of PyTorch's TCPStore protocol. With server=1 this process also
 *                      serves the store; port 0 takes a free port, see tutti_store_url().
 *                      bind=ADDRESS is the server's address (default: HOST if that is a loopback
 *                      address, else loopback). With world_size=N the server waits until N clients
 *                      have joined, as PyTorch's does, and clients of such a server wait with it.
 *                      With rank=R, too, a time-out names the ranks that are missing, on all ranks
 *   env:               as the launcher's environment says, see tutti_info_launcher(). With
 *                      MASTER_ADDR and MASTER_PORT as PyTorch does: rank 0 serves there, or
 *                      torchrun's agent (keys then begin with "attempt_N/" after N restarts).
 *                      Without them rank 0 serves on loopback, with a random secret that only this
 *                      user's ranks on this host can get; not for torchrun. Unless an agent serves,
 *                      each open is collective and creates a new store
 * A key has at most 8191 bytes, its prefixes included; a value has at most 8 MiB.
 * TUTTI_STORE_SECRET, if set, is a secret of the server and the clients of a tcp store. At each
 * connection both prove that they know it (HMAC-SHA256, an extension of the protocol). Others
 * cannot connect, PyTorch's clients included. The traffic is not encrypted. Without a secret all
 * who reach the server's address can use the store.
 * [in] timeout_ms  limit for connecting and joining; the default of the store's later operations
 * [out] store      close it with tutti_store_close(). Several threads may use it at once; a call
 *                  that waits does not block the others
 * Returns INVALID, TIMEOUT, NO_MEMORY, SYSTEM.
 */
TUTTI_API enum tutti_status tutti_store_open(const char *url, int64_t timeout_ms,
                                             tutti_store_t **store);
/* Makes a store of a caller's functions. All but close are required. The table is copied; the
 * context is borrowed until tutti_store_close(). After a failure close is not called. Returns
 * INVALID, VERSION, NO_MEMORY, SYSTEM. */
TUTTI_API enum tutti_status tutti_store_from_ops(const struct tutti_store_ops *ops, void *context,
                                                 tutti_store_t **store);
/* Opens a view of store in which all keys get the prefix "PREFIX/". Close it before store. Returns
 * INVALID, NO_MEMORY, SYSTEM. */
TUTTI_API enum tutti_status tutti_store_prefix(tutti_store_t *store, const char *prefix,
                                               tutti_store_t **view);
/* Closes a handle; takes NULL. The close of the handle that started a server ends the server. It
 * first waits, at most 2 s, until the connected clients have closed their handles. */
TUTTI_API void tutti_store_close(tutti_store_t *store);
/* The URL with which another process can open the same store; valid until the close. NULL for
 * memory:, callers' stores, views, and an env: store with a private secret. */
TUTTI_API const char *tutti_store_url(const tutti_store_t *store);

/*
 * The operations of struct tutti_store_ops on a store. Out-arguments may be NULL, except exists and
 * count. If a value is longer than capacity, get (and compare_set, if value is not NULL) returns
 * INVALID and sets *size to the length needed. num_keys counts all keys of the store, also keys
 * outside a view and internal keys of PyTorch's stores. Return INVALID (add: also if the value is
 * no decimal number), TIMEOUT (get and wait name a missing key), NO_MEMORY, SYSTEM (also if the
 * server has ended).
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
 * An exchanger: collective calls of `size` ranks over a store. The caller sets store, prefix, rank
 * and size, and sequence to 0. Each call advances sequence, so all ranks make the same calls in the
 * same order. No two exchangers on a store may use one prefix: put the group's name and a
 * generation in it. One caller at a time. The keys of the last call stay in the store.
 */
struct tutti_exchanger {
    size_t struct_size;
    tutti_store_t *store; /* borrowed, as is prefix */
    const char *prefix;
    int rank;
    int size;
    uint64_t sequence;
};
/* Gathers one value of `bytes` bytes from each rank. `all` has room for size * bytes and is in rank
 * order. Returns INVALID, TIMEOUT (the message names the missing ranks), MISMATCH (a rank passed
 * another length), NO_MEMORY, VERSION, or what the store returns. */
TUTTI_API enum tutti_status tutti_exchanger_all_gather(struct tutti_exchanger *exchanger,
                                                       const void *value, size_t bytes, void *all,
                                                       int64_t timeout_ms);
/* Returns after every rank has called it. Returns the statuses of tutti_exchanger_all_gather(). */
TUTTI_API enum tutti_status tutti_exchanger_barrier(struct tutti_exchanger *exchanger,
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
    TUTTI_STRICT_ENV = 0, /* as TUTTI_STRICT says; off if that is unset */
    TUTTI_STRICT_OFF = 1,
    TUTTI_STRICT_ON = 2, /* a fixed rule: see tutti_comm_algorithm() */
};

enum tutti_programmatic {
    TUTTI_PROGRAMMATIC_AUTO =
        0,                     /* TUTTI_PROGRAMMATIC_LAUNCH, else on from compute capability 9.0 */
    TUTTI_PROGRAMMATIC_ON = 1, /* a kernel may start while the kernel before it ends */
    TUTTI_PROGRAMMATIC_OFF = 2,
};

/* An option that is set overrides its environment variable, which tutti_comm_create() reads.
 * "Compared" options are equal on all ranks, else the rendezvous returns MISMATCH. */
struct tutti_comm_options {
    size_t struct_size;
    /* 1 to 63 bytes without '/'; NULL means "default". Only ranks with the same name meet. */
    const char *name;
    enum tutti_device device;
    /* Strict mode's limit in bytes; 0: TUTTI_BUFFER_SIZE, else 10 MiB. Compared. */
    size_t buffer_size;
    /* Of the rendezvous, its store calls included, and of each operation. */
    int64_t timeout_ms;
    enum tutti_strict strict; /* compared */
    /* Forced for each call that forces none. NONE: TUTTI_ALGO, else the measured choice.
     * Compared. */
    enum tutti_algo algo;
    /* create does not meet the other ranks; call tutti_comm_rendezvous() later. */
    bool defer;
    /* A permutation of the world_size ranks: the order of the reduction's leaves. NULL is rank
     * order; on a hybrid cube mesh, one quad after the other. Copied, compared. */
    const int *leaf_order;
    /* For CUDA only, refused on CPU: CUDA's programmatic stream serialization. */
    enum tutti_programmatic programmatic_launch;
    /* For CPU only so far: while an operation waits for a peer, the calling thread calls progress
     * every millisecond or so, and before each sleep of up to 50 ms. A result other than 0 ends the
     * operation: the communicator fails with ABORTED, as by tutti_comm_abort(), which says what
     * holds on the other ranks. The function must not use this communicator. NULL: none. Operations
     * of process groups and the rendezvous do not call it. */
    int (*progress)(void *progress_context);
    void *progress_context; /* borrowed until the destroy */
    /* For CPU only, refused on CUDA: the most bytes of a rank's arena, at least 64 KiB, and 512
     * more for each rank beyond 16. 24 KiB of them are for operations longer than 4 KiB. 0:
     * TUTTI_ARENA_BYTES, else what operations use at full speed: 1.6 to 3.6 MiB. Such operations
     * move in pieces that fit, with the same bits: smaller arenas make them slower. Compared. */
    size_t arena_bytes;
};

/* Why a communicator has failed. Ranks that learn of a peer's fault report the same one.
 * tutti_fault_format() makes a text of it. */
struct tutti_fault {
    size_t struct_size;
    enum tutti_status status;
    int rank;          /* the rank that noticed it */
    int peer;          /* the rank that caused it; -1: none */
    uint64_t sequence; /* of that operation of rank, from 1; 0: before the first. On CUDA, launches
                        * of graphs count if the device noticed the fault, not if the host did. */
    struct tutti_signature {
        enum tutti_collective collective;
        enum tutti_dtype dtype;
        tutti_op_t op; /* a constant; TUTTI_PREMUL_SUM for a created one */
        enum tutti_algo algo;
        uint64_t count;     /* of a v-form: the block between the two; 2^43 - 1: not known */
        uint32_t parameter; /* hash of the scalar, the counts or the subset of ranks; 0: none */
    } expected, seen; /* Of a mismatch: what rank called, what peer called; .collective is 0 if that
                       * is not known any more, of both if they differ in a call before
                       * `sequence`. Of a TIMEOUT, where it is known: seen.count is the time-out in
                       * ms, seen.parameter what set it. */
};

/*
 * Creates a communicator of world_size ranks (CPU: 1 to 64, CUDA: 2 to 8) and, unless
 * options->defer, meets the other ranks. Ranks are processes, or threads that each call this. All
 * ranks pass the same world_size and a handle to one store, and create communicators of one name in
 * the same order.
 *
 * Checks first, before it uses the store: arguments, options, world size, environment; on CUDA also
 * driver, device (compute capability 8.0 or newer) and tuning file. Then, in this order: all ranks
 * arrive; versions and configurations fit (the message of MISMATCH names the difference); one host;
 * on CUDA one device for each rank, by UUID; equal topology files; processes and devices reach each
 * other. If the last check fails on one rank, it fails on all.
 *
 * Allocates an arena of a few MiB for each rank. On CUDA also a thread, and an arena of 64 MiB on
 * the device whose context is current during the rendezvous. This context must outlive the
 * communicator.
 *
 * - [in] store: borrowed until the rendezvous has ended
 * - [in] options: NULL means all defaults; copied
 * - [out] comm: destroy it with tutti_comm_destroy()
 *
 * Returns INVALID, DECLINED, TIMEOUT, PEER_DEAD, MISMATCH, ABORTED, NO_MEMORY, SYSTEM, CUDA,
 * VERSION (also for an unknown option), or what a caller's own store returns.
 */
TUTTI_API enum tutti_status tutti_comm_create(tutti_store_t *store, int rank, int world_size,
                                              const struct tutti_comm_options *options,
                                              tutti_comm_t **comm);
/* Meets the other ranks. A second call returns the result of the first. After a failure the
 * communicator holds only its handle. One caller at a time. Fails as tutti_comm_create() does. */
TUTTI_API enum tutti_status tutti_comm_rendezvous(tutti_comm_t *comm);
/* Destroys the communicator; takes NULL. Local. On CUDA, operations under way get the
 * communicator's time-out to end, 0.1 s if it has failed; then their waits are ended and their
 * results are undefined. Operations of peers that still need this rank get PEER_DEAD. In a child of
 * fork() it frees the copied handle. A graph of captured operations may be launched; they do
 * nothing. It holds device memory until it is destroyed and the process creates or destroys another
 * communicator. Returns CONCURRENT, and destroys nothing, if another thread is in a call that
 * returns CONCURRENT for a second caller, in the rendezvous, or in tutti_pg_create(), if a group of
 * calls that has not ended has calls on it, or if it has a process group. A call that this thread
 * has left by an exception or longjmp() counts as ended. Other calls must not run beside it. */
TUTTI_API enum tutti_status tutti_comm_destroy(tutti_comm_t *comm);
/* Waits until the operations that this rank has enqueued have ended. The communicator then takes no
 * more of them (INVALID). Local; returns at once on CPU. Launches of graphs count if they are on
 * the last operation's stream. Returns TIMEOUT (operations still run: it may be called again),
 * CONCURRENT (a caller is inside, a process group lives, that stream is being captured), CUDA, or
 * the fault. */
TUTTI_API enum tutti_status tutti_comm_finalize(tutti_comm_t *comm, int64_t timeout_ms);
/* Ends all waits of operations on all ranks with ABORTED. Later operations of this rank get
 * ABORTED, too; an operation of a peer that need not wait may still succeed: one for which this
 * rank has done its part, or a message or rooted operation that the peer only sends. A peer's next
 * operation that waits for this rank, and its tutti_comm_status() at once, return ABORTED. Never
 * blocks; may be called from a signal handler. Takes NULL. During the rendezvous it ends this
 * rank's wait only; the other ranks wait until their time-out. */
TUTTI_API void tutti_comm_abort(tutti_comm_t *comm);
/* Returns OK, or the status with which the communicator has failed. Fills *fault, which may be
 * NULL; the caller sets its struct_size. Checks without waiting for aborts, peers' faults and dead
 * processes; if it finds one, the communicator fails. Returns INVALID or the fault's status. */
TUTTI_API enum tutti_status tutti_comm_status(tutti_comm_t *comm, struct tutti_fault *fault);
/* Writes the fault as one sentence. Returns the length of the whole sentence, as snprintf() does; 0
 * for NULL. Here and below text may be NULL if size is 0. */
TUTTI_API int tutti_fault_format(const struct tutti_fault *fault, char *text, size_t size);
/* Writes a description as lines of "key: value": name, state, rank, world size, device, leaf order,
 * algorithm, generation, topology and its reason, known links, memory. Returns the length as
 * tutti_fault_format() does. Not during a rendezvous. */
TUTTI_API int tutti_comm_describe(const tutti_comm_t *comm, char *text, size_t size);
/* UNKNOWN before the rendezvous and for NULL. */
TUTTI_API enum tutti_topology tutti_comm_topology(const tutti_comm_t *comm);
/* The option buffer_size as the ranks agreed on it, in bytes; 0 for NULL. */
TUTTI_API size_t tutti_comm_buffer_size(const tutti_comm_t *comm);
/* -1 for NULL. */
TUTTI_API int tutti_comm_rank(const tutti_comm_t *comm);
/* 0 for NULL. */
TUTTI_API int tutti_comm_world_size(const tutti_comm_t *comm);

#include "tutti/collectives.h"
#include "tutti/communicators.h"

/* ---- work ------------------------------------------------------------------------------------ */

/*
 * A point on a stream, after all that was on the stream when the work was recorded. Or an operation
 * of a process group (tutti/pg.h; differences are noted). Several threads may use one work at once.
 * The caller keeps operands valid until the work is done. A work may be used and destroyed after
 * its communicator or group. docs/streams.md says what works order.
 *
 * A work that is recorded on a stream under capture stands for edges of the graph: streams of the
 * same capture can wait for it, and all else is refused. Such a stream waits for no other works.
 */
typedef struct tutti_work tutti_work_t;

/*
 * Records a work on a stream of comm's device. Costs about as much as an event; a communicator
 * keeps up to 32 destroyed works for reuse. On CPU the work is done at once. Several threads may
 * call this for one communicator at once.
 * [out] work  destroy it with tutti_work_destroy()
 * Returns INVALID, CUDA, NO_MEMORY, or the fault with which the communicator has failed.
 */
TUTTI_API enum tutti_status tutti_work_record(tutti_comm_t *comm, tutti_stream_t stream,
                                              tutti_work_t **work);
/*
 * Sets *done to whether the stream has passed the work; does not wait. If it has, the status is
 * that of the operations before the work: OK, or the communicator's fault. A fault that came before
 * the first call that finds the work done counts; after that call the status stays. If the
 * communicator was destroyed while these operations were under way, the status is ABORTED or an
 * earlier fault. Returns INVALID (also for a work of a capture) or CUDA, both with *done false; or
 * TIMEOUT, PEER_DEAD, MISMATCH, ABORTED.
 */
TUTTI_API enum tutti_status tutti_work_test(tutti_work_t *work, bool *done);
/*
 * Makes the stream wait until the work is done. The host does not wait. The wait has no time-out of
 * its own; the operations before the work have theirs. tutti_work_wait_host() returns how they
 * ended. For an operation of a process group on CPU tensors the host waits and gets its status.
 * [in] stream  of any device. DEFAULT, LEGACY and PER_THREAD are those of the communicator's
 *              device. A work of a CPU communicator or group accepts DEFAULT only
 * Returns INVALID (also for a stream under another capture than the work's), CUDA.
 */
TUTTI_API enum tutti_status tutti_work_wait_stream(tutti_work_t *work, tutti_stream_t stream);
/*
 * Waits on the host until the work is done. Then returns what tutti_work_test() returns.
 * [in] timeout_ms  0 is the communicator's or group's time-out. If it expires, TIMEOUT is returned
 *                  and the operations go on: tutti_work_test() sets *done to false. Call again
 */
TUTTI_API enum tutti_status tutti_work_wait_host(tutti_work_t *work, int64_t timeout_ms);
/* Destroys a work, done or not, also after its communicator. Streams that wait for it still wait.
 * Takes NULL. In a child of fork() it frees the copied handle. */
TUTTI_API void tutti_work_destroy(tutti_work_t *work);

/* ---- symmetric memory ------------------------------------------------------------------------ */

typedef struct tutti_symmetric_group tutti_symm_group_t;

/* One rank's view of an allocation after the rendezvous. The arrays and the addresses in them are
 * valid in this process until the free. */
struct tutti_symm_info {
    size_t struct_size;
    int rank;
    int world_size;
    size_t buffer_bytes;          /* of each rank's buffer, as allocated */
    size_t signal_pad_bytes;      /* of each rank's signal pad, at least 2048 */
    void *const *buffers;         /* world_size addresses, in rank order */
    uint32_t *const *signal_pads; /* world_size addresses, in rank order */
    int channels;                 /* barrier, put and wait use channels 0 to channels - 1 */
    enum tutti_device device;     /* that the addresses belong to */
    /* Copies of the two tables in device memory, for kernels; NULL on CPU. */
    void *const *device_buffers;
    uint32_t *const *device_signal_pads;
};

/*
 * Registers a group of 1 to 64 ranks. Local. The name has 1 to 63 bytes and is equal on all ranks.
 * A process registers a name only once for each rank.
 * [in] store   borrowed until the group's first rendezvous has ended, or the destroy
 * [out] group  destroy it with tutti_symm_group_destroy()
 * Returns INVALID (also if the name is already registered), NO_MEMORY, SYSTEM.
 */
TUTTI_API enum tutti_status tutti_symm_group(const char *name, int rank, int world_size,
                                             tutti_store_t *store, tutti_symm_group_t **group);
/* Frees the group and its allocations as tutti_symm_free() does. Local; takes NULL. Peers' waits
 * for this rank get PEER_DEAD. */
TUTTI_API void tutti_symm_group_destroy(tutti_symm_group_t *group);
/*
 * Allocates bytes (more than 0) of zeroed memory to share, aligned to 4096 bytes. Local.
 *
 * - [in] device: with CUDA, the device whose context is current in the calling thread. The memory
 *   is in whole device pages (2 MiB). The group has at most 8 ranks, each on its own device. The
 *   context must outlive the buffer
 * - [out] buffer: an address on that device; free it with tutti_symm_free() or with its group.
 *   Collectives of a CUDA communicator accept it like any memory of the device; those of a CPU
 *   communicator refuse memory of a device
 *
 * Returns INVALID, NO_MEMORY (the message names the limit), SYSTEM; on CUDA also CUDA and DECLINED
 * (built without kernels; no driver, device or current context; device too old; too many ranks).
 */
TUTTI_API enum tutti_status tutti_symm_alloc(tutti_symm_group_t *group, enum tutti_device device,
                                             size_t bytes, void **buffer);
/*
 * Frees this rank's allocation and its views of the peers' allocations. Local; takes NULL. Peers
 * keep their views; their waits for this rank get PEER_DEAD. On CUDA, calls under way on streams
 * get 0.1 s to end, then their waits are ended. The caller first waits for launched graphs of such
 * calls. A graph may be launched again after the free; its calls do nothing. It holds the device's
 * memory until it is destroyed and the process then creates or destroys a communicator or
 * allocation. Returns INVALID.
 */
TUTTI_API enum tutti_status tutti_symm_free(void *buffer);
/*
 * Maps the allocations of all peers. Collective over the group. All ranks call it for their
 * allocations in the same order, one call at a time, with the same kind of device and the same
 * size. A second call for a buffer returns at once. If the kinds or sizes differ (MISMATCH), or two
 * ranks use one device (DECLINED), the group stays usable; after any other failure it stays failed.
 * On CUDA each rank also reads from each peer's memory, so a broken link is found here. There, one
 * thread of the process watches the ranks of other processes.
 *
 * - [in] buffer: an address from tutti_symm_alloc(), here and below
 * - [out] info: may be NULL; the caller sets struct_size
 *
 * Returns INVALID, DECLINED (several hosts; two ranks on one device, by UUID), TIMEOUT, PEER_DEAD,
 * MISMATCH, CONCURRENT, NO_MEMORY, SYSTEM, VERSION, CUDA (also if a peer's memory cannot be
 * mapped).
 */
TUTTI_API enum tutti_status tutti_symm_rendezvous(void *buffer, int64_t timeout_ms,
                                                  struct tutti_symm_info *info);
/*
 * Sets *view to the address of element storage_offset in rank's buffer, after the rendezvous.
 * Checks that a dense tensor of the given sizes fits there. The address is valid until the free.
 * [in] sizes  `dims` extents, each at least 0; with dims 0 the tensor is one element
 * Returns INVALID, also if an extent is negative or overflows, or the tensor does not fit.
 */
TUTTI_API enum tutti_status tutti_symm_buffer(void *buffer, int rank, const int64_t *sizes,
                                              int dims, enum tutti_dtype dtype,
                                              int64_t storage_offset, void **view);
/* The same for count words of rank's signal pad from word offset. The channels come first. */
TUTTI_API enum tutti_status tutti_symm_signal_pad(void *buffer, int rank, int64_t offset,
                                                  int64_t count, uint32_t **view);
/*
 * Signals. In host memory the three calls below block, accept TUTTI_STREAM_DEFAULT only, and return
 * TIMEOUT or PEER_DEAD themselves.
 *
 * On CUDA they enqueue on any stream of the buffer's device and return at once; the stream waits.
 * They may be captured in graphs, which may be launched any number of times. Calls on one channel
 * take effect in the order in which streams reach them; Tutti does not order the streams. If a wait
 * ends with TIMEOUT or PEER_DEAD (within 0.1 s of the peer's death or free), the stream goes on
 * without a CUDA error and this rank's buffer fails for good: all waits under way end, later calls
 * and launches of graphs do nothing, and tutti_symm_status() and the three calls return that error.
 * Peers are not notified. The memory and its views stay valid.
 *
 * - [in] timeout_ms: of the call; on CUDA from its first wait. A graph does not store time-out 0:
 *   it uses the group's default at each launch
 */
/* A barrier of all ranks of the group: what a rank wrote before is visible to all after. One caller
 * at a time per channel, and no signal is raised on the channel. Returns INVALID, TIMEOUT,
 * PEER_DEAD, CUDA. After a failure the channel may still have signals of ranks that arrived. */
TUTTI_API enum tutti_status tutti_symm_barrier(void *buffer, int channel, int64_t timeout_ms,
                                               tutti_stream_t stream);
/* Waits until the peer has taken this rank's previous signal on the channel, then raises it.
 * Releases earlier writes. One caller per peer and channel. Returns INVALID, TIMEOUT, PEER_DEAD,
 * CUDA. */
TUTTI_API enum tutti_status tutti_symm_put_signal(void *buffer, int peer, int channel,
                                                  int64_t timeout_ms, tutti_stream_t stream);
/* Waits for the peer's signal on the channel and takes it. Acquires the peer's earlier writes. One
 * caller per peer and channel. Returns INVALID, TIMEOUT, PEER_DEAD, CUDA. */
TUTTI_API enum tutti_status tutti_symm_wait_signal(void *buffer, int peer, int channel,
                                                   int64_t timeout_ms, tutti_stream_t stream);
/* Returns OK, or the status with which this rank's buffer has failed; always OK in host memory.
 * Fills *fault, which may be NULL; the caller sets struct_size. There rank is this rank, peer the
 * awaited rank and expected.parameter the channel. For the message use tutti_last_error(), not
 * tutti_fault_format(). Does not wait. Returns INVALID, TIMEOUT, PEER_DEAD. */
TUTTI_API enum tutti_status tutti_symm_status(void *buffer, struct tutti_fault *fault);

/* ---- information ----------------------------------------------------------------------------- */

/* What the launcher's environment variables say about this process. */
struct tutti_launcher {
    size_t struct_size;
    const char *name; /* static: "torchrun", "openmpi", "hydra", "slurm" */
    int rank;
    int world_size;
    int local_rank; /* on this node; -1: not given */
    int local_size; /* ranks on this node; -1: not given */
};
/* Tries the launchers in the order above. Returns INVALID if none is recognised (the message names
 * the variables), or if a variable is malformed. */
TUTTI_API enum tutti_status tutti_info_launcher(struct tutti_launcher *launcher);
/*
 * Writes the value of a key as text. Local; needs no communicator.
 *   "enabled"         "no" if TUTTI_DISABLE is set to something else than 0, off, false or no; the
 *                     application should then not use the library. Else "yes"
 *   "isa"             the instruction set of CPU reductions: "baseline", "avx2", "avx512" or
 *                     "neon"; the processor's best, or the one that TUTTI_ISA names if it has that
 *   "symm.backend"    what TUTTI_SYMM_BACKEND names, "cpu" or "cuda"; "cpu" if it is unset. A query
 *                     only: tutti_symm_alloc() takes the device
 *   "cuda.device"     the ordinal of the current CUDA device; -1 if there is none that Tutti can
 * use "cuda.multicast"  "yes" if the current CUDA device supports NVLink multicast objects, else
 * "no" "calls"           the number of calls of collectives in this process, those of process
 * groups and refused calls included [out] text  32 bytes are enough for any key Returns INVALID (an
 * unknown key, a text that is too short, a wrong environment variable).
 */
TUTTI_API enum tutti_status tutti_info(const char *key, char *text, size_t size);
/*
 * Sets links[i * count + j] to the number of NVLinks from device i to device j, from NVML; 0 on the
 * diagonal. A link to an NVSwitch counts as one link to each device on that switch.
 * [in] bus_ids  PCI bus ids of count devices, as CUDA writes them: "0000:01:00.0"
 * Returns INVALID, DECLINED (no NVML on this machine), NO_MEMORY, SYSTEM (NVML's error).
 */
TUTTI_API enum tutti_status tutti_info_links(const char *const *bus_ids, int count, int *links);

#ifdef __cplusplus
}
#endif

#endif
