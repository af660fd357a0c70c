/* SPDX-License-Identifier: MIT */
/*
 * Collectives into the peers' recv by a kernel: src/cuda/kernels/copy_symmetric.cu.
 *
 * A launch has several blocks. Block 0 sends the rank's header. Every block waits for the headers of all peers, stores
 * its part of the peers' recv, makes a fence and counts itself. The block that counts last tells the peers by a
 * meeting and waits for theirs. The launch has ended when all its blocks have. Between two launches the rank uses recv.
 *
 * Abstracted: a part is one cell for each peer. Headers have the number of their operation modulo 4, meetings theirs
 * modulo 2; a meeting is forgotten once it has been read.
 *
 * Shown: a part lands only in a rank that is in the operation; behind the launch the rank has all parts of this
 * operation; meetings land where the one before has been read; every wait ends.
 *
 * Twins: NO_BEGIN, blocks that do not wait for headers; ONE_WAITS, block 0 alone waits for them; NO_FENCE, a count that
 * the block's part overtakes; NO_COUNT, the first block that has stored meets the peers; NO_END, a launch that does not
 * wait for the peers' meetings.
 */
#define BLOCKS 2
#define KINDS (4 + BLOCKS)
#define CELLS (RANKS * RANKS * KINDS)
#include "memory.pml"

#define CELL(owner, source, which) (((owner) * RANKS + (source)) * KINDS + (which))
#define HEADER(owner, source) CELL(owner, source, number % 2)
#define MEETING(owner, source) CELL(owner, source, 2 + number % 2)
#define PART(owner, source, block) CELL(owner, source, 4 + (block))
#define NUMBERS 4
#define OWNER(cell) ((cell) / (RANKS * KINDS))
#define WHICH(cell) ((cell) % KINDS)

bool inside[RANKS];  /* the rank's launch runs */
byte started[RANKS]; /* blocks of the launch */
byte copied[RANKS], ended[RANKS];

inline land(cell, value)
{
    assert(WHICH(cell) < 4 || inside[OWNER(cell)]);
    assert(WHICH(cell) < 2 || WHICH(cell) >= 4 || mem[cell] == NONE);
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

inline tell(to)
{
    EACH_PEER(peer) {
        if
        :: peer != me -> store(to, number + 1)
        :: else
        fi
    }
    peer = 0
}

inline await_headers()
{
    EACH_PEER(peer) {
        if
        :: peer != me -> mem[HEADER(me, peer)] == number + 1
        :: else
        fi
    }
    peer = 0
}

proctype Block(byte me; byte block)
{
    byte peer, part, number;
    bool last;
    do
    :: atomic { /* the launch before has ended */
        started[me] == block && (block > 0 || ended[me] == 0) ->
        started[me]++;
        inside[me] = true;
        if
        :: block == 0 -> tell(HEADER(peer, me))
        :: else
        fi
       }
#if defined(ONE_WAITS)
       if
       :: block == 0 -> atomic { await_headers() }
       :: else
       fi;
#elif !defined(NO_BEGIN)
       atomic { await_headers() }
#endif
       atomic { tell(PART(peer, me, block)) }
#ifndef NO_FENCE
       atomic {
        EACH_PEER(peer) {
            air[PART(peer, me, block)] == NONE
        }
        peer = 0
       }
#endif
       atomic {
        copied[me]++;
#ifdef NO_COUNT
        last = copied[me] == 1;
#else
        last = copied[me] == BLOCKS;
#endif
        if
        :: copied[me] == BLOCKS -> copied[me] = 0
        :: else
        fi
       }
       if
       :: last ->
            atomic { tell(MEETING(peer, me)) }
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
       :: else
       fi;
       atomic {
        ended[me]++;
        last = false;
        if
        :: ended[me] == BLOCKS ->
            EACH_PEER(peer) {
                for (part : 0 .. BLOCKS - 1) {
                    assert(peer == me || mem[PART(me, peer, part)] == number + 1)
                }
            }
            peer = 0;
            part = 0;
            inside[me] = false;
            started[me] = 0
        :: else
        fi
       }
       atomic { /* the next launch */
        started[me] == 0 ->
        number = (number + 1) % NUMBERS;
        ended[me]--
       }
    od
}

init {
    byte rank, block;
    atomic {
        run_wires();
        for (rank : 0 .. RANKS - 1) {
            for (block : 0 .. BLOCKS - 1) {
                run Block(rank, block)
            }
        }
    }
}
