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

/* ---- errors and versions --------------------------------------------------------------------- */

/* X(name, value, meaning) */
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

/* The values do not change from version to version. */
enum tutti_status {
#define TUTTI_STATUS_ENUM(name, value, text) TUTTI_##name = value,
    TUTTI_STATUS_MAP(TUTTI_STATUS_ENUM)
#undef TUTTI_STATUS_ENUM
};

/* The message of the calling thread's last error: what was wrong, what was expected, what to do. ""
 * before the first error. A success does not clear it. Valid until the thread's next error. A
 * communicator also keeps the fault of an operation: tutti_comm_status(). */
TUTTI_API const char *tutti_last_error(void);
/* Static: the name of the constant, "TUTTI_ERR_TIMEOUT"; "TUTTI_UNKNOWN" for another value. */
TUTTI_API const char *tutti_status_name(enum tutti_status status);
/* Static: the meaning of the status; "unknown status" for another value. */
TUTTI_API const char *tutti_status_text(enum tutti_status status);
/* TUTTI_VERSION of the loaded library: major * 10000 + minor * 100 + patch. */
TUTTI_API int tutti_version(void);
/* Static: the version of the loaded library as text, "0.2.0". */
TUTTI_API const char *tutti_version_string(void);

/* ---- dtypes, operations, numerics, algorithms, streams --------------------------------------- */

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

/* An element of complex64 or complex128 is two floats, as in C, with the alignment of one. A bool
 * is true if its byte is not 0; it is stored as 0 or 1. */
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
 * *Operations.* A reduction is one of the constants below, or a premultiplied sum, which one of
 * the tutti_op_create_*() makes. Opaque.
 *
 * - TUTTI_SUM, TUTTI_PROD, TUTTI_MIN, TUTTI_MAX: on all dtypes; of these, complex numbers have the
 *   sum only. On bool, sum and max are "or", product and min are "and"
 * - TUTTI_AVG: on all dtypes except bool. The sum is divided by the number of ranks before it is
 *   rounded. On integers the wrapped sum is divided, and truncated toward zero
 * - TUTTI_BAND, TUTTI_BOR, TUTTI_BXOR: on integers and bool
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
/* Stands in a struct tutti_fault for any created premultiplied sum. Refused as an argument. */
#define TUTTI_PREMUL_SUM ((tutti_op_t)(uintptr_t)9)

/*
 * *Numerics.* Floats of 8, 16 and 32 bits are accumulated in float32, float64 in float64, the two
 * floats of a complex number each by itself, integers and bool in their own type. One balanced tree
 * combines the inputs in leaf order: the largest power of two is on the left, as in (0+1)+2,
 * (0+1)+(2+3), ((0+1)+(2+3))+(4+5). The leaf order is the order of the ranks, unless
 * tutti_comm_create() was given another one. The result is rounded once at the end, to nearest,
 * ties to even. So it has the same bits on all ranks, in every run, for every size, instruction set
 * and algorithm, except TUTTI_ALGO_RING. A communicator of one rank rounds in the same way, so its
 * result can differ from the input.
 *
 * Subnormal numbers are kept, and rounding is to nearest, whatever the caller's floating-point
 * environment, which the call leaves as it is. A NaN result is 0x7fc00000 (float32),
 * 0x7ff8000000000000 (float64), 0x7e00 (float16), 0x7fc0 (bfloat16) or 0x7f (float8). Min and max
 * are NaN if an input is NaN, and order -0 below +0. Both float8 types saturate: float8_e4m3 at
 * 448, float8_e5m2 at 57344. So an infinite float8_e5m2 is accumulated as infinity, and an infinite
 * result is stored as 57344. Integers wrap.
 */

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
    X(SPLIT, 17, "split")                                                                          \
    X(ALL_REDUCE_RMS_NORM, 18, "all_reduce_rms_norm")

enum tutti_collective {
#define TUTTI_COLLECTIVE_ENUM(name, value, text) TUTTI_COLLECTIVE_##name = value,
    TUTTI_COLLECTIVE_MAP(TUTTI_COLLECTIVE_ENUM)
#undef TUTTI_COLLECTIVE_ENUM
};
/* Static: "all_reduce"; "unknown" for another value. */
TUTTI_API const char *tutti_collective_name(enum tutti_collective collective);

