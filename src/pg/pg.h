/* SPDX-License-Identifier: MIT */
/*
 * A process group from inside. A caller puts an operation into the queue (queue.c) and has done;
 * the group's thread (engine.c) announces it to the leader (leader.c), which says "now" to all
 * ranks once all have announced it, or why it ends; the thread does it (run.c, sparse_run.c) over
 * the communicator, and completes the work (work.c). One on CUDA tensors (stage.c) is announced
 * once its input is there, and completed once its results are back.
 */
#ifndef TUTTI_PG_PG_H
#define TUTTI_PG_PG_H

#include "comm.h"
#include "op.h"
#include "pg/board.h"
#include "pg/bounce.h"
#include "pg/home.h"
#include "pg/share.h"
#include "pg/sparse.h"
#include "pg/stage.h"
#include "pg/table.h"
#include "tutti/pg.h"
#include "work.h"

#include <pthread.h>

enum { PG_TITLE_BYTES = 80, PG_TEXT_BYTES = 512 };

/* How an operation, or the group, ended. */
struct pg_outcome {
    enum tutti_status status;
    int rank;                               /* that noticed it */
    int peer;                               /* that caused it, -1 if none */
    bool over;                              /* the whole group has ended with it */
    bool forsaken;                          /* streams went on without it: CUDA kept it up */
    struct layout_operation expected, seen; /* of a mismatch: rank's side, peer's side */
};

/* What an operation on sparse tensors has besides. */
struct pg_sparse {
    struct sparse_shape shape;
    struct sparse_result result;
    uint32_t there;           /* the result: release H7 */
    char text[PG_TEXT_BYTES]; /* how it failed, if nobody else knows that */
    int count;
    struct tutti_sparse_tensor tensors[]; /* behind them lie the sizes */
};

/* An operation, which is a work. It has a reference of the engine's and one of the handle's. */
struct pg_op {
    struct tutti_work work; /* first: a work is cast to what it begins */
    struct pg_key key;      /* in the engine's table */
    struct pg_home *home;   /* of its group */
    struct pg_op *next;     /* in a list */
    uint32_t references;
    uint32_t state;       /* enum pg_state: release H5 */
    uint32_t epoch;       /* of the process: ipc/fork.h */
    uint64_t record;      /* its number in the communicator's recorder, 0: not there */
    int64_t withdrawn_at; /* when the leader was told that the time is over; 0: not yet */
    int64_t unheard_at;   /* since when there was no room to tell it; 0: there was */
    int64_t patience_ms;  /* the group's time-out, for those who wait */
    int64_t timeout_ms;
    int64_t deadline;
    tutti_pg_callback *callback;
    void *context;
    struct tutti_op op; /* a copy: the caller's may go */
    enum tutti_dtype dtype;
    size_t count; /* elements of a tensor */
    struct layout_operation operation;
    struct pg_sparse *sparse;   /* NULL: its tensors are dense */
    struct pg_staging *staging; /* NULL: they are the host's */
    struct pg_tag *of;
    bool late;  /* its time ended before its input was there */
    bool spare; /* there are cores that a waiter who spins keeps from nobody */
    /* Written before anybody reads it, and else not touched: */
    struct pg_outcome outcome; /* once it is done; of a success the status alone */
    char title[PG_TITLE_BYTES];
    struct tutti_tensor tensors[];
};

enum pg_state { PG_OPEN, PG_AWAITED, PG_DONE };

struct pg_list {
    struct pg_op *first, *last;
};

/* A tag that has been used: its key's sequence is 0. */
struct pg_tag {
    struct pg_key key; /* first: a key is cast to what it begins */
    uint64_t sequence; /* of its last operation; under the group's lock */
    unsigned char pad[LAYOUT_LINE];
    /* The thread's: */
    struct pg_list held; /* the first one's input is awaited, the others follow it */
    struct pg_tag *next; /* with operations that are held */
};

struct pg_leader;

/* Pads keep what the thread writes all the time off the lines that who submits reads. */
struct tutti_pg {
    struct tutti_comm *comm;   /* of its ranks, on the host */
    bool owns;                 /* it is the group's own (members.h); else the caller's */
    struct tutti_comm *direct; /* of its ranks' devices, the group's own; NULL: there is none */
    int device;                /* of `direct`, in this process */
    uint32_t epoch;
    int64_t timeout_ms;
    int threads;              /* that reduce staged tensors */
    struct cpu_team *courier; /* stage.c; NULL: there is none */
    struct pg_home *home;     /* any thread's */
    struct cuda_stage *stage;
    struct pg_boards boards;
    pthread_t thread;
    uint32_t ended; /* the thread has, or nearly: futex; release H6 */
    unsigned char pad0[LAYOUT_LINE];

    pthread_mutex_t lock;
    /* Under the lock: */
    struct pg_list queue;
    struct pg_table tags;
    bool stopping;
    bool over; /* `fault` is how */
    struct pg_outcome fault;
    unsigned char pad1[LAYOUT_LINE];

    /* The thread's: */
    struct pg_tag *held;      /* tags whose first operation's input is awaited */
    bool late;                /* some of theirs are */
    struct pg_list waiting;   /* for room to be announced */
    struct pg_table open;     /* announced, without a verdict */
    struct pg_list landing;   /* done, but for copies under way */
    struct pg_leader *leader; /* rank 0's */
    int64_t due_at;           /* the first deadline of those in the table */
    int64_t looked_at;        /* that all processes live */
    int64_t blocked_at;       /* since when there is no room to announce; 0: there is */
    int64_t idle_at;          /* first look at the time behind the last operation; 0: none yet */
    int64_t stop_at;          /* 0 until the group stops */
    float *wide;              /* run.c */
    struct sparse_worker worker;
    struct pg_share *share;
    struct pg_bounce bounce;
};

