/* SPDX-License-Identifier: MIT */
/*
 * How a rank that waits for a place learns that there is one: the messages and the control rings of a process group.
 *
 * The sender fills PLACES places in turn, and the reader frees them. A thread that finds nothing to do sleeps on its own bell: it reads the
 * bell, looks, says that it is asleep, and sleeps unless the bell has advanced. The kernel compares the bell. Whoever has an event for it advances the bell, then wakes it if it is
 * asleep. The sender tells the reader of what it has sent. The reader tells the sender of free places only at every EVERYth one that it has read.
 * With EVERY 1 this is also the bell of the lane PAIR, which rings at each message and each acknowledgement.
 *
 * A sleep has no end here: what only the end of a time slice would repair stops the model.
 *
 * Shown: all messages are sent and read.
 *
 * Twins: NO_TELL, where the reader tells nothing; RARE, where it tells less often than there are places; LATE_BELL, where the sender reads its
 * bell after it has looked; EARLY_LOOK, where a thread looks whether the other one is asleep before it advances the bell.
 */
#ifndef PLACES
#define PLACES 4
#endif
#ifndef EVERY
#define EVERY 2
#endif
#ifdef RARE
#define TOLD(n) ((n) / (PLACES + 1))
#else
#define TOLD(n) ((n) / EVERY)
#endif
#define MESSAGES (2 * PLACES + 1)
#define SENDER 0
#define READER 1

byte sent, read;
byte bell[2];
bool asleep[2], sleeps[2]; /* what the thread says; what the kernel knows */

inline notify(to)
{
#ifdef EARLY_LOOK
    seen_asleep = asleep[to];
    bell[to]++;
#else
    bell[to]++;
    seen_asleep = asleep[to];
#endif
    if
    :: seen_asleep -> atomic { asleep[to] = false; bell[to]++ }; sleeps[to] = false
    :: else
    fi
}

inline sleep(me)
{
    asleep[me] = true;
    sleeps[me] = (bell[me] == seen);
    !sleeps[me];
    asleep[me] = false
}

proctype Sender()
{
    byte seen;
    bool any, seen_asleep;
    do
    :: sent == MESSAGES -> break
    :: else ->
#ifndef LATE_BELL
        seen = bell[SENDER];
#endif
        any = false;
        do
        :: atomic { sent < MESSAGES && sent - read < PLACES -> sent++; any = true }
        :: sent == MESSAGES || sent - read >= PLACES -> break
        od;
#ifdef LATE_BELL
        seen = bell[SENDER];
#endif
        if
        :: any -> notify(READER)
        :: else -> sleep(SENDER)
        fi
    od
}

proctype Reader()
{
    byte seen, told;
    bool any, seen_asleep;
    do
    :: read == MESSAGES -> break
    :: else ->
        seen = bell[READER];
        any = false;
        do
        :: atomic { read < sent -> read++; any = true }
        :: any || read == sent -> break
        od;
#ifndef NO_TELL
        if
        :: TOLD(read) != TOLD(told) -> notify(SENDER)
        :: else
        fi;
        told = read;
#endif
        if
        :: !any -> sleep(READER)
        :: else
        fi
    od
}

init {
    atomic { run Sender(); run Reader() }
}
