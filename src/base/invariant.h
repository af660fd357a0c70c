/* SPDX-License-Identifier: MIT */
/*
 * Conditions that always hold at a change of state, unless the library has a bug. The tests' builds
 * check them (TUTTI_INVARIANTS, set by TUTTI_BUILD_TESTS) and end the process if one is false. In
 * other builds they cost nothing.
 */
#ifndef TUTTI_INVARIANT_H
#define TUTTI_INVARIANT_H

#ifdef TUTTI_INVARIANTS
#include <stdio.h>
#include <stdlib.h>
#define invariant(holds)                                                                           \
    ((holds) ? (void)0                                                                             \
             : (fprintf(stderr, "%s:%d: this does not hold: %s\n", __FILE__, __LINE__, #holds),    \
                abort()))
#else
#define invariant(holds) ((void)0)
#endif

#endif
