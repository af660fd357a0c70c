/* SPDX-License-Identifier: MIT */
/*
 * Blocks of any size piece by piece, in one hop: src/cuda/kernels/pipe.cuh, for all its kinds. All ranks send to
 * all, or rank 0 alone sends, or rank 0 alone receives.
 *
 * With BYTES rank 0 sends byte lines. Each is a group of its own and special: it stands for itself or for the
 * empty line, as its flagged line says, which lands at any time.
 *
 * Abstracted: pipe_turns.pml. Lines of a worker's two units are one.
 *
 * Shown: a line lands in an empty place; a reader gets the line of this operation, piece, source and worker, and
 * the flagged line of this piece; every wait ends.
 *
 * Twins: NO_CREDIT, a source that does not await credits; AHEAD, one that needs one credit less; NO_FLAG, one that
 * takes a credit of another operation; NO_FENCE, a credit that overtakes the stores which empty the lines; SHORT,
 * a reader that gives one credit less; ONE_SET, operations that all take the same pipes; NO_HEADER, a rank that
 * does not await the headers of those which send it nothing; NO_TAG, a reader that takes the flagged line of an
 * earlier piece; FIRST_ALONE, with ONE_BLOCK, a fence behind what the first lane has emptied.
 */
#define ALL 1
#define SENDS 2
#define RECEIVES 3

#define SENDER(p) (kind[OP] == ALL || kind[OP] == ((p) == 0 -> SENDS : RECEIVES))
#define TO(p) ((p) != me && SENDER(me) && (kind[OP] != RECEIVES || (p) == 0))
#define FROM(p) ((p) != me && SENDER(p) && (kind[OP] != RECEIVES || me == 0))
#define GIVES(p) FROM(p)
#define IS_SOURCE(p) FROM(p)
#include "pipe_turns.pml"

#ifdef BYTES
#define FLAGGED(q, escape) ((OP * TURNS_MOST + (q)) * 2 + (escape))
#define FLAG_AT(q) ((SET * PIPES + (q) % PIPES) * LANES + lane) /* of rank 0, at rank 1 */
byte sent[2 * PIPES * LANES]; /* the escape of the line's flagged line, from 1 for none */
byte flag[2 * PIPES * LANES], flag_air[2 * PIPES * LANES];

proctype FlagWire(byte at)
{
end:
    do
    :: atomic { flag_air[at] != 0 -> flag[at] = flag_air[at]; flag_air[at] = 0 }
    od
}

inline tell(q)
{
    if
    :: me == 0 ->
        select(escape : 1 .. 2);
        sent[FLAG_AT(q)] = escape;
        assert(flag_air[FLAG_AT(q)] == 0);
        flag_air[FLAG_AT(q)] = FLAGGED(q, escape);
        escape = 0
    :: else
    fi
}

/* Those of this operation. byte_lines.pml shows that none is taken for one of a later operation. */
inline forget_flags()
{
    for (escape : SET * PIPES * LANES .. (SET + 1) * PIPES * LANES - 1) {
        flag[escape] = (me == 1 -> 0 : flag[escape])
    }
    escape = 0
}

/* What a line stands for is what its source had. */
inline resolve(q, source)
{
    if
    :: source == 0 ->
#ifdef NO_TAG
        flag[FLAG_AT(q)] > FLAGGED(0, 0) && flag[FLAG_AT(q)] <= FLAGGED(TURNS_MOST - 1, 2);
#else
        flag[FLAG_AT(q)] > FLAGGED(q, 0) && flag[FLAG_AT(q)] <= FLAGGED(q, 2);
#endif
        assert((flag[FLAG_AT(q)] - 1) % 2 + 1 == sent[FLAG_AT(q)]);
        sent[FLAG_AT(q)] = 0
    :: else
    fi
}
#endif

inline choose()
{
    if
    :: kind[OP] == 0 ->
        if
#if defined(BYTES)
        :: shape(SENDS, 1, 1)
        :: shape(SENDS, 1, 4)
#elif LANES == 2
        :: shape(ALL, 1, 4)
        :: shape(SENDS, 2, 7)
#ifdef ONE_BLOCK
        :: shape(ALL, 2, 8)
#endif
#else
        :: shape(ALL, 1, 1)
        :: shape(ALL, 1, 5)
        :: shape(SENDS, 1, 4)
#if RANKS == 2
        :: shape(SENDS, 1, 1)
#endif
        :: shape(RECEIVES, 1, 7 - RANKS)
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
        :: TO(peer) && HAS(q) ->
#ifdef BYTES
            tell(q);
#endif
            store(AT(peer, q, 0, me), LINE(q, 0, me))
        :: else
        fi
    }
    peer = 0
}

inline collect()
{
    for (peer : 0 .. RANKS - 1) {
        if
        :: FROM(peer) && HAS(turn) -> await(AT(me, turn, 0, peer), LINE(turn, 0, peer))
        :: else
        fi
    }
#ifdef BYTES
    for (peer : 0 .. RANKS - 1) {
        if
        :: FROM(peer) && HAS(turn) -> resolve(turn, peer)
        :: else
        fi
    }
#endif
    for (peer : 0 .. RANKS - 1) {
        if
        :: FROM(peer) && HAS(turn) -> make_empty(AT(me, turn, 0, peer))
        :: else
        fi
    }
    peer = 0
}

#define RECEIVES_NOTHING (kind[OP] == (me == 0 -> SENDS : RECEIVES))

proctype Worker(byte me; byte block)
{
    byte turn, peer, lane;
#ifdef BYTES
    byte escape;
#endif
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
                :: lane < width[OP] && turn + 1 < TURNS -> MAY_PUSH(TO, turn + 1); push(turn + 1); lane = NEXT_LANE
                :: else -> break
                od
            }
            atomic {
                lane = FIRST_LANE;
                do
                :: lane < width[OP] && !RECEIVES_NOTHING -> collect(); lane = NEXT_LANE
                :: else -> break
                od;
                if
                :: RECEIVES_NOTHING
                :: else -> end_turn()
                fi;
                turn++
            }
       :: else -> break
       od;
       atomic {
#ifdef BYTES
        forget_flags();
#endif
        end_launch()
       }
       atomic { launch[me] == number }
    od
}

init {
    byte rank, block;
    atomic {
        run_all()
#ifdef BYTES
        ;
        for (rank : 0 .. 2 * PIPES * LANES - 1) {
            run FlagWire(rank)
        }
#endif
    }
}
