/* SPDX-License-Identifier: MIT */
/*
 * libnccl.so.2 of Tutti: a program that calls NCCL runs on Tutti unchanged.
 *
 *   symbols.h     what is exported, and who serves it
 *   error.c       results, messages, the log
 *   comm.c        communicators: life, handles, queries
 *   create.c      what makes a communicator: ranks, splits; runs in threads where it must
 *   hosts.c       ids, and who serves their ranks
 *   group.c       groups: calls and creations are kept until the outermost end
 *   call.c        collectives and messages, reductions
 *   memory.c      memory, registration
 *   window.c      windows
 *   param.c       parameters
 *   real.c        NVIDIA's library, for what only it can do
 *   bind.c        calls within NVIDIA's library
 *   report.c      who served what
 *
 * A handle is a struct of the shim. It holds a communicator of Tutti, of NVIDIA's library, or both:
 * the second one is then made for the calls that Tutti does not have. All ranks decide alike, since
 * they decide from what all of them know.
 */
#ifndef SHIM_NCCL_SHIM_H
#define SHIM_NCCL_SHIM_H

#include "abi.h"
#include "base/order.h"
#include "cuda/driver/memory.h"
#include "cuda/driver/wrappers.h"
#include "symbols.h"
#include "tutti/tutti.h"

#include <pthread.h>
#include <stdbool.h>

/* NCCL's version whose functions these are; ncclGetVersion() without NVIDIA's library. */
enum { SHIM_NCCL_VERSION = 23203, SHIM_ERROR_BYTES = 1024 };

/* A result with its message, for another thread or a later call. */
struct outcome {
    ncclResult_t result;
    char error[SHIM_ERROR_BYTES];
};

struct ncclComm {
    uint64_t magic;
    tutti_comm_t *comm; /* NULL: not made yet, aborted, or NVIDIA's library serves the handle */
    ncclComm_t real;    /* NVIDIA's; NULL: none */
    const struct cuda_driver *driver;
    CUcontext context;
    int device, rank, ranks;
    int max_blocks;     /* 0: no limit */
    int64_t timeout_ms; /* of operations; 0: TUTTI_TIMEOUT_MS */
    bool blocking;
    bool revoked, finalized, suspended;
    /* InProgress while a thread makes or finalizes it, or makes another one of it; then the result.
     * The first thread to see Success may use it. */
    uint32_t state;
    struct outcome outcome; /* of a state that is an error */
    bool made;              /* `comm` no longer changes */
    bool abandoned;         /* aborted meanwhile: that thread frees the handle */
    uint32_t inside;        /* threads that are in a call on it */
    tutti_op_t *ops;        /* of ncclRedOp_t ncclNumOps + index; NULL: a free place */
    int op_count;
    tutti_comm_t *alone;    /* of this rank, for products with its own scalars; NULL: none yet */
    CUevent event;          /* joins streams */
    tutti_stream_t stream;  /* of the messages of the group that ends */
    uint64_t lineage;       /* names it among its ranks */
    uint32_t meetings[256]; /* by the bits of the ranks: what these have done together so far */
    struct window *windows;
    bool has_grow; /* an id of ncclCommGetUniqueId() was not used yet */
};

extern const char *const symbol_names[SYMBOLS];

/* ---- error.c --------------------------------------------------------------------------------- */

/* Writes the message, behind the function's name, logs it and returns the result. */
ncclResult_t fail(ncclResult_t result, enum symbol symbol, const char *format, ...)
    TUTTI_PRINTF(3, 4);
/* The same for a status of Tutti, with Tutti's message. */
ncclResult_t fail_status(enum tutti_status status, enum symbol symbol);
/* The same for the result of NVIDIA's library. */
ncclResult_t fail_real(ncclResult_t result, enum symbol symbol);
/* NCCL's result for a status of Tutti. */
ncclResult_t result_of(enum tutti_status status);
/* Makes a text the thread's last message. */
void error_tell(const char *text);
/* Keeps a result with the thread's last message. */
void outcome_keep(struct outcome *outcome, ncclResult_t result);
/* Makes the message of a failure the caller's; returns the result. */
ncclResult_t outcome_tell(const struct outcome *outcome);
/* Reads NCCL_DEBUG; before the first line of the log. */
void log_start(void);

/* ---- comm.c ---------------------------------------------------------------------------------- */

/* Checks a handle and counts the caller, until comm_leave(); an abort waits for it. `ready`: the
 * communicator must have been made. */