static inline const char *pg_op_name(const struct pg_op *op)
{
    return op->sparse ? "all_reduce_sparse" : "all_reduce";
}

/* ---- list ------------------------------------------------------------------------------------ */

static inline void pg_list_append(struct pg_list *list, struct pg_op *op)
{
    op->next = NULL;
    if (list->last)
        list->last->next = op;
    else
        list->first = op;
    list->last = op;
}

/* NULL if it is empty. */
static inline struct pg_op *pg_list_take(struct pg_list *list)
{
    struct pg_op *op = list->first;
    if (op)
        list->first = op->next;
    if (!list->first)
        list->last = NULL;
    return op;
}

/* ---- tensor.c -------------------------------------------------------------------------------- */

/* Checks the list, and says what it is: dtype, count and layout of *op and its operation. */
enum tutti_status pg_tensors_check(const struct tutti_pg *pg, const struct tutti_tensor *tensors,
                                   int count, tutti_op_t op, struct pg_op *what);

/* ---- queue.c --------------------------------------------------------------------------------- */

/* What a call that submits begins with: the group is alive in this process, and *options are those
 * given, or none. */
enum tutti_status pg_call_check(const struct tutti_pg *pg, const char *call,
                                const struct tutti_pg_call_options *given,
                                struct tutti_pg_call_options *options);
/* Fills what the options say, and the work, but its tensors. */
void pg_op_begin(struct pg_op *op, const struct tutti_pg *pg,
                 const struct tutti_pg_call_options *options);
/* CPU tensors are on no stream. */
enum tutti_status pg_stream_check(const char *call, enum tutti_device device,
                                  const struct tutti_pg_call_options *options);
/* The operation, which is complete, takes the tag's next number and a place in the queue; if it is
 * to be staged, behind what is on the stream now, which is else NULL. [out] work may be NULL. On
 * failure the operation is released. */
enum tutti_status pg_submit(struct tutti_pg *pg, const char *call, struct pg_op *op,
                            const tutti_stream_t *stream, tutti_work_t **work);

/* ---- outcome.c ------------------------------------------------------------------------------- */

/* Writes the thread's last error: of an operation, or, if op is NULL, of the group. */
enum tutti_status pg_outcome_tell(const struct pg_outcome *outcome, const struct pg_op *op,
                                  const struct pg_home *home);

/* ---- work.c ---------------------------------------------------------------------------------- */

extern const struct work_class pg_work_class;

/* The engine's last word on it. Calls back, then wakes who waits. */
void pg_op_complete(struct pg_op *op, const struct pg_outcome *outcome);
void pg_op_release(struct pg_op *op);
/* Whether it may be asked in this process. */
enum tutti_status pg_op_check(const struct pg_op *op, const char *call);
/* The status with which it has ended, and its text; OK while it has not. */
enum tutti_status pg_op_ended(const struct pg_op *op, bool *done);

/* ---- leader.c -------------------------------------------------------------------------------- */

/* NULL if there is no memory. */
struct pg_leader *pg_leader_create(struct pg_boards *boards);
void pg_leader_destroy(struct pg_leader *leader);
/* Takes announcements, gives verdicts; whether there were any. */
bool pg_leader_turn(struct pg_leader *leader);

/* ---- run.c ----------------------------------------------------------------------------------- */

/* Elements that travel at once where inputs are widened: 256 KiB. */
enum { PG_WIDE_ELEMENTS = 1 << 16 };

/* Tensors, or the same piece of each of them, in the host's memory. */
struct pg_part {
    void *data[TUTTI_MAX_TENSORS];
    size_t count; /* elements */
};

/* Reduces a part of the operation among all ranks, each of which does the same ones. */
enum tutti_status pg_run_part(struct tutti_pg *pg, const struct pg_op *op,
                              const struct pg_part *part, uint32_t inputs);
/* The operation itself; `inputs` is the most of any rank. A failure is the communicator's, unless
 * that says that it has none. */
void pg_run(struct tutti_pg *pg, struct pg_op *op, uint32_t inputs, struct pg_outcome *outcome);

/* ---- sparse_stage.c: sums of CUDA tensors -----------------------------------------------------
 */

/* The streams have come to the call: enqueues the copies of all entries. How that went stands in
 * op->staging. */
void pg_sparse_bring(struct tutti_pg *pg, struct pg_op *op);
/* They, on the host, checked. Returns INVALID (an index outside the sizes), TIMEOUT, how the copies
 * went, what ends the group's communicator. */
enum tutti_status pg_sparse_brought(struct tutti_pg *pg, const struct pg_op *op, int64_t deadline,
                                    struct sparse_entries *inputs);
/* The inputs have been read: room for the union of the parts in op->sparse->result, so that it does
 * not grow. Returns NO_MEMORY, CUDA. */
enum tutti_status pg_sparse_result_block(struct tutti_pg *pg, struct pg_op *op,
                                         const struct sparse_entries *parts);
/* The union, which lies there, goes to the device. Returns NO_MEMORY, CUDA. */
enum tutti_status pg_sparse_send_back(struct tutti_pg *pg, struct pg_op *op);

/* ---- sparse_run.c ---------------------------------------------------------------------------- */

void pg_sparse_run(struct tutti_pg *pg, struct pg_op *op, struct pg_outcome *outcome);

/* ---- engine.c -------------------------------------------------------------------------------- */

/* The group's thread; its argument is the group. Ends once the group stops. */
void *pg_engine(void *argument);

#endif
