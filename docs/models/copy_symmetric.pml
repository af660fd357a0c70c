/* SPDX-License-Identifier: MIT */
/*
 * Collectives into the peers' recv by a kernel: src/cuda/kernels/copy_symmetric.cu.
 *
 * An operation has columns, on all ranks the same number. Block b of a launch serves columns b, b + blocks, ... Block 0
 * sends the rank's header. Every block waits for the headers of the ranks to which it sends, stores its columns in
 * their recv, makes a fence and stores a flag for each of these columns. Then it waits for the flags of the same
 * columns from the ranks that send to it. Block 0 also waits for the headers of all ranks. The launch has ended when
 * all its blocks have. Between two launches the rank uses recv. FROM_ROOT: one rank sends, TO_ROOT: one
 * receives; the first rank to come chooses it.
 *
 * Abstracted: a column is one cell for each peer. Headers and flags have the number of their operation modulo 4. With a
 * root a flag is forgotten once it has been read, since its source may send none for longer than that.
 *
 * Shown: parts and flags land only in a rank that is in the operation; behind the launch the rank has all parts of this
 * operation, and all ranks have entered it; every wait ends.
 *
 * Twins: NO_BEGIN, blocks that do not wait for headers; ONE_WAITS, block 0 alone waits for them; NO_FENCE, a flag that
 * overtakes its part; ONE_FLAG, block 0 alone tells and waits for a flag; NO_NUMBER, a flag that says nothing of its
 * operation; NO_END, a launch that does not wait for flags; NO_HEADER, block 0 does not wait for all headers.
 */
#ifndef COLUMNS
#define COLUMNS 2
#endif
#define KINDS (2 + 2 * COLUMNS)
#define CELLS (RANKS * RANKS * KINDS)
#include "memory.pml"

#define CELL(owner, source, which) (((owner) * RANKS + (source)) * KINDS + (which))
#define HEADER(owner, source) CELL(owner, source, number % 2)
#define FLAG(owner, source, column) CELL(owner, source, 2 + (column))
#define PART(owner, source, column) CELL(owner, source, 2 + COLUMNS + (column))
#define NUMBERS 4
#define OWNER(cell) ((cell) / (RANKS * KINDS))
#define WHICH(cell) ((cell) % KINDS)

#ifdef ONE_BLOCK /* of the first rank */
#define GRID(rank) ((rank) == 0 -> 1 : COLUMNS)
#else
#define GRID(rank) COLUMNS
#endif

#if defined(FROM_ROOT) || defined(TO_ROOT)
#define ROOTED
#define ANY_ROOT RANKS
byte root[NUMBERS] = ANY_ROOT;
#endif
#if defined(FROM_ROOT)
#define SENDS(from, to) ((from) != (to) && root[number] == (from))
#elif defined(TO_ROOT)
#define SENDS(from, to) ((from) != (to) && root[number] == (to))
#else
#define SENDS(from, to) ((from) != (to))
#endif

#ifdef ROOTED
#define forget(flag) mem[flag] = NONE
#else
#define forget(flag) skip
#endif

#ifdef NO_NUMBER
#define FLAGGED 1
#else
#define FLAGGED (number + 1)
#endif

byte entered[RANKS] = NUMBERS - 1; /* the number of the rank's last launch */
bool inside[RANKS];  /* the rank's launch runs */
byte started[RANKS]; /* blocks of the launch */
byte ended[RANKS];

inline land(cell, value)
{
    assert(WHICH(cell) < 2 || inside[OWNER(cell)]);
    mem[cell] = value
}

#ifndef RACES
proctype Wire(byte cell)
{
end:
    do
    :: atomic { air[cell] != NONE -> land(cell, air[cell]); air[cell] = NONE }
    od
}
#endif

#define EACH_PEER(peer) for (peer : 0 .. RANKS - 1)

inline choose_root()
{
#ifdef ROOTED
    if
    :: root[number] == ANY_ROOT ->
        select(peer : 0 .. RANKS - 1);
        root[number] = peer;
        root[(number + 2) % NUMBERS] = ANY_ROOT; /* all ranks have left that one */
        peer = 0
    :: else
    fi
#else
    skip
#endif
}

inline send_headers()
{
    EACH_PEER(peer) {
        if
        :: peer != me -> store(HEADER(peer, me), number + 1)
        :: else
        fi
    }
    peer = 0
}

inline await_headers(wanted)
{
    EACH_PEER(peer) {
        if
        :: wanted -> mem[HEADER(me, peer)] == number + 1
        :: else
        fi
    }
    peer = 0
}

/* Of the block's columns, at each rank to which it sends. */
inline tell(to, value)
{
    EACH_PEER(peer) {
        for (column : 0 .. COLUMNS - 1) {
            if
            :: SENDS(me, peer) && column % GRID(me) == block -> store(to, value)
            :: else
            fi
        }
    }
    peer = 0;
    column = 0
}

inline await_flags()
{
    EACH_PEER(peer) {
        for (column : 0 .. COLUMNS - 1) {
            if
            :: SENDS(peer, me) && column % GRID(me) == block ->
                mem[FLAG(me, peer, column)] == FLAGGED;
                forget(FLAG(me, peer, column))
            :: else
            fi
        }
    }
    peer = 0;
    column = 0
}

inline check_parts()
{
    EACH_PEER(peer) {
        assert(entered[peer] == number || entered[peer] == (number + 1) % NUMBERS);
        for (column : 0 .. COLUMNS - 1) {
            assert(!SENDS(peer, me) || mem[PART(me, peer, column)] == number + 1)
        }
    }
    peer = 0;
    column = 0
}

proctype Block(byte me; byte block)
{
    byte peer, column, number;
    do
    :: atomic { /* the launch before has ended */
        started[me] == block && (block > 0 || ended[me] == 0) ->
        choose_root();
        started[me]++;
        inside[me] = true;
        entered[me] = number;
        if
        :: block == 0 -> send_headers()
        :: else
        fi
       }
#if defined(ONE_WAITS)
       if
       :: block == 0 -> atomic { await_headers(SENDS(me, peer)) }
       :: else
       fi;
#elif !defined(NO_BEGIN)
       atomic { await_headers(SENDS(me, peer)) }
#endif
       atomic { tell(PART(peer, me, column), number + 1) }
#ifndef NO_FENCE
       atomic {
        EACH_PEER(peer) {
            for (column : 0 .. COLUMNS - 1) {
                !SENDS(me, peer) || column % GRID(me) != block || air[PART(peer, me, column)] == NONE
            }
        }
        peer = 0;
        column = 0
       }
#endif
#ifdef ONE_FLAG
       if
       :: block == 0 ->
            atomic { tell(FLAG(peer, me, column), FLAGGED) }
            atomic { await_flags() }
       :: else
       fi;
#else
       atomic { tell(FLAG(peer, me, column), FLAGGED) }
#ifndef NO_END
       atomic { await_flags() }
#endif
#endif
#ifndef NO_HEADER
       if
       :: block == 0 -> atomic { await_headers(peer != me) }
       :: else
       fi;
#endif
       atomic {
        ended[me]++;
        if
        :: ended[me] == GRID(me) ->
            check_parts();
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
            for (block : 0 .. GRID(rank) - 1) {
                run Block(rank, block)
            }
        }
    }
}
