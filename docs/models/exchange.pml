/* SPDX-License-Identifier: MIT */
/*
 * Messages between two ranks: one channel of exchange.cuh.
 *
 * The sender fills the slots of the receiver's arena in turn, piece after piece. It fills piece n once the
 * receiver's credit says that piece n - SLOTS is emptied. The first piece of a message has a header, a flagged
 * line with the piece's number. The receiver waits for header and lines, and reads and empties the lines. In a
 * launch of one message or two, it makes a fence and stores the credit for a piece that frees the slot of a later
 * piece of that launch. A launch begins with the credit for all pieces before, if more than half of the slots have
 * none at its end.
 *
 * Abstracted: a piece has UNITS lines. A line or header that is stored lands at any time, in any order; a
 * credit lands at any time, at the latest with the next one. A batch is one piece. Numbers of pieces are modulo NUMBERS. Messages have
 * one or two pieces. What lines say of escapes is in byte_lines.pml.
 *
 * Shown: a line lands in an empty place only; the receiver gets the lines and the header of this piece; every
 * wait ends.
 *
 * Twins: AHEAD, a sender that needs one credit less; NO_FENCE, a credit that overtakes the stores which empty
 * the lines; NO_NUMBER, a header that does not say of which piece it is; KEPT, a receiver whose next launch gives no
 * credit.
 */
#define SLOTS 2
#define UNITS 2
#define NUMBERS 6
#define CELLS (SLOTS * UNITS)

#define NEXT(piece) (((piece) + 1) % NUMBERS)
#define AT(piece, unit) (((piece) % SLOTS) * UNITS + (unit))
#define LINE(piece, unit) (1 + (piece) * UNITS + (unit))
#define BEGINS(piece) ((piece) % 3 != 1) /* a message */
#define TWO_MESSAGES 3                    /* the number of their pieces */
#define HEADER(piece) (1 + (piece))

#ifdef AHEAD
#define ROOM (SLOTS + 1)
#else
#define ROOM SLOTS
#endif
#ifdef KEPT
#define BEGIN(piece) skip
#else
#define BEGIN(piece)                              \
    if                                            \
    :: 2 * (owed + left) > SLOTS -> give(piece)   \
    :: else                                       \
    fi
#endif

byte cell[CELLS], air[CELLS]; /* 0: an empty line, nothing */
byte header[SLOTS], header_air[SLOTS];
byte credit, credit_air; /* pieces that are emptied */
bool credited;           /* credit_air is on its way */
bool emptied[CELLS];     /* the receiver sees an empty line, the sender not yet */

proctype LineWire(byte at)
{
end:
    do
    :: atomic { air[at] != 0 -> assert(cell[at] == 0); cell[at] = air[at]; air[at] = 0 }
#ifdef NO_FENCE
    :: atomic { emptied[at] -> cell[at] = 0; emptied[at] = false }
#endif
    od
}

proctype HeaderWire(byte at)
{
end:
    do
    :: atomic { header_air[at] != 0 -> header[at] = header_air[at]; header_air[at] = 0 }
    od
}

proctype CreditWire()
{
end:
    do
    :: atomic { credited -> credit = credit_air; credited = false }
    od
}

proctype Sender()
{
    byte piece, unit;
    do
    :: atomic {
        (piece + NUMBERS - credit) % NUMBERS < ROOM; /* Y1a */
        if
        :: BEGINS(piece) -> header_air[piece % SLOTS] = HEADER(piece)
        :: else
        fi;
        for (unit : 0 .. UNITS - 1) {
            assert(air[AT(piece, unit)] == 0);
            air[AT(piece, unit)] = LINE(piece, unit)
        }
        unit = 0;
        piece = NEXT(piece)
    }
    od
}

/* Of the receiver. */
inline give(pieces) /* Y1 */
{
    credit_air = pieces;
    credited = true;
    owed = 0
}

proctype Receiver()
{
    byte piece, unit;
    byte left, owed; /* pieces of the launch, pieces without a credit */
    do
    :: atomic {
        if
        :: left != 0
        :: left == 0 -> left = TWO_MESSAGES; BEGIN(piece)
        :: left == 0 -> left = (BEGINS(NEXT(piece)) -> 1 : 2); BEGIN(piece)
        fi
       };
       atomic {
        if
        :: !BEGINS(piece)
#ifdef NO_NUMBER
        :: BEGINS(piece) && header[piece % SLOTS] != 0 -> assert(header[piece % SLOTS] == HEADER(piece))
#else
        :: BEGINS(piece) && header[piece % SLOTS] == HEADER(piece)
#endif
        fi
       };
       do
       :: atomic {
           unit < UNITS && cell[AT(piece, unit)] != 0 && !emptied[AT(piece, unit)] ->
           assert(cell[AT(piece, unit)] == LINE(piece, unit));
#ifdef NO_FENCE
           emptied[AT(piece, unit)] = true;
#else
           cell[AT(piece, unit)] = 0;
#endif
           unit++
          }
       :: unit == UNITS -> break
       od;
       atomic {
           unit = 0;
           piece = NEXT(piece);
           if
           :: left > SLOTS -> give(piece)
           :: else -> owed++
           fi;
           left--
       }
    od
}

init
{
    byte at;
    atomic {
        for (at : 0 .. CELLS - 1) {
            run LineWire(at)
        }
        for (at : 0 .. SLOTS - 1) {
            run HeaderWire(at)
        }
        at = 0;
        run CreditWire();
        run Sender();
        run Receiver()
    }
}