/* X(name, value, text) */
#define TUTTI_ALGO_MAP(X)                                                                          \
    X(NONE, 0, "none")                                                                             \
    X(ONE_SHOT, 1, "one_shot")                                                                     \
    X(TWO_SHOT, 2, "two_shot")                                                                     \
    X(HYBRID_CUBE_MESH, 3, "hybrid_cube_mesh")                                                     \
    X(RING, 8, "ring")                                                                             \
    X(HOST_STAGED, 9, "host_staged")                                                               \
    X(COPY_ENGINE, 10, "copy_engine")                                                              \
    X(SYMMETRIC, 11, "symmetric")

/*
 * All-reduce takes the first of these that names an algorithm: options->algo of the call; the
 * communicator's option algo, or TUTTI_ALGO; the rule of strict mode (see tutti_comm_algorithm());
 * the measured choice. The measured choice always works: on a hybrid cube mesh it is that
 * algorithm; on GPUs that only a ring of links joins, the ring; on GPUs without links, one-shot or
 * two-shot.
 *
 * - TUTTI_ALGO_NONE: as an argument, the next choice in that order. As a result: strict mode has no
 *   algorithm
 * - TUTTI_ALGO_ONE_SHOT: every rank gets all inputs and reduces them itself. Needs a link between
 *   any two ranks. On CUDA the tuning table chooses among several kernels of it; TUTTI_ALGO can
 *   name one of them. What does not serve the dtype or the bytes gives INVALID, with a message
 *   that names what does
 * - TUTTI_ALGO_TWO_SHOT: every rank reduces its own share of the elements; the others collect the
 *   result. Needs links, and has several kernels, as one-shot does
 * - TUTTI_ALGO_HYBRID_CUBE_MESH: among 8 ranks. The four ranks of a quad reduce their inputs, then
 *   each rank and its partner in the other quad combine the two partial results. Needs the links of
 *   a hybrid cube mesh, or all links, and a leaf order of one quad after the other
 * - TUTTI_ALGO_RING: for CUDA only; the only algorithm whose results have other bits
 * - TUTTI_ALGO_HOST_STAGED: for CUDA only, and for a communicator, not a call: devices exchange
 *   everything through memory of the host. It is the measured choice if two devices do not reach
 *   each other's memory, or if a test pattern from one to the other does not arrive within 2 s.
 *   Where processes share a device (TUTTI_ALLOW_OVERLAPPING_DEVICES), a thread of each rank runs it
 * - TUTTI_ALGO_COPY_ENGINE, TUTTI_ALGO_SYMMETRIC: only in reports, of calls with
 *   TUTTI_CALL_COPY_ENGINE or TUTTI_CALL_SYMMETRIC
 */
enum tutti_algo {
#define TUTTI_ALGO_ENUM(name, value, text) TUTTI_ALGO_##name = value,
    TUTTI_ALGO_MAP(TUTTI_ALGO_ENUM)
#undef TUTTI_ALGO_ENUM
};
/* Static: "one_shot"; "unknown" for another value. */
TUTTI_API const char *tutti_algo_name(enum tutti_algo algo);

/* What joins a communicator's ranks. A hybrid cube mesh is two fully linked quads; each rank is
 * also linked to one partner in the other quad. CPU ranks are fully connected unless
 * TUTTI_TOPOLOGY_FILE is set: TOPOLOGY in tutti(7). */
enum tutti_topology {
    TUTTI_TOPOLOGY_UNKNOWN = 0,
    TUTTI_TOPOLOGY_FULLY_CONNECTED = 1,
    TUTTI_TOPOLOGY_HYBRID_CUBE_MESH = 2,
};

