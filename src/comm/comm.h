/* SPDX-License-Identifier: MIT */
/* The inside of a communicator. After the rendezvous only the counters and the marks of its use
 * change. */
#ifndef TUTTI_COMM_H
#define TUTTI_COMM_H

#include "base/timeout_source.h"
#include "bootstrap/config.h"
#include "coll/backend.h"
#include "coll/coll.h"
#include "cpu/reduce/reduce.h"
#include "peers/peers.h"
#include "record/recorder.h"
#include "topology/topology_file.h"
#include "tutti/tutti.h"

struct agree;
struct call_slot;
struct comm_setup;
struct gather;
struct hierarchy;
struct host_record;
struct hosts;
struct interrupt;
struct kept_store;
struct meeting;
struct pg_lists;
struct work_pool;

/* options->name has up to RECORD_NAME_BYTES. The names of plain communicators also have a
 * prefix. */
enum { COMM_NAME_BYTES = RECORD_NAME_BYTES + 8 };

/* `busy` of a communicator that no call of a single thread holds. */
enum { COMM_HELD = 1 };

/* Whether a communicator serves a process group, or has done so. */
enum comm_service { COMM_FREE, COMM_SERVES, COMM_SERVED };

struct tutti_comm {
    const struct backend *backend; /* of the device */
    void *group;                   /* the back end's; NULL before the ranks have met */
    struct peers *peers;           /* the ranks: faults, aborts, exits */
    uint32_t busy;                 /* thread_number() of the caller inside, or COMM_HELD; 0: none */
    uint32_t grouping;             /* a caller makes a process group of some ranks: members.c */
    uint32_t alone;     /* a caller is between comm_enter_alone() and comm_leave_alone() */
    uint32_t finalized; /* tutti_comm_finalize() was called: `busy` is never given back */
    uint32_t epoch;     /* of the process that created it: ipc/fork.h */
    struct recorder recorder;
    bool ready;                     /* the rendezvous has succeeded */
    int (*progress)(void *context); /* the application's: tutti.h; may be NULL */
    void *progress_context;
    tutti_parallel_t parallel; /* the application's: tutti.h; NULL: none */
    void *parallel_context;
    int parts;          /* the most threads of any rank, if some rank has several; else 0 */
    int threads;        /* of this rank, that share a long operation */
    bool parts_crowded; /* there are more threads than cores */
    bool transient_streams;
    enum tutti_programmatic programmatic; /* launches: CUDA only */
    int max_blocks;                       /* of a kernel: CUDA only; 0: no limit */
    bool unfinished;                      /* the last operation has failed on this rank */
    bool is_derived; /* made of ranks of another communicator: ignores a forced algorithm that their
                      * links do not allow */
    bool shrunk;     /* another communicator has been made of its ranks */
    enum comm_service service;
    int rank;
    int world_size;
    const struct reduce_isa *isa;
    struct comm_config config;
    int64_t timeout_ms;
    enum timeout_source timeout_source; /* of timeout_ms */
    struct topology topology;
    struct choice_rules rules;   /* what the links allow, what is forced */
    struct topology_file *links; /* NULL: not known */

    enum tutti_status declined; /* why the rendezvous failed; it is not tried again */
    char reason[512];
    char name[COMM_NAME_BYTES];
    int64_t generation;
    uint64_t table_hash;     /* struct backend_record's */
    uint8_t nonce[16];       /* of its meeting: no other communicator has it */
    uint32_t aborts;         /* calls of tutti_comm_abort() */
    int cores;               /* number of cores on which the ranks may run, in all */
    bool crowded;            /* it or its parent has more ranks than cores */
    bool shared;             /* some process has several ranks; a child takes the parent's value */
    uint32_t splits;         /* calls of tutti_comm_split() so far; the same on all ranks */
    tutti_store_t *store;    /* borrowed until the rendezvous has ended, then NULL */
    struct kept_store *kept; /* of several hosts: the store of an id; NULL: the caller's store */
    struct tutti_fabric *fabric; /* the option; NULL: the ranks run on one host */
    struct backend_hosts hosts;  /* of ranks on several hosts: a struct hierarchy, on CPU also the
                                  * group */
    struct hierarchy *part_of;   /* whose node this is: hierarchy.h; NULL: none */
    /* Of a split between hosts, while it meets: its abort ends the meeting. Else NULL. */
    const struct tutti_comm *split_from;
    struct work_pool *works;  /* work.c */
    void *norm_scratch;       /* rms_norm.c; NULL before the first use */
    struct comm_setup *setup; /* while it meets, else NULL: comm_setup.c */
    uint64_t calls;           /* of collectives; written by the holder of `busy` */
    struct tutti_comm *next;  /* in the process's list, for the count of calls */
    /* A group of calls, call_set.c: */
    uint64_t set; /* the address of the set that holds `busy`; 0: none. Other threads may read it */
    struct tutti_comm *beside;        /* the next one that the set holds */
    struct call_slot *own, *own_last; /* messages to this rank itself that have no partner yet */
    struct pg_lists *lists;           /* used by the caller that `grouping` names */
};

/* Makes an empty communicator, in the process's list, to be destroyed with tutti_comm_destroy().
 * Returns NO_MEMORY, SYSTEM. */
enum tutti_status comm_alloc(const char *name, int rank, int world_size, int32_t device,
                             struct tutti_comm **comm);
