/* SPDX-License-Identifier: MIT */
/*
 * Two-shot with full lines in three buffers, by two hops: src/cuda/kernels/two_shot_lines.cu.
 *
 * A use has 1, RANKS or RANKS + 1 units: chunks of 1 or 2 units, of which the last ranks' may lack one or
 * all. Lines lie packed. The first rank that comes chooses; sizes alternate in every way, and uses never
 * end.
 *
 * Abstracted: what a line is, is its use, modulo 6, its source and unit; a cell is of one hop. One worker a
 * rank serves all units of a chunk, phase by phase: lines of different workers do not meet within a use. The
 * end of a launch waits for what the rank has emptied, but not for what it has pushed.
 *
 * Shown: as one_shot_lines.pml.
 *
 * Twin: TWO_BUFFERS.
 */
#ifdef TWO_BUFFERS
#define BUFFERS 2
#else
#define BUFFERS 3
#endif
#define CHUNK 2 /* units, at most */
#define NUMBERS (2 * BUFFERS)
#define BUFFER (2 * RANKS * CHUNK)
#define CELLS (RANKS * BUFFERS * BUFFER)
#include "lines.pml"

#define SIZE_OF(use) ((units[use] + RANKS - 1) / RANKS)
#define AT(owner, use, hop, source, unit) \
    (((owner) * BUFFERS + (use) % BUFFERS) * BUFFER + ((hop) * RANKS + (source)) * SIZE_OF(use) + (unit))
/* Where the use that is to be emptied begins. */
#define LAST(use) AT(me, ((use) + NUMBERS - 1) % NUMBERS, 0, 0, 0)
#define LINE(use, source, unit) (((use) * RANKS + (source)) * CHUNK + (unit) + 1)
#define HAS(rank, unit) ((unit) < SIZE_OF(use) && (rank) * SIZE_OF(use) + (unit) < units[use])

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
            :: units[use] = RANKS
            :: units[use] = RANKS + 1
            fi;
            units[(use + 2) % NUMBERS] = 0 /* of a use that all have left */
        :: else
        fi;
        /* 1. Push every chunk to its owner. */
        for (unit : 0 .. CHUNK - 1) {
            for (peer : 0 .. RANKS - 1) {
                if
                :: peer != me && HAS(peer, unit) ->
                    store(AT(peer, use, 0, me, unit), LINE(use, me, unit))
                :: else
                fi
            }
        }
        unit = 0;
        do
        :: unit < dirty -> make_empty(LAST(use) + unit); unit++
        :: else -> break
        od;
        unit = 0;
        peer = 0
    }
    /* 2. Reduce the own chunk and push it to all. */
    do
    :: atomic {
        HAS(me, unit) ->
        for (peer : 0 .. RANKS - 1) {
            if
            :: peer != me -> await(AT(me, use, 0, peer, unit), LINE(use, peer, unit))
            :: else
            fi
        }
        for (peer : 0 .. RANKS - 1) {
            if
            :: peer != me -> store(AT(peer, use, 1, me, unit), LINE(use, me, unit))
            :: else
            fi
        }
        peer = 0;
        unit++
      }
    :: atomic { else -> unit = 0; break }
    od;
    /* 3. Collect the others' results. */
    atomic {
        for (unit : 0 .. CHUNK - 1) {
            for (peer : 0 .. RANKS - 1) {
                if
                :: peer != me && HAS(peer, unit) ->
                    await(AT(me, use, 1, peer, unit), LINE(use, peer, unit))
                :: else
                fi
            }
        }
        unit = 0;
        do
        :: unit < dirty -> fence(LAST(use) + unit); unit++
        :: else -> break
        od;
        unit = 0;
        peer = 0;
        dirty = 2 * RANKS * SIZE_OF(use);
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