/*
 * *Streams.* The stream of a call on a device is a CUstream or cudaStream_t, cast.
 * TUTTI_STREAM_DEFAULT and TUTTI_STREAM_LEGACY are both the legacy default stream of the
 * communicator's device; TUTTI_STREAM_PER_THREAD is the calling thread's default stream. Any
 * context may be current. Calls of a CPU communicator complete before they return and accept
 * TUTTI_STREAM_DEFAULT only.
 *
 * The library orders the calls of one CUDA communicator on several streams as they were made: eager
 * calls by an event, calls of one capture by an edge of its graph. So a stream must live until the
 * communicator's next call on another stream, or its destroy. Two cases cannot be ordered and
 * return CONCURRENT: an eager call if the previous call's stream is another one and is now being
 * captured, and a call of a capture after a call of a later capture.
 *
 * A captured call does nothing until its graph is launched, any number of times. Each launch counts
 * as a call on the stream of the launch. The library does not see it: the caller orders launches
 * with the other calls and launches of the communicator, in the same order on all ranks. Launches
 * that overlap are not noticed; their results are wrong.
 */
typedef struct tutti_stream *tutti_stream_t;
#define TUTTI_STREAM_DEFAULT    ((tutti_stream_t)(uintptr_t)0)
#define TUTTI_STREAM_LEGACY     ((tutti_stream_t)(uintptr_t)1)
#define TUTTI_STREAM_PER_THREAD ((tutti_stream_t)(uintptr_t)2)

/* ---- send the library's log to a function ---------------------------------------------------- */

enum tutti_log_level {
    TUTTI_LOG_NONE = 0,
    TUTTI_LOG_WARN = 1,
    TUTTI_LOG_INFO = 2,
    TUTTI_LOG_TRACE = 3,
};

/* Receives one line without its newline. The line is valid during the call. Any thread may call it,
 * one at a time. It must not call Tutti. */
typedef void tutti_log_fn(void *context, enum tutti_log_level level, const char *line);
/*
 * Sends the library's log to fn instead of stderr, line by line; NULL restores stderr. After the
 * return the previous fn is no longer called.
 *
 * TUTTI_DEBUG sets the level, which is read once, before the first line. For an unknown value the
 * library warns, and takes WARN.
 *
 * - NONE: nothing
 * - WARN: failures, what was ignored, and long waits; this is the default. A rank that has waited
 *   for 5 s, while ranks meet or in an operation, logs which ranks are missing and what it waits
 *   for, and again each time that the wait has doubled
 * - INFO: also the creation of communicators
 * - TRACE: everything
 *
 * A line has the form "HOST:PID:TID [RANK] TUTTI INFO text", without [RANK] if no rank is known.
 */
TUTTI_API void tutti_log_set(tutti_log_fn *fn, void *context);

/* ---- keys and values at which ranks meet ----------------------------------------------------- */

/*
 * A store binds keys to byte strings that all ranks see. Any thread may use a handle at any time; a
 * call that waits does not block the others. A key has at most 8191 bytes, its prefixes included; a
 * value has at most 8 MiB. The time-out 0 is that of tutti_store_open(). An operation without a
 * time-out waits as long for the server's answer, or for the file's lock; in a call of the library
 * that has a time-out, such as tutti_comm_create(), no longer than that. A child of fork() opens
 * the store again. PyTorch's ranks can share a file: or tcp: store with ours, whoever serves it.
 */
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
 * Opens a store by URL. Options follow '?', joined by '&'; an unknown one is refused.
 *
 * - memory:NAME: shared by the threads of this process that open the same name. It ends with its
 *   last handle
 * - file:PATH: a log in PyTorch's FileStore format, created with mode 0600, on a file system that
 *   all ranks share. A symbolic link, and a file that belongs to another user than this one or root
 *   or that its group or others may write, is SYSTEM. If the file becomes shorter in use, all calls
 *   return SYSTEM. With world_size=N the last of N processes that closes it removes the file
 * - tcp://HOST:PORT: a client of PyTorch's TCPStore protocol. With server=1 this process also
 *   serves the store; port 0 takes a free port, see tutti_store_url(). bind=ADDRESS is the server's
 *   address (default: HOST if that is a loopback address, else 127.0.0.1). With world_size=N the
 *   server waits until N clients have joined, as PyTorch's does, and clients of such a server wait
 *   with it. With rank=R, too, a time-out names the ranks that are missing, on all ranks
 * - "env:": as the launcher's environment says, see tutti_info_launcher(). With MASTER_ADDR and
 *   MASTER_PORT as PyTorch does: rank 0 serves there, or torchrun's agent (keys then begin with
 *   "attempt_N/" after N restarts). Without them rank 0 serves on a free loopback port, with a
 *   random secret that only this user's ranks on this host can get; not for torchrun. A small file
 *   in the private directory (TUTTI_DIR) has both until all ranks have joined. Unless an agent
 *   serves, each open is collective and creates a new store
 *
 * TUTTI_STORE_SECRET, if set, is a secret of the server and the clients of a tcp store. At each
 * connection both prove that they know it (HMAC-SHA256, an extension of the protocol). Others
 * cannot connect, PyTorch's clients included. The traffic is not encrypted: others on the network
 * may read or alter it, and a client may try to guess the secret, so use 128 random bits. Without a
 * secret all who reach the server's address can use the store.
 *
 * - [in] timeout_ms: limit for connecting and joining; the default of the store's later operations
 * - [out] store: close it with tutti_store_close()
 *
 * Returns INVALID (the URL, or a variable of the environment, is wrong, or the secrets differ),
 * TIMEOUT (the server did not answer, or ranks did not join), NO_MEMORY, SYSTEM.
 *
 * Example:
 *
 *     tutti_store_t *store;
 *     tutti_comm_t *comm;
 *
 *     if (tutti_store_open("env:", 0, &store) ||
 *         tutti_comm_create(store, rank, world_size, NULL, &comm))
 *         errx(1, "%s", tutti_last_error());
 *     tutti_store_close(store);
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
/* Closes a handle; takes NULL. The close of the handle that started a server ends the server: it
 * accepts no new client, and waits at most 2 s until the connected clients have closed their
 * handles. A handle on a file with world_size=N counts as closed if it gets the file's lock within
 * 0.25 s, or, while others write to the file, within 2 s; else the file is never removed. */
