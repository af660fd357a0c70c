/* SPDX-License-Identifier: MIT */
/*
 * Ranks for tests of the whole library: a function run once a rank, as threads of this process, as
 * processes, or as several threads in each of several processes, each rank with a store handle of
 * its own. What hangs is killed and fails.
 */
#ifndef TESTS_RANKS_H
#define TESTS_RANKS_H

#include "tutti/tutti.h"

#include <sys/types.h>

enum {
    RANKS_MOST = 128,
    RANKS_FLAGS = 16,
    RANKS_TIMEOUT_MS = 60000, /* of set-up, operations and flags: more than any machine needs */
    RANKS_DEADLINE_S = 500,   /* of a whole run: busy machines are slow */
};

/* How one rank ended. */
struct ranks_result {
    int32_t line;   /* of the check that failed, 0 if none did */
    int32_t signal; /* that ended its process, 0 if none did */
    char text[512]; /* the check and the library's last error */
};

/* Lies in memory that all ranks share. */
struct ranks {
    int size;
    int processes;       /* 0: threads of this process; else the ranks are dealt out in order */
    const void *context; /* the test's own, set before the run */
    uint32_t flags[RANKS_FLAGS]; /* the test's own, see ranks_raise(); 0 at first */
    uint64_t expendable;         /* bit r: rank r may end by a signal, one of the first 64 */
    pid_t pids[RANKS_MOST];      /* of the process that rank r lives in */
    struct ranks_result results[RANKS_MOST];
    char url[128];         /* of the store */
    tutti_store_t *memory; /* keeps a store of threads */
    pid_t server;          /* serves a store of processes */
    size_t shared_bytes;
    _Alignas(64) unsigned char shared[]; /* the test's own, zeroed */
};

/* A rank's part; 0 is success. See RANKS_CHECK(). */
typedef int ranks_fn(struct ranks *ranks, int rank, tutti_store_t *store);

/* Makes the group and its store: `memory:` for threads, a tcp server for others, in a process of
 * its own: this one forks, and must have no other thread that may hold a lock then. Ends the test
 * on failure. */
struct ranks *ranks_create(int size, int processes, size_t shared_bytes);
/* Takes NULL. */
void ranks_destroy(struct ranks *ranks);
/* Runs fn on every rank and waits for all; returns how many failed, after saying so on stderr. May
 * be called again: the store and the shared bytes stay as they are. */
int ranks_run(struct ranks *ranks, ranks_fn *fn);

/* A part of a program, for ranks that are processes: of each of these numbers, up to the first 0.
 */
struct ranks_part {
    const char *name;
    ranks_fn *fn;
    int sizes[4];
};
/* Runs each part in groups of its own; names on stderr those that failed. Returns how many ranks
 * failed. */
int ranks_run_parts(const struct ranks_part *parts, size_t count);

/* Raises a flag; waits until a flag has been raised so often, false if that never happened. */
void ranks_raise(struct ranks *ranks, int flag);
bool ranks_await(struct ranks *ranks, int flag, uint32_t times);
/* Raises the flag, then waits until every rank has; once a run for each flag. */
bool ranks_meet(struct ranks *ranks, int flag);

/* A communicator of all ranks with a generous time-out; options may be NULL. */
enum tutti_status ranks_join(const struct ranks *ranks, int rank, tutti_store_t *store,
                             const struct tutti_comm_options *options, tutti_comm_t **comm);

/* Of programs with fabric/hosts.c, else NULL: before the ranks begin; before a rank's part; the
 * fabric of its communicators, or NULL. */
__attribute__((weak)) void hosts_prepare(void);
__attribute__((weak)) void hosts_enter(int rank);
__attribute__((weak)) struct tutti_fabric *hosts_fabric(int rank);

/* Notes where a rank's part failed and returns the line. */
int ranks_fail(struct ranks *ranks, int rank, const char *file, int line, const char *what);

/* Binds this process, and so all ranks, to two cores at most: three ranks and more then share
 * cores, on any machine. */
void ranks_share_cores(void);

/* Whether the tests should be quick: under sanitizers. */
bool ranks_short(void);
/* So many operations, fewer where the tests should be quick, or what TUTTI_TEST_OPERATIONS says. */
int ranks_operations(int usual, int fewer);

/* Whether this machine has what a group of so many ranks needs: with TUTTI_TEST_DEVICE=cuda, a GPU
 * for each. */
bool ranks_fit(int size);
/* What main() begins with: 77, after saying why, if no group of `least` ranks fits; else 0. */
int ranks_skip(int least);
/* The same of a test that knows the CPU alone. */
int ranks_skip_cuda(const char *why);
/* The same of a test that needs copies from the memory of one process to another's. ranks_skip()
 * asks it if TUTTI_DIRECT is on. */
int ranks_skip_direct(void);

/* In a ranks_fn with arguments `ranks` and `rank`: ends it with the line unless the condition
 * holds. */
#define RANKS_CHECK(condition)                                                                     \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return ranks_fail(ranks, rank, __FILE__, __LINE__, #condition);                        \
    } while (0)

#endif
