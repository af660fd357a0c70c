/* SPDX-License-Identifier: MIT */
/*
 * The inside of a process group: the types that its files share. An operation goes through these
 * steps:
 *
 * 1. The caller checks the tensors and appends the operation to the queue (queue.c).
 * 2. The group's thread announces it to the leader, rank 0 (engine.c). With CUDA tensors (cuda.c)
 *    it does so once the input is ready.
 * 3. Once all ranks have announced it, the leader sends its verdict to all ranks (leader.c): run
 *    the operation now, or the reason why it ends.
 * 4. The group's thread runs it over the communicator (part.c, blocks.c, sparse_run.c) and
 * completes the work (operation.c).
 *
 * A thread that waits for a work (work.c) takes these steps itself, if the group's thread is idle.
 *
 * Why a leader: ranks submit operations of different tags in different orders. Ranks that began
 * their operations at once would wait for each other. So an operation begins only after all ranks
 * have submitted it, one communicator serves all tags, and an operation that lacks a rank delays no
 * other one. Only the leader decides how an operation ends: after its deadline a rank withdraws it
 * and waits for the verdict.
 *
 * A rank that exits ends the collectives, and the messages with that rank, after all verdicts and
 * messages have been handled. Three things end a group, with one rank named on all ranks: a rank
 * that dies while a collective waits; a rank that stops inside an operation (its time-out fails the
 * communicator); a leader that owes an answer for 5 s, not counting operations that it is inside.
 */
#ifndef TUTTI_PG_PG_H
#define TUTTI_PG_PG_H

#include "base/op.h"
#include "comm/comm.h"
#include "comm/work.h"
#include "pg/control_ring.h"
#include "pg/map.h"
#include "pg/share.h"
#include "pg/sparse.h"
#include "pg/staging.h"
#include "tutti/pg.h"

#include <pthread.h>

enum { PG_TITLE_BYTES = 80, PG_TEXT_BYTES = 512, PG_IDLE_RESULTS = 4 };

/* How an operation, or the whole group, ended. */
struct pg_outcome {
    enum tutti_status status;
    int rank;          /* the rank that noticed it */
    int peer;          /* the rank that caused it, -1 if none */
    bool has_failed;   /* the whole group ended with it */
    bool wait_expired; /* a stream stopped waiting for it: a CUDA call blocked it for too long */
    struct layout_operation expected, seen; /* of a mismatch: what `rank` has, what `peer` has */
};

/* The additional state of an operation on sparse tensors, behind it in memory. */
struct pg_sparse {
    struct sparse_shape shape;
    struct sparse_result result;
    char error_text[PG_TEXT_BYTES]; /* why it failed, if the error arose here */
    int count;
    struct tutti_sparse_tensor tensors[];
};

/* The tensors of one side of a call: for each pair `each` tensors of `blocks` blocks. If the
 * operand has a block for each rank, one of the two is the world size. */
struct pg_operand {
    const struct tutti_tensor *tensors;
    int count; /* of all pairs; 0: this rank has no such operand */
    int each;
    int blocks;
};

/* A message that is to be sent, or an announcement that has come and matches no receive yet; its
 * data follow, if they have come with it: message.c. */
struct pg_note {
    struct pg_note *next, *before;
    struct pg_member line;          /* of an announcement that matches no receive yet */
    struct pg_operation *operation; /* whose part it is, or NULL */
    int peer;
    uint32_t kind;
    uint32_t tag;
    uint64_t id;      /* of the send: unique among the sender's */
    uint64_t arrival; /* the number of an announcement, as they came */
    uint64_t signature;
};

struct pg_notes {
    struct pg_note *first, *last;
};

/* An operation of a group; it is a work. The engine holds one reference, the caller's handle
 * another. */
