/* SPDX-License-Identifier: MIT */
/* A point on the monotonic clock at which a wait ends. */
#ifndef TUTTI_STORE_DEADLINE_H
#define TUTTI_STORE_DEADLINE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define DEADLINE_NEVER INT64_MAX

static inline int64_t deadline_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* timeout_ms from now; a negative one never ends. */
static inline int64_t deadline_after_ms(int64_t timeout_ms)
{
    int64_t now = deadline_now_ns();
    if (timeout_ms < 0 || timeout_ms > (DEADLINE_NEVER - now) / 1000000)
        return DEADLINE_NEVER;
    return now + timeout_ms * 1000000;
}

static inline bool deadline_passed(int64_t deadline_ns)
{
    return deadline_ns != DEADLINE_NEVER && deadline_now_ns() >= deadline_ns;
}

/* The time left as poll() and epoll_wait() want it, rounded up; -1 is for ever. */
static inline int deadline_poll_ms(int64_t deadline_ns)
{
    if (deadline_ns == DEADLINE_NEVER)
        return -1;
    int64_t left_ms = (deadline_ns - deadline_now_ns() + 999999) / 1000000;
    return left_ms < 0 ? 0 : left_ms > INT_MAX ? INT_MAX : (int)left_ms;
}

static inline int64_t deadline_min(int64_t a_ns, int64_t b_ns)
{
    return a_ns < b_ns ? a_ns : b_ns;
}

static inline struct timespec deadline_timespec(int64_t deadline_ns)
{
    return (struct timespec){.tv_sec = deadline_ns / 1000000000,
                             .tv_nsec = deadline_ns % 1000000000};
}

/* Sleeps for *nap_ns or until the deadline, then lengthens the next nap: a poll that is quick while
 * the answer is near and cheap once it is not. */
static inline void deadline_nap(int64_t deadline_ns, int64_t *nap_ns, int64_t longest_ns)
{
    struct timespec until =
        deadline_timespec(deadline_min(deadline_ns, deadline_now_ns() + *nap_ns));
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    *nap_ns = *nap_ns * 2 < longest_ns ? *nap_ns * 2 : longest_ns;
}

#endif
