/* SPDX-License-Identifier: MIT */
/* Deadlines on the monotonic clock, in milliseconds. */
#ifndef TUTTI_CLOCK_H
#define TUTTI_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t clock_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* INT64_MAX, which never comes, for a negative time-out. */
static inline int64_t clock_deadline(int64_t timeout_ms)
{
    int64_t now = clock_ms();
    return timeout_ms < 0 || timeout_ms > INT64_MAX - now ? INT64_MAX : now + timeout_ms;
}

/* What is left until a deadline, as a time-out: 0 when it has passed, negative when it never comes.
 */
static inline int64_t clock_left_ms(int64_t deadline)
{
    if (deadline == INT64_MAX)
        return -1;
    int64_t left = deadline - clock_ms();
    return left > 0 ? left : 0;
}

#endif