ncclResult_t comm_enter(ncclComm_t comm, enum symbol symbol, bool ready);
ncclResult_t comm_leave(ncclComm_t comm, ncclResult_t result);

/* Makes a handle without a communicator: on the parent's device, on that one, or for -1 on the
 * thread's, whose context is made current if it has none. */
ncclResult_t comm_allocate(const ncclConfig_t *config, const struct ncclComm *parent, int device,
                           enum symbol symbol, ncclComm_t *comm);
/* Takes a configuration's maxCTAs, unless it is undefined. */
ncclResult_t max_blocks_read(int most, int *max_blocks, enum symbol symbol);
/* Destroys what a handle holds, once no thread is in a call on it, and frees it. */
ncclResult_t comm_free(ncclComm_t comm, enum symbol symbol);

static inline ncclResult_t comm_state(const struct ncclComm *comm)
{
    return (ncclResult_t)order_load_acquire_u32(&comm->state); /* acquire N1a */
}

/* ---- create.c -------------------------------------------------------------------------------- */

/* What makes or finalizes a communicator, kept until it may run. */
struct create {
    struct create *next;
    /* Makes create->comm, on its device. A comm->comm that stays NULL, and no comm->real: this rank
     * gets none. */
    ncclResult_t (*make)(struct create *create);
    enum symbol symbol;
    ncclComm_t comm;         /* what is made; of a finalize: what is finalized */
    ncclComm_t parent;       /* NULL: none */
    ncclComm_t *destination; /* NULL until a success; no address: the caller has the handle */
    ncclUniqueId id;
    bool has_id;
    int color, key;
    unsigned members; /* a bit for each rank of the parent that takes part */
    bool waits;       /* the caller waits for the end; else a thread of its own frees this */
    pthread_t thread; /* if started */
    bool started;
    struct outcome outcome;
};

/* Makes `create` of a handle and what makes it, and runs or keeps it. Takes the handle over. */
ncclResult_t create_start(const struct create *given);
/* Runs creations that were kept, each in a thread if there are several, writes what the callers
 * wait for, and frees the list. InProgress: threads go on with those that do not block. */
ncclResult_t creates_run(struct create *list);
/* Forgets creations that were kept. */
void creates_drop(struct create *list);
/* NVIDIA's communicator for calls that Tutti does not have, if there is none yet. Collective. */
ncclResult_t create_real(ncclComm_t comm, enum symbol symbol);
/* The communicator of this rank alone, if it is among others and there is none yet. */
ncclResult_t create_alone(ncclComm_t comm, enum symbol symbol);
/* Aborts. True if a thread is at work on the handle: it will free it. */
bool create_abandon(ncclComm_t comm);

/* ---- hosts.c --------------------------------------------------------------------------------- */

/* The ranks tell each other whether they have NVIDIA's library, and rank 0 tells its id. All of
 * them succeed, or none. */
ncclResult_t real_agree(struct tutti_exchanger *ranks, enum symbol symbol, ncclUniqueId *id);
/* Finds who serves the ranks of an id: NVIDIA's library if `*real` is set, or if they are on
 * several hosts, which sets it. *real_id is then the id for that library. All ranks decide alike.
 */
ncclResult_t server_agree(const struct ncclComm *comm, const ncclUniqueId *id, enum symbol symbol,
                          bool *real, ncclUniqueId *real_id);

/* ---- group.c --------------------------------------------------------------------------------- */

/* A collective or message, checked. */
struct call {
    enum symbol kind;   /* what is done: of the function without a configuration */
    enum symbol symbol; /* the function that the program calls */
    ncclComm_t comm;
    const void *send;
    void *recv;
    size_t count;
    ncclDataType_t dtype;
    ncclRedOp_t op;
    tutti_op_t reduction; /* Tutti's, which refuses NULL */
    CUdeviceptr product;  /* memory of the call's: call_multiply(); 0: none */
    int peer;             /* or root */
    int max_blocks;
    CUevent launched; /* recorded behind the call; NULL: none */
    tutti_stream_t stream;
};

/* Runs the call, or keeps it if the thread is in a group. The caller has entered the communicator,
 * which is left here. */
ncclResult_t group_call(struct call *call);
/* The same for what makes a communicator; takes the creation over. */
ncclResult_t group_create(struct create *create);
/* Keeps the first error of a group; returns the result. */
ncclResult_t group_refuse(ncclResult_t result);
/* Whether the thread's group has calls on the communicator. */
bool group_uses(ncclComm_t comm);
/* Destroys a premultiplied sum of the communicator once the thread's group has ended, or now. */
ncclResult_t group_drop(ncclComm_t comm, tutti_op_t op);

