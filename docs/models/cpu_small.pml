/* SPDX-License-Identifier: MIT */
/*
 * Small messages of a CPU communicator, two in turn: src/cpu/algo/small.c, wait.h and barrier.c.
 *
 * An operation has a payload or, as a barrier, none; the first rank that comes chooses, and operations never
 * end. A rank writes into its own arena, where its peers read.
 *
 * Abstracted: a message is a payload and a header; both are the operation's number, modulo 4. A header lands
 * behind the payload that was written before it (release M1). Peers see a store all at once, and read in
 * the order of their program (acquire A1). With SWAP two ranks have one body each, and swap them.
 *
 * Shown: the payload that is read is of this operation, even where its reader is slow; every wait ends.
 *
 * Twins: ONE_MESSAGE; NO_RELEASE; NO_HEADER, where there is no payload.
 */
#ifdef ONE_MESSAGE
#define MESSAGES 1
#else
#define MESSAGES 2
#endif
#define CELLS (RANKS * MESSAGES * 2)
#include "memory.pml"
#define NUMBERS 4
#define MESSAGE(owner, op) (((owner) * MESSAGES + (op) % MESSAGES) * 2)
#ifdef SWAP
#define BODY(owner, op) ((((owner) ^ (op) % 2) * MESSAGES) * 2)
#else
#define BODY(owner, op) MESSAGE(owner, op)
#endif
#define FLAG(owner, op) (MESSAGE(owner, op) + 1)

/* A header waits for its payload. */
#define IS_FLAG(cell) ((cell) % 2)
#ifdef NO_RELEASE
#define RELEASED(cell) true
#else
#define RELEASED(cell) (air[BODY((cell) / 2 / MESSAGES, (cell) / 2 % MESSAGES)] == NONE)
#endif

#ifdef NO_HEADER
#define HAS_HEADER payload[op]
#else
#define HAS_HEADER true
#endif

#define UNKNOWN 2
byte payload[NUMBERS] = UNKNOWN; /* 1: there is one; 0: a barrier, or no elements */

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
    byte op, peer;
    do
    :: atomic {
        if
        :: payload[op] == UNKNOWN ->
            if
            :: payload[op] = 0
            :: payload[op] = 1
            fi;
            payload[(op + 2) % NUMBERS] = UNKNOWN
        :: else
        fi;
        if
        :: payload[op] -> store(BODY(me, op), op + 1)
        :: else
        fi;
        if
        :: HAS_HEADER -> store(FLAG(me, op), op + 1)
        :: else
        fi
      }
      atomic {
        for (peer : 0 .. RANKS - 1) {
            if
            :: peer != me && HAS_HEADER -> mem[FLAG(peer, op)] == op + 1
            :: else
            fi
        }
        peer = 0
      }
      /* Later, for it takes a while: */
      atomic {
        for (peer : 0 .. RANKS - 1) {
            if
            :: peer != me && payload[op] -> assert(mem[BODY(peer, op)] == op + 1)
            :: else
            fi
        }
        peer = 0;
        op = (op + 1) % NUMBERS
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
