/* SPDX-License-Identifier: MIT */
/*
 * Two-shot piece by piece through three pipes: src/cuda/kernels/two_shot_pipelined.cu.
 *
 * An operation has one of the shapes below: one turn, or four, so that it goes round the pipes by itself,
 * and the next one goes on where it ended. With LANES=2 the workers are two, of two blocks, or one of them is
 * one too many; then cells are packed otherwise. The first worker that comes chooses; shapes follow each
 * other in every order, and operations never end.
 *
 * With ONE_BLOCK one block of rank 0 serves both lanes: each step for both, and the fence before step 1.
 *
 * Abstracted: what a line is, is its piece, modulo 6, its source and lane. A block has one worker, so that
 * its control warp's fence, for which the worker waits a turn later, is a wait of the worker for what it had
 * emptied before. The end of a launch waits for what the rank has emptied, but not for what it has pushed.
 *
 * Shown: as one_shot_lines.pml.
 *
 * Twins: TWO_PIPES; NO_FENCE; FIRST_ALONE, a fence behind what the first lane has emptied.
 */
#ifndef LANES
#define LANES 1
#endif
#ifdef TWO_PIPES
#define PIPES 2
#else
#define PIPES 3
#endif
#define PIECES (2 * PIPES)
#define OPS 3
#define PIPE (2 * RANKS * LANES)
#define CELLS (RANKS * PIPES * PIPE)
#include "lines.pml"

byte width[OPS]; /* workers that have units; 0: not yet known */
byte chunk[OPS]; /* units of a whole chunk */
byte lacks[OPS]; /* so many the last rank's */

byte first[RANKS];        /* piece of the operation */
byte busy[RANKS]; /* workers that have not ended their part of it */
bit launch[RANKS];        /* turned when all have */

#ifdef ONE_BLOCK
#define WORKERS(rank) ((rank) == 0 -> 1 : LANES)
#else
#define WORKERS(rank) LANES
#endif

#define TURNS ((chunk[op] + width[op] - 1) / width[op])
#define PIECE(turn) ((first[me] + (turn)) % PIECES)
#define HAS(rank, turn) \
    (lane < width[op] && (turn) * width[op] + lane < chunk[op] - ((rank) == RANKS - 1 -> lacks[op] : 0))
#define AT(owner, piece, hop, source) \
    (((owner) * PIPES + (piece) % PIPES) * PIPE + ((hop) * RANKS + (source)) * width[op] + lane)
#define LINE(piece, source) (((piece) * RANKS + (source)) * LANES + lane + 1)

inline shape(workers, units, missing)
{
    width[op] = workers;
    chunk[op] = units;
    lacks[op] = missing
}

inline choose()
{
    if
    :: width[op] == 0 ->
        if
#if LANES == 2
        :: shape(1, 1, 0)
        :: shape(2, 7, 1)
#else
        :: shape(1, 1, 0)
        :: shape(1, 4, 1)
#endif
        fi;
        /* of an operation that all have left */
        width[(op + 1) % OPS] = 0;
        chunk[(op + 1) % OPS] = 0;
        lacks[(op + 1) % OPS] = 0
    :: else
    fi
}

inline push(turn)
{
    for (peer : 0 .. RANKS - 1) {
        if
        :: peer != me && HAS(peer, turn) -> store(AT(peer, PIECE(turn), 0, me), LINE(PIECE(turn), me))
        :: else
        fi
    }
}

inline take(hop, source)
{
    await(AT(me, PIECE(turn), hop, source), LINE(PIECE(turn), source))
}

/* 1. Of the own chunk: wait, empty. */
inline reduce()
{
    if
    :: HAS(me, turn) ->
        for (peer : 0 .. RANKS - 1) {
            if
            :: peer != me -> take(0, peer)
            :: else
            fi
        }
        for (peer : 0 .. RANKS - 1) {
            if
            :: peer != me -> make_empty(AT(me, PIECE(turn), 0, peer))
            :: else
            fi
        }
    :: else
    fi
}

