/* SPDX-License-Identifier: MIT */
/* The waiter, with a clock that only a yield, a nap or the bell advances. */
#include "base/wait.h"

#include "base/deadline.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { MS = 1000000, YIELD_NS = 1000 };

/* What one wait did. */
static struct {
    int64_t now;
    int64_t yield_ns;
    int clocks, polls, yields, naps, bells, looks[3], reminders, progress;
    int64_t longest_nap, first_nap, last_slice_ms;
    int waited_s;
    bool slept, unsorted; /* unsorted: a yield came after a sleep */
} seen;

/* What the callbacks answer; 0: never. */
static struct {
    int done_at_poll, trouble_at_look, cancel_at_progress;
    int soon_until;     /* the call of progress() that clears `soon` */
    bool done_with_end; /* the event comes while trouble, the deadline or a cancel is found */
    int64_t deadline;
    bool polls_on;
} plan;

static bool done, soon;

int __wrap_sched_yield(void);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);

int __wrap_sched_yield(void)
{
    seen.yields++;
    seen.unsorted |= seen.slept;
    seen.now += seen.yield_ns;
    return 0;
}

int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
    (void)left;
    if (!seen.naps++)
        seen.first_nap = time->tv_nsec;
    if (time->tv_nsec > seen.longest_nap)
        seen.longest_nap = time->tv_nsec;
    seen.slept = true;
    seen.now += time->tv_nsec;
    return 0;
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    (void)clock;
    seen.clocks++;
    *now = (struct timespec){.tv_sec = seen.now / 1000000000, .tv_nsec = seen.now % 1000000000};
    return 0;
}

/* Takes the event: a further call would not find it. */
static bool poll(void *context)
{
    assert_ptr_equal(context, &plan);
    seen.polls++;
    return done || seen.polls == plan.done_at_poll;
}

static int looks_seen(void)
{
    return seen.looks[WAIT_MEMORY] + seen.looks[WAIT_PEER] + seen.looks[WAIT_ALL];
}

static bool look(void *context, enum wait_depth depth)
{
    assert_ptr_equal(context, &plan);
    seen.looks[depth]++;
    done = plan.done_with_end && seen.now >= plan.deadline;
    if (looks_seen() != plan.trouble_at_look)
        return false;
    done = plan.done_with_end;
    return true;
}

static void bell(void *context, int64_t ms)
{
    assert_ptr_equal(context, &plan);
    seen.bells++;
    seen.slept = true;
    seen.last_slice_ms = ms;
    seen.now += ms * MS;
}

static bool yields_at_once(void *context, int64_t now)
{
    (void)context;
    assert_int_equal(now, seen.now);
    return !plan.polls_on;
}

static void remind(void *context, int waited_s)
{
    (void)context;
    seen.reminders++;
    seen.waited_s = waited_s;
}

static int progress(void *context)
{
    assert_ptr_equal(context, &seen);
    if (++seen.progress == plan.soon_until)
        soon = false;
    if (seen.progress != plan.cancel_at_progress)
        return 0;
    done = plan.done_with_end;
    return 1;
}

static const struct waiter WAITER = {
    .poll = poll,
    .deadline = &plan.deadline,
    .look = look,
    .bell = bell,
    .remind = remind,
    .context = &plan,
    .progress_context = &seen,
    .yields = 1000,
    .nap_ns = WAIT_NAP_NS,
};

static int setup(void **state)
{
    static int64_t start; /* far behind the former test */
    (void)state;
    memset(&seen, 0, sizeof seen);
    memset(&plan, 0, sizeof plan);
    seen.now = start += 1000 * INT64_C(1000000000);
    seen.yield_ns = YIELD_NS;
    plan.deadline = DEADLINE_NEVER;
    done = soon = false;
    return 0;
}

static void spin_only_polls(void **state)
{
    (void)state;
    plan.done_at_poll = WAIT_POLLS;
    assert_true(wait_spin(poll, &plan, WAIT_QUICK_POLLS, WAIT_POLLS));
    assert_int_equal(seen.polls, WAIT_POLLS);
    plan.done_at_poll = 0;
    assert_false(wait_spin(poll, &plan, 0, 7));
    assert_int_equal(seen.polls, WAIT_POLLS + 7);
    assert_int_equal(seen.clocks + seen.yields + seen.naps, 0);
}

/* 1000 yields with a look at memory every 64, then slices of 50 ms with a deep look before each. */
static void phases_come_in_order(void **state)
{
    (void)state;
    plan.deadline = seen.now + 1000 * YIELD_NS + 120 * (int64_t)MS;
    assert_int_equal(waiter_run(&WAITER), WAIT_LATE);
    assert_int_equal(seen.yields, 1000);
    assert_false(seen.unsorted);
    assert_int_equal(seen.looks[WAIT_MEMORY], 1000 / 64);
    assert_int_equal(seen.bells, 3);
    assert_int_equal(seen.last_slice_ms, 20);
    assert_int_equal(seen.looks[WAIT_PEER] + seen.looks[WAIT_ALL], 4);
    assert_int_equal(seen.naps, 0);
    assert_int_equal(seen.now, plan.deadline);
}

