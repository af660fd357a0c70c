/* SPDX-License-Identifier: MIT */
/* tutti diagnose: dumps, and the verdicts that follow from them. */
#ifndef TUTTI_DIAGNOSE_H
#define TUTTI_DIAGNOSE_H

#include "base/rank_set.h"
#include "tutti/tutti.h"

#include <jansson.h>

enum { DIAGNOSE_TEXT_BYTES = 160, DIAGNOSE_OPERATIONS_MOST = 65536 };

/* A lane is a series of operations with its own sequence: a tag's operations, or all calls (-1). */
#define DIAGNOSE_CALLS (-1)
/* A message of a process group that waits; other ranks do not know its sequence. */
#define DIAGNOSE_MESSAGE (-2)

struct dump_operation {
    int64_t lane;
    int64_t sequence;
    bool pending;                   /* waits for the others, or failed while it waited */
    bool inside;                    /* its caller is inside the call */
    int peer;                       /* of a message; -1: any rank */
    char what[DIAGNOSE_TEXT_BYTES]; /* all that ranks must agree on */
};

struct dump_fault {
    const char *status; /* NULL: there is none */
    int rank, peer;     /* -1: none */
    int64_t sequence;
    const char *text;
    char expected[DIAGNOSE_TEXT_BYTES], seen[DIAGNOSE_TEXT_BYTES]; /* of a mismatch */
};

/* One file. The strings belong to `root`. */
struct dump {
    json_t *root;
    const char *name;
    const char *host;    /* "": unknown */
    const char *meeting; /* "": unknown */
    int64_t generation;  /* 0: the ranks have not met */
    int64_t taken_ns;
    int rank, world_size, pid;
    int awaits; /* the rank for which this rank waits, -1 if none */
    struct dump_fault fault;
    const char *lives[WORLD_RANKS];    /* of its peers; NULL: unknown */
    int64_t entered[WORLD_RANKS];      /* 0: unknown */
    struct dump_operation *operations; /* without refused operations and those of subsets */
    size_t count;
};

/* diagnose_read.c: reads a raw dump or one in JSON. Returns false, with the cause in `problem`, if
 * the bytes are not a dump. */
bool dump_parse(const char *text, size_t bytes, struct dump *dump, char *problem, size_t size);
void dump_free(struct dump *dump);

/* Why a rank is the culprit. X(name, text) */
#define CULPRIT_MAP(X)                                                                             \
    X(MISMATCH, "called something else")                                                           \
    X(DISAGREE, "disagrees with another rank, and no third rank shows which one is right")         \
    X(GONE, "is gone")                                                                             \
    X(ABORTED, "aborted")                                                                          \
    X(BEHIND, "has not come")                                                                      \
    X(UNMATCHED, "has not matched a message that another rank waits for")                          \
    X(STUCK, "is awaited, and does not wait itself")                                               \
    X(LATE, "kept the others waiting until their time-out")                                        \
    X(MISSING, "has left no dump")

enum culprit_reason {
#define CULPRIT_ENUM(name, text) CULPRIT_##name,
    CULPRIT_MAP(CULPRIT_ENUM)
#undef CULPRIT_ENUM
};

struct culprit {
    int rank;
    enum culprit_reason reason;
    int64_t lane, sequence;           /* of the operation in question; 0: unknown */
    int64_t last;                     /* the last one that the rank entered; -1: unknown */
    char own[DIAGNOSE_TEXT_BYTES];    /* what the rank called; "": unknown */
    char others[DIAGNOSE_TEXT_BYTES]; /* what the other ranks called */
};

/* Of one communicator. */
struct verdict {
    const char *name;
    int64_t generation;
    int world_size;
    int dumped;                         /* the ranks with a dump */
    const struct dump *of[WORLD_RANKS]; /* NULL: no dump */
    const struct dump_fault *first;     /* the first fault; NULL: none */
    struct culprit culprits[WORLD_RANKS];
    int count;
    bool crossed; /* it is part of a crossing, which replaces its culprits */
};

/* A rank that waits in an operation which another rank has not entered. */
struct crossing_wait {
    struct verdict *verdict; /* of its communicator */
    const struct dump_operation *operation;
    int rank, absent;
};

/* A circle of such waits: rank `absent` of each wait is the caller of the next one. */
enum { CROSSING_WAITS_MOST = 64 };
struct crossing {
    struct crossing_wait waits[CROSSING_WAITS_MOST];
    int count;
};

/* All dumps that could be read. */
struct dump_set {
    struct dump *all;
    size_t count;
};

/* diagnose_files.c: reads the dumps in files and in directories. The list `paths` ends with NULL.
 * Returns false, after messages, if a file could not be read; it still reads the others. */
bool dump_set_read(char **paths, struct dump_set *dumps);
void dump_set_free(struct dump_set *dumps);

/* diagnose_crossed.c: finds operations of several communicators that ranks have called in different
 * orders, and marks the verdicts. Verdicts that are already marked are left out. Returns 1 if it
 * found a crossing, 0 if not, -1 if there is no memory. */
int diagnose_crossed(struct verdict *verdicts, size_t count, struct crossing *crossing);

/* diagnose_judge.c: makes the verdict from dumps of one communicator (same_communicator()), at most
 * one for each rank. */
bool same_communicator(const struct dump *a, const struct dump *b);
/* Returns false if there is no memory. */
bool diagnose_judge(struct dump *const *dumps, size_t count, struct verdict *verdict);

const char *culprit_reason_text(enum culprit_reason reason);
const char *culprit_reason_name(enum culprit_reason reason);

#endif
