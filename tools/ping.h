/* SPDX-License-Identifier: MIT */
/*
 * The distance of two cores: the round-trip time of a cache line. A hypervisor moves virtual
 * processors between caches, so a measurement states the distance at which it was made.
 */
#ifndef TUTTI_TOOL_PING_H
#define TUTTI_TOOL_PING_H

#include <stdatomic.h>
#include <stdbool.h>

/* Two cores with a shorter round trip are near: they share a cache. */
#define PING_NEAR_NS 200.0

/* In memory that both sides share. Zeroed at first. It can be used again after a successful round.
 */
struct ping {
    _Alignas(128) atomic_uint sequence; /* even: side 0 writes next; odd: side 1 */
};

/* Measures the round trip in nanoseconds, as the best of a few blocks. Both sides call it at about
 * the same time. Side 0 begins. Negative if the other side did not answer in time. */
double ping_round_trip_ns(struct ping *ping, int side, double timeout_seconds);
/* "near" or "far". */
const char *ping_name(double round_trip_ns);

#endif
