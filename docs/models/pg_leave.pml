/* SPDX-License-Identifier: MIT */
/*
 * How a rank leaves a process group of several hosts (pg/wire.h). There is no shared memory: each pair of ranks has two streams of packets, and
 * one stream says nothing of what has come by another.
 *
 * LEADER starts an operation once all three ranks have announced it. LEAVER runs it as soon as it has the verdict, without the others (it sends in a
 * gather), or it announces nothing. Then it leaves. LEADER leaves at any time after that. MEMBER stays.
 * A rank that takes END answers with END, unless it has sent it before.
 *
 * Shown: MEMBER counts LEAVER as gone only after the verdict that LEAVER has followed, so it never ends an operation that others run. All that
 * leave have the last packet of each peer, and MEMBER learns of each end.
 *
 * Twins: END_ALONE, where MEMBER goes by END without the leader's LEFT; NO_LEADER, where it awaits LEFT of a leader that has left before.
 */
#define LEADER 0
#define LEAVER 1
#define MEMBER 2

mtype = { ANNOUNCEMENT, VERDICT, END, LEFT };
chan to_leader[3] = [3] of { mtype }; /* [from] */
chan to_leaver[3] = [3] of { mtype };
chan to_member[3] = [3] of { mtype };
bool takes_part; /* LEAVER announces the operation */

active proctype Leader()
{
    byte announced = 1; /* itself */
    bool leaver_ends, member_ends, leaves;
    do
    :: to_leader[LEAVER] ? ANNOUNCEMENT -> announced++
    :: to_leader[MEMBER] ? ANNOUNCEMENT -> announced++
    :: atomic { announced == 3 -> announced = 0; to_leaver[LEADER] ! VERDICT; to_member[LEADER] ! VERDICT }
    :: to_leader[LEAVER] ? END ->
        leaver_ends = true;
        if
        :: !leaves -> to_leaver[LEADER] ! END; to_member[LEADER] ! LEFT
        :: else
        fi
    :: atomic { !leaves && (announced == 0 || (leaver_ends && !takes_part)) -> leaves = true };
        if
        :: !leaver_ends -> to_leaver[LEADER] ! END
        :: else
        fi;
        to_member[LEADER] ! END
    :: to_leader[MEMBER] ? END -> member_ends = true
    :: leaves && leaver_ends && member_ends -> break
    od
}

active proctype Leaver()
{
    bool leader_ends, member_ends, leaves;
    if
    :: takes_part = true; to_leader[LEAVER] ! ANNOUNCEMENT; to_leaver[LEADER] ? VERDICT
    :: true
    fi;
    do
    :: !leaves ->
        leaves = true;
        if
        :: !leader_ends -> to_leader[LEAVER] ! END
        :: else
        fi;
        to_member[LEAVER] ! END
    :: to_leaver[LEADER] ? END ->
        leader_ends = true;
        if
        :: !leaves -> to_leader[LEAVER] ! END
        :: else
        fi
    :: to_leaver[MEMBER] ? END -> member_ends = true
    :: leaves && leader_ends && member_ends -> break
    od
}

#if defined(END_ALONE)
#define IS_GONE leaver_ends
#elif defined(NO_LEADER)
#define IS_GONE (leaver_ends && told)
#else
#define IS_GONE (leaver_ends && (told || leader_ends))
#endif

active proctype Member()
{
    bool leader_ends, leaver_ends, told, has_verdict, gone;
    to_leader[MEMBER] ! ANNOUNCEMENT;
    do
    :: to_member[LEADER] ? VERDICT -> has_verdict = true
    :: to_member[LEADER] ? LEFT -> told = true
    :: to_member[LEADER] ? END -> leader_ends = true; to_leader[MEMBER] ! END
    :: to_member[LEAVER] ? END -> leaver_ends = true; to_leaver[MEMBER] ! END
    :: !gone && IS_GONE ->
        assert(has_verdict == takes_part);
        gone = true
    :: gone && leader_ends -> break
    od
}