/* Yields that take long have deep looks, too: every 20 ms. */
static void looks_deep_by_the_clock(void **state)
{
    (void)state;
    struct waiter waiter = WAITER;
    waiter.yields = INT64_MAX;
    plan.deadline = seen.now + 90 * MS;
    assert_int_equal(waiter_run(&waiter), WAIT_LATE);
    assert_int_equal(seen.bells, 0);
    assert_int_equal(seen.looks[WAIT_ALL], 4);
    assert_int_equal(seen.looks[WAIT_PEER], 0);
}

/* Beside a thread that never waits a yield takes long. After two of these the waiter sleeps, and so
 * do the next ones, until 16 times as long has passed. */
static void sleeps_if_yields_take_long(void **state)
{
    (void)state;
    struct waiter waiter = WAITER;
    waiter.yields = INT64_MAX;
    seen.yield_ns = 10 * MS;
    plan.deadline = seen.now + 120 * (int64_t)MS;
    assert_int_equal(waiter_run(&waiter), WAIT_LATE);
    assert_int_equal(seen.yields, 2);
    assert_int_equal(seen.bells, 2);
    assert_int_equal(seen.now, plan.deadline);
    plan.deadline += 59 * MS; /* it sleeps until 160 ms after the second yield */
    assert_int_equal(waiter_run(&waiter), WAIT_LATE);
    assert_int_equal(seen.yields, 2);
    plan.deadline += 500 * MS;
    done = true;
    assert_int_equal(waiter_run(&waiter), WAIT_DONE);
    done = false;
    seen.now = plan.deadline - 100 * MS; /* long after them one long yield changes nothing */
    seen.yield_ns = 10 * MS;
    assert_int_equal(waiter_run(&waiter), WAIT_LATE);
    assert_int_equal(seen.yields, 4);
    assert_int_equal(setup(NULL), 0);
    seen.yield_ns = 2 * MS - 1;
    plan.deadline = seen.now + 100 * seen.yield_ns;
    assert_int_equal(waiter_run(&waiter), WAIT_LATE);
    assert_true(seen.yields >= 100);
    assert_int_equal(seen.bells, 0);
}

/* A wait that sleeps at once looks at all peers after 20 ms, as one that yields before. A peer may
 * be a little late while another one has gone. */
static void looks_at_all_peers_later(void **state)
{
    (void)state;
    struct waiter waiter = WAITER;
    waiter.yields = 0;
    plan.deadline = seen.now + 60 * MS;
    assert_int_equal(waiter_run(&waiter), WAIT_LATE);
    assert_int_equal(seen.bells, 2);
    assert_int_equal(seen.looks[WAIT_ALL], 1);
    assert_int_equal(seen.looks[WAIT_PEER], 2);
}

static void naps_without_a_bell(void **state)
{
    (void)state;
    struct waiter waiter = WAITER;
    waiter.bell = NULL;
    waiter.yields = 0;
    plan.deadline = seen.now + 10 * MS;
    assert_int_equal(waiter_run(&waiter), WAIT_LATE);
    assert_int_equal(seen.yields + seen.bells, 0);
    assert_int_equal(seen.first_nap, 1000);
    assert_int_equal(seen.longest_nap, WAIT_NAP_NS);
    assert_int_equal(seen.looks[WAIT_MEMORY], seen.naps + 1);
}

/* One poll for each yield, since another thread may need the core; else 100 more. */
static void polls_on_if_the_core_is_free(void **state)
{
    (void)state;
    struct waiter waiter = WAITER;
    waiter.yields_at_once = yields_at_once;
    plan.done_at_poll = 500;
    assert_int_equal(waiter_run(&waiter), WAIT_DONE);
    assert_int_equal(seen.yields, 499);
    assert_int_equal(setup(NULL), 0);
    plan.polls_on = true;
    plan.done_at_poll = 500;
    assert_int_equal(waiter_run(&waiter), WAIT_DONE);
    assert_int_equal(seen.yields, 4); /* 4 rounds of 101 polls, then 96 */
}

static void trouble_ends(void **state)
{
    (void)state;
    plan.trouble_at_look = 3;
    assert_int_equal(waiter_run(&WAITER), WAIT_TROUBLE);
    assert_int_equal(looks_seen(), 3);
    assert_int_equal(seen.bells, 0);
}

static void progress_cancels(void **state)
{
    (void)state;
    struct waiter waiter = WAITER;
    waiter.progress = progress;
    plan.cancel_at_progress = 5;
    assert_int_equal(waiter_run(&waiter), WAIT_CANCELLED);
    assert_int_equal(seen.polls, 5 * 64 + 1);
    assert_int_equal(setup(NULL), 0);
    waiter.yields = 0; /* before each sleep */
    plan.cancel_at_progress = 5;
    assert_int_equal(waiter_run(&waiter), WAIT_CANCELLED);
    assert_int_equal(seen.bells, 4);
}

