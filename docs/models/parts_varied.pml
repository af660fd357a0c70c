/* SPDX-License-Identifier: MIT */
/*
 * A v-form in parts, on CPU: three ranks, each pair of which exchanges blocks that have PARTS(a, b) parts, as their
 * length allows. A rank takes part in as many parts as its longest block has. Its threads take the next part that none
 * has taken, send what the rank's blocks have of it, and wait for the peers'. Rank 0 has THREADS threads, the others
 * have one. OPS operations follow each other.
 *
 * Abstracted: a block's part is one flag, where it is a queue of messages with credits (pair.pml).
 *
 * Shown: all operations end, though a rank knows the numbers of parts of its own blocks alone.
 *
 * Twin: OWN_ORDER, where rank 2 takes its last part first.
 */
#define OPS 2
#define RANKS 3
#define MOST 3
#define PARTS(a, b) ((a) + (b) == 1 -> 2 : ((a) + (b) == 2 -> 3 : 1))
#define OWN(r) ((r) == 1 -> 2 : 3) /* the most parts of the rank's blocks */
#ifdef OWN_ORDER
#define PART(r, i) ((r) == 2 -> OWN(r) - 1 - (i) : (i))
#else
#define PART(r, i) (i)
#endif
#define FLAG(from, to, part) flag[((from) * RANKS + (to)) * MOST + (part)]

byte flag[27];     /* the last operation whose part has been sent */
byte next[RANKS];  /* parts taken */
byte begun, ended; /* operations of rank 0's second thread */
bool done;

inline parts_take(me, n)
{
    do
    :: atomic { next[me] < OWN(me) -> part = PART(me, next[me]); next[me]++ };
       atomic {
           for (peer : 0 .. RANKS - 1) {
               if
               :: peer != me && part < PARTS(me, peer) -> FLAG(me, peer, part) = n
               :: else
               fi
           }
       };
       for (peer : 0 .. RANKS - 1) {
           if
           :: peer != me && part < PARTS(me, peer) -> FLAG(peer, me, part) >= n
           :: else
           fi
       }
    :: next[me] >= OWN(me) -> break
    od
}

active proctype second_thread()
{
    byte part, n, peer;
    do
    :: begun > ended ->
       n = begun;
       parts_take(0, n);
       ended = n
    :: done && begun == ended -> break
    od
}

active [RANKS] proctype rank()
{
    byte me = _pid - 1, n, part, peer;
    for (n : 1 .. OPS) {
        next[me] = 0;
        if
        :: me == 0 && THREADS == 2 -> begun = n
        :: else
        fi;
        parts_take(me, n);
        if
        :: me == 0 && THREADS == 2 -> ended == n
        :: else
        fi
    }
    if
    :: me == 0 -> done = true
    :: else
    fi
}
