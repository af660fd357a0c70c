/* SPDX-License-Identifier: MIT */
/*
 * Collectives by copy engines: engines.c, with the two launches of src/cuda/kernels/barrier.cu.
 *
 * A rank uses its recv. It sends its header, and waits for those of all peers. Then engines copy its blocks into the
 * peers' recv. When its copies are done it tells the peers by a meeting, and waits for theirs. Then it uses recv again.
 * Between two such operations all ranks may have one that is a barrier alone: the first rank that comes chooses.
 *
 * Abstracted: a block is one cell, since the engine's end says that all of it has landed. Headers have the number of
 * their operation modulo 4, meetings theirs modulo 2; a meeting is forgotten once it has been read.
 *
 * Shown: a block lands only in a rank that is in the operation; behind the operation the rank has the blocks of this
 * one; meetings land where the one before has been read; every wait ends.
 *
 * Twins: NO_BEGIN, ranks that do not wait for headers; NO_END, ranks that do not wait for the meeting; NO_ORDER, a
 * meeting that the copies of its rank have not ended before.
 */
#define CELLS (RANKS * RANKS * 5)
#include "memory.pml"

#define AHEAD 2
#define CELL(owner, source, which) (((owner) * RANKS + (source)) * 5 + (which))
#define HEADER(owner, source) CELL(owner, source, number % 2)
#define MEETING(owner, source) CELL(owner, source, 2 + count)
#define BLOCK(owner, source) CELL(owner, source, 4)
#define NUMBERS 4
#define OWNER(cell) ((cell) / (RANKS * 5))
#define WHICH(cell) ((cell) % 5)

byte kind[AHEAD];   /* of an operation: 1 a barrier, 2 with copies; 0: not yet known */
byte past[AHEAD];   /* bits of the ranks that have done with it */
bool inside[RANKS]; /* the rank's stream has come to an operation with copies, and has not passed it */

inline land(cell, value)
{
    assert(WHICH(cell) != 4 || inside[OWNER(cell)]);
    assert(WHICH(cell) < 2 || WHICH(cell) == 4 || mem[cell] == NONE);
    mem[cell] = value
}

proctype Wire(byte cell)
{
end:
    do
    :: atomic { air[cell] != NONE -> land(cell, air[cell]); air[cell] = NONE }
    od
}

#define EACH_PEER(peer) for (peer : 0 .. RANKS - 1)

proctype Rank(byte me)
{
    byte at, peer, number, count;
    do
    :: atomic {
        !((past[at] >> me) & 1) -> /* all have done with the one before at this place */
        if
        :: kind[at] == 0 ->
            if
            :: kind[at] = 1
            :: kind[at] = 2
            fi
        :: else
        fi;
        inside[me] = kind[at] == 2;
        EACH_PEER(peer) {
            if
            :: peer != me -> store(HEADER(peer, me), number + 1)
            :: else
            fi
        }
        peer = 0
       }
       atomic {
        EACH_PEER(peer) {
            if
#ifdef NO_BEGIN
            :: peer != me && kind[at] == 1 -> mem[HEADER(me, peer)] == number + 1
#else
            :: peer != me -> mem[HEADER(me, peer)] == number + 1
#endif
            :: else
            fi
        }
        peer = 0
       }
       if
       :: atomic { kind[at] == 2 ->
            EACH_PEER(peer) {
                if
                :: peer != me -> store(BLOCK(peer, me), number + 1)
                :: else
                fi
            }
            peer = 0
          }
#ifndef NO_ORDER
          atomic { /* the second launch begins when the copies are done */
            EACH_PEER(peer) {
                air[BLOCK(peer, me)] == NONE
            }
            peer = 0
          }
#endif
          atomic {
            EACH_PEER(peer) {
                if
                :: peer != me -> store(MEETING(peer, me), 1)
                :: else
                fi
            }
            peer = 0
          }
#ifndef NO_END
          atomic {
            EACH_PEER(peer) {
                if
                :: peer != me -> mem[MEETING(me, peer)] != NONE; mem[MEETING(me, peer)] = NONE
                :: else
                fi
            }
            peer = 0
          }
#endif
          atomic {
            EACH_PEER(peer) {
                assert(peer == me || mem[BLOCK(me, peer)] == number + 1)
            }
            peer = 0;
            inside[me] = false;
            count = 1 - count
          }
       :: else
       fi;
       atomic {
        number = (number + 1) % NUMBERS;
        past[at] = past[at] | (1 << me);
        if
        :: past[at] == (1 << RANKS) - 1 -> past[at] = 0; kind[at] = 0
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