struct pg_operation {
    struct tutti_work work; /* must be first: a pointer to it is cast to struct pg_operation */
    struct pg_key key;      /* its key in the engine's map */
    struct tutti_pg *pg;    /* kept alive by the operation */
    struct pg_operation *next, *before; /* in a list */
    uint32_t references;
    uint32_t state;       /* enum pg_state: release H5 */
    uint32_t has_outcome; /* 1 once `outcome`, and a sparse result, may be read: release H7 */
    uint32_t epoch;       /* of the process: ipc/fork.h */
    uint64_t record;      /* its number in the communicator's recorder; 0: not recorded */
    int64_t withdraw_at;  /* when the group's thread first tried to withdraw it; 0: not yet */
    bool withdrawn;       /* the leader has been told */
    int64_t timeout_ms;
    int64_t deadline;
    tutti_pg_callback *callback;
    void *context;
    struct coll_args args;               /* of one tensor, without operands, for work.collective */
    struct tutti_op op;                  /* what args.op points to, if the caller created it */
    struct layout_operation description; /* the call and its tensors, for the other ranks */
    /* Until the verdict these two are of this rank; the verdict sets them to what holds for all. */
    uint16_t inputs; /* the number of dense tensors that a rank reduces; for all: the largest one */
    uint16_t facts;  /* enum layout_facts, about the tensors; for all: that hold on every rank */
    struct pg_operand send, recv; /* in `tensors`; of an all-reduce they are the same */
    struct pg_sparse *sparse;     /* NULL: the tensors are dense */
    struct pg_cuda *cuda;         /* NULL: the tensors are in host memory */
    struct pg_tag *tag_state;
    bool input_late; /* the time-out passed before the input was ready */
    /* Of a message: */
    uint64_t id;       /* as in struct pg_note */
    size_t moved;      /* bytes that have been sent, or received */
    uint32_t source;   /* of a receive that has been matched: 1 + the sender */
    bool is_announced; /* of a send */
    bool is_moving;    /* both ranks have it, and the data move */
    bool is_waiting;   /* a receive is in its line: `line` */
    struct pg_member line;
    struct pg_key by_id; /* its key in the group's map of that name, if has_id */
    bool has_id;
    struct pg_note note; /* of a send */
    /* operation_make() does not set the fields from here on. After a success only the status of
     * `outcome` is valid. */
    struct pg_outcome outcome;
    char title[PG_TITLE_BYTES];
    struct tutti_tensor tensors[];
};

enum pg_state { PG_OPEN, PG_AWAITED, PG_DONE };

struct pg_list {
    struct pg_operation *first, *last;
};

/* The state of a tag that has been used. The sequence number in its key is 0, of messages 1. */
struct pg_tag {
    struct pg_key key; /* must be the first member: a pointer to it is cast to struct pg_tag */
    uint64_t sequence; /* of its last operation; guarded by the group's lock */
    unsigned char pad[LAYOUT_LINE];
    uint64_t waits_in_scan; /* the group's thread: the last scan that found an operation waiting */
};

struct pg_leader;

/* The pads separate what the stepping thread writes often from the cache lines that submitting
 * threads read. */
struct tutti_pg {
    uint32_t references;        /* of the caller's handle, and of each operation */
    char list[COMM_NAME_BYTES]; /* the name of the members' list that numbers the ranks, or "" */
    struct layout_arena *arena; /* of this rank; stays mapped, since works wake the thread in it */
    struct tutti_comm *comm;    /* of the group's ranks, on the host */
    bool owns_comm;             /* made by the group (members.h), which destroys it */
    struct tutti_comm *direct;  /* of the ranks' devices, made by the group; NULL: none */
    int device;                 /* the number in this process of the device of `direct` */
    struct cuda_block *buffer;  /* of that device: blocks of lists; NULL without `direct` */
    uint32_t epoch;
    int64_t timeout_ms;
    int threads; /* that reduce tensors in host memory */
    struct cuda_stage *stage;
    struct pg_control control;
    pthread_t thread;
    bool crowded; /* ranks outnumber the cores */
    unsigned char pad0[LAYOUT_LINE];

    pthread_mutex_t lock;
    /* Guarded by the lock: */
    struct pg_list queue;
    struct pg_map tags;
    bool stopping;
    uint64_t submitted_messages;
    uint32_t has_cuda; /* 1: there has been an operation on CUDA tensors */
    bool has_failed;   /* the group has ended; `fault` says how */
    bool lacks_rank;   /* a rank has exited: collectives end with `fault` */
    struct pg_outcome fault;
    int idle_count; /* memory of results that works have given back: fresh pages are slow */
    struct sparse_memory idle[PG_IDLE_RESULTS];
    unsigned char pad1[LAYOUT_LINE];

