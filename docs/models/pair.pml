/* SPDX-License-Identifier: MIT */
/*
 * The lane PAIR on CPU: messages from one rank to others, in order. Messages never end.
 *
 * The sender has WINDOW places in its arena; message n lies in place n mod WINDOW, a payload and a header. Each
 * reader counts the messages that it has read and stores the count, its acknowledgement, after every ACK_EVERY
 * messages in its own arena. The sender fills a place again once every reader has acknowledged what lay there.
 * Send and receive have one reader, broadcast and scatter several.
 *
 * Abstracted: payload, header and acknowledgement are numbers modulo 8, so an old one differs from any that may
 * be there. A header lands behind the payload that was written before it (release), and an acknowledgement behind
 * the reads before it. Stores of one rank to one cell land in order; an acknowledgement may replace one that is
 * under way. Readers read in the order of their program (acquire).
 *
 * Shown: the payload that is read is of this message, even where its reader is slow; every wait ends.
 *
 * Twins: NO_CREDIT, where the sender does not wait for acknowledgements; EARLY_ACK, where a reader acknowledges
 * before it reads; NO_RELEASE of the header; RARE_ACK, where a reader acknowledges more than WINDOW messages at once.
 */
#define WINDOW 2
#define READERS (RANKS - 1)
#define CELLS (WINDOW * 2 + READERS)
#include "memory.pml"
#define NUMBERS 8
#ifdef RARE_ACK
#define ACK_EVERY (WINDOW + 1)
#elif RANKS == 2
#define ACK_EVERY WINDOW /* the rarest that serves */
#else
#define ACK_EVERY 1
#endif

#define PAYLOAD(n) ((n) % WINDOW * 2)
#define HEADER(n) (PAYLOAD(n) + 1)
#define ACK(reader) (WINDOW * 2 + (reader))

#define IS_HEADER(cell) ((cell) < WINDOW * 2 && (cell) % 2)
#ifdef NO_RELEASE
#define RELEASED(cell) true
#else
#define RELEASED(cell) (!IS_HEADER(cell) || air[(cell) - 1] == NONE)
#endif

/* Messages that a reader has not acknowledged, of `sent`. mem[ACK] is 1 + the count of acknowledged ones. */
#define UNREAD(sent, reader) (((sent) + NUMBERS + 1 - mem[ACK(reader)]) % NUMBERS)
#ifdef NO_CREDIT
#define HAS_CREDIT(reader) true
#else
#define HAS_CREDIT(reader) (UNREAD(sent, reader) < WINDOW)
#endif

inline land(cell, value)
{
    mem[cell] = value
}

proctype Wire(byte cell)
{
end:
    do
    :: atomic { air[cell] != NONE && RELEASED(cell) -> land(cell, air[cell]); air[cell] = NONE }
    od
}

proctype Sender()
{
    byte sent, reader;
    do
    :: atomic {
        for (reader : 0 .. READERS - 1) {
            HAS_CREDIT(reader)
        }
        reader = 0
      }
      store(PAYLOAD(sent), sent + 1);
      store(HEADER(sent), sent + 1);
      sent = (sent + 1) % NUMBERS
    od
}

inline acknowledge()
{
    unacknowledged++;
    if
    :: unacknowledged == ACK_EVERY -> air[ACK(me)] = (read + 1) % NUMBERS + 1; unacknowledged = 0
    :: else
    fi
}

proctype Reader(byte me)
{
    byte read, unacknowledged;
    do
    :: mem[HEADER(read)] == read + 1;
#ifdef EARLY_ACK
      atomic { acknowledge() };
#endif
      /* Later, for it takes a while: */
      assert(mem[PAYLOAD(read)] == read + 1);
#ifndef EARLY_ACK
      atomic { acknowledge() };
#endif
      read = (read + 1) % NUMBERS
    od
}

init {
    byte rank;
    atomic {
        for (rank : 0 .. READERS - 1) {
            mem[ACK(rank)] = 1
        }
        run_wires();
        run Sender();
        for (rank : 0 .. READERS - 1) {
            run Reader(rank)
        }
    }
}
