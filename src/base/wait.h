/* SPDX-License-Identifier: MIT */
/*
 * How a thread waits. This code knows no peers: callbacks define the event.
 *
 * 1. Spin: poll, a number of times that the caller chooses.
 * 2. Yield: rounds of a poll and a wait_yield(), a number of times that the caller chooses. Skipped
 *    while yields take long.
 * 3. Sleep: on the caller's bell for 50 ms at most, or, without a bell, in naps that double from
 *    1 us up to a limit of the caller. Not while progress() is wanted soon.
 *
 * The spin is inlined. It reads no clock and makes no system call. The rest is waiter_run().
 */
#ifndef TUTTI_WAIT_H
#define TUTTI_WAIT_H

#include "base/order.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    WAIT_QUICK_POLLS = 40, /* for a word that only its writer changes: saves about 5 ns */
    /* Polls of a spin if each thread has a core, about 30 us: longer than the usual delay between
     * ranks, shorter than a time slice of the scheduler. */
    WAIT_POLLS = 2000,
    WAIT_YIELDS = 2000, /* about 1 ms if no other thread wants the core */
    WAIT_SLICE_MS = 50,
    WAIT_NAP_NS = 50000,        /* the longest nap of a thread that waits for a device */
    WAIT_LONG_NAP_NS = 1000000, /* ... for a process without a bell */
};

/* How much a look may cost. */
enum wait_depth {
    WAIT_MEMORY, /* reads of memory */
    WAIT_PEER,   /* also a system call: at least every 20 ms, and before each sleep on a bell */
    WAIT_ALL,    /* also a system call for each peer: at most every 20 ms */
};

enum wait_end { WAIT_DONE, WAIT_TROUBLE, WAIT_LATE, WAIT_CANCELLED };

/* Every callback gets `context`. All but `poll` may be NULL. */
struct waiter {
    /* Returns true if the event has come. It may consume the event: it is not called again then. */
    bool (*poll)(void *context);
    /* Returns true if the event will never come; the context then says why. Called every 64 rounds
     * or 20 ms, and before each sleep. */
    bool (*look)(void *context, enum wait_depth depth);
    /* Returns false if no other thread needs this core: then the round polls 100 times more before
     * it yields. NULL: true. */
    bool (*yields_at_once)(void *context, int64_t now);
    /* Sleeps until the bell rings, for `ms` milliseconds at most. */
    void (*bell)(void *context, int64_t ms);
    /* Reports the length of the wait: called after 5 s, and each time that the length has
     * doubled. */
    void (*remind)(void *context, int waited_s);
    void *context;
    /* The application's function, called with each look. Non-zero cancels the wait. */
    int (*progress)(void *progress_context);
    void *progress_context;
    /* While true, progress() is called in each round, and the waiter does not sleep: where it may
     * not yield, it naps for 20 us. NULL: false. progress() may change it. */
    const bool *progress_soon;
    /* In ns of CLOCK_MONOTONIC. Several waits may share one deadline: the first wait whose spin was
     * not enough finds 0 and sets it, timeout_ms from then. NULL: never. */
    int64_t *deadline;
    int64_t timeout_ms;
    int64_t yields;
    int64_t nap_ns; /* the longest nap, without a bell */
};

/* Polls up to `polls` times, the first `quick` times without a pause in between. Returns whether
 * the event has come. */
static inline __attribute__((always_inline)) bool wait_spin(bool (*poll)(void *), void *context,
                                                            int quick, int polls)
{
    for (int i = 0; i < polls; i++) {
        if (poll(context))
            return true;
        if (i >= quick)
            order_pause();
    }
    return false;
}

/*
 * Lets another thread have the core. *now: in, a recent time of the clock; out, the time after.
 * Returns false if yields take long, because a thread that never waits shares the core: then the
 * caller sleeps instead. A yield lasts until each such thread has used up its time, milliseconds
 * for each; a sleeper gets the core soon after its event. After two yields of more than 2 ms, with
 * less than 16 times as long between them, the process does not yield for 16 times as long. So
 * such yields take 12 percent of a waiter's time at most, and a single one changes nothing.
 */
bool wait_yield(int64_t *now);

/*
 * Phases 2 and 3, for a caller whose spin was not enough. An event that has come always wins: after
 * trouble, at the deadline and after a cancel the waiter polls once more.
 * Returns DONE; TROUBLE: look() has returned true; LATE: the deadline has passed; CANCELLED.
 */
enum wait_end waiter_run(const struct waiter *waiter) __attribute__((cold));

/* Polls between naps until the deadline. Returns whether the event has come. */
bool wait_napping(bool (*poll)(void *context), void *context, int64_t deadline, int64_t nap_ns);

#endif