TUTTI_API void tutti_store_close(tutti_store_t *store);
/* The URL with which another process can open the same store; valid until the close. NULL for
 * memory:, callers' stores, views, and an env: store with a private secret. */
TUTTI_API const char *tutti_store_url(const tutti_store_t *store);

/*
 * The operations of struct tutti_store_ops on a store. Out-arguments may be NULL, except exists and
 * count.
 *
 * - tutti_store_set(): binds key to a copy of value
 * - tutti_store_get(): waits until key exists; copies its value, and sets *size to its length
 * - tutti_store_wait(): waits until all keys exist
 * - tutti_store_add(): atomically adds to a counter in decimal text, 0 if absent
 * - tutti_store_check(): sets *exists to whether all keys exist now
 * - tutti_store_compare_set(): atomically sets key to `desired` if its value is `expected`, or if
 *   it is absent and `expected` is empty. Then copies the key's value as tutti_store_get() does; if
 *   the key is absent, it copies `expected`
 * - tutti_store_delete(): unbinds key; sets *deleted to whether it existed
 * - tutti_store_num_keys(): counts all keys of the store, also keys outside a view and internal
 *   keys of PyTorch's stores
 *
 * Return INVALID (an argument is wrong; a value is longer than capacity: *size is then the length
 * needed; a counter's value is no decimal number), TIMEOUT (the server did not answer, or a key did
 * not come: the message names one), NO_MEMORY, SYSTEM (also if the server has ended).
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
 * same order. Call S of rank R writes the key PREFIX/S/R. No two exchangers on a store may use one
 * prefix: put the group's name and a generation in it. One caller at a time. The keys of the last
 * call stay in the store.
 */
struct tutti_exchanger {
    size_t struct_size;
    tutti_store_t *store; /* borrowed, as is prefix */
    const char *prefix;
    int rank;
    int size;
    uint64_t sequence;
};
/* Gathers one value of `bytes` bytes from each rank. `all` has room for size * bytes and is in the
 * order of ranks. Returns INVALID, TIMEOUT (the message names the missing ranks), MISMATCH (a rank
 * passed another length), NO_MEMORY, VERSION. Or what the store returns. */
TUTTI_API enum tutti_status tutti_exchanger_all_gather(struct tutti_exchanger *exchanger,
                                                       const void *value, size_t bytes, void *all,
                                                       int64_t timeout_ms);
/* Waits until every rank has called it. Returns what tutti_exchanger_all_gather() does. */
TUTTI_API enum tutti_status tutti_exchanger_barrier(struct tutti_exchanger *exchanger,
                                                    int64_t timeout_ms);

