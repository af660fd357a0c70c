/* SPDX-License-Identifier: MIT */
/*
 * One-shots of two ranks, which swap places from piece to piece: src/cpu/algo/swap.c. Pieces never end.
 *
 * A rank writes both halves of its piece, each with a flag, then reads its peer's; the next piece it
 * writes where it has read.
 *
 * Abstracted: a half is data and a flag; both are the piece's number, modulo 4. A flag lands behind the data
 * that were written before it (release V1). The peer sees a store all at once, and reads in the order of its
 * program (acquire A1).
 *
 * Shown: the data that are read are of this piece and rank, even where the reader is slow; no store meets one
 * that has not been read; every wait ends.
 *
 * Twins: ONE_PLACE, where each rank stays at its own; NO_RELEASE; NO_FLAG of the second half.
 */
#define RANKS 2
#define HALVES 2
#define CELLS (RANKS * HALVES * 2)
#include "memory.pml"
#define NUMBERS 4
#ifdef ONE_PLACE
#define PLACE(rank, piece) (rank)
#else
#define PLACE(rank, piece) ((rank) ^ ((piece) % 2))
#endif
#define DATA(rank, piece, half) ((PLACE(rank, piece) * HALVES + (half)) * 2)
#define FLAG(rank, piece, half) (DATA(rank, piece, half) + 1)

#define VALUE(rank, piece) ((piece) + 1 + (rank) * NUMBERS)

#define IS_FLAG(cell) ((cell) % 2)
#ifdef NO_RELEASE
#define RELEASED(cell) true
#else
#define RELEASED(cell) (air[(cell) - IS_FLAG(cell)] == NONE)
#endif

#ifdef NO_FLAG
#define HAS_FLAG(half) ((half) == 0)
#else
#define HAS_FLAG(half) true
#endif

inline land(cell, value)
{
    mem[cell] = value
}

proctype Wire(byte cell)
{
end:
    do
    :: atomic {
        air[cell] != NONE && (!IS_FLAG(cell) || RELEASED(cell)) -> land(cell, air[cell]); air[cell] = NONE
    }
    od
}

proctype Rank(byte me)
{
    byte piece, half;
    do
    :: do
       :: half < HALVES ->
          store(DATA(me, piece, half), VALUE(me, piece));
          store(FLAG(me, piece, half), VALUE(me, piece));
          half++
       :: else -> half = 0; break
       od;
       do
       :: half < HALVES ->
          if
          :: HAS_FLAG(half) -> mem[FLAG(1 - me, piece, half)] == VALUE(1 - me, piece)
          :: else
          fi;
          /* Later, for it takes a while: */
          assert(mem[DATA(1 - me, piece, half)] == VALUE(1 - me, piece));
          half++
       :: else -> half = 0; break
       od;
       piece = (piece + 1) % NUMBERS
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
