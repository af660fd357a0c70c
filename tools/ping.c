/* SPDX-License-Identifier: MIT */
#include "ping.h"

#include "tool.h"

enum { BLOCKS = 8, ROUNDS = 100, SPINS = 1 << 14 };

/* Returns whether the ball came to `turn` in time. */
static bool wait_turn(struct ping *ping, unsigned turn, double deadline)
{
    for (unsigned spins = 1; atomic_load(&ping->ball) != turn; spins++)
        if (spins % SPINS == 0 && clock_seconds() > deadline)
            return false;
    return true;
}

double ping_round_trip_ns(struct ping *ping, int side, double timeout_seconds)
{
    double best = -1, deadline = clock_seconds() + timeout_seconds;
    unsigned ball = 0;
    for (int block = 0; block < BLOCKS; block++) {
        double begin = clock_seconds();
        for (int round = 0; round < ROUNDS; round++, ball += 2) {
            if (side == 0)
                atomic_store(&ping->ball, ball + 1);
            if (!wait_turn(ping, ball + 1 + (side == 0), deadline))
                return -1;
            if (side == 1)
                atomic_store(&ping->ball, ball + 2);
        }
        double ns = (clock_seconds() - begin) * 1e9 / ROUNDS;
        if (best < 0 || ns < best)
            best = ns;
    }
    /* Only the server knows that the last ball has been seen by both. */
    if (side == 0)
        atomic_store(&ping->ball, 0);
    return best;
}

const char *ping_name(double round_trip_ns)
{
    return round_trip_ns < PING_NEAR_NS ? "near" : "far";
}
