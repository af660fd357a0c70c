/* SPDX-License-Identifier: MIT */
/*
 * Turns, credits and the control warp of src/cuda/kernels/pipe.cuh, which pipe.pml and relay.pml share.
 *
 * The first worker that comes to an operation chooses its kind, blocks and units; the last one of a launch ends
 * it. Operations follow each other in every order, and never end. Each takes the other set of pipes.
 *
 * A lane is a column. A rank has a block for each lane; or, with SHARED, all have one block for all lanes; with
 * ONE_BLOCK rank 0 has.
 *
 * Abstracted: what a line is, is its operation, modulo 4, its piece, source and worker. A lane has one worker,
 * and a block that an operation does not have waits for the next one. A rank has entered an operation when its
 * former launch has ended. A credit lands at any time, at the latest with the next one of that block.
 */
#ifndef LANES
#define LANES 1 /* columns, at most */
#endif
#if defined(SHARED)
#define BLOCKS(rank) 1
#elif defined(ONE_BLOCK)
#define BLOCKS(rank) ((rank) == 0 -> 1 : LANES)
#else
#define BLOCKS(rank) LANES
#endif
#define PIPES 3
#define USES 4
#define TURNS_MOST 5
#ifndef HOPS
#define HOPS 1 /* that have places of their own */
#endif
#define PIPE ((RANKS - 1) * LANES * HOPS)
#define CELLS (RANKS * 2 * PIPES * PIPE)
#include "lines.pml"

byte kind[USES]; /* of the operation; 0: not yet known */
byte width[USES]; /* its lanes */
byte units[USES]; /* of a block of data, or of a chunk */
byte use[RANKS];  /* the operation that the rank is in */

byte busy[RANKS]; /* blocks that have not ended their part of it */
bit launch[RANKS];        /* turned when all have */

/* The barriers of a block: the turn, from 1, whose lines are emptied; the fence is behind them. */
byte emptied[RANKS * LANES];
bit fenced[RANKS * LANES];

/* Of each block of a rank: the turns that a target has emptied, and of which operation. */
byte credit[RANKS * RANKS * LANES], credit_air[RANKS * RANKS * LANES];

#define OP use[me]
#define BLOCK (me * LANES + block)
#define TURNS ((units[OP] + width[OP] - 1) / width[OP])
#define HAS(q) ((q) * width[OP] + lane < units[OP])

/* Of the lanes that a block serves: the first one, the next one. */
#ifdef DESCENDING
#define FIRST_LANE (me == 0 && BLOCKS(me) == 1 -> width[OP] - 1 : block)
#define NEXT_LANE (me == 0 && BLOCKS(me) == 1 -> (lane == 0 -> LANES : lane - 1) : lane + BLOCKS(me))
#else
#define FIRST_LANE block
#define NEXT_LANE (lane + BLOCKS(me))
#endif
#ifdef ONE_SET
#define SET 0
#else
#define SET (OP % 2)
#endif
#define AT(owner, q, hop, source)                                                                             \
    ((((owner) * 2 + SET) * PIPES + (q) % PIPES) * PIPE +                                                     \
     ((hop) * (RANKS - 1) + (source) - ((source) > (owner))) * width[OP] + lane)
#define LINE(q, hop, source) (1 + (((OP * TURNS_MOST + (q)) * HOPS + (hop)) * RANKS + (source)) * LANES + lane)
#define CREDIT_AT(owner, source) (((owner) * RANKS + (source)) * LANES + lane)

#ifdef AHEAD
#define PIECES_AHEAD (PIPES + 1)
#else
#define PIECES_AHEAD PIPES
#endif

/* The p-th rank has emptied the lines of piece q - 3. */
#ifdef NO_FLAG
#define HAS_CREDIT(p, q) (credit[CREDIT_AT(me, p)] % 8 + PIECES_AHEAD > (q))
#else
#define HAS_CREDIT(p, q) (credit[CREDIT_AT(me, p)] / 8 == OP && credit[CREDIT_AT(me, p)] % 8 + PIECES_AHEAD > (q))
#endif
#ifdef NO_CREDIT
#define CREDITED(to, p, q) true
#else
#define CREDITED(to, p, q) (!to(p) || HAS_CREDIT(p, q))
#endif
#if RANKS == 3
#define MAY_PUSH(to, q) ((q) < PIPES || (CREDITED(to, 0, q) && CREDITED(to, 1, q) && CREDITED(to, 2, q)))
#else
#define MAY_PUSH(to, q) ((q) < PIPES || (CREDITED(to, 0, q) && CREDITED(to, 1, q)))
#endif

