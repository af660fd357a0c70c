/* SPDX-License-Identifier: MIT */
/*
 * A fabric for tests: ranks of one machine, threads or processes, over Unix sockets. It needs no
 * MPI and no URL. A test makes the control before its ranks begin, and each rank opens a fabric:
 *
 *     struct loopback *loopback = loopback_create();     // shared with children of fork()
 *     ...
 *     tutti_fabric_t *fabric;                            // in each rank
 *     RANKS_CHECK(loopback_open(loopback, rank, &fabric) == TUTTI_OK);
 *     options.fabric = fabric;                           // tutti_comm_create() and so on
 *     ...
 *     tutti_fabric_close(fabric);
 *
 * Build it into a test with SOURCES ../fabric/loopback_fabric.c. The control's fields may be
 * changed at any time, by any rank. They are indexed by the number that a rank has opened its
 * fabric with, whatever ranks the communicators give it. Messages move only while both sides call
 * test(), but small ones end at once on the side that sends.
 */
#ifndef TESTS_LOOPBACK_FABRIC_H
#define TESTS_LOOPBACK_FABRIC_H

#include "fabric/fabric.h"

enum { LOOPBACK_RANKS = 256 };

enum loopback_cut {
    LOOPBACK_WHOLE,
    LOOPBACK_SILENT, /* messages that have not begun wait until it is whole again */
    LOOPBACK_BROKEN, /* start() and test() of both sides return SYSTEM */
};

/* Where a process dies. */
enum loopback_death {
    LOOPBACK_ADDRESS,   /* in address() */
    LOOPBACK_CONNECT,   /* before it has connected to any rank */
    LOOPBACK_CONNECTED, /* behind connect() */
};

/* Lies in memory that all ranks share; zero is the default of all fields. Read and written by
 * loopback_get() and loopback_set(). */
struct loopback {
    uint32_t one_thread;    /* threads() says no, and another thread's call aborts the program */
    uint32_t delay_us;      /* how long a message takes at least */
    uint32_t silent_deaths; /* an ended peer is no error, as if a host were gone */
    uint32_t fail_connect;  /* connect() returns SYSTEM */
    uint32_t dies;          /* 1 + the number of a process that dies in the set-up */
    uint32_t dies_in;       /* enum loopback_death */
    uint32_t cut[LOOPBACK_RANKS][LOOPBACK_RANKS];      /* [from][to]: enum loopback_cut */
    uint64_t messages[LOOPBACK_RANKS][LOOPBACK_RANKS]; /* [from][to]: those that start() took */
    uint64_t bytes[LOOPBACK_RANKS][LOOPBACK_RANKS];    /* of their contents */
};

#define loopback_get(field)        __atomic_load_n(&(field), __ATOMIC_SEQ_CST)
#define loopback_set(field, value) __atomic_store_n(&(field), (value), __ATOMIC_SEQ_CST)

/* Ends the test on failure. Never freed. */
struct loopback *loopback_create(void);

/* number: below LOOPBACK_RANKS, another one for each rank. */
enum tutti_status loopback_open(struct loopback *loopback, int number, tutti_fabric_t **fabric);

/* Cuts or repairs all between the numbers [0, first) and the others, in both directions. */
void loopback_cut_hosts(struct loopback *loopback, int first, enum loopback_cut cut);

#endif
