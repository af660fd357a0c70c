/* SPDX-License-Identifier: MIT */
#include "ping.h"

#include "tool.h"

enum { BLOCKS = 8, ROUNDS = 100, SPINS = 1 << 14 };

/* Waits until `sequence` has this value. Returns false if the time ends first. */
static bool wait_sequence(struct ping *ping, unsigned sequence, double deadline)
{
    for (unsigned spins = 1; atomic_load(&ping->sequence) != sequence; spins++)
        if (spins % SPINS == 0 && clock_seconds() > deadline)
            return false;
    return true;
}

double ping_round_trip_ns(struct ping *ping, int side, double timeout_seconds)
{
    double best = -1, deadline = clock_seconds() + timeout_seconds;
    unsigned sequence = 0;
    for (int block = 0; block < BLOCKS; block++) {
        double begin = clock_seconds();
        for (int round = 0; round < ROUNDS; round++, sequence += 2) {
            if (side == 0)
                atomic_store(&ping->sequence, sequence + 1);
            if (!wait_sequence(ping, sequence + 1 + (side == 0), deadline))
                return -1;
            if (side == 1)
                atomic_store(&ping->sequence, sequence + 2);
        }
        double ns = (clock_seconds() - begin) * 1e9 / ROUNDS;
        if (best < 0 || ns < best)
            best = ns;
    }
    /* Only side 0 knows that both sides have seen the last value. */
    if (side == 0)
        atomic_store(&ping->sequence, 0);
    return best;
}

const char *ping_name(double round_trip_ns)
{
    return round_trip_ns < PING_NEAR_NS ? "near" : "far";
}
