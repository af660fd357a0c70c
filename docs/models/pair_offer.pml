/* SPDX-License-Identifier: MIT */
/*
 * Offers of the lane PAIR on CPU: a block that its reader reads where it lies. Messages never end, until the
 * sender fails.
 *
 * The sender offers a block. The reader answers, with the place of the share that the sender writes, and reads the
 * rest of the block. The sender writes its share and tells the reader. The reader acknowledges. Only then does the
 * sender's caller write to the block again.
 *
 * The sender may fail in any wait. It tells so. If both are threads of one process, it waits until the reader is
 * not inside the block, and its caller frees the block. Else its caller writes to the block at once. The reader
 * tells that it is inside, then looks for the fault, reads, and looks for the fault once more.
 *
 * Abstracted: as in pair.pml. A reader that refuses an offer acknowledges it, and what follows are the messages of
 * pair.pml. A fence is a wait until what the rank has sent has landed.
 *
 * Shown: all that is read is of this message, or the reader sees the fault; freed memory is not read; every wait
 * ends.
 *
 * Twins: NO_ACK, where the sender's caller does not wait for the acknowledgement; NO_WRITTEN, where the reader does
 * not wait for the share; NO_RELEASE of the headers; ONE_LOOK, where the reader does not look for the fault once
 * more; NO_TOUCH, where a failed sender does not wait for the reader; NO_FENCE behind the words of both.
 */
#define CELLS 8
#include "memory.pml"
#define NUMBERS 4

#define BLOCK 0 /* the reader's part of it */
#define OFFER 1
#define PLACE 2
#define ANSWER 3
#define SHARE 4 /* in the reader's memory */
#define WRITTEN 5
#define ACK 6
#define FAULT 7
#define AGAIN 8 /* in BLOCK: the caller has written to it */
#define FREED 9
byte touching, touching_late; /* what the sender sees of it, and what the reader has sent */

#ifdef NO_RELEASE
#define RELEASED(cell) true
#else
#define RELEASED(cell) \
    (((cell) != OFFER && (cell) != ANSWER && (cell) != WRITTEN) || air[(cell) - 1] == NONE)
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

proctype TouchWire()
{
end:
    do
    :: touching != touching_late -> touching = touching_late
    od
}

proctype Sender()
{
    byte n;
    bool threads;
    do
    :: store(BLOCK, n + 1);
      store(OFFER, n + 1);
      if
      :: mem[ANSWER] == n + 1
      :: goto failed
      fi;
      assert(mem[PLACE] == n + 1);
      store(SHARE, n + 1);
      store(WRITTEN, n + 1);
#ifndef NO_ACK
      if
      :: mem[ACK] == n + 1
      :: goto failed
      fi;
#endif
      n = (n + 1) % NUMBERS
    od;
failed:
    air[BLOCK] == NONE; /* the caller's own stores are in order */
    store(FAULT, 1);
#ifndef NO_FENCE
    air[FAULT] == NONE;
#endif
    if
    :: threads = true
    :: threads = false
    fi;
    if
    :: threads ->
#ifndef NO_TOUCH
      touching == 0;
#endif
      mem[BLOCK] = FREED
    :: else -> mem[BLOCK] = AGAIN
    fi
}

proctype Reader()
{
    byte n, seen;
    do
    :: if
      :: mem[OFFER] == n + 1
      :: mem[FAULT] -> break
      fi;
      store(PLACE, n + 1);
      store(ANSWER, n + 1);
      touching_late = 1;
#ifndef NO_FENCE
      touching == 1;
#endif
      if
      :: mem[FAULT] -> touching_late = 0; break
      :: else
      fi;
      /* Later, for it takes a while: */
      seen = mem[BLOCK];
      assert(seen != FREED);
#ifndef ONE_LOOK
      if
      :: mem[FAULT] -> touching_late = 0; break
      :: else
      fi;
#endif
      assert(seen == n + 1);
      touching_late = 0;
#ifndef NO_WRITTEN
      if
      :: mem[WRITTEN] == n + 1
      :: mem[FAULT] -> break
      fi;
#endif
      assert(mem[SHARE] == n + 1);
      store(ACK, n + 1);
      n = (n + 1) % NUMBERS
    od
}

init {
    atomic {
        run_wires();
        run TouchWire();
        run Sender();
        run Reader()
    }
}