    uint32_t stepping; /* 1: a thread steps the engine; release H9 */
    /* Used only by the thread that steps the engine: */
    bool helped;                   /* a waiting thread has handled all events up to now */
    bool slept_in_vain;            /* the thread's last sleep ended by its time, */
    uint32_t slept_bell;           /* while its bell had this count */
    struct pg_list awaiting_input; /* wait for their input, or behind one that does */
    uint64_t scan;                 /* the number of the last scan of that list */
    struct pg_list to_announce;    /* not announced yet: the control ring is full */
    struct pg_map announced;       /* announced, and the verdict is pending */
    struct pg_list copying_out;    /* done, except for copies to the device */
    struct rank_set gone; /* ranks that have exited, and all of whose messages have been taken */
    struct pg_list sends, receives; /* messages that are not done */
    struct rank_set noted;          /* the ranks to which there is something to send: */
    struct pg_notes notes[WORLD_RANKS], data[WORLD_RANKS]; /* data, after all else */
    struct pg_notes unmatched; /* announcements that match no receive yet, as they came */
    uint64_t arrivals;         /* the last one's number */
    /* The lines of these, by tag and sender, and of receives that wait, by tag and wanted sender.
     */
    struct pg_map unmatched_lines, waiting_lines;
    struct pg_map by_id;               /* sends that were announced, receives whose data move */
    uint64_t messages;                 /* the last send's id */
    uint32_t short_sent[WORLD_RANKS];  /* announcements with data that a peer may still keep */
    uint32_t short_taken[WORLD_RANKS]; /* those of a peer that have been matched here */
    uint64_t places_told[WORLD_RANKS]; /* messages that were read when a peer was last told so */
    struct pg_leader *leader;          /* of rank 0 only */
    int64_t next_deadline;    /* the earliest deadline of the operations that are not done */
    int64_t peers_checked_at; /* when the thread last checked that all processes live */
    int64_t progress_at;  /* the first time read after the last operation ended, or the leader began
                           * or ended one; 0: none yet */
    uint32_t leader_runs; /* the leader's count at progress_at; odd: inside an operation */
    int64_t stop_at;      /* when a stopping group gives up its operations; 0: it does not stop */
    float *widened;       /* part.c: partial results; blocks.c: blocks of lists */
    struct sparse_worker worker;
    struct pg_share *share;
};

/* ---- list ------------------------------------------------------------------------------------ */

static inline void pg_list_append(struct pg_list *list, struct pg_operation *operation)
{
    operation->next = NULL;
    operation->before = list->last;
    if (list->last)
        list->last->next = operation;
    else
        list->first = operation;
    list->last = operation;
}

/* Return NULL if the list is empty. */
static inline struct pg_operation *pg_list_take(struct pg_list *list)
{
    struct pg_operation *operation = list->first;
    if (operation)
        list->first = operation->next;
    if (list->first)
        list->first->before = NULL;
    else
        list->last = NULL;
    return operation;
}

/* Remove an operation that is in the list. */
static inline void pg_list_remove(struct pg_list *list, struct pg_operation *operation)
{
    *(operation->before ? &operation->before->next : &list->first) = operation->next;
    *(operation->next ? &operation->next->before : &list->last) = operation->before;
}

/* ---- queue.c --------------------------------------------------------------------------------- */

/* The tensors of a call: all, or those to send and those to receive. */
struct pg_lists {
    const void *list[2];
    int count[2];
};

/* A public function that submits operations, and the tensors that it takes. */
struct pg_call {
    const char *name;
    enum tutti_collective collective;
    const char *type; /* of a tensor */
    size_t tensor_bytes;
    size_t more_bytes;        /* what follows the operation in memory, except for the tensors */
    size_t more_tensor_bytes; /* and what each tensor adds to that */
    /* Check the tensors. Set args, description, and what else of the operation depends on them. An
     * operand that this rank ignores becomes empty. Returns what the public function does. */
    enum tutti_status (*read)(const struct tutti_pg *pg, const struct pg_call *call,
                              struct pg_lists *lists, struct pg_operation *operation);
    /* For pg_list_read(): describe a tensor, dtype and count in *args, all else in *description.
     * Returns INVALID. */
    enum tutti_status (*describe)(const void *tensor, enum tutti_device *device,
                                  struct coll_args *args, struct layout_operation *description);
    /* For pg_list_read(): check the data of tensors[index], which has been described. */
    enum tutti_status (*check)(const struct tutti_pg *pg, const void *tensors, int index,
                               const struct coll_args *args);
    /* Copy the tensors and write the title. */
    void (*fill)(struct pg_operation *operation, const struct pg_lists *lists);
};

/* Check one list of tensors of one layout: struct pg_call's `read`. */
enum tutti_status pg_list_read(const struct tutti_pg *pg, const struct pg_call *call,
                               struct pg_lists *lists, struct pg_operation *operation);
enum tutti_status pg_device_check(enum tutti_device device);
/* Compare the description of a tensor with that of the first one. Returns INVALID. */
enum tutti_status pg_same_kind(enum tutti_dtype first_dtype, enum tutti_dtype dtype,
                               const struct layout_operation *first,
                               const struct layout_operation *other);