/*
 * Makes a communicator of some ranks of `from`; they have not met in it yet. It has the same
 * device, configuration, time-out and links. The caller fills the leaf order, and destroys the
 * communicator with tutti_comm_destroy(). Returns NO_MEMORY, SYSTEM.
 * - [in] ranks: ranks[i] is the old number of the new rank i, for `size` ranks
 * - [in] rank: the caller's new number
 */
enum tutti_status comm_derive(const struct tutti_comm *from, const int *ranks, int size, int rank,
                              const char *name, struct tutti_comm **comm);
/* Makes a derived communicator one of the hosts, before its ranks meet. */
void comm_use_hosts(struct tutti_comm *made);
/* Makes a CPU communicator for internal use, which has not met yet. It has the smallest arenas. It
 * ignores all options and variables that ranks compare. The caller sets its time-out before the
 * rendezvous, and destroys it with tutti_comm_destroy(). Returns NO_MEMORY, SYSTEM.
 * [in] store  borrowed until tutti_comm_rendezvous() has ended */
enum tutti_status comm_create_plain(tutti_store_t *store, const char *name, int rank,
                                    int world_size, struct tutti_comm **comm);
/* Collective among the members of the agreement: the rendezvous of `comm`. `which` is the number of
 * the meeting that the agreement has made for it. */
enum tutti_status comm_assemble_agreed(struct tutti_comm *comm, const struct agree *agree,
                                       int which);

struct comm_assembly;
/* What the ranks of several hosts know when they have met. */
struct comm_meeting {
    const struct comm_assembly *how;
    const struct hosts *hosts;
    struct gather *gather; /* of all ranks */
    const struct meeting *meeting;
};

/* How the ranks of a communicator come together: over a store, or split from a parent. */
struct comm_assembly {
    tutti_store_t *store;              /* NULL: they have a parent */
    const struct meeting *agreed;      /* on which they have agreed; NULL: they meet on the store */
    const struct tutti_comm *parent;   /* whose connections they use */
    struct gather *gather;             /* of all ranks of the parent, with members */
    const struct interrupt *interrupt; /* of waits outside of `gather`, and outside of `store` */
    int64_t deadline;
    /* Joins ranks of several hosts: sets comm->hosts, and on CPU the communicator's back end and
     * group. NULL: these are refused. */
    enum tutti_status (*join_hosts)(struct tutti_comm *comm, const struct comm_meeting *met);
};
/* Collective: puts a communicator together. With a parent there are an agreement with a struct
 * host_record, then one without values, or two if comm->shared holds for the parent; hosts of
 * devices then agree over their own arenas. After a failure of this rank alone, gather->failed is
 * false, and the caller tells the other ranks. */
enum tutti_status comm_assemble(struct tutti_comm *comm, const struct comm_assembly *how);
/* For tests: a rank has the threads that it asks for, even if there are fewer cores. */
extern bool comm_threads_exceed_cores;

/* hosts.c: compares the records of all ranks. Without a fabric they must run on one host. Returns
 * what host_records_compare() and the back end's records_compare() do, DECLINED. */
enum tutti_status comm_records_check(const struct tutti_comm *comm,
                                     const struct host_record *records, struct hosts *hosts);

/* A handle of a store that communicators of several hosts use: that of an id, and those that were
 * split from it. The last one closes it. */
struct kept_store {
    tutti_store_t *store; /* NULL at first */
    uint32_t uses;
};
/* With one use. Returns NO_MEMORY. */
enum tutti_status kept_store_make(struct kept_store **made);
/* Takes NULL. */
void kept_store_release(struct kept_store *kept);

/* Counts a call that was refused before it could use a communicator. */
void comm_count_refused(void);
/* Returns the number of calls of collectives in this process. Refused calls and those of
 * process groups count. */
uint64_t comm_call_count(void);
/* Returns false if TUTTI_DISABLE switches the library off. */
bool comm_is_enabled(void);

/* run.c, for callers that hold `busy` or are alone. comm_check_args() checks the arguments of a
 * call and changes nothing. comm_run() runs a collective as its public function does, but
 * op_known() need not know args->op. */
enum tutti_status comm_check_args(const struct tutti_comm *comm, enum tutti_collective which,
                                  const struct coll_args *args, enum tutti_device device);
enum tutti_status comm_run(struct tutti_comm *comm, enum tutti_collective which,
                           const struct coll_args *args, int64_t timeout_ms, tutti_stream_t stream);

/* finalize.c: keeps other callers out until comm_leave_alone(). Also succeeds on a finalized
 * communicator. Returns CONCURRENT if another thread is inside, or if there is a process group. */
enum tutti_status comm_enter_alone(struct tutti_comm *comm, const char *call);
void comm_leave_alone(struct tutti_comm *comm);

/* report.c: writes the result of the meeting into the recorder. */
void comm_record_meeting(struct tutti_comm *comm);
/* Writes a dump of the failed communicator `comm` if TUTTI_DUMP is set. Errors are logged. */
void comm_dump_failure(void *comm);

/* check.c: returns INVALID if `comm` is NULL, or belongs to a parent process. */
enum tutti_status comm_check_own(const struct tutti_comm *comm, const char *call);
/* Also returns INVALID if `comm` has not met. `advice` follows the
 * words "has not met" in the message. */
enum tutti_status comm_check_met(const struct tutti_comm *comm, const char *call,
                                 const char *advice);
/* Returns INVALID after tutti_comm_finalize(). */
enum tutti_status comm_check_finalized(const struct tutti_comm *comm, const char *call);

/* The advice to a caller that uses a communicator too early. */
#define COMM_MEET_FIRST ": call tutti_comm_rendezvous()"

#endif
