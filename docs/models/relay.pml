/* SPDX-License-Identifier: MIT */
/*
 * A large block from the root or to it, in two hops over all links: src/cuda/kernels/relay.cuh. Rank 0 broadcasts,
 * or all reduce to rank 1. The block has a chunk for each other rank, its owner; the last owner's lacks a unit.
 * With TO_ALL all reduce to all: there is no root, and hop 2 has places of its own.
 *
 * Abstracted: pipe_turns.pml. Byte lines are in pipe.pml.
 *
 * Shown: as pipe.pml.
 *
 * Twins: NO_CREDIT, AHEAD, NO_FENCE, NO_HEADER, as of pipe.pml; DESCENDING, with SHARED, a rank that takes its lanes in
 * descending order.
 */
#define BROADCASTS 1
#define REDUCES 2
#ifdef TO_ALL
#define HOPS 2
#define ROOT RANKS
#define OTHERS(p) ((p) != me)
#define OWNERS(p) OTHERS(p)
#define RECEIVERS(p) OTHERS(p)
#define SOURCES(p) OTHERS(p)
#define GATHERS true
#else
#define ROOT (kind[OP] == REDUCES)
#define OTHERS(p) ((p) != me && (p) != ROOT)
/* Of hop 1; of hop 2, which awaits no credits. */
#define OWNERS(p) (OTHERS(p) && (kind[OP] == REDUCES || IS_ROOT))
#define RECEIVERS(p) (kind[OP] == REDUCES -> (p) == ROOT : OTHERS(p))
#define SOURCES(p) (kind[OP] == REDUCES -> (p) != me : (p) == ROOT)
#define GATHERS (IS_ROOT == (kind[OP] == REDUCES))
#endif
#define IS_ROOT (me == ROOT)

#define GIVES(p) ((p) != me)
#define IS_SOURCE(p) false
#include "pipe_turns.pml"

/* An owner has a unit of this piece. */
#define IS_LAST(owner) ((owner) == (ROOT == RANKS - 1 -> RANKS - 2 : RANKS - 1))
#define OWNS(owner, q) ((q) * width[OP] + lane + IS_LAST(owner) < units[OP])

inline choose()
{
    if
    :: kind[OP] == 0 ->
        if
#if LANES == 2
        :: shape(REDUCES, 2, 3)
        :: shape(REDUCES, 2, 8)
#elif defined(TO_ALL)
        :: shape(REDUCES, 1, 1)
        :: shape(REDUCES, 1, 5)
#else
        :: shape(BROADCASTS, 1, 1)
        :: shape(BROADCASTS, 1, 4)
        :: shape(REDUCES, 1, 5)
#endif
        fi;
        forget_shape((OP + 2) % USES)
    :: else
    fi
}

inline push(q)
{
    for (peer : 0 .. RANKS - 1) {
        if
        :: OWNERS(peer) && OWNS(peer, q) -> store(AT(peer, q, 0, me), LINE(q, 0, me))
        :: else
        fi
    }
    peer = 0
}

inline take(hop, source)
{
    await(AT(me, turn, hop, source), LINE(turn, hop, source));
    make_empty(AT(me, turn, hop, source))
}

inline take_sources()
{
    for (peer : 0 .. RANKS - 1) {
        if
        :: peer != me && SOURCES(peer) && OWNS(me, turn) -> take(0, peer)
        :: else
        fi
    }
    peer = 0
}

inline push_result()
{
    for (peer : 0 .. RANKS - 1) {
        if
        :: RECEIVERS(peer) && OWNS(me, turn) -> store(AT(peer, turn, HOPS - 1, me), LINE(turn, HOPS - 1, me))
        :: else
        fi
    }
    peer = 0
}

inline gather()
{
    for (peer : 0 .. RANKS - 1) {
        if
        :: OTHERS(peer) && OWNS(peer, turn) -> take(HOPS - 1, peer)
        :: else
        fi
    }
    peer = 0
}

proctype Worker(byte me; byte block)
{
    byte turn, peer, lane;
    bit number;
    do
    :: atomic {
        choose();
        lane = FIRST_LANE;
        do
        :: lane < width[OP] -> push(0); lane = NEXT_LANE
        :: else -> break
        od
       }
       do
       :: block < width[OP] && turn < TURNS ->
            atomic {
                lane = FIRST_LANE;
                do
                :: lane < width[OP] && turn + 1 < TURNS -> MAY_PUSH(OWNERS, turn + 1); push(turn + 1); lane = NEXT_LANE
                :: else -> break
                od;
                lane = FIRST_LANE
            }
each_lane:
            /* hand_on() */
            if
            :: !IS_ROOT ->
                atomic { take_sources() }
                atomic { push_result() }
            :: else
            fi;
            atomic {
                if
                :: GATHERS -> gather()
                :: else
                fi;
                lane = NEXT_LANE;
                if
                :: lane < width[OP] -> goto each_lane
                :: else
                fi;
                if
                :: IS_ROOT && kind[OP] == BROADCASTS
                :: else -> end_turn()
                fi;
                turn++
            }
       :: else -> break
       od;
       atomic { end_launch() }
       atomic { launch[me] == number }
    od
}

init {
    byte rank, block;
    atomic { run_all() }
}
