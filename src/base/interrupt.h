/* SPDX-License-Identifier: MIT */
/* The events that may end a wait of the set-up before its deadline: an abort, the death of an
 * awaited rank, or a message of a rank that has given up. */
#ifndef TUTTI_INTERRUPT_H
#define TUTTI_INTERRUPT_H

#include "tutti/tutti.h"

enum { INTERRUPT_MS = 50 }; /* the longest time between two calls of ask */

struct interrupt {
    /* Returns OK, or the status with which the wait must end; then the error message is set. May be
     * NULL. */
    enum tutti_status (*ask)(void *context);
    /* The same for an event that makes the wait pointless, such as a dead peer. The wait calls it
     * only after nothing has arrived for a while, and so uses what arrived before. May be NULL. */
    enum tutti_status (*ask_pointless)(void *context);
    /* Returns why a peer has closed its connection, with its message; OK if it has not said why.
     * Waits up to a second for the peer's message. May be NULL. */
    enum tutti_status (*ask_why)(void *context);
    /* Called before this rank closes its connections because of `why` and the thread's last error.
     * Keeps the last error. May be NULL. */
    void (*tell)(void *context, enum tutti_status why);
    void *context;
};

/* NULL: no interrupt. */
static inline enum tutti_status interrupt_ask(const struct interrupt *interrupt)
{
    return interrupt && interrupt->ask ? interrupt->ask(interrupt->context) : TUTTI_OK;
}

static inline enum tutti_status interrupt_ask_pointless(const struct interrupt *interrupt)
{
    return interrupt && interrupt->ask_pointless ? interrupt->ask_pointless(interrupt->context)
                                                 : TUTTI_OK;
}

static inline enum tutti_status interrupt_ask_why(const struct interrupt *interrupt)
{
    return interrupt && interrupt->ask_why ? interrupt->ask_why(interrupt->context) : TUTTI_OK;
}

static inline void interrupt_tell(const struct interrupt *interrupt, enum tutti_status why)
{
    if (interrupt && interrupt->tell)
        interrupt->tell(interrupt->context, why);
}

#endif
