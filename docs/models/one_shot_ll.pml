/* SPDX-License-Identifier: MIT */
/*
 * One-shot with flags in band, and barriers of all ranks: src/cuda/kernels/one_shot_ll.cu, barrier.cu, and the
 * header of operation.cuh.
 *
 * An operation has 1 or LINES lines a rank, or none: then it is a barrier, or of no elements, and waits for
 * headers. The first rank that comes chooses; sizes alternate in every way, and operations never end.
 *
 * Abstracted: a line is its operation's number, which stands for its flag and for the truth about its data.
 * Numbers count modulo 4. What makes that enough is that a flag's 48 bits never come again, so a number is
 * forgotten once its reader has left the operation (PAST). Threads of a rank push at once and wait one after
 * the other: their lines do not meet. Headers that nobody awaits may still be under way when the next one
 * to the same place is sent, which then takes its place. That ranks may disagree is not modelled.
 *
 * Shown: a line or header lands only where its owner has left the operation that was there before; what is
 * read is of this operation; every wait ends.
 *
 * Twins: ONE_HALF, instead of two by parity; NO_HEADER, so that an operation of no lines waits for nobody;
 * NO_SEQUENCE, a flag that only says "here".
 */
#define LINES 2
#define HEADER LINES
#define CELLS (RANKS * 2 * RANKS * (LINES + 1))
#include "memory.pml"

#define NUMBERS 4
#define NEXT(number) (((number) + 1) % NUMBERS)
#define UNKNOWN 9

#ifdef ONE_HALF
#define HALF(op) 0
#else
#define HALF(op) ((op) % 2)
#endif
#ifdef NO_SEQUENCE
#define PAST 5
#define HAS_COME(cell, op) (mem[cell] != NONE)
#else
#define PAST NONE
#define HAS_COME(cell, op) (mem[cell] == (op) + 1)
#endif

#define AT(owner, op, source, line) \
    ((((owner) * 2 + HALF(op)) * RANKS + (source)) * (LINES + 1) + (line))
#define OWNER(cell) ((cell) / (2 * RANKS * (LINES + 1)))

byte now[RANKS];                /* the operation of a rank, or its next one */
byte lines[NUMBERS] = UNKNOWN; /* of an operation */

inline land(cell, value)
{
    assert(mem[cell] == NONE || mem[cell] == PAST);
    mem[cell] = value
}

proctype Wire(byte cell)
{
end:
    do
    :: atomic {
        air[cell] != NONE ->
        if
        :: air[cell] == now[OWNER(cell)] + 1 || air[cell] == NEXT(now[OWNER(cell)]) + 1 ->
            land(cell, air[cell])
        :: else -> mem[cell] = PAST /* a header that comes after its operation */
        fi;
        air[cell] = NONE
    }
    od
}

inline announce(peer)
{
#ifndef NO_HEADER
    if
    :: IS_LATE(AT(peer, op, me, HEADER)) -> air[AT(peer, op, me, HEADER)] = op + 1
    :: else -> land(AT(peer, op, me, HEADER), op + 1)
    fi
#else
    skip
#endif
}

inline await(cell)
{
    HAS_COME(cell, op);
    assert(mem[cell] == op + 1)
}

inline forget(cell)
{
    if
    :: mem[cell] == op + 1 -> mem[cell] = PAST
    :: else
    fi
}

proctype Rank(byte me)
{
    byte op, peer, line;
    do
    :: atomic {
        if
        :: lines[op] == UNKNOWN ->
            if
            :: lines[op] = 0
            :: lines[op] = 1
            :: lines[op] = LINES
            fi;
            lines[(op + 2) % NUMBERS] = UNKNOWN /* all have left it */
        :: else
        fi;
        /* 1. Push. */
        for (peer : 0 .. RANKS - 1) {
            if
            :: peer != me ->
                announce(peer);
                line = 0;
                do
                :: line < lines[op] -> store(AT(peer, op, me, line), op + 1); line++
                :: else -> break
                od
            :: else
            fi
        }
        peer = 0;
        line = 0
    }
    /* 2. Collect. */
    atomic {
        for (peer : 0 .. RANKS - 1) {
            if
#ifndef NO_HEADER
            :: peer != me && lines[op] == 0 -> await(AT(me, op, peer, HEADER))
#endif
            :: peer != me && lines[op] != 0 ->
                line = 0;
                do
                :: line < lines[op] -> await(AT(me, op, peer, line)); line++
                :: else -> break
                od
            :: else
            fi
        }
        for (peer : 0 .. RANKS - 1) {
            for (line : 0 .. LINES) {
                forget(AT(me, op, peer, line))
            }
        }
        peer = 0;
        line = 0;
        op = NEXT(op);
        now[me] = op
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
