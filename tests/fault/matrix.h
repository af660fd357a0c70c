/* SPDX-License-Identifier: MIT */
/*
 * The fault matrix: faults x stages of a communicator's life x places where ranks live. A cell is
 * run in processes of its own, once a point of its stage and victim, and tells what every rank
 * returned, how long that took and what was left. See matrix.c for the table.
 */
#ifndef TESTS_MATRIX_H
#define TESTS_MATRIX_H

#include "faults.h"
#include "tutti/pg.h"

enum place { PROCESSES, THREADS, CUDA, PLACES };

enum stage {
    SETUP,
    BETWEEN,
    ONE_SHOT,
    TWO_SHOT,
    PAIR,
    COUNTED, /* v-forms that read their counts when they run */
    NORM,    /* all-reduce and RMSNorm */
    MESH,
    RING,
    BARRIER,
    GROUP,
    DESTROY,
    STAGES,
};

enum {
    MATRIX_RANKS = 8,
    PATIENCE_MS = 400,        /* of operations that are to time out */
    SETUP_PATIENCE_MS = 1000, /* of meetings that are to */
    CUDA_PATIENCE_MS = 3000,  /* the same, where devices are prepared */
    SLACK_MS = 5000,          /* that a busy machine may add */
    NO_STATUS = -1,           /* the rank did not get that far */
    VICTIM_ENDS = 1 << 30,    /* in place of a status: its process ends */
    HEARD = 0,                /* flag: a survivor knows */
    DONE = 1,                 /* flag: a rank has no more to do with the communicator */
};

/* Sets of statuses. */
#define ONE_OF(status) (1 << TUTTI_##status)

/* What may come of a fault, in one kind of stage. Neither: the cell does not exist. */
struct outcome {
    int survivors;
    int victim;
    const char *why; /* it does not exist; NULL: for the fault's own reason */
};

struct matrix_rank;

struct fault {
    const char *name;
    const char *id;  /* short, for command lines and tests */
    unsigned places; /* bits */
    struct outcome setup, operation, group, destroy;
    /* At the point, on the victim; NULL: nothing happens there. */
    void (*strike)(struct faults_rank *rank);
    /* Before the set-up, on every rank; after all, the same. May be NULL. */
    void (*prepare)(struct matrix_rank *rank);
    void (*mend)(struct matrix_rank *rank);
    enum faults_wrong wrong; /* the victim's operation */
    const char *only;        /* why other stages than these do not exist */
    bool before;             /* in the set-up it happens before the ranks meet */
    bool absent;             /* the victim does not come to the stage until the others know */
    bool thrown;             /* the strike leaves by longjmp() */
    bool caller;             /* strikes the thread that calls, not the group's */
    bool everywhere;         /* what strikes one rank strikes all, or has no victim */
    bool needs_root;
    bool nameless; /* it is no rank's doing: what errors name is something else */
    bool sparse;   /* in the group: what takes memory */
};

struct cell {
    struct faults_scenario scenario; /* first: what faults.c knows of it */
    enum place place;
    enum stage stage;
    const struct fault *fault;
    int size;
};

/* What a rank says of itself, in the shared bytes. */
struct report {
    int status;
    int64_t took_ns;   /* since the fault */
    uint64_t sequence; /* that its fault names */
    bool anew;         /* another communicator works */
    bool ended;        /* it came to its own end */
    char text[512];
    char left[160]; /* what it left behind, "" if nothing */
};

struct matrix_shared {
    struct faults_shared faults; /* first: faults.c writes it */
    struct report reports[MATRIX_RANKS];
};

/* One rank's life. */
struct matrix_rank {
    struct faults_rank base; /* first: strikes are handed it */
    const struct cell *cell;
    struct report *report;
    bool victim;
    tutti_store_t *wrapped; /* around the rank's store, or NULL */
    tutti_pg_t *pg;
    void *device;       /* a GPU's memory for the group's tensors, or NULL */
    tutti_work_t *work; /* under way, or NULL */
    int64_t timeout_ms; /* of the operation that the fault strikes */
    /* What the fault makes of the set-up. */
    struct tutti_comm_options options;
    int rank, size;
};

/* ---- matrix_faults.c ------------------------------------------------------------------------- */

extern const struct fault matrix_faults[];
extern const int matrix_fault_count;
/* Where thrown faults land: set by sigsetjmp() in the thread that calls. */
void *matrix_jump_target(void);
/* Whether this process may do what some faults need. */
bool matrix_is_root(void);

/* ---- matrix_rank.c --------------------------------------------------------------------------- */

/* A rank's part of a cell: ranks_fn. */
int matrix_live(struct ranks *ranks, int rank, tutti_store_t *store);
/* The points of a stage; for faults without a strike one, or what they count. */
int matrix_points(const struct cell *cell, struct faults_point *points, int most);

/* ---- matrix_left.c --------------------------------------------------------------------------- */

/* What this process holds that could be the library's. */
struct holdings {
    int descriptors;
    int mappings;
};

struct holdings matrix_holdings(void);
/* Writes what is more than before, "" if nothing. Waits a moment for threads that end. */
void matrix_left(const struct holdings *before, char *text, size_t size);

/* ---- matrix_judge.c -------------------------------------------------------------------------- */

enum verdict {
    VERDICT_OK,
    VERDICT_WRONG,
    VERDICT_HANG,
    VERDICT_CRASH,
    VERDICT_LEAK,
    VERDICT_MISSED
};

/* Runs the cell in a process of its own, and writes a line about it: of JSON or, if brief, words
 * with tabs between. */
enum verdict matrix_run(const struct cell *cell, bool brief);
const struct outcome *matrix_outcome(const struct fault *fault, enum stage stage);
extern const char *const matrix_places[PLACES], *const matrix_stages[STAGES];

#endif