/* ---- call.c ---------------------------------------------------------------------------------- */

/* Of a premultiplied sum, whose scalar is this rank's own: enqueues this rank's product, in recv or
 * in memory of the call's, and makes the call the sum of the products. */
ncclResult_t call_multiply(struct call *call);
/* Passes one call to Tutti, on this stream, or to NVIDIA's library. */
ncclResult_t call_submit(const struct call *call, tutti_stream_t stream);
/* Frees what call_multiply() has allocated, behind the call. Returns the result, or an error. */
ncclResult_t call_release(struct call *call, ncclResult_t result);

/* ---- memory.c -------------------------------------------------------------------------------- */

struct device_memory {
    const struct cuda_driver *driver;
    struct cuda_memory memory; /* of 0 bytes: of cuMemAlloc() */
};

/* On the current context's device. As symmetric memory is: that other processes can map. NVIDIA's
 * library takes no other memory for symmetric windows. A driver that cannot export gives ordinary
 * memory. Returns NO_MEMORY, CUDA, SYSTEM. */
enum tutti_status device_memory_alloc(size_t bytes, struct device_memory *made);
/* Returns CUDA. */
enum tutti_status device_memory_free(struct device_memory *memory);

/* ---- window.c -------------------------------------------------------------------------------- */

/* Registers the windows with NVIDIA's communicator, which is new. */
ncclResult_t windows_register(ncclComm_t comm);
/* Copies what kernels read of NVIDIA's windows, which it may have changed, to our handles. */
ncclResult_t windows_update(ncclComm_t comm, enum symbol symbol);
/* Frees the handles. No kernel may use them. */
void windows_free(ncclComm_t comm);
/* NVIDIA's window of a handle, NULL if there is none yet. A handle that is not ours, such as one
 * that ncclDevCommCreate() has made, is NVIDIA's. */
ncclWindow_t window_real(ncclWindow_t handle);

/* ---- real.c ---------------------------------------------------------------------------------- */

/* NVIDIA's libnccl.so.2, opened by the first call that needs it, and never closed. False if there
 * is none, or one older than 2.28: real_absent() says why. */
bool real_library(void);
/* A function by its name; NULL if the library or the function is not there. */
void *real_function(enum symbol symbol);
/* The same, with the type of our function of that name. */
#define REAL(name) ((__typeof__(&(name)))real_function(SYMBOL_##name))

/* The error of a call that only NVIDIA's library could serve. */
ncclResult_t real_absent(enum symbol symbol);
/* As fail_real(), of a call on NVIDIA's communicator, once that is ready again: with
 * NCCL_COMM_BLOCKING=0 the call returns early. */
ncclResult_t real_wait(ncclComm_t real, ncclResult_t result, enum symbol symbol);
/* Whether NVIDIA's library serves everything: TUTTI_DISABLE is set, or the launcher has started
 * ranks on several hosts. Equal on all ranks. */
bool real_serves_all(void);

/* ---- bind.c ---------------------------------------------------------------------------------- */

/* Has NVIDIA's library call its own functions, where it calls those of this library. False: its
 * data cannot be read or written. */
bool real_bind(void *library);

/* ---- report.c -------------------------------------------------------------------------------- */

/* Counts a call with its time, if TUTTI_NCCL_REPORT is set. begin: 0 if it is not. */
int64_t report_begin(void);
void report_end(enum symbol symbol, bool by_real, size_t bytes, int64_t begin);
/* Counts a call where it begins, unless its time is counted elsewhere. */
void report_call(enum symbol symbol, bool by_real);

/* ---- NCCL's functions that one file calls and another one, or a later line, defines ---------- */

EXPORT const char *ncclGetErrorString(ncclResult_t result);
EXPORT const char *ncclGetLastError(ncclComm_t comm);
EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                           ncclConfig_t *config);
EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made,
                                  ncclConfig_t *config);
EXPORT ncclResult_t ncclCommCount(const ncclComm_t comm, int *count);
EXPORT ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank);
EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm);
EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm);
EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm);
EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error);
EXPORT ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *memory, size_t bytes,
                                           ncclWindow_t *made, int flags);
EXPORT ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t handle);
EXPORT ncclResult_t ncclGroupStart(void);
EXPORT ncclResult_t ncclGroupEnd(void);

#endif
