/* SPDX-License-Identifier: MIT */
/* What ends each step of a collective set-up: everybody hears whether everybody could. */
#ifndef TUTTI_STORE_VERDICT_H
#define TUTTI_STORE_VERDICT_H

#include "tutti/tutti.h"

/*
 * Collective. Tells the other ranks `mine`, with this thread's last error unless it is OK, and
 * hears theirs. Returns mine if that is a failure, else the first failing rank's ("rank R: its
 * text"), else what the exchange itself returns. With PEER_DEAD it says so and waits for nobody:
 * who is gone has no word to give. So nobody waits for a rank that has given up, and a success is a
 * success of all.
 */
enum tutti_status verdict_exchange(struct tutti_exchanger *exchanger, enum tutti_status mine,
                                   int64_t timeout_ms);

#endif
