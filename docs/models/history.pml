/* SPDX-License-Identifier: MIT */
/*
 * Ranks that disagree, on CPU: each calls OPS collectives, the last one of which is of the lane ALL. The programs
 * of all ranks are the same, or one rank, the victim, makes one other call.
 *
 * A collective of the lane ALL has a header of every rank for every other one. A collective of the lane PAIR has
 * messages from its root to the others (FROM), or from the others to its root (TO). A rank logs its collectives of
 * this lane; the log has LOG places. It counts them into its history. The history comes with each header and with
 * each message. A rank that waits looks at what its peers have entered under its number, and whether the peer that
 * it waits for has logged a later number: then it reads the awaited word once more.
 *
 * Abstracted: a history is the calls themselves and no hash of them. Stores are seen in the order of the program
 * (each is a release, and each read an acquire), so they land at once; a header, and a message, come whole.
 *
 * Shown: ranks that agree never find a mismatch, and end. If they do not agree, no rank ends well, and none waits
 * for ever.
 *
 * Twins: NO_HISTORY, where headers and messages come without it; NO_PASSED, where a rank does not look for a later
 * number of its peer; WORD_FIRST, where it reads the word before it looks for that number.
 */
#define OPS 3
#define LOG 1
#define WINDOW 1
#define KINDS (1 + 2 * RANKS)
#define ALL 0
#define ROOT(kind) (((kind) - 1) % RANKS)
#define IS_FROM(kind) ((kind) <= RANKS) /* of the lane PAIR */
#define WAY(from, to) ((from) * RANKS + (to))

byte program[RANKS * OPS];
bool agree = true;
bool failed[RANKS];

byte announced[RANKS * 2]; /* the number of a header; two places in turn */
short header[RANKS * 2];   /* its history */
byte logged[RANKS * LOG];
byte logged_kind[RANKS * LOG];
byte sent[RANKS * RANKS]; /* messages of a way */
byte taken[RANKS * RANKS];
byte order[RANKS * RANKS]; /* the number of the last message, and its history */
short past[RANKS * RANKS];

#define KIND(rank, n) program[(rank) * OPS + (n) - 1]
#define HAS_ANNOUNCED(rank, n) (announced[(rank) * 2] == n || announced[(rank) * 2 + 1] == n)
#define HISTORY_OF(rank, n) header[(rank) * 2 + (announced[(rank) * 2 + 1] == n -> 1 : 0)]
#define LOGGED(rank, n) logged[(rank) * LOG + (n) % LOG]
#define LOGGED_KIND(rank, n) logged_kind[(rank) * LOG + (n) % LOG]

/* Whether a rank is known to have entered another collective under this number. */
#define DIFFERS(rank, n, kind) \
    ((HAS_ANNOUNCED(rank, n) && kind != ALL) || (LOGGED(rank, n) == n && LOGGED_KIND(rank, n) != kind))
#if RANKS == 2
#define ANY_DIFFERS(n, kind) DIFFERS(1 - me, n, kind)
#define ANY_FAILED failed[1 - me]
#else
#define ANY_DIFFERS(n, kind) \
    (DIFFERS((me + 1) % RANKS, n, kind) || DIFFERS((me + 2) % RANKS, n, kind))
#define ANY_FAILED (failed[(me + 1) % RANKS] || failed[(me + 2) % RANKS])
#endif
#define HAS_PASSED(rank, n) (logged[(rank) * LOG] > n)

#ifdef NO_HISTORY
#define SAME_HISTORY(theirs) true
#else
#define SAME_HISTORY(theirs) ((theirs) == history)
#endif

/* Waits for a peer's word. */
inline await(peer, arrived)
{
    do
    :: arrived -> break
    :: ANY_FAILED -> goto fails
    :: ANY_DIFFERS(n, kind) -> goto mismatch
#if defined(WORD_FIRST)
    :: !(arrived) -> if :: HAS_PASSED(peer, n) -> goto mismatch :: else fi
#elif !defined(NO_PASSED)
    :: HAS_PASSED(peer, n) -> if :: arrived -> break :: else -> goto mismatch fi
#endif
    od
}

inline send(to)
{
    await(to, sent[WAY(me, to)] - taken[WAY(me, to)] < WINDOW);
    atomic {
        order[WAY(me, to)] = n;
        past[WAY(me, to)] = history;
        sent[WAY(me, to)]++
    }
}

inline take(from)
{
    await(from, sent[WAY(from, me)] > taken[WAY(from, me)]);
    if
    :: order[WAY(from, me)] == n && SAME_HISTORY(past[WAY(from, me)]) -> taken[WAY(from, me)]++
    :: else -> goto mismatch
    fi
}

proctype Rank(byte me)
{
    byte n, kind, peer, announcements;
    short history;
    do
    :: n == OPS -> assert(agree); goto done
    :: n < OPS ->
        n++;
        kind = KIND(me, n);
        if
        :: kind == ALL ->
            announcements++;
            atomic {
                header[me * 2 + announcements % 2] = history;
                announced[me * 2 + announcements % 2] = n
            }
        :: else ->
            history = history * KINDS + kind;
            atomic {
                logged_kind[me * LOG + n % LOG] = kind;
                logged[me * LOG + n % LOG] = n
            }
        fi;
        peer = 0;
        do
        :: peer == RANKS -> break
        :: peer == me -> peer++
        :: else ->
            if
            :: kind == ALL ->
                await(peer, HAS_ANNOUNCED(peer, n));
                if
                :: SAME_HISTORY(HISTORY_OF(peer, n))
                :: else -> goto mismatch
                fi
            :: kind != ALL && ROOT(kind) == me && IS_FROM(kind) -> send(peer)
            :: kind != ALL && ROOT(kind) == me && !IS_FROM(kind) -> take(peer)
            :: kind != ALL && ROOT(kind) == peer && IS_FROM(kind) -> take(peer)
            :: kind != ALL && ROOT(kind) == peer && !IS_FROM(kind) -> send(peer)
            :: kind != ALL && ROOT(kind) != peer && ROOT(kind) != me
            fi;
            peer++
        od
    od;
mismatch:
    assert(!agree);
fails:
    failed[me] = true;
done:
    skip
}

init {
    byte at, rank, kind;
    atomic {
        for (at : 1 .. OPS - 1) {
            select(kind : 0 .. KINDS - 1);
            for (rank : 0 .. RANKS - 1) {
                KIND(rank, at) = kind
            }
        }
        if
        :: true
        :: select(at : 1 .. OPS - 1);
           select(kind : 0 .. KINDS - 1);
           agree = KIND(0, at) == kind;
           KIND(0, at) = kind /* rank 0: the ranks are alike, but for the order in which they look */
        fi;
        for (rank : 0 .. RANKS - 1) {
            run Rank(rank)
        }
    }
}