/* progress() is called in each round, and the waiter does not sleep, but where yields take long;
 * then it naps. Peers are looked at as before. */
static void progresses_in_each_round_while_soon(void **state)
{
    (void)state;
    struct waiter waiter = WAITER;
    waiter.progress = progress;
    waiter.progress_soon = &soon;
    soon = true;
    plan.done_at_poll = 5000;
    assert_int_equal(waiter_run(&waiter), WAIT_DONE);
    assert_int_equal(seen.progress, 4999);
    assert_int_equal(seen.yields, 4999);
    assert_int_equal(seen.naps + seen.bells, 0);
    assert_int_equal(looks_seen(), 4999 / 64);

    assert_int_equal(setup(NULL), 0);
    soon = true;
    seen.yield_ns = 10 * MS;
    plan.soon_until = 3000;
    plan.deadline = seen.now + 150 * MS;
    assert_int_equal(waiter_run(&waiter), WAIT_LATE);
    assert_int_equal(seen.yields, 2);
    assert_int_equal(seen.naps, 2998); /* the second yield was the last one */
    assert_int_equal(seen.longest_nap, 20000);
    assert_true(seen.looks[WAIT_ALL] >= 3);
    assert_int_equal(seen.bells, 2);

    assert_int_equal(setup(NULL), 0);
    soon = true;
    plan.cancel_at_progress = 5;
    assert_int_equal(waiter_run(&waiter), WAIT_CANCELLED);
    assert_int_equal(seen.yields, 4);
}

/* The event comes while the waiter finds out why the wait should end. */
static void event_wins(void **state)
{
    (void)state;
    struct waiter waiter = WAITER;
    plan.done_with_end = true;
    plan.trouble_at_look = 1;
    assert_int_equal(waiter_run(&waiter), WAIT_DONE);
    assert_int_equal(looks_seen(), 1);

    assert_int_equal(setup(NULL), 0);
    plan.done_with_end = true;
    plan.cancel_at_progress = 1;
    waiter.progress = progress;
    assert_int_equal(waiter_run(&waiter), WAIT_DONE);
    assert_int_equal(seen.progress, 1);

    assert_int_equal(setup(NULL), 0);
    plan.done_with_end = true;
    plan.deadline = seen.now;
    assert_int_equal(waiter_run(&WAITER), WAIT_DONE);
    assert_int_equal(looks_seen(), 1);
}

static void reminds_after_5_s_and_each_doubling(void **state)
{
    (void)state;
    plan.deadline = seen.now + INT64_C(19900) * MS;
    assert_int_equal(waiter_run(&WAITER), WAIT_LATE);
    assert_int_equal(seen.reminders, 2);
    assert_int_equal(seen.waited_s, 10);
}

/* The first wait that needs it starts a deadline; the next one keeps it. */
static void starts_the_deadline_once(void **state)
{
    (void)state;
    struct waiter waiter = WAITER;
    waiter.timeout_ms = 300;
    waiter.yields = 0;
    plan.deadline = 0;
    const int64_t expected = seen.now + 300 * MS;
    plan.trouble_at_look = 1;
    assert_int_equal(waiter_run(&waiter), WAIT_TROUBLE);
    assert_int_equal(plan.deadline, expected);
    assert_int_equal(waiter_run(&waiter), WAIT_LATE);
    assert_int_equal(seen.now, expected);
}

static void napping_ends(void **state)
{
    (void)state;
    assert_false(wait_napping(poll, &plan, seen.now + MS, WAIT_NAP_NS));
    assert_int_equal(seen.longest_nap, WAIT_NAP_NS);
    done = true;
    assert_true(wait_napping(poll, &plan, seen.now, WAIT_NAP_NS));
}

static void all_but_poll_may_be_null(void **state)
{
    (void)state;
    const struct waiter waiter = {.poll = poll, .context = &plan, .yields = INT64_MAX};
    plan.done_at_poll = 100000;
    assert_int_equal(waiter_run(&waiter), WAIT_DONE);
    assert_int_equal(seen.naps, 0);
    assert_int_equal(seen.polls, 100000);
}

#define TEST(name) cmocka_unit_test_setup(name, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(spin_only_polls),
        TEST(phases_come_in_order),
        TEST(looks_deep_by_the_clock),
        TEST(sleeps_if_yields_take_long),
        TEST(looks_at_all_peers_later),
        TEST(naps_without_a_bell),
        TEST(polls_on_if_the_core_is_free),
        TEST(trouble_ends),
        TEST(progress_cancels),
        TEST(progresses_in_each_round_while_soon),
        TEST(event_wins),
        TEST(reminds_after_5_s_and_each_doubling),
        TEST(starts_the_deadline_once),
        TEST(napping_ends),
        TEST(all_but_poll_may_be_null),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
