/* SPDX-License-Identifier: MIT */
#include "base/wait.h"

#include "base/deadline.h"
#include "base/reminder.h"

#include <sched.h>
#include <time.h>

enum {
    POLLS = 100,     /* of a round */
    LOOK_EVERY = 64, /* rounds */
    CHECK_NS = 20000000,
    FIRST_NAP_NS = 1000,
    SOON_NAP_NS = 20000,
    LONG_YIELD_NS = 2000000,
    LONG_YIELD_TIMES = 16,
};

/* Of this process: the time from which on it yields, and the end of its last long yield. */
static uint64_t yields_from, last_long;

struct state {
    int64_t deadline, now;
    int64_t yields;            /* rounds before the first sleep */
    int64_t checked, surveyed; /* the last looks of WAIT_PEER and of WAIT_ALL */
    int64_t nap_ns;
    struct reminder reminder;
};

static bool may_yield(int64_t now)
{
    return now >= (int64_t)order_load_relaxed_u64(&yields_from);
}

bool wait_yield(int64_t *now)
{
    const int64_t before = *now;
    if (!may_yield(before))
        return false;
    sched_yield();
    *now = deadline_now();
    if (*now - before < LONG_YIELD_NS)
        return true;
    const int64_t rest = LONG_YIELD_TIMES * (*now - before);
    const int64_t last = (int64_t)order_load_relaxed_u64(&last_long);
    order_store_relaxed_u64(&last_long, (uint64_t)*now);
    if (before - last > rest)
        return true;
    order_store_relaxed_u64(&yields_from, (uint64_t)(*now + rest));
    return false;
}

/* A yield may take milliseconds if other threads want the core. So the clock, not the number of
 * rounds, decides the depth of a look. */
static enum wait_depth depth_of(struct state *state, bool rings)
{
    if (!rings && state->now - state->checked <= CHECK_NS)
        return WAIT_MEMORY;
    state->checked = state->now;
    if (state->now - state->surveyed <= CHECK_NS)
        return WAIT_PEER;
    state->surveyed = state->now;
    return WAIT_ALL;
}

static bool is_soon(const struct waiter *waiter)
{
    return waiter->progress_soon && *waiter->progress_soon;
}

static bool is_cancelled(const struct waiter *waiter, struct state *state)
{
    const bool cancelled = waiter->progress && waiter->progress(waiter->progress_context);
    state->now = deadline_now(); /* it may have taken long */
    return cancelled;
}

static bool must_end(const struct waiter *waiter, struct state *state, int64_t round,
                     enum wait_end *end)
{
    const bool soon = is_soon(waiter), sleeps = round >= state->yields && !soon;
    const enum wait_depth depth = depth_of(state, sleeps && waiter->bell);
    *end = WAIT_CANCELLED;
    if (!sleeps && depth == WAIT_MEMORY && round % LOOK_EVERY != LOOK_EVERY - 1)
        return soon && is_cancelled(waiter, state);
    const int waited_s = waiter->remind ? reminder_due(&state->reminder, state->now) : 0;
    if (waited_s)
        waiter->remind(waiter->context, waited_s);
    if (is_cancelled(waiter, state))
        return true;
    *end = WAIT_DONE;
    if (waiter->look && waiter->look(waiter->context, depth))
        *end = WAIT_TROUBLE;
    else if (state->now >= state->deadline)
        *end = WAIT_LATE;
    state->now = deadline_now(); /* look() may have taken long */
    return *end != WAIT_DONE;
}

/* Returns whether the event has come. */
static bool rest(const struct waiter *waiter, struct state *state, int64_t round)
{
    const bool soon = is_soon(waiter);
    if (round < state->yields || soon) {
        if (waiter->yields_at_once && !waiter->yields_at_once(waiter->context, state->now) &&
            wait_spin(waiter->poll, waiter->context, WAIT_QUICK_POLLS, POLLS))
            return true;
        const bool yielded = wait_yield(&state->now);
        state->yields = yielded ? state->yields : 0;
        if (yielded || !soon)
            return waiter->poll(waiter->context);
    }
    if (soon) {
        nanosleep(&(struct timespec){.tv_nsec = SOON_NAP_NS}, NULL);
    } else if (waiter->bell) {
        const int64_t left_ms = deadline_left_ms(state->deadline);
        waiter->bell(waiter->context,
                     left_ms < 0 || left_ms > WAIT_SLICE_MS ? WAIT_SLICE_MS : left_ms);
    } else {
        nanosleep(&(struct timespec){.tv_nsec = state->nap_ns}, NULL);
        state->nap_ns = state->nap_ns < waiter->nap_ns / 2 ? 2 * state->nap_ns : waiter->nap_ns;
    }
    state->now = deadline_now();
    return waiter->poll(waiter->context);
}

enum wait_end waiter_run(const struct waiter *waiter)
{
    if (waiter->deadline && !*waiter->deadline)
        *waiter->deadline = deadline_after(waiter->timeout_ms);
    const int64_t now = deadline_now();
    struct state state = {
        .deadline = waiter->deadline ? *waiter->deadline : DEADLINE_NEVER,
        .now = now,
        .yields = may_yield(now) ? waiter->yields : 0,
        .checked = now,
        .surveyed = now,
        .nap_ns = FIRST_NAP_NS,
        .reminder = reminder_start(now),
    };
    bool done = waiter->poll(waiter->context);
    for (int64_t round = 0; !done; round++) {
        enum wait_end end;
        if (must_end(waiter, &state, round, &end))
            return waiter->poll(waiter->context) ? WAIT_DONE : end;
        done = rest(waiter, &state, round);
    }
    return WAIT_DONE;
}

bool wait_napping(bool (*poll)(void *context), void *context, int64_t deadline, int64_t nap_ns)
{
    const struct waiter waiter = {
        .poll = poll, .context = context, .deadline = &deadline, .nap_ns = nap_ns};
    return waiter_run(&waiter) == WAIT_DONE;
}
