/* SPDX-License-Identifier: MIT */
/*
 * What the fault tests share: operations that pass known points, something that happens to one rank
 * at one of them, and what the others must then see.
 */
#ifndef TESTS_FAULTS_H
#define TESTS_FAULTS_H

#include "ranks.h"

#include "base/layout.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    FAULT_AT = 3,          /* the operation, counted from 1, in which it happens */
    FAULT_SOON_MS = 10000, /* an error that came later was not prompt; usual is 0 to 60 */
    FAULTS_FLAG = 8,       /* flags from here on are for faults.c */
};

/* Ways through the library. */
enum faults_call {
    CALL_SMALL,
    CALL_ONE_SHOT, /* of three ranks and more */
    CALL_SWAP,     /* of two */
    CALL_TWO_SHOT,
    CALL_DIRECT, /* zero-copy: thread ranks, or processes on symmetric memory */
    CALL_RING,
    CALL_MESH,   /* of 8 ranks only */
    CALL_GATHER, /* on CPU only, as the next eleven are */
    CALL_SCATTER,
    CALL_TO_ALL,
    CALL_BROADCAST, /* the victim is the root, as in the next seven */
    CALL_COLLECT,
    CALL_DEAL, /* a scatter */
    CALL_REDUCE,
    CALL_OFFER, /* a broadcast that is read where it lies */
    CALL_TAKE,  /* such a gather */
    CALL_COLLECT_V,
    CALL_DEAL_V,
    CALL_GATHER_V,
    CALL_SCATTER_V,
    CALL_TO_ALL_V,
    CALL_COUNTED_TO_ALL, /* counts are read when it runs, on a GPU there: as in the next one */
    CALL_COUNTED_REDUCE,
    CALL_SET, /* a group: messages in a ring, an all-reduce, a barrier */
    CALL_BARRIER,
    CALL_SUBSET,    /* of the victim and the next rank */
    CALL_PIPELINED, /* on a GPU, as the next is */
    CALL_LINES,
    CALL_NORM,      /* all-reduce and RMSNorm of a few bytes */
    CALL_NORM_ROWS, /* ... of many rows, by a two-shot */
};

/* What the victim has given to its operation at a point. */
enum faults_part {
    PART_MISSING, /* the others need it */
    PART_GIVEN,   /* nobody needs it any more in this operation */
    PART_UNSURE,  /* its kernel was on its way */
};

/* A point inside an operation. */
struct faults_point {
    const char *name;
    enum faults_call call;
    int passage; /* which time that the operation passes it */
    enum faults_part part;
};

/* What one rank does instead of its operation. */
enum faults_wrong {
    WRONG_NOTHING,
    WRONG_COUNT,
    WRONG_DTYPE,
    WRONG_OP,
    WRONG_ORDER, /* a barrier, or for a barrier an all-reduce */
};

struct faults_scenario {
    const struct faults_point *point;
    int victim;
    bool anywhere; /* the point counts from the arming on, in no operation of faults_call()'s */
};

/* One rank's communicators and operands. */
struct faults_rank {
    struct ranks *ranks;
    const struct faults_scenario *scenario;
    int rank;
    tutti_store_t *store;
    tutti_comm_t *comm;
    tutti_comm_t *others; /* all ranks but the victim; NULL on the victim */
    void *memory;
    void *device;              /* a GPU's memory, for what takes no operands of the host, or NULL */
    tutti_stream_t stream;     /* of the calls with that memory */
    tutti_symm_group_t *group; /* that owns the memory, or NULL */
    enum faults_wrong wrong;   /* of the next calls; of all-reduces, but for the order */
};

/* Lies in the shared bytes. */
struct faults_shared {
    uint32_t reached;    /* the victim was at its point */
    uint32_t late;       /* another rank came so late to that operation that it failed */
    int64_t begun_ns;    /* when the first of the others came to it */
    int64_t happened_ns; /* when */
    int64_t noticed_ns;  /* the longest that a rank took to notice */
};

/* Fills all but the communicators. Returns 0 or the failing line, as all that follow. */
int faults_begin(struct faults_rank *self, struct ranks *ranks, int rank, tutti_store_t *store);
/* What faults_begin() made. */
void faults_end(struct faults_rank *self);
/* The same and both communicators. */
int faults_open(struct faults_rank *self, struct ranks *ranks, int rank, tutti_store_t *store);
void faults_close(struct faults_rank *self);
/* The scenario's operation once. */
enum tutti_status faults_call(struct faults_rank *self, int64_t timeout_ms);
/* The numbers that it takes in the order of the communicator's collectives. */
uint64_t faults_numbers(const struct faults_rank *self);
/* From now on the calling thread does action() at the scenario's point of its FAULT_AT-th
 * operation. */
void faults_arm(struct faults_rank *self, void (*action)(struct faults_rank *self));
/* Notes the time and that the point was reached. */
void faults_happened(struct ranks *ranks);
/*
 * Calls until an operation fails: one from `first` to `last`, with this status and the victim
 * named. From `first` on, which all but the victim begin together, operations have the time-out. A
 * rank that takes no part in the subset hears of it in a barrier of all.
 */
int faults_suffer(struct faults_rank *self, enum tutti_status expected, int first, int last,
                  int64_t timeout_ms);
/* After the fault: it stays, and the survivors go on in the old communicator without the victim and
 * in a new one. */
int faults_survive(struct faults_rank *self, enum tutti_status expected);
/* The first and the last operation that may fail on the others: FAULT_AT or, if the point comes
 * after the victim's part in its operation, the next one. */
int faults_first(const struct faults_rank *self);
int faults_last(const struct faults_rank *self);

/*
 * Runs fn for every point that the filter takes, from 2 to `most` ranks, the first and the last
 * rank as the victim; returns what main() does. Nothing may be left behind.
 */
int faults_run_all(const char *title, bool processes, int most, ranks_fn *fn,
                   bool (*takes)(const struct faults_point *point));
/* All points of the device. */
const struct faults_point *faults_points(int *count);
/* Before ranks begin. Operands of ten pieces fit into the memory of faults_begin(). More ranks than
 * cores have longer pieces if their arenas have more bytes than this sets. */
static inline void faults_arena_limit(void)
{
    char arena[24];
    snprintf(arena, sizeof arena, "%d", LAYOUT_MOST_ARENA);
    setenv("TUTTI_ARENA_BYTES", arena, 1);
}
/* From now on points are noticed: the library's, and those that a test passes itself. */
void faults_watch(void);
void faults_pass(const char *name);
/* Of points with the same operation, the first: for what does not happen at points. */
bool faults_first_of_call(const struct faults_point *point);
bool faults_all(const struct faults_point *point);

/* A private directory for the library's sockets (TUTTI_DIR); how much is left in it or elsewhere.
 */
void faults_directory_create(void);
int faults_directory_check(void);

#endif