/* ---- the life of a communicator -------------------------------------------------------------- */

#define TUTTI_MAX_RANKS           64 /* of one host; of several 256 in all */
#define TUTTI_DEFAULT_BUFFER_SIZE ((size_t)10 << 20)

/*
 * A communicator is a group of ranks and their state. A rank is a process, or a thread that makes
 * the calls below for itself; both kinds mix. A communicator that has failed stays so: every later
 * operation returns the same fault. Make one of the remaining ranks by tutti_comm_shrink(), or
 * destroy it and create another one. After fork() the child has no communicators: calls on its
 * parent's return INVALID, and tutti_comm_destroy() frees the copied handle alone.
 */
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
    /* TUTTI_PROGRAMMATIC_LAUNCH, else on from compute capability 9.0. */
    TUTTI_PROGRAMMATIC_AUTO = 0,
    TUTTI_PROGRAMMATIC_ON = 1, /* a kernel may start while the kernel before it ends */
    TUTTI_PROGRAMMATIC_OFF = 2,
};

/* Calls task(argument, i) once for each i from 0 to tasks - 1, and returns when all calls have
 * returned: task 0 in the calling thread, the others in any threads and any order, one after the
 * other if need be. tutti_parallel_openmp() of tutti/openmp.h is one. */
typedef void (*tutti_parallel_t)(void *parallel_context, int tasks,
                                 void (*task)(void *argument, int i), void *argument);
/* The most threads of a rank. */
enum { TUTTI_MAX_THREADS = 256 };

enum tutti_direct { TUTTI_DIRECT_AUTO = 0, TUTTI_DIRECT_ON = 1, TUTTI_DIRECT_OFF = 2 };

/* An option that is set overrides its environment variable, which tutti_comm_create() reads; a
 * value there that cannot be read is INVALID. "Compared" options are equal on all ranks, else the
 * rendezvous returns MISMATCH. */
