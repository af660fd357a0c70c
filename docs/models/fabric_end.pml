/* SPDX-License-Identifier: MIT */
/*
 * An operation of two ranks whose devices a fabric joins (cuda/comm/fabric.h). The engine's transfers have no lengths of their own and no
 * time-out: they wait for ever if the ranks make different calls, or if one is gone. So each operation begins with headers, and a thread, the watch,
 * ends the link once a fault stands. What lies behind a transfer on the stream runs then, too, as if the transfer had succeeded.
 *
 * A rank makes one of two calls, or dies. Its caller takes the operation for a success if no fault stands at its end.
 *
 * Shown: no operation succeeds with another call of the peer, or without its data, and none waits for ever.
 *
 * Twins: END_FIRST, where the watch ends the link before the fault stands; NO_HEADER, where nothing tells different calls apart before the data.
 */
bool entered[2], dead[2], moves[2]; /* its header is under way; it is gone; its data are under way */
byte call[2];                       /* 0: none yet */
bool fault[2], ended[2];            /* a fault stands; the link has ended */
bool told;                          /* in the store */
bool done[2];

proctype Stream(byte me)
{
    byte seen;
    bool has_data;
    if
    :: call[me] = 1
    :: call[me] = 2
    :: dead[me] = true; done[me] = true; goto gone
    fi;
#ifndef NO_HEADER
    entered[me] = true;
    if
    :: entered[1 - me] -> seen = call[1 - me]
    :: ended[me]
    fi;
    if
    :: seen != 0 && seen != call[me] -> fault[me] = true /* by the kernel that compares */
    :: else
    fi;
#endif
    moves[me] = true;
    if
    :: moves[1 - me] && call[1 - me] == call[me] -> has_data = true
    :: ended[me]
    fi;
    assert(fault[me] || has_data);
    done[me] = true;
gone:
    skip
}

proctype Watch(byte me)
{
    do
    :: fault[me] -> break
    :: told -> break
    :: dead[1 - me] -> break /* the engine's error, or the store's word */
    :: done[me] && (done[1 - me] || dead[me]) -> goto over
    od;
#ifdef END_FIRST
    ended[me] = true;
    fault[me] = true;
#else
    fault[me] = true;
    ended[me] = true;
#endif
    told = true;
over:
    skip
}

init {
    atomic {
        run Stream(0);
        run Stream(1);
        run Watch(0);
        run Watch(1)
    }
}
