/* SPDX-License-Identifier: MIT */
/*
 * The soak: random lives of communicators under random faults, each result compared with the
 * reference and each error with the fault that is to explain it.
 *
 *     soak.c      main(): what was asked for
 *     boss.c      the supervisor: starts ranks, stops and wakes them, watches; has no communicator
 *     worker.c    a process of ranks: a thread for each rank of the episode that is on; its meters
 *     episode.c   what happens in an episode: all of it follows from the seed and the number
 *     life.c      a rank in an episode: its communicators, its operations
 *     fault.c     how a rank comes to its fault, and what errors that explains
 *     symmetric.c the same of symmetric memory
 *     group.c     the same of a process group
 *     operation.c one operation and its check
 *     report.c    what is printed and written
 *
 * The ranks agree since each makes the same plan for itself. Time alone is not in the plan: where
 * in an operation a signal strikes is up to the machine.
 */
#ifndef TESTS_SOAK_H
#define TESTS_SOAK_H

#include "pool.h"
#include "ranks.h"
#include "tutti/pg.h"
#include "tutti/recovery.h"

#include <sys/types.h>
#include <time.h>

enum {
    SOAK_SLOTS = 5, /* processes */
    SOAK_RANKS = 5, /* of an episode, in one process or several */
    SOAK_COMMS = 3, /* of an episode, at once */
    SOAK_MOST_BYTES = 64 << 20,
    SOAK_GUARD = 64,           /* bytes around operands that nobody may write */
    SOAK_PATIENCE_MS = 1500,   /* of operations that a rank is to miss */
    SOAK_GENEROUS_MS = 120000, /* of all others: more than a busy machine needs */
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SOAK_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SOAK_SANITIZED 1
#endif
#endif
#ifndef SOAK_SANITIZED
#define SOAK_SANITIZED 0 /* whose memory says nothing, and who looks for leaks at an exit() */
#endif

/* X(name, text) */
#define SOAK_FAULT_MAP(X)                                                                          \
    X(NONE, "none")                                                                                \
    X(KILL, "sigkill")        /* amid an operation */                                              \
    X(EXIT, "exit")           /* by another thread, amid an operation */                           \
    X(PAUSE, "sigstop_short") /* and goes on before any time-out ends */                           \
    X(STOP, "sigstop_long")   /* until all others have given up */                                 \
    X(LATE, "late")           /* for an operation, beyond its deadline */                          \
    X(COUNT, "wrong_count")                                                                        \
    X(DTYPE, "wrong_dtype")                                                                        \
    X(OP, "wrong_op")                                                                              \
    X(ABORT_THREAD, "abort_from_a_thread")                                                         \
    X(ABORT_SIGNAL, "abort_in_a_handler")                                                          \
    X(FORK, "fork") /* by another thread, amid an operation */                                     \
    X(KILL_SETUP, "sigkill_in_set_up")                                                             \
    X(LATE_SETUP, "never_arrives")

enum soak_fault {
#define SOAK_FAULT_ENUM(name, text) SOAK_##name,
    SOAK_FAULT_MAP(SOAK_FAULT_ENUM)
#undef SOAK_FAULT_ENUM
        SOAK_FAULTS
};
const char *soak_fault_name(enum soak_fault fault);

enum soak_store {
    SOAK_STORE_TCP,    /* a server that outlives all */
    SOAK_STORE_PREFIX, /* a view of it */
    SOAK_STORE_FILE,
    SOAK_STORE_RANK,   /* a server in rank 0 */
    SOAK_STORE_MEMORY, /* where all ranks are threads of one process */
};

enum soak_kind {
    SOAK_COLLECTIVES,
    SOAK_SYMMETRIC, /* collectives on symmetric memory, and its signals */
    SOAK_GROUP,     /* a process group */
};

/* What was asked for. Zero: no limit. */
struct soak_config {
    uint64_t seed;
    uint64_t seconds;
    uint64_t operations;
    uint64_t communicators;
    uint64_t from;     /* the first episode */
    uint64_t episodes; /* how many */
    const char *json;
    const char *machine;
    const char *commit;
    const char *command;
    bool threads;   /* all ranks are threads of one process */
    bool verbose;   /* a line an episode */
    bool faultless; /* nobody dies, nobody is late */
    bool help;
    bool cuda;
    bool shares; /* processes share GPUs: no graphs */
    int most_ranks;
};

/* Which ranks of an episode a communicator has: members[its rank] is theirs. */
struct soak_members {
    int size;
    int members[SOAK_RANKS];
};

/* Constant once made. */
struct soak_episode {
    uint64_t number;
    uint64_t random; /* begins the sequence of operations */
    enum soak_kind kind;
    enum soak_store store;
    int processes;
    int size;
    int slot_of[SOAK_RANKS];   /* the process that a rank lives in */
    int thread_of[SOAK_RANKS]; /* its number there */
    int count;                 /* of communicators: the first has all ranks */
    struct soak_members comms[SOAK_COMMS];
    bool reversed; /* the order of the leaves */
    bool known;    /* names of communicators that came and went before, on the same store */
    int graph;     /* on GPUs: launches of each operation's graph; 0: it is called */
    int streams;   /* on GPUs, of each communicator's operations */
    int operations;
    enum soak_fault fault;
    uint32_t victims; /* ranks: of deaths those of one or two processes, else one */
    int fault_at;     /* the operation before or amid which it happens */
    int64_t delay_us; /* from its beginning on */
    bool shrinks;     /* afterwards */
    bool excludes;    /* the victim, who lives */
};

void episode_make(const struct soak_config *config, uint64_t number, struct soak_episode *episode);
void episode_calm(struct soak_episode *episode);
/* Whether the victims' processes end. */
bool episode_is_deadly(const struct soak_episode *episode);
/* Whether the fault is one of the set-up. */
bool episode_is_of_setup(const struct soak_episode *episode);

/* splitmix64 of a sequence that all ranks have in common; 0 to bound - 1. */
uint64_t soak_below(uint64_t *random, uint64_t bound);
/* 0 to most bytes, each binary order of magnitude as likely as the next. */
size_t soak_bytes(uint64_t *random, int most_log2);

/* ---- what processes share -------------------------------------------------------------------- */

/* Flags of struct ranks, cleared for each episode. */
enum {
    SOAK_SERVED, /* rank 0 serves the episode's store */
    SOAK_MET,    /* a rank has its communicators */
    SOAK_READY,  /* for operations with a short time-out */
    SOAK_FAILED, /* whom the others miss has been given up, by one of them */
    SOAK_WOKEN,  /* who was stopped goes on */
    SOAK_SEEN,   /* a rank has seen what there was to see */
};

/* What a rank did. Written by it alone. */
struct soak_progress {
    _Alignas(64) uint64_t steps; /* grows while it lives */
    uint64_t operations;         /* reductions checked, each counted by one rank */
    uint64_t barriers;           /* and other operations without a result */
    uint64_t bytes;              /* of their operands, this rank's */
    uint64_t comms;              /* communicators made, each counted by one rank */
    uint64_t strikes_ns;         /* when its process is to end; 0: it is not */
    uint64_t noticed_ns;         /* when it saw the fault; 0: not */
    uint64_t starved;            /* errors that named a rank whom the machine had not let run */
    uint32_t inside;             /* a call */
    int32_t tid, pid;
    uint64_t waited_ns; /* for a processor, when its time-out began */
};

/* What a process holds between episodes. Written by it alone. */
struct soak_meters {
    int32_t pid;                              /* 0: it is none */
    uint64_t episodes;                        /* that it has seen on these devices */
    uint32_t turn;                            /* the last one that it has ended */
    int32_t descriptors, mappings, leftovers; /* leftovers: of the library, which must be none */
    int64_t rss_kib, heap_kib;
    uint64_t graphs;                         /* that it has launched */
    int32_t warm_descriptors, warm_mappings; /* once it had warmed up; 0: not yet */
    int64_t warm_rss_kib, warm_heap_kib;
    uint64_t warm_graphs;
};

struct soak_shared {
    uint32_t turn;  /* goes up when an episode begins; processes sleep on it */
    uint32_t ended; /* goes up when a process has ended its part; the supervisor sleeps on it */
    uint32_t stop;
    uint32_t calm;   /* the episode goes without its fault */
    uint64_t number; /* of the episode */
    char url[128];   /* of the server that outlives all */
    char rank_url[128];
    struct soak_progress progress[SOAK_RANKS];
    struct soak_meters meters[SOAK_SLOTS];
};

/* ---- a run ----------------------------------------------------------------------------------- */

struct soak {
    struct soak_config config;
    struct ranks *ranks; /* results and flags; ranks->shared is the struct soak_shared */
    struct soak_shared *shared;
    /* [ranks][reversed leaves]; the doubles are for groups, two tensors a rank. */
    struct pool *pools[SOAK_RANKS + 1][2];
    struct pool *doubles[SOAK_RANKS + 1][2];
    tutti_op_t premul_sum;
    char directory[64];
};

struct soak_operation;

/* A rank of an episode. */
struct soak_rank {
    struct soak *soak;
    struct ranks *ranks; /* for RANKS_CHECK() */
    const struct soak_episode *episode;
    struct soak_progress *progress;
    int rank; /* in the episode */
    tutti_store_t *base, *store;
    unsigned char *memory[2];   /* SOAK_MOST_BYTES and guards, each */
    unsigned char *send, *recv; /* there, or in symmetric memory */
    tutti_symm_group_t *group;  /* of the symmetric memory, or NULL */
    tutti_pg_t *pg;
    struct tutti_symm_info symm;
    tutti_comm_t *comms[SOAK_COMMS];
    enum tutti_status failed[SOAK_COMMS]; /* the error that it ended with */
    uint64_t random;
    void *helper; /* a thread, see fault.c */
    timer_t timer;
    bool has_timer;
};

/* A process of ranks; does not return. */
void worker_run(struct soak *soak, int slot, uint32_t turn);
/* A rank's part; 0 or the failing line, as all that follow. */
int life_run(struct soak_rank *self);
/* Episodes of a process group, on the first communicator. */
int group_run(struct soak_rank *self);
/* Operands in symmetric memory; an exchange through it. */
int symmetric_open(struct soak_rank *self);
int symmetric_exchange(struct soak_rank *self, const struct soak_operation *operation);
/* Whose communicator has failed leaves; takes one that has. */
void symmetric_leave(struct soak_rank *self);
/* After an operation of a communicator, or of what stands on it: an error ends it for this rank,
 * and is to be one that the fault explains. `what` says which operation it was. */
int life_suffer(struct soak_rank *self, int comm, enum tutti_status status,
                const struct tutti_fault *fault, const char *what);

/* ---- for lives ------------------------------------------------------------------------------- */

/* What is the matter with a status, NULL if the fault explains it: that of an operation of a
 * communicator, or of a work (then *fault is filled). */
const char *fault_explains(struct soak_rank *self, enum tutti_status status,
                           const struct tutti_fault *fault, int comm);
/* Lets the victim's fault happen soon: a timer, or a thread, or nothing. Unless it is one of the
 * set-up all have theirs behind them. */
int fault_arm(struct soak_rank *self);
/* Waits for the thread. */
void fault_disarm(struct soak_rank *self);
/* The victim's, once it has done its operations, and the others may not yet have: the fault comes
 * now at the latest. */
int fault_await(struct soak_rank *self);
bool fault_is_victim(const struct soak_rank *self);
/* Before operations whose time-out is SOAK_PATIENCE_MS: meets the others that do them. */
bool fault_begin_timeout(struct soak_rank *self);
/* Notes that this rank has seen the fault. */
void fault_notice(struct soak_rank *self);
/* This rank in a communicator of the episode, -1 if it is none of its. */
int members_rank(const struct soak_members *members, int rank);
/* Whether this rank is the one to count what all members do. */
bool members_counts(const struct soak_rank *self, const struct soak_members *members);

/* ---- one operation --------------------------------------------------------------------------- */

/* Equal on all ranks but for what `bits` says. */
struct soak_operation {
    int comm;
    enum tutti_collective collective; /* unless a barrier */
    bool barrier;
    uint32_t subset; /* of a barrier: ranks of the communicator, 0: all */
    enum tutti_dtype dtype;
    tutti_op_t op;
    enum tutti_algo algo;
    size_t count; /* the most that a block has */
    size_t offset;
    int root;
    bool grouped; /* with a barrier, in a group of calls */
    bool copies;
    uint64_t bits;
};

void operation_make(const struct soak_episode *episode, uint64_t *random,
                    struct soak_operation *operation);
/* Where it runs. */
struct soak_place {
    struct soak_rank *self;
    tutti_comm_t *comm;
    const struct pool *pool;
    int64_t timeout_ms; /* 0: the communicator's */
};
enum tutti_status operation_run(const struct soak_place *place,
                                const struct soak_operation *operation);
/* Of one that succeeded: what is wrong with the result, NULL if nothing is. */
const char *operation_check(const struct soak_place *place, const struct soak_operation *operation,
                            size_t *index);
void operation_format(const struct soak_operation *operation, char *text, size_t size);

/* ---- supervisor and report ------------------------------------------------------------------- */

struct soak_totals {
    uint64_t episodes, operations, barriers, bytes, communicators, starved, starts;
    uint64_t faults[SOAK_FAULTS];
    uint64_t struck;                    /* amid a call: of the signals that end or stop a process */
    uint64_t signals;                   /* those */
    uint64_t noticed;                   /* deaths */
    double noticed_ms, noticed_most_ms; /* from the signal on: together, and the longest */
    uint64_t wrong, hangs;
    int64_t begin_ns;
};

/* Runs all of it; fills the totals. Returns what main() does. */
int boss_run(struct soak *soak, struct soak_totals *totals);
/* What has grown, "" if nothing has; once all is over. */
const char *report_growth(const struct soak *soak);
void report_episode(const struct soak *soak, const struct soak_episode *episode, int64_t ns);
void report_line(const struct soak *soak, const struct soak_totals *totals);
/* False, having said why, if it cannot be written. */
bool report_json(const struct soak *soak, const struct soak_totals *totals);

#endif