struct tutti_comm_options {
    size_t struct_size;
    /* 1 to 63 bytes without '/'; NULL means "default". Only ranks with the same name meet. */
    const char *name;
    /* With CUDA, the device whose context is current in the thread that meets the others. Compared.
     */
    enum tutti_device device;
    /* Strict mode's limit in bytes, with no other effect; 0: TUTTI_BUFFER_SIZE (a number; K, M or G
     * may follow), else 10 MiB. Compared. */
    size_t buffer_size;
    /* Of the rendezvous, its store calls included, and of each operation. */
    int64_t timeout_ms;
    enum tutti_strict strict; /* compared */
    /* The algorithm of each all-reduce whose call names none; INVALID if the ranks' links do not
     * allow it. TUTTI_ALGO_NONE: the variable TUTTI_ALGO, else the measured choice. Compared. */
    enum tutti_algo algo;
    /* tutti_comm_create() does not meet the other ranks; call tutti_comm_rendezvous() later. */
    bool defer;
    /* A permutation of the world_size ranks: the order in which the reduction's tree takes the
     * inputs. NULL is rank order; on a hybrid cube mesh, one quad after the other. Copied,
     * compared. */
    const int *leaf_order;
    /* For CUDA only, refused on CPU: whether a kernel may start while the kernel before it on its
     * stream ends (programmatic stream serialization). Where several communicators run on the
     * device, only small kernels do so. */
    enum tutti_programmatic programmatic_launch;
    /* For CPU only so far: while an operation waits for a peer, the calling thread calls progress
     * every millisecond or so, and before each sleep of up to 50 ms. A result other than 0 ends the
     * operation: the communicator fails with ABORTED, as by tutti_comm_abort(), which says what
     * holds on the other ranks. So a program can react to a signal, or serve something else. The
     * function must not use this communicator. NULL: none. Operations of process groups and the
     * rendezvous do not call it. */
    int (*progress)(void *progress_context);
    void *progress_context; /* borrowed until the destroy */
    /* For CPU only, refused on CUDA: the most bytes of a rank's arena, at least 64 KiB, and 512
     * more for each rank beyond 16. 24 KiB of them are for operations longer than 4 KiB. 0:
     * TUTTI_ARENA_BYTES, else what operations use at full speed: 1.6 to 5.1 MiB. Such operations
     * move in pieces that fit, with the same bits: smaller arenas make them slower. Compared. */
    size_t arena_bytes;
    /* For CUDA, ignored on CPU: the most thread blocks of each kernel, so that at most as many
     * multiprocessors run it and the others are free for compute; the bits stay the same. The least
     * value of all ranks holds for all. A kernel that is launched ahead (programmatic_launch) waits
     * with as many blocks beside the one before it. 0: TUTTI_MAX_BLOCKS, else no limit. */
    int max_blocks;
    /* An engine between hosts, by tutti_fabric_open() (tutti/fabric.h), for ranks on several: all
     * ranks pass one of the same name, or none. Sums have the bits of the same ranks on one host.
     * Waiting ranks look in the store, which outlives the communicator, for faults of other hosts:
     * an abort once a rank there is in a call; with a tcp store of Tutti's each death. What is made
     * of the ranks has this fabric, too. CUDA tensors go by nccl:, in graphs too, without
     * process groups; by mpi: through the host, in no graph. That and process groups need
     * MPI_THREAD_MULTIPLE. No strict mode. NULL: one host, where a fabric is not used. Compared. */
    struct tutti_fabric *fabric;
    /* For CPU only: the caller's own threads, which share the copies and sums of a long operation.
     * The creation calls `parallel` once, to count the cores, and an operation at most once, with
     * up to `threads` tasks, 1 to TUTTI_MAX_THREADS, fewer if there are more threads than cores. No
     * thread is made. Ranks may differ in both, or have neither: results have the same bits for
     * every number of threads. Sends, receives, ranks of several hosts, and groups of calls use the
     * calling thread alone. Each of the most threads of a rank takes an arena of up to 1 MiB
     * more. `progress` is called by task 0. A call from inside `parallel` gets CONCURRENT. */
    tutti_parallel_t parallel;
    void *parallel_context; /* borrowed until the destroy */
    int threads;
    /* For CUDA, ignored on CPU: the stream of an operation may be destroyed as soon as the call has
     * returned, as NCCL allows it. Each call that is not captured then records an event. Otherwise
     * the last operation's stream must exist until the next operation or the destroy. */
    bool transient_streams;
    /* For CPU only, refused on CUDA: the kernel copies long blocks straight from the memory of one
     * rank's process to another's. ON: always; DECLINED if the kernel refuses (docs/security.md).
     * AUTO: TUTTI_DIRECT, else where it is quicker and the kernel allows it. Compared. */
    enum tutti_direct direct;
};

/* What a rank called, in a struct tutti_fault. */
struct tutti_signature {
    enum tutti_collective collective;
    enum tutti_dtype dtype;
    tutti_op_t op; /* a constant; TUTTI_PREMUL_SUM for a created one */
    enum tutti_algo algo;
    uint64_t count; /* of a v-form: the block between the two; 2^43 - 1: not known */
    /* Hash of the scalar, the counts, the subset of ranks, or with copy engines the place of recv;
     * 0: none. A root adds 1 + its rank, and a limit of blocks on which ranks must agree is in the
     * upper 16 bits. */
    uint32_t parameter;
};

/* Why a communicator has failed. Ranks that learn of a peer's fault report the same one.
 * tutti_fault_format() makes a text of it. */
struct tutti_fault {
    size_t struct_size;
    enum tutti_status status;
    int rank; /* the rank that noticed it */
    int peer; /* the rank that caused it: that is late, dead, disagrees or aborted; -1: none */
    /* Of the operation in which `rank` was, from 1; 0: before the first. On CUDA, launches of
     * graphs count if the device noticed the fault, not if the host did. */
    uint64_t sequence;
    /* Of a MISMATCH: what `rank` called and what `peer` called. The collective is 0 if that is not
     * known any more, and of both if they differ in a call before `sequence`. Of a TIMEOUT, where
     * it is known: seen.count is the time-out in ms, seen.parameter what set it. Of an INVALID by
     * counts on the device: expected.count is the limit, seen.count the number read (2^43 - 1: or
     * more; if expected.parameter & 32, it is negative), seen.parameter the rank of the block. */
    struct tutti_signature expected, seen;
};

