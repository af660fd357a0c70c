/* SPDX-License-Identifier: MIT */
/*
 * Byte lines: full lines for data of any bits, in three buffers, by operations of the lane ALL.
 *
 * A line whose bits are those of an empty line travels as the *escape*, one of a few other lines. The source
 * chooses for each group of lines an escape that is none of the group's lines. It pushes the group's other
 * lines at once, then the escapes, and a flagged line {escape or none, sequence}. A reader that finds one of
 * the lines that may be an escape awaits the flagged line; no other reader does.
 *
 * Abstracted: a group has UNITS lines of one source; a line is empty's bits, one of the ESCAPES, or OTHER. Of
 * the ranks only rank 0 has data that vary. What the model knows of a line besides is its use, modulo 6, its
 * source and unit. A flagged line lands at any time, at the
 * latest when the source stores the next one there. Sizes are
 * those of one_shot_lines.pml, which shows how buffers are used again when sizes alternate.
 *
 * Shown: each reader gets the bits that were sent, of this use, source and unit; every wait ends.
 *
 * Twins: ONE_ESCAPE, the first, although a line of the group has its bits; NO_SEQUENCE, a reader that takes
 * the flagged line of an earlier use; ONE_HALF, flagged lines of consecutive uses in one place.
 */
#define BUFFERS 3
#define UNITS 2
#define NUMBERS (2 * BUFFERS)
#define BUFFER (UNITS + RANKS - 1) /* the other ranks have one line */
#define CELLS (RANKS * BUFFERS * BUFFER)
#include "lines.pml"

#ifdef ONE_HALF
#define HALVES 1
#else
#define HALVES 2
#endif
#define FLAGS (RANKS * HALVES)
#define FLAG_AT(owner, use) ((owner) * HALVES + (use) % HALVES) /* of source 0 */

#define BITS_EMPTY 0 /* 1 to ESCAPES: a line that may be an escape */
#define ESCAPES UNITS
#define BITS_OTHER (ESCAPES + 1)

#define UNITS_OF(source) (1 + ((source) == 0) * (UNITS - 1))
#define AT(owner, use, source, unit) \
    (((owner) * BUFFERS + (use) % BUFFERS) * BUFFER + (unit) + ((source) != 0) * (UNITS + (source) - 1))
#define LAST(use) AT(me, ((use) + NUMBERS - 1) % NUMBERS, 0, 0)
/* What travels: bits 1 to BITS_OTHER. */
#define LINE(use, source, unit, bits) ((((use) * RANKS + (source)) * UNITS + (unit)) * BITS_OTHER + (bits))
#define FLAG(use, escape) ((use) * (ESCAPES + 1) + (escape) + 1)

byte sent[2 * UNITS]; /* the bits of source 0: [use mod 2][unit] */
#define SENT(use, unit) sent[((use) % 2) * UNITS + (unit)]
byte flag[FLAGS], flag_air[FLAGS];

inline flag_land(at)
{
    if
    :: flag_air[at] != NONE -> flag[at] = flag_air[at]; flag_air[at] = NONE
    :: else
    fi
}

proctype FlagWire(byte at)
{
end:
    do
    :: atomic { flag_air[at] != NONE -> flag_land(at) }
    od
}

/* Whether no line of the group has the bits of this escape. */
#define IS_FREE(escape) (SENT(use, 0) != (escape) && SENT(use, 1) != (escape))

proctype Rank(byte me)
{
    byte use, dirty, peer, unit, escape, bits;
    do
    :: atomic {
        if
        :: me == 0 ->
            for (unit : 0 .. UNITS - 1) {
                select(bits : 0 .. BITS_OTHER);
                SENT(use, unit) = bits
            }
        :: else
        fi;
        escape = 0;
        if
        :: me != 0 || IS_FREE(BITS_EMPTY)
#ifdef ONE_ESCAPE
        :: else -> escape = 1
#else
        :: else ->
            escape = 1;
            do
            :: IS_FREE(escape) -> break
            :: else -> escape++
            od;
            assert(escape <= ESCAPES)
#endif
        fi;
        /* 1. Push. */
        for (peer : 0 .. RANKS - 1) {
            if
            :: peer != me ->
                for (unit : 0 .. UNITS_OF(me) - 1) {
                    bits = (me == 0 -> SENT(use, unit) : BITS_OTHER);
                    bits = (bits == BITS_EMPTY -> escape : bits);
                    store(AT(peer, use, me, unit), LINE(use, me, unit, bits))
                }
                if
                :: me == 0 ->
                    flag_land(FLAG_AT(peer, use)); /* the former one of this place */
                    flag_air[FLAG_AT(peer, use)] = FLAG(use, escape)
                :: else
                fi
            :: else
            fi
        }
        for (unit : 0 .. dirty - 1) {
            make_empty(LAST(use) + unit)
        }
        unit = 0;
        bits = 0;
        escape = 0;
        peer = (me == 0 -> 1 : 0)
    }
    /* 2. Collect. */
    do
    :: atomic { peer == me -> peer++ }
    :: peer >= RANKS -> break
    :: peer != me && peer < RANKS ->
        atomic {
            mem[AT(me, use, peer, unit)] != NONE && !wipe[AT(me, use, peer, unit)];
            bits = mem[AT(me, use, peer, unit)] - LINE(use, peer, unit, 0);
            assert(bits >= 1 && bits <= BITS_OTHER);
            mem[AT(me, use, peer, unit)] = READ
        }
        if
        :: bits <= ESCAPES ->
            atomic {
#ifdef NO_SEQUENCE
                flag[FLAG_AT(me, use)] != NONE;
#else
                flag[FLAG_AT(me, use)] >= FLAG(use, 0) && flag[FLAG_AT(me, use)] <= FLAG(use, ESCAPES);
#endif
                if
                :: (flag[FLAG_AT(me, use)] - 1) % (ESCAPES + 1) == bits -> bits = BITS_EMPTY
                :: else
                fi
            }
        :: else
        fi;
        atomic {
            assert(bits == (peer == 0 -> SENT(use, unit) : BITS_OTHER));
            unit++;
            if
            :: unit == UNITS_OF(peer) -> unit = 0; peer++
            :: else
            fi;
            bits = 0
        }
    od;
    atomic {
        for (unit : 0 .. dirty - 1) {
            fence(LAST(use) + unit)
        }
#if RANKS == 2
        SENT(use, 0) = SENT(use, 0) * (me == 0); /* rank 1 has read them: fewer states */
        SENT(use, 1) = SENT(use, 1) * (me == 0);
#endif
        dirty = BUFFER;
        peer = 0;
        unit = 0;
        use = (use + 1) % NUMBERS
    }
    od
}

init {
    byte rank;
    atomic {
        run_wires();
        for (rank : HALVES .. FLAGS - 1) {
            run FlagWire(rank)
        }
        for (rank : 0 .. RANKS - 1) {
            run Rank(rank)
        }
    }
}
