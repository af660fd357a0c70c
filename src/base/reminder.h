/* SPDX-License-Identifier: MIT */
/* A long wait is reported in the log: after 5 seconds, and again each time that its length has
 * doubled. */
#ifndef TUTTI_REMINDER_H
#define TUTTI_REMINDER_H

#include "base/deadline.h"

enum { REMINDER_FIRST_S = 5 };

struct reminder {
    int64_t began;
    int64_t next_s; /* the next report, in seconds after the beginning */
};

static inline struct reminder reminder_start(int64_t now)
{
    return (struct reminder){.began = now, .next_s = REMINDER_FIRST_S};
}

/* Returns how many seconds the wait has lasted if a report is due, else 0. */
static inline int reminder_due(struct reminder *reminder, int64_t now)
{
    int64_t waited_s = (now - reminder->began) / 1000000000;
    if (waited_s < reminder->next_s)
        return 0;
    while (reminder->next_s <= waited_s)
        reminder->next_s *= 2;
    return (int)waited_s;
}

/* Milliseconds until the next report, at least 1. */
static inline int64_t reminder_left_ms(const struct reminder *reminder)
{
    return deadline_timeout_ms(reminder->began + reminder->next_s * 1000000000);
}

#endif