/*
 * Creates a communicator of world_size ranks (CPU: 1 to 64 a host, 256 in all; CUDA: 1 to 8) and,
 * unless options->defer, meets the other ranks. All ranks pass the same world_size and a handle to
 * one store, and create communicators of one name in the same order. A name may be used again on
 * the same store, also after a crash: each meeting has a generation of its own.
 *
 * Checks, in this order, the first of them before it uses the store:
 *
 * - the arguments, options, world size and environment; on CUDA also the driver, the device of the
 *   current context (compute capability 8.0 or newer) and the tuning file
 * - all ranks come, within the time-out
 * - all run the same version of the library, and agree on world size, device, buffer size, strict
 *   mode, forced algorithm, forced links, leaf order, arena and tuning table. The message names the
 *   first difference, with both values
 * - those of a host run as one user, and all run on one host, by its boot id, unless
 *   options->fabric joins several: the message names the ranks of each host; on CUDA each rank has
 *   its own device, by UUID
 * - all agree on the links between them, where TUTTI_TOPOLOGY_FILE says what those are
 * - processes reach each other, by sockets in a private directory (TUTTI_DIR), through which they
 *   pass descriptors of their memory; on CUDA each device reads the others' memory. If this fails
 *   on one rank, it fails on all, with that rank's message
 *
 * Allocates an arena for each rank (see arena_bytes), which has no name and is freed when the last
 * process that has it mapped ends, and a recorder of 119 KiB with one open descriptor: see
 * tutti_comm_dump(). On CUDA also an arena of 90 MiB on the device whose context is current during
 * the rendezvous (none for one rank), a page of pinned memory, and a thread with all signals
 * blocked that carries faults between device and host. This context must outlive the communicator.
 *
 * - [in] store: borrowed until the rendezvous has ended (with ranks of several hosts until the
 *   destroy); the ranks then have deleted what they wrote there, but for one counter
 * - [in] options: NULL means all defaults; copied
 * - [out] comm: destroy it with tutti_comm_destroy()
 *
 * Returns INVALID (an argument, option or variable is wrong, or the links do not allow the forced
 * algorithm), DECLINED (the library is disabled, there are too many ranks, or they run on several
 * hosts or as several users; on CUDA also: there are no kernels, driver, device or current context,
 * the device is too old, two ranks have one device without TUTTI_ALLOW_OVERLAPPING_DEVICES, or an
 * algorithm is forced where devices do not reach each other, are shared, or are on several hosts),
 * TIMEOUT (ranks did not come, or the store did not answer; the message names all missing ranks, on
 * every rank that came), PEER_DEAD (a rank ended while they met; one that ended before another rank
 * saw it counts as one that did not come), MISMATCH (the ranks disagree about the configuration, or
 * two processes have one rank), ABORTED (during the rendezvous), NO_MEMORY (the message names the
 * limit that was hit), SYSTEM, CUDA (a call of the driver failed), VERSION (the ranks run different
 * versions, or the options have a field that this one does not know). A caller's own store may
 * return other statuses.
 *
 * Example:
 *
 *     struct tutti_comm_options options = {
 *         .struct_size = sizeof options,
 *         .name = "gradients",
 *         .timeout_ms = 30000,
 *     };
 *
 *     if (tutti_comm_create(store, rank, world_size, &options, &comm))
 *         errx(1, "%s", tutti_last_error());
 */
TUTTI_API enum tutti_status tutti_comm_create(tutti_store_t *store, int rank, int world_size,
                                              const struct tutti_comm_options *options,
                                              tutti_comm_t **comm);
/* Meets the other ranks, if options->defer was set. A second call returns the result of the first.
 * After a failure the communicator holds only its handle. One caller at a time. Returns what
 * tutti_comm_create() does. */