/* What was emptied before the last turn's ORDER_EMPTIED has landed. */
inline fence_turn()
{
#ifndef NO_FENCE
    for (peer : 0 .. RANKS - 1) {
        if
        :: turn > 0 && lane < width[op] ->
            fence(AT(me, PIECE(turn - 1), 0, peer));
            if
            :: turn > 1 -> fence(AT(me, PIECE(turn - 2), 1, peer))
            :: else
            fi
        :: else
        fi
    }
#else
    skip
#endif
}

inline push_result()
{
    for (peer : 0 .. RANKS - 1) {
        if
        :: peer != me && HAS(me, turn) -> store(AT(peer, PIECE(turn), 1, me), LINE(PIECE(turn), me))
        :: else
        fi
    }
}

/* 3. Of the others' chunks: wait, empty. */
inline collect()
{
    for (peer : 0 .. RANKS - 1) {
        if
        :: peer != me && HAS(peer, turn) ->
            take(1, peer);
            make_empty(AT(me, PIECE(turn), 1, peer))
        :: else
        fi
    }
}

/* The last worker of a launch ends it. */
inline end_launch()
{
    busy[me]--;
    if
    :: busy[me] == 0 ->
        for (peer : 0 .. PIPES * PIPE - 1) {
            fence(me * PIPES * PIPE + peer)
        }
        first[me] = (first[me] + TURNS) % PIECES;
        busy[me] = WORKERS(me);
        launch[me] = !launch[me]
    :: else
    fi
}

proctype Worker(byte me; byte lane)
{
    byte op, turn, peer;
    bit number;
    do
    :: atomic {
        choose();
        push(0);
        peer = 0
       }
       do
       :: turn < TURNS ->
            atomic { reduce(); peer = 0 }
            atomic { fence_turn(); push_result(); push(turn + 1); peer = 0 }
            atomic { collect(); peer = 0; turn++ }
       :: else -> break
       od;
       atomic {
        end_launch();
        peer = 0;
        turn = 0;
        number = !number
       }
       atomic {
        launch[me] == number;
        op = (op + 1) % OPS
       }
    od
}

#ifdef ONE_BLOCK
#ifdef FIRST_ALONE
#define FENCED_LANES 1
#else
#define FENCED_LANES LANES
#endif

proctype Shared(byte me)
{
    byte op, turn, peer, lane;
    bit number;
    do
    :: atomic {
        choose();
        for (lane : 0 .. LANES - 1) {
            push(0)
        }
        peer = 0
       }
       do
       :: turn < TURNS ->
            atomic {
                for (lane : 0 .. FENCED_LANES - 1) {
                    fence_turn()
                }
                peer = 0;
                lane = 0
            }
            do
            :: atomic { lane < LANES -> reduce(); peer = 0 }
               atomic { push_result(); peer = 0; lane++ }
            :: else -> break
            od;
            atomic {
                for (lane : 0 .. LANES - 1) {
                    push(turn + 1)
                }
                peer = 0;
                lane = 0
            }
            do
            :: atomic { lane < LANES -> collect(); peer = 0; lane++ }
            :: else -> break
            od;
            turn++
       :: else -> break
       od;
       atomic {
        end_launch();
        peer = 0;
        turn = 0;
        lane = 0;
        number = !number
       }
       atomic {
        launch[me] == number;
        op = (op + 1) % OPS
       }
    od
}
#endif

init {
    byte rank, lane;
    atomic {
        run_wires();
        for (rank : 0 .. RANKS - 1) {
            busy[rank] = WORKERS(rank);
            for (lane : 0 .. LANES - 1) {
                if
#ifdef ONE_BLOCK
                :: rank == 0 && lane == 0 -> run Shared(rank)
                :: rank == 0 && lane > 0
#else
                :: rank == 0 -> run Worker(rank, lane)
#endif
                :: rank > 0 -> run Worker(rank, lane)
                fi
            }
        }
    }
}
