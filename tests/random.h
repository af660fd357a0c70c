/* SPDX-License-Identifier: MIT */
/* Random numbers of the tests: equal on all ranks that begin with the same state. */
#ifndef TESTS_RANDOM_H
#define TESTS_RANDOM_H

#include <stdint.h>

/* splitmix64: the state counts, so any first state will do. */
static inline uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* 0 to bound - 1. */
static inline int random_below(uint64_t *state, int bound)
{
    return (int)(random_next(state) % (uint64_t)bound);
}

#endif
