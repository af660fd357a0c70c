/* SPDX-License-Identifier: MIT */
/*
 * What holds at a change of state, if the library has no bug. The tests' builds check it
 * (TUTTI_INVARIANTS, set by TUTTI_BUILD_TESTS) and end the process where it does not hold. In other
 * builds it costs nothing.
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
