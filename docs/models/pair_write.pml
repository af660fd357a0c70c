/* SPDX-License-Identifier: MIT */
/*
 * A share that the sender of an offer writes into the memory of a reader of another process, by the kernel.
 * Messages never end, until the reader fails or the sender dies.
 *
 * The reader answers an offer with the place of the share. The sender tells that it writes, looks for the reader's
 * fault, writes, tells that it writes no more, and tells the reader that the share is there. The reader may fail in
 * its wait. It tells so, then waits until the sender does not write or is dead, and its caller uses the memory. The
 * sender may die at any time. A dead process writes nothing, but its word that it writes stays.
 *
 * Abstracted: the offer and the acknowledgement, which are pair_offer.pml's. A fence is a wait until what the rank
 * has sent has landed. The reader sees a death as soon as it happens.
 *
 * Shown: a share is of this message; nothing is written once the reader's caller uses the memory; every wait ends.
 *
 * Twins: NO_TOUCH, where a failed reader does not wait for the sender; NO_LOOK, where the sender does not look for
 * the fault; NO_FENCE behind the words of both; NO_DEAD, where a reader waits for a sender that is dead; NO_RELEASE
 * of the word that the share is there; NO_END, where the sender tells that it writes no more before it has written.
 */
#define CELLS 4
#include "memory.pml"
#define NUMBERS 4

#define ANSWER 0
#define SHARE 1 /* in the reader's memory */
#define WRITTEN 2
#define FAULT 3
#define AGAIN 9 /* in SHARE: the reader's caller uses the memory */
byte touching, touching_late; /* what the reader sees of it, and what the sender has sent */
bool dead;                    /* the sender */

#ifdef NO_RELEASE
#define RELEASED(cell) true
#else
#define RELEASED(cell) ((cell) != WRITTEN || air[SHARE] == NONE)
#endif

inline land(cell, value)
{
    assert(cell != SHARE || mem[SHARE] != AGAIN);
    mem[cell] = value
}

proctype Wire(byte cell)
{
end:
    do
    :: atomic { air[cell] != NONE && RELEASED(cell) -> land(cell, air[cell]); air[cell] = NONE }
    od
}

/* A release, behind the share. */
proctype TouchWire()
{
end:
    do
    :: atomic {
        touching != touching_late && (touching_late == 1 || air[SHARE] == NONE) ->
        touching = touching_late
    }
    od
}

proctype Sender()
{
    byte n;
    do
    :: if
      :: mem[ANSWER] == n + 1
      :: mem[FAULT] -> break
      :: air[SHARE] == NONE -> goto dies /* what it has written lands before its process ends */
      fi;
      touching_late = 1;
#ifndef NO_FENCE
      touching == 1;
#endif
#ifndef NO_LOOK
      if
      :: mem[FAULT] -> touching_late = 0; break
      :: else
      fi;
#endif
      if
      :: goto dies
      :: true
      fi;
#ifdef NO_END
      touching_late = 0;
#endif
      store(SHARE, n + 1);
      if
      :: air[SHARE] == NONE -> goto dies
      :: true
      fi;
      touching_late = 0;
      store(WRITTEN, n + 1);
      n = (n + 1) % NUMBERS
    od;
    goto done;
dies:
    dead = true;
done:
    skip
}

proctype Reader()
{
    byte n;
    do
    :: store(ANSWER, n + 1);
      if
      :: mem[WRITTEN] == n + 1
      :: dead -> break
      :: goto failed
      fi;
      assert(mem[SHARE] == n + 1);
      n = (n + 1) % NUMBERS
    od;
failed:
    store(FAULT, 1);
#ifndef NO_FENCE
    air[FAULT] == NONE;
#endif
#ifndef NO_TOUCH
#ifdef NO_DEAD
    touching == 0;
#else
    touching == 0 || dead;
#endif
#endif
    mem[SHARE] = AGAIN
}

init {
    atomic {
        run_wires();
        run TouchWire();
        run Sender();
        run Reader()
    }
}
