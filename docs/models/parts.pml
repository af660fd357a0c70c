/* SPDX-License-Identifier: MIT */
/*
 * Operations in parts, on CPU: two ranks call OPS operations of the lane ALL, and those of odd number have PARTS
 * parts. A rank announces each operation in one of two places. In one without parts it waits for the peer's
 * announcement. In one with parts its threads take the next part that none has taken, raise the part's flag and wait
 * for the peer's. The rank goes on when all its threads have ended. Rank 0 has THREADS threads, rank 1 has one.
 *
 * Abstracted: an operation in pieces waits for several flags of a part; the first one is enough here.
 *
 * Shown: all operations end, and no rank writes a place over an operation in which the peer still is.
 *
 * Twins: OWN_ORDER, where rank 1 takes the last part first; NO_FLAG, where a part waits for no flag.
 */
#define OPS 5
#define PARTS 2
#define IS_CUT(n) ((n) % 2 == 1)
#ifdef OWN_ORDER
#define PART(rank, i) ((rank) -> PARTS - 1 - (i) : (i))
#else
#define PART(rank, i) (i)
#endif

byte place[4];     /* [2 * rank + number mod 2]: the number announced there */
byte flag[4];      /* [2 * rank + part] */
byte inside[2];    /* the rank's operation; 0: none */
byte next[2];      /* parts taken */
byte begun, ended; /* operations of rank 0's second thread */

inline parts_take(me, n)
{
    do
    :: atomic { next[me] < PARTS -> part = PART(me, next[me]); next[me]++ };
       flag[2 * me + part] = n;
#ifndef NO_FLAG
       flag[2 * (1 - me) + part] == n;
#endif
    :: next[me] >= PARTS -> break
    od
}

active proctype second_thread()
{
    byte part, n;
    do
    :: begun > ended ->
       n = begun;
       parts_take(0, n);
       ended = n
    :: inside[0] > OPS -> break
    od
}

active [2] proctype rank()
{
    byte me = _pid - 1, n, part;
    for (n : 1 .. OPS) {
        atomic {
            assert(inside[1 - me] == 0 || inside[1 - me] + 2 > n);
            place[2 * me + n % 2] = n;
            inside[me] = n;
            next[me] = 0
        };
        if
        :: IS_CUT(n) ->
           if
           :: me == 0 && THREADS == 2 -> begun = n
           :: else
           fi;
           parts_take(me, n);
           if
           :: me == 0 && THREADS == 2 -> ended == n
           :: else
           fi
        :: else -> place[2 * (1 - me) + n % 2] == n
        fi
    }
    inside[me] = OPS + 1
}
