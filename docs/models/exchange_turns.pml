/* SPDX-License-Identifier: MIT */
/*
 * Messages by fewer blocks than channels: src/cuda/kernels/exchange_turns.cuh. Three ranks have one block each, and
 * one channel from each rank to each other one. Rank 0 sends to rank 1 and receives from rank 2 in one launch. The
 * others receive in one launch and send in the next, as two calls that are no group do. Then comes a v-form, a
 * message in every channel. And so on.
 *
 * A block looks at the channels of its launch in turn, in any order, and moves a piece of one that is ready. A launch
 * ends when all its messages have moved.
 *
 * Abstracted: exchange.pml, which shows what a piece, a slot and a credit are. A credit lands at once.
 *
 * Shown: some block can always move a piece.
 *
 * Twin: SERIAL, a block that moves a whole message before it looks at the next channel, those that receive first.
 */
#define RANKS 3
#define SLOTS 2
#define PIECES 3 /* of a message */
#define CHANNEL(from, to) ((from) * RANKS + (to))
#define NEXT(rank) (((rank) + 1) % RANKS)
#define LAST(rank) (((rank) + RANKS - 1) % RANKS)

byte sent[RANKS * RANKS], received[RANKS * RANKS]; /* pieces of a channel, modulo SLOTS + 1 */

/* Of a launch of a rank: pieces that are left to send to a rank, and to receive from it. */
byte sends[RANKS * RANKS], receives[RANKS * RANKS];

#define MODULO (SLOTS + 1)
#define UNDER_WAY(channel) ((sent[channel] + MODULO - received[channel]) % MODULO)
#define MAY_SEND(peer) (sends[CHANNEL(me, peer)] != 0 && UNDER_WAY(CHANNEL(me, peer)) < SLOTS)
#define MAY_RECEIVE(peer) (receives[CHANNEL(peer, me)] != 0 && UNDER_WAY(CHANNEL(peer, me)) != 0)
#ifdef SERIAL
#define RECEIVES(peer) (receives[CHANNEL(peer, me)] != 0)
#define IS_FRONT_SEND(peer) (!RECEIVES(NEXT(me)) && !RECEIVES(LAST(me)) && ((peer) == NEXT(me) || sends[CHANNEL(me, NEXT(me))] == 0))
#define IS_FRONT_RECEIVE(peer) ((peer) == NEXT(me) || !RECEIVES(NEXT(me)))
#else
#define IS_FRONT_SEND(peer) true
#define IS_FRONT_RECEIVE(peer) true
#endif

inline send(peer)
{
    sent[CHANNEL(me, peer)] = (sent[CHANNEL(me, peer)] + 1) % MODULO;
    sends[CHANNEL(me, peer)]--
}

inline receive(peer)
{
    received[CHANNEL(peer, me)] = (received[CHANNEL(peer, me)] + 1) % MODULO;
    receives[CHANNEL(peer, me)]--
}

inline launch_run()
{
    do
    :: atomic { MAY_SEND(NEXT(me)) && IS_FRONT_SEND(NEXT(me)) -> send(NEXT(me)) }
    :: atomic { MAY_SEND(LAST(me)) && IS_FRONT_SEND(LAST(me)) -> send(LAST(me)) }
    :: atomic { MAY_RECEIVE(NEXT(me)) && IS_FRONT_RECEIVE(NEXT(me)) -> receive(NEXT(me)) }
    :: atomic { MAY_RECEIVE(LAST(me)) && IS_FRONT_RECEIVE(LAST(me)) -> receive(LAST(me)) }
    :: sends[CHANNEL(me, NEXT(me))] + sends[CHANNEL(me, LAST(me))] + receives[CHANNEL(NEXT(me), me)] +
       receives[CHANNEL(LAST(me), me)] == 0 -> break
    od
}

proctype Rank(byte me)
{
    do
    :: receives[CHANNEL(LAST(me), me)] = PIECES;
       if
       :: me == 0
       :: else -> launch_run()
       fi;
       sends[CHANNEL(me, NEXT(me))] = PIECES;
       launch_run();
       atomic {
           sends[CHANNEL(me, NEXT(me))] = PIECES;
           sends[CHANNEL(me, LAST(me))] = PIECES;
           receives[CHANNEL(NEXT(me), me)] = PIECES;
           receives[CHANNEL(LAST(me), me)] = PIECES
       }
       launch_run()
    od
}

init
{
    atomic {
        run Rank(0);
        run Rank(1);
        run Rank(2)
    }
}
