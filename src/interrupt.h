/* SPDX-License-Identifier: MIT */
/* What may end a wait of the set-up before its time: an abort, the death of somebody who is to
 * come, the word of a rank that has given up. */
#ifndef TUTTI_INTERRUPT_H
#define TUTTI_INTERRUPT_H

#include "tutti/tutti.h"

enum { INTERRUPT_MS = 50 }; /* a wait asks at least so often */

struct interrupt {
    /* OK, or why the wait is over, with its message. */
    enum tutti_status (*ask)(void *context);
    /* Likewise, of what makes it pointless: asked when nothing has come for a while; what is there
     * by then counts all the same. May be NULL. */
    enum tutti_status (*ask_pointless)(void *context);
    void *context;
};

/* NULL never interrupts. */
static inline enum tutti_status interrupt_ask(const struct interrupt *interrupt)
{
    return interrupt ? interrupt->ask(interrupt->context) : TUTTI_OK;
}

static inline enum tutti_status interrupt_ask_pointless(const struct interrupt *interrupt)
{
    return interrupt->ask_pointless ? interrupt->ask_pointless(interrupt->context) : TUTTI_OK;
}

/* How long a wait with so many milliseconds left (negative: without end) may last until it asks. */
static inline int64_t interrupt_slice(const struct interrupt *interrupt, int64_t left_ms)
{
    if (!interrupt || (left_ms >= 0 && left_ms < INTERRUPT_MS))
        return left_ms;
    return INTERRUPT_MS;
}

#endif