#if !defined(RACES)
proctype CreditWire(byte at)
{
end:
    do
    :: atomic { credit_air[at] != 0 -> credit[at] = credit_air[at]; credit_air[at] = 0 }
    od
}
#endif

inline give(at, value) /* Y1 */
{
#if defined(RACES)
    credit[at] = value
#else
    credit_air[at] = value
#endif
}

inline shape(what, blocks, most)
{
    kind[OP] = what;
    width[OP] = blocks;
    units[OP] = most
}

/* Those of an operation that all have left. */
inline forget_shape(op)
{
    kind[op] = 0;
    width[op] = 0;
    units[op] = 0
}

/* A worker comes to the barriers at the end of a turn. */
inline end_turn()
{
    if
    :: turn > 0 && turn + PIPES <= TURNS -> fenced[BLOCK]; fenced[BLOCK] = 0
    :: else
    fi;
    if
#ifdef SHORT
    :: turn + PIPES + 1 < TURNS ->
#else
    :: turn + PIPES < TURNS ->
#endif
        assert(emptied[BLOCK] == 0);
        emptied[BLOCK] = turn + 1
    :: else
    fi
}

/* The control warp of a block. */
proctype Control(byte me; byte block)
{
    byte peer, lane;
    do
    :: atomic {
        emptied[BLOCK] != 0 ->
        lane = block;
        do
        :: lane < width[OP] ->
#ifndef NO_FENCE
            for (peer : 0 .. RANKS - 1) {
                if
#ifdef FIRST_ALONE
                :: peer != me && lane == block ->
#else
                :: peer != me ->
#endif
#if HOPS == 2
                    fence(AT(me, emptied[BLOCK] - 1, 1, peer));
#endif
                    fence(AT(me, emptied[BLOCK] - 1, 0, peer))
                :: else
                fi
            }
#endif
            for (peer : 0 .. RANKS - 1) {
                if
                :: GIVES(peer) -> give(CREDIT_AT(peer, me), OP * 8 + emptied[BLOCK])
                :: else
                fi
            }
            lane = lane + BLOCKS(me)
        :: else -> break
        od;
        lane = 0;
        peer = 0;
        emptied[BLOCK] = 0;
        fenced[BLOCK] = 1
       }
    od
}

#define HAS_ENTERED(p) (use[p] != (OP + USES - 1) % USES)

/* Every credit of this operation has landed; of the one before none is left, so that numbers modulo USES do. */
inline forget_credits()
{
    for (peer : me * RANKS * LANES .. (me + 1) * RANKS * LANES - 1) {
        assert(credit_air[peer] == 0);
        if
        :: credit[peer] / 8 == OP
        :: else -> credit[peer] = 0
        fi
    }
}

/* Block 0 awaits the headers of peers of which no data are sure to come. The last worker of a launch ends it. */
inline end_launch()
{
#ifndef NO_HEADER
    for (peer : 0 .. RANKS - 1) {
        if
        :: block == 0 && peer != me && !IS_SOURCE(peer) -> HAS_ENTERED(peer)
        :: else
        fi
    }
#endif
    busy[me]--;
    if
    :: busy[me] == 0 ->
        assert(emptied[me * LANES] == 0 && emptied[me * LANES + LANES - 1] == 0);
        for (peer : 0 .. 2 * PIPES * PIPE - 1) {
            fence(me * 2 * PIPES * PIPE + peer)
        }
        forget_credits();
        busy[me] = BLOCKS(me);
        OP = (OP + 1) % USES;
        launch[me] = !launch[me]
    :: else
    fi;
    peer = 0;
    turn = 0;
    number = !number
}

inline run_all()
{
    run_wires();
    for (rank : 0 .. RANKS - 1) {
        busy[rank] = BLOCKS(rank);
        for (block : 0 .. BLOCKS(rank) - 1) {
            run Worker(rank, block);
            run Control(rank, block)
        }
    }
#if !defined(RACES)
    for (rank : 0 .. RANKS * RANKS * LANES - 1) {
        run CreditWire(rank)
    }
#endif
}
