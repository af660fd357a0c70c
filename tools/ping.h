/* SPDX-License-Identifier: MIT */
/*
 * How far two cores are from each other: the time that a cache line takes there and back. Virtual
 * machines move their processors between caches, so whoever measures says which it was.
 */
#ifndef TUTTI_TOOL_PING_H
#define TUTTI_TOOL_PING_H

#include <stdatomic.h>
#include <stdbool.h>

/* Below this, two cores are called near: they share a cache. */
#define PING_NEAR_NS 200.0

/* In memory that both sides share; zeroed at first, reusable after a round that ended well. */
struct ping {
    _Alignas(128) atomic_uint ball; /* even: the server's turn; odd: the other side's */
};

/* Side 0 serves, side 1 returns; both call it at about the same time. The best of a few blocks, in
 * nanoseconds; negative when the other side did not come within the time. */
double ping_round_trip_ns(struct ping *ping, int side, double timeout_seconds);
/* "near" or "far". */
const char *ping_name(double round_trip_ns);

#endif