TUTTI_API enum tutti_status tutti_comm_rendezvous(tutti_comm_t *comm);
/*
 * Destroys the communicator; takes NULL. Local. No other call may use it meanwhile. Communicators
 * may be destroyed in any order. Operations of peers that still need this rank get PEER_DEAD; peers
 * that have all they need from it finish.
 *
 * On CUDA, operations under way get the communicator's time-out to end, 0.1 s if it has failed or
 * was aborted; then their waits are ended and their results are undefined. tutti_comm_finalize()
 * says how they ended. The call frees memory, for which CUDA waits until all streams of the context
 * are empty: no stream may wait for what this thread does afterwards. The last operation's stream
 * must still exist. A graph of captured operations may be launched later; they do nothing. It holds
 * device memory until it is destroyed and the process creates or destroys another communicator.
 *
 * Returns CONCURRENT (nothing is destroyed: another thread is in an operation, in the rendezvous,
 * in tutti_pg_create(), or in another call that returns CONCURRENT for a second caller; or a
 * process group, or an open group of calls, uses the communicator. End the other call, for example
 * by tutti_comm_abort(), and call again). A call that this thread has left by an exception or
 * longjmp() counts as ended; its operands have to live until this call has returned. Calls that any
 * thread may make at any time, such as tutti_comm_status(), are not noticed.
 */
TUTTI_API enum tutti_status tutti_comm_destroy(tutti_comm_t *comm);
/* Waits until the operations that this rank has enqueued have ended. The communicator then takes no
 * operation, barrier or tutti_comm_shrink() any more (INVALID). Local; returns at once on CPU.
 * Launches of graphs count if they are on the last operation's stream. Returns TIMEOUT (operations
 * still run: it may be called again), CONCURRENT (another thread is inside, a process group lives,
 * or the last operation's stream is being captured), CUDA. Or the fault of the communicator, which
 * also ends the wait. */
TUTTI_API enum tutti_status tutti_comm_finalize(tutti_comm_t *comm, int64_t timeout_ms);
/* Ends all waits of operations on all ranks with ABORTED. Later operations of this rank get
 * ABORTED, too; an operation of a peer that need not wait may still succeed: one for which this
 * rank has done its part, or a message or rooted operation that the peer only sends. A peer's next
 * operation that waits for this rank, and its tutti_comm_status() at once, return ABORTED. Never
 * blocks; may be called from a signal handler. Takes NULL. During the rendezvous it ends this
 * rank's wait only; the other ranks wait until their time-out. */
TUTTI_API void tutti_comm_abort(tutti_comm_t *comm);
/* Fills *fault, which may be NULL; the caller sets its struct_size. Checks without waiting for
 * aborts, peers' faults and dead processes; if it finds one, the communicator fails. Returns OK, or
 * the status with which the communicator has failed. */
TUTTI_API enum tutti_status tutti_comm_status(tutti_comm_t *comm, struct tutti_fault *fault);
/* Writes the fault as one sentence that says what to do. Returns the length of the whole sentence,
 * as snprintf() does; 0 for NULL. Here and below text may be NULL if size is 0. */
TUTTI_API int tutti_fault_format(const struct tutti_fault *fault, char *text, size_t size);
/* Writes a description as lines of "key: value": name, state (new, ready, failed), reason of a
 * failed meeting, rank, world_size, device, leaf_order, buffer_size, strict, algorithm, timeout_ms,
 * isa; after the rendezvous also generation, cores (that the ranks may run on together), topology
 * and its reason, links where they are counted, ranks_share_process, arena_bytes and, on CUDA, the
 * device and a `plan` for each row of the tuning table in use. More keys may come. Not during a
 * rendezvous. Returns the length as tutti_fault_format() does. */
TUTTI_API int tutti_comm_describe(const tutti_comm_t *comm, char *text, size_t size);
/* What joins the ranks; unknown before the rendezvous and for NULL. */
TUTTI_API enum tutti_topology tutti_comm_topology(const tutti_comm_t *comm);
/* The option buffer_size as the ranks agreed on it, in bytes; 0 for NULL. */
TUTTI_API size_t tutti_comm_buffer_size(const tutti_comm_t *comm);
/* This rank; -1 for NULL. */
TUTTI_API int tutti_comm_rank(const tutti_comm_t *comm);
/* The number of ranks; 0 for NULL. */
TUTTI_API int tutti_comm_world_size(const tutti_comm_t *comm);

#ifdef __cplusplus
}
#endif

#include "tutti/collectives.h"
#include "tutti/communicators.h"
#include "tutti/fused.h"
#include "tutti/info.h"
#include "tutti/operations.h"
#include "tutti/symmetric.h"
#include "tutti/works.h"

#endif
