/* SPDX-License-Identifier: MIT */
/*
 * Barriers of subsets: barrier_subset() in src/cuda/kernels/barrier.cu, and cpu_barrier_subset().
 *
 * The first rank that comes to a barrier chooses any subset of two ranks or more; ranks outside pass by, so
 * that some are up to AHEAD barriers ahead of others. With DATA a rank writes to its peers before each
 * barrier, which they look at behind it.
 *
 * Abstracted: counts of meetings are modulo 2, with DATA 4, since 64 bits never come again: an entry is
 * forgotten once it has been read. Entries go to the reader's arena; on a CPU they stay in the writer's.
 *
 * Shown: an entry lands where the one before has been read; what was written before a barrier is there
 * behind it; every wait ends.
 *
 * Twins: ONE_ENTRY, instead of two in turn; NO_FENCE between data and entry (V1).
 */
#define CELLS (RANKS * RANKS * 3)
#include "memory.pml"

#ifdef ONE_ENTRY
#define ENTRY(count) 0
#else
#define ENTRY(count) ((count) % 2)
#endif
#ifdef DATA
#define COUNTS 4
#else
#define COUNTS 2
#endif
#define AHEAD 2
#define MEETING(owner, source, count) (((owner) * RANKS + (source)) * 3 + ENTRY(count))
#define DATUM(owner, source) (((owner) * RANKS + (source)) * 3 + 2)
#define IS_DATUM(cell) ((cell) % 3 == 2)
#define MEET(count, subset) ((count) * 8 + (subset) + 1)

byte subset[AHEAD];        /* of a barrier; 0: not yet known */
byte past[AHEAD];          /* bits of the ranks that have done with it */
byte count[RANKS * RANKS]; /* of meetings of two ranks */

inline land(cell, value)
{
    assert(IS_DATUM(cell) || mem[cell] == NONE); /* the entry before has been read */
    mem[cell] = value
}

proctype Wire(byte cell)
{
end:
    do
    :: atomic { air[cell] != NONE -> land(cell, air[cell]); air[cell] = NONE }
    od
}

/* Whether a rank is in the barrier, which is bits of ranks. */
#define IN(rank) ((subset[at] >> (rank)) & 1)
#define COUNT count[me * RANKS + peer]

proctype Rank(byte me)
{
    byte at, peer;
    do
    :: atomic {
        !((past[at] >> me) & 1) -> /* all have done with the one before at this place */
        if
        :: subset[at] == 0 ->
            if
            :: subset[at] = 3
#if RANKS > 2
            :: subset[at] = 5
            :: subset[at] = 6
            :: subset[at] = 7
#endif
            fi
        :: else
        fi
       }
       if
       :: atomic { IN(me) ->
            for (peer : 0 .. RANKS - 1) {
                if
                :: peer != me && IN(peer) ->
#ifdef DATA
                    store(DATUM(peer, me), (COUNT + 1) % COUNTS + 1);
#endif
                    COUNT = (COUNT + 1) % COUNTS
                :: else
                fi
            }
            peer = 0
          }
#if defined(DATA) && !defined(NO_FENCE)
          atomic {
            for (peer : 0 .. RANKS - 1) {
                air[DATUM(peer, me)] == NONE
            }
            peer = 0
          }
#endif
          atomic {
            for (peer : 0 .. RANKS - 1) {
                if
                :: peer != me && IN(peer) -> store(MEETING(peer, me, COUNT), MEET(COUNT, subset[at]))
                :: else
                fi
            }
            peer = 0
          }
          atomic {
            for (peer : 0 .. RANKS - 1) {
                if
                :: peer != me && IN(peer) ->
                    mem[MEETING(me, peer, COUNT)] == MEET(COUNT, subset[at]);
#ifdef DATA
                    assert(mem[DATUM(me, peer)] == COUNT + 1 ||
                           mem[DATUM(me, peer)] == (COUNT + 1) % COUNTS + 1);
#endif
                    mem[MEETING(me, peer, COUNT)] = NONE
                :: else
                fi
            }
            peer = 0
          }
       :: else
       fi;
       atomic {
        past[at] = past[at] | (1 << me);
        if
        :: past[at] == (1 << RANKS) - 1 -> past[at] = 0; subset[at] = 0
        :: else
        fi;
        at = (at + 1) % AHEAD
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