enum tutti_status pg_same_layout(const struct layout_operation *first,
                                 const struct layout_operation *other);
/* Make an operation, give it the next number of its tag and append it to the queue. The arguments
 * are those of the public function; `args` has those that concern no tensor. */
enum tutti_status pg_submit(struct tutti_pg *pg, const struct pg_call *call,
                            const struct pg_lists *lists, const struct coll_args *args,
                            const struct tutti_pg_call_options *options, tutti_work_t **work);

/* ---- tensor.c -------------------------------------------------------------------------------- */

/* Describe a dense tensor: struct pg_call's `describe`. */
enum tutti_status pg_tensor_describe(const void *tensor, enum tutti_device *device,
                                     struct coll_args *args, struct layout_operation *description);
/* The number of elements of a tensor that has been described. */
size_t pg_elements(const struct tutti_tensor *tensor);
/* Block `index` of one pair of an operand. *count: its elements. Those of a list of an all-to-all
 * differ. */
void *pg_block(const struct pg_operation *operation, const struct pg_operand *operand, int pair,
               int index, size_t *count);
/* Check what->count elements at `data`: as an all-reduce in place has it, and in memory of the
 * device. Any send, recv in `what`. */
enum tutti_status pg_memory_check(const struct tutti_pg *pg, enum tutti_device device,
                                  int device_index, const void *data, const struct coll_args *what);
/* struct pg_call's `check` and `fill` for dense tensors of one layout. */
enum tutti_status pg_tensor_check(const struct tutti_pg *pg, const void *list, int index,
                                  const struct coll_args *what);
void pg_tensors_fill(struct pg_operation *operation, const struct pg_lists *lists);
#define PG_TENSORS_CALL(call_name, which, read_fn)                                                 \
    {                                                                                              \
        .name = call_name, .collective = which, .type = "tutti_tensor",                            \
        .tensor_bytes = sizeof(struct tutti_tensor),                                               \
        .more_bytes = TUTTI_MAX_DIMS * sizeof(int64_t), .read = read_fn,                           \
        .describe = pg_tensor_describe, .check = pg_tensor_check, .fill = pg_tensors_fill          \
    }
/* "NAME of [pairs x ]elements dtype[, op][, root N][ to rank N][ from rank N]". */
void pg_title_make(struct pg_operation *operation, int pairs);

/* ---- outcome.c ------------------------------------------------------------------------------- */

/* Fail the group's communicator: `peer` caused it. This ends the operations that the threads of the
 * other ranks may be inside. Return the status of the communicator's first fault. */
enum tutti_status pg_comm_fail(struct tutti_comm *comm, enum tutti_status status, int peer);
/* The name of an operation, for messages. Its fields may come from another process. */
const char *pg_description_name(const struct layout_operation *description);
/* Write the calling thread's last error: about an operation or, if operation is NULL, about the
 * group. */
enum tutti_status pg_outcome_report(const struct pg_outcome *outcome,
                                    const struct pg_operation *operation, const char *list);

/* ---- operation.c ----------------------------------------------------------------------------- */

/* Give back a reference to a group; the last one frees the group. */
void pg_release(struct tutti_pg *pg);
/* Enter an operation into the recorder. */
void pg_record(struct tutti_pg *pg, struct pg_operation *operation);
/* Complete an operation that is in no list of the engine's any more: call the callback, then wake
 * the waiting threads. Releases the engine's reference. */
void pg_complete(struct tutti_pg *pg, struct pg_operation *operation,
                 const struct pg_outcome *outcome);
void pg_operation_release(struct pg_operation *operation);
/* Check that this process submitted the operation: the child of a fork() may not use it. */
enum tutti_status pg_operation_check(const struct pg_operation *operation, const char *call);
/* [out] done: whether the operation has ended. Return the status with which it ended and set the
 * last error; OK while it has not ended. */
enum tutti_status pg_operation_poll(const struct pg_operation *operation, bool *done);
bool pg_operation_is_done(const struct pg_operation *operation);
/* The status of an operation that is done. */
enum tutti_status pg_operation_status(const struct pg_operation *operation);

/* ---- leader.c -------------------------------------------------------------------------------- */

/* Return NULL if there is no memory. */
struct pg_leader *pg_leader_create(struct pg_control *control);
void pg_leader_destroy(struct pg_leader *leader);
/* Read announcements and post verdicts. Return whether there were any. */
bool pg_leader_poll(struct pg_leader *leader);
/* Log which ranks have not submitted the operation that has waited longest, if a report is due
 * (base/reminder.h). `group`: the name of the members' list, or "". */
