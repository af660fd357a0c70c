/* SPDX-License-Identifier: MIT */
/*
 * Memory that ranks share, as the models see it: cells, each one line of somebody's arena. A store is a
 * message that lands at any later time. Messages overtake each other, whoever sent them, but for those of
 * one rank to one cell, of which a model that checks it has one at a time.
 *
 * Which cells are late in this way is a matter of what a search can afford (README.md says why each is
 * enough): all of them, or with ONE_LATE any one of them, while stores to the others land at once.
 *
 * A model says how many CELLS there are, what land(cell, value) checks, and has a process Wire.
 */
#define NONE 0

#if defined(RACES)
#define IS_LATE(cell) false
#elif defined(ONE_LATE)
#define IS_LATE(cell) ((cell) == late)
byte late;
#else
#define IS_LATE(cell) true
#endif

byte mem[CELLS]; /* what has landed */
byte air[CELLS]; /* what a peer has under way to it */

inline store(cell, value)
{
#ifdef BROKEN
    air[cell] == NONE; /* a twin goes on to what follows from it */
#else
    assert(air[cell] == NONE); /* the peer's former store here has landed */
#endif
#if defined(RACES)
    land(cell, value)
#elif defined(ONE_LATE)
    if
    :: IS_LATE(cell) -> air[cell] = value
    :: else -> land(cell, value)
    fi
#else
    air[cell] = value
#endif
}

inline run_wires()
{
#if defined(ONE_LATE)
    select(late : 0 .. CELLS - 1);
    run Wire(late)
#elif !defined(RACES)
    byte wire;
    for (wire : 0 .. CELLS - 1) {
        run Wire(wire)
    }
#else
    skip
#endif
}
