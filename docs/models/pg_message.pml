/* SPDX-License-Identifier: MIT */
/*
 * Messages of a process group between two ranks, on the ways of the lane PAIR, among collectives.
 *
 * Rank 0 submits two messages, rank 1 one, and each as many receives as its peer sends, one of each at a time. A message is short, and its
 * data go with the announcement, which ends the send, or long: the receiver answers GO, and PIECES pieces follow. The receiver keeps at
 * most one short message that it has not matched. What is not matched may time out: a
 * receive, a send that is not announced, and a send that waits for its answer, which the sender then withdraws. In between both
 * ranks run COLLECTIVES collectives, in which each sends the other one message on the same ways. A rank that has no operation may leave.
 *
 * A way is a channel of WINDOW messages in order: pair.pml shows that. The tag is the same for all.
 *
 * Shown: the pieces that a receive gets are those of the send that it has matched, in order; a rank that gives up a peer that has left
 * has taken each short message of that peer; every operation and every collective ends.
 *
 * Twins: NO_TAKE, where a rank inside a collective leaves the group's messages in its way; SILENT, where a sender whose time-out
 * has passed does not tell the receiver; HASTY, where a rank looks for messages before it looks whether its peer has left.
 */
#define WINDOW 1
#define PIECES 2 /* more than there are places */
#define SENDS(rank) (2 - (rank))
#define COLLECTIVES 1

#define COLLECTIVE 1
#define ANNOUNCED 2
#define SHORT 3
#define GO 4
#define TAKEN 5
#define DATA 6
#define WITHDRAWN 7

#define NONE 0
#define WAITING 1
#define MOVING 2
#define NEW 3

#ifdef NO_TAKE
#define MAY_TAKE(me) (!inside[me])
#else
#define MAY_TAKE(me) true
#endif

chan way[2] = [WINDOW] of { byte, byte, byte }; /* from rank: kind, id, piece */
bool inside[2], over[2], left[2];

inline match(kind, id)
{
    if
    :: kind == SHORT -> notes!TAKEN, id; receive = NONE
    :: else -> notes!GO, id; receive = MOVING; matched = id; got = 0
    fi
}

inline take(kind, id, piece)
{
    if
    :: kind == ANNOUNCED || kind == SHORT ->
        if
        :: receive == WAITING -> match(kind, id)
        :: else -> kept!kind, id
        fi
    :: kind == GO ->
        if
        :: send == WAITING && id == sent -> send = MOVING; moved = 0
        :: else /* it has been withdrawn */
        fi
    :: kind == TAKEN -> kept_there = false
    :: kind == DATA ->
        assert(receive == MOVING && id == matched && piece == got);
        got++;
        if
        :: got == PIECES -> receive = NONE
        :: else
        fi
    :: kind == WITHDRAWN ->
        if
        :: kept??[ANNOUNCED, eval(id)] -> kept??ANNOUNCED, eval(id)
        :: else
        fi;
        if
        :: receive == MOVING && id == matched -> receive = NONE
        :: else
        fi
    fi
}

proctype Rank(bit me)
{
    chan notes = [4] of { byte, byte }; /* to be sent */
    chan kept = [2] of { byte, byte };      /* announcements that match no receive yet */
    byte sends = SENDS(me), receives = SENDS(1 - me), collectives = COLLECTIVES;
    byte send, sent, moved, receive, matched, got, kind, id, piece;
    bool told; /* inside a collective: the own message is sent */
    bool kept_there; /* the peer may still keep a short message */
    bool seen, gone; /* the peer has left; all that it sent has been taken, too */
end:
    do
    /* The caller. */
    :: atomic { !inside[me] && send == NONE && sends -> sends--; sent++; send = (gone -> NONE : NEW) }
    :: atomic {
        !inside[me] && receive == NONE && receives -> receives--;
        if
        :: len(kept) > 0 -> kept?kind, id; match(kind, id)
        :: else -> receive = (gone -> NONE : WAITING)
        fi;
        if
        :: gone && len(notes) > 0 -> notes?_, _
        :: else
        fi
      }
    :: atomic { !inside[me] && !collectives && send == NONE && receive == NONE && empty(notes) -> left[me] = true; over[me] = true; break }
    /* The peer has left. */
#ifdef HASTY
    :: atomic { !seen && empty(way[1 - me]) -> seen = true }
    :: atomic { !gone && seen && left[1 - me] && !inside[me] ->
#else
    :: atomic { !seen && left[1 - me] -> seen = true }
    :: atomic { !gone && seen && empty(way[1 - me]) && !inside[me] ->
#endif
        assert(!(way[1 - me]??[SHORT, _, _]));
        gone = true;
        send = NONE;
        receive = NONE;
        do
        :: len(notes) > 0 -> notes?_, _
        :: else -> break
        od
      }
    /* Time-outs. */
    :: atomic { !inside[me] && receive == WAITING -> receive = NONE }
    :: atomic { !inside[me] && send == NEW -> send = NONE }
    :: atomic {
        !inside[me] && send == WAITING -> send = NONE;
#ifndef SILENT
        notes!WITHDRAWN, sent
#endif
      }
    /* What is to be sent. */
    :: atomic { !inside[me] && nfull(way[me]) && send == NEW -> send = WAITING; way[me]!ANNOUNCED, sent, 0 }
    :: atomic { !inside[me] && nfull(way[me]) && send == NEW && !kept_there -> send = NONE; kept_there = true; way[me]!SHORT, sent, 0 }
    :: atomic { !inside[me] && nfull(way[me]) && nempty(notes) -> notes?kind, id; way[me]!kind, id, 0 }
    :: atomic {
        !inside[me] && nfull(way[me]) && send == MOVING -> way[me]!DATA, sent, moved;
        moved++;
        if
        :: moved == PIECES -> send = NONE
        :: else
        fi
      }
    /* What has come. */
    :: atomic {
        nempty(way[1 - me]) && MAY_TAKE(me) && !(way[1 - me]?[COLLECTIVE, _, _]) ->
        way[1 - me]?kind, id, piece;
        take(kind, id, piece)
      }
    /* Collectives. */
    :: atomic { !inside[me] && collectives -> collectives--; inside[me] = true; told = false }
    :: atomic { inside[me] && !told && nfull(way[me]) -> told = true; way[me]!COLLECTIVE, 0, 0 }
    :: atomic { inside[me] && told && way[1 - me]?[COLLECTIVE, _, _] -> way[1 - me]?COLLECTIVE, _, _; inside[me] = false }
    /* All has ended. */
    :: atomic {
        !over[me] && !inside[me] && !collectives && !sends && !receives && send == NONE && receive == NONE && empty(notes) ->
        over[me] = true
      }
    od
}

/* When no rank can go on, all has ended. */
proctype Monitor()
{
    timeout -> assert(over[0] && over[1])
}

init {
    atomic { run Rank(0); run Rank(1); run Monitor() }
}
