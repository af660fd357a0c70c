/* SPDX-License-Identifier: MIT */
/*
 * Full lines: what src/cuda/kernels/lines.cuh is to the kernels. A cell is NONE while it is empty. Two ranks store
 * to it: a peer its line, of which only the model knows what it is, and the owner, who empties it.
 *
 * With RACES no message is late but the owner's, which lands when a fence says that it has to: then a line
 * that a peer sends meanwhile meets what is not empty yet, and land() fails.
 */
#include "memory.pml"

#define READ 255 /* a line that its reader has had, not emptied yet */

bit wipe[CELLS]; /* what the owner has under way to it */

inline land(cell, value)
{
    assert(mem[cell] == NONE); /* nothing is there that is read or emptied later */
    mem[cell] = value
}

inline land_wipe(cell)
{
    assert(mem[cell] == NONE || mem[cell] == READ); /* no line is lost */
    mem[cell] = NONE;
    wipe[cell] = 0
}

inline make_empty(cell)
{
    wipe[cell] = 1;
#if defined(RACES)
    mem[cell] = READ
#elif defined(ONE_LATE)
    if
    :: IS_LATE(cell)
    :: else -> land_wipe(cell)
    fi
#endif
}

/* Waits until what the owner has stored to the cell has landed. */
inline fence(cell)
{
#ifdef RACES
    if
    :: wipe[cell] -> land_wipe(cell)
    :: else
    fi
#else
    !wipe[cell]
#endif
}

/* Waits for a line, which is to be the one that the reader takes it for. */
inline await(cell, value)
{
    mem[cell] != NONE && !wipe[cell]; /* a rank sees its own stores */
    assert(mem[cell] == value);
    mem[cell] = READ
}

#ifndef RACES
proctype Wire(byte cell)
{
end:
    do
    :: atomic { air[cell] != NONE -> land(cell, air[cell]); air[cell] = NONE }
    :: atomic { wipe[cell] -> land_wipe(cell) }
    od
}
#endif
