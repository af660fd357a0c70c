/* SPDX-License-Identifier: MIT */
/*
 * One-shot with full lines in three buffers: src/cuda/kernels/one_shot_lines.cu and lines.cuh.
 *
 * A use has 1 or UNITS lines a rank, packed, so that a cell is now one source's and now another's, or the
 * owner's own. The first rank that comes chooses; sizes alternate in every way, and uses never end.
 *
 * Abstracted: what a line is, is its use, modulo 6, its source and unit. Threads of a rank push at once and
 * wait one after the other. The end of a launch waits for what the rank has emptied, as the next launch on
 * its stream does, but not for what it has pushed.
 *
 * Shown: a line lands where it is empty; what is emptied has been read; what is read is of this use, source
 * and unit; every wait ends.
 *
 * Twins: TWO_BUFFERS; NO_EMPTYING; NO_END, a launch that ends before what it has emptied has landed.
 */
#ifdef TWO_BUFFERS
#define BUFFERS 2
#else
#define BUFFERS 3
#endif
#define UNITS 2
#define NUMBERS (2 * BUFFERS)
#define BUFFER (RANKS * UNITS)
#define CELLS (RANKS * BUFFERS * BUFFER)
#include "lines.pml"

#define AT(owner, use, source, unit) \
    (((owner) * BUFFERS + (use) % BUFFERS) * BUFFER + (source) * units[use] + (unit))
/* Where a use is to be emptied begins. */
#define LAST(use) AT(me, ((use) + NUMBERS - 1) % NUMBERS, 0, 0)
#define LINE(use, source, unit) (((use) * RANKS + (source)) * UNITS + (unit) + 1)

byte units[NUMBERS]; /* 0: not yet known */

proctype Rank(byte me)
{
    byte use, dirty, peer, unit;
    do
    :: atomic {
        if
        :: units[use] == 0 ->
            if
            :: units[use] = 1
            :: units[use] = UNITS
            fi;
            units[(use + 2) % NUMBERS] = 0 /* of a use that all have left */
        :: else
        fi;
        /* 1. Push. */
        for (peer : 0 .. RANKS - 1) {
            for (unit : 0 .. units[use] - 1) {
                if
                :: peer != me -> store(AT(peer, use, me, unit), LINE(use, me, unit))
                :: else
                fi
            }
        }
        peer = 0;
        unit = 0;
#ifndef NO_EMPTYING
        do
        :: unit < dirty -> make_empty(LAST(use) + unit); unit++
        :: else -> break
        od;
#endif
        unit = 0
    }
    /* 2. Collect. */
    atomic {
        for (peer : 0 .. RANKS - 1) {
            for (unit : 0 .. units[use] - 1) {
                if
                :: peer != me -> await(AT(me, use, peer, unit), LINE(use, peer, unit))
                :: else
                fi
            }
        }
#ifndef NO_END
        unit = 0;
        do
        :: unit < dirty -> fence(LAST(use) + unit); unit++
        :: else -> break
        od;
#endif
        dirty = units[use] * RANKS;
        peer = 0;
        unit = 0;
        use = (use + 1) % NUMBERS
    }
    od
}

init {
    byte rank;
    atomic {
        run_wires();
        for (rank : 0 .. RANKS - 1) {
            run Rank(rank)
        }
    }
}