void pg_leader_remind(struct pg_leader *leader, int64_t now, const char *group);

/* ---- cuda.c ---------------------------------------------------------------------------------- */

/* Whether the group's devices serve the operation; before the verdict, as far as this rank knows.
 */
static inline bool pg_is_on_device(const struct pg_operation *operation)
{
    return operation->facts & LAYOUT_ON_DEVICE;
}

/* ---- part.c ---------------------------------------------------------------------------------- */

/* The most of a list: also one for each rank. Lists of all-reduces are shorter: pg_list_read(). */
static inline int pg_most_tensors(const struct tutti_pg *pg)
{
    const int size = pg->comm->world_size;
    return size > TUTTI_MAX_TENSORS ? size : TUTTI_MAX_TENSORS;
}

/* Inputs of 8 and 16 bits are converted and reduced in blocks of this many elements: 256 KiB. */
enum { PG_WIDE_ELEMENTS = 1 << 16 };

/* The memory for these blocks. The lengths of an all-to-all of lists fit in it, too: each rank has
 * one for each rank, sent and expected. */
static inline size_t pg_widened_bytes(int ranks)
{
    const size_t lengths = 2 * sizeof(uint64_t) * (size_t)ranks * (size_t)ranks;
    const size_t blocks = PG_WIDE_ELEMENTS * sizeof(float);
    return lengths > blocks ? lengths : blocks;
}

/* Whole tensors, or the same piece of each of them, in host memory. */
struct pg_part {
    void *data[TUTTI_MAX_TENSORS];
    size_t count; /* elements */
};

/* Run the operation's collective with these arguments, over the communicator that serves its
 * tensors. */
enum tutti_status pg_run(struct tutti_pg *pg, const struct pg_operation *operation,
                         const struct coll_args *args);
/* Reduce a part of the operation among all ranks. All ranks cut the operation into the same
 * parts. */
enum tutti_status pg_part_reduce(struct tutti_pg *pg, const struct pg_operation *operation,
                                 const struct pg_part *part);

/* ---- blocks.c -------------------------------------------------------------------------------- */

/* Run a collective other than an all-reduce, together with all ranks. */
void pg_blocks_run(struct tutti_pg *pg, struct pg_operation *operation, struct pg_outcome *outcome);

/* ---- message.c ------------------------------------------------------------------------------- */

static inline bool pg_is_message(const struct pg_operation *operation)
{
    return coll_rows[operation->work.collective].peer == COLL_PARTNER;
}

void pg_messages_open(struct tutti_pg *pg);
/* The thread has ended. Between hosts, tells the other ranks that this one has left. */
void pg_messages_close(struct tutti_pg *pg);
/* A send or receive has been submitted. */
void pg_message_begin(struct tutti_pg *pg, struct pg_operation *operation);
/* Take what has come; send what there is room for. Return whether there was anything. */
bool pg_messages_take(struct tutti_pg *pg);
bool pg_messages_send(struct tutti_pg *pg);
/* A collective has ended. It may have read messages of peers that wait for a place. */
void pg_messages_collective_ended(struct tutti_pg *pg);
/* End the messages whose time-out has passed. Return the rank that has stopped inside one, or -1.
 */
int pg_messages_check(struct tutti_pg *pg, int64_t now);
/* Ranks have been added to pg->gone: end the messages that need them. */
void pg_messages_drop_gone(struct tutti_pg *pg);
/* The group has ended: forget what is to be sent, and what has come. */
void pg_messages_drop(struct tutti_pg *pg);

/* ---- sparse_run.c ---------------------------------------------------------------------------- */

/* The caller's stream has reached the call: enqueue the copies of all entries to the host.
 * operation->cuda has the status of that. */
void pg_sparse_copy_in(struct pg_operation *operation);
/* Run the operation, together with all ranks. */
void pg_sparse_run(struct tutti_pg *pg, struct pg_operation *operation, struct pg_outcome *outcome);

/* ---- engine.c -------------------------------------------------------------------------------- */

/* The main function of the group's thread. The argument is the group. It returns once the group
 * stops. */
void *pg_engine(void *argument);
/* A thread that waits for the operation does the work of the group's thread, if no thread does it.
 * It stops once the operation is done, or when it has polled for long. Return whether the operation
 * is done. Not for groups that have had CUDA tensors: only the group's thread calls CUDA. */
bool pg_engine_step_until(const struct pg_operation *operation);

/* ---- work.c ---------------------------------------------------------------------------------- */

extern const struct work_class pg_work_class;

#endif
