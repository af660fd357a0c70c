/* SPDX-License-Identifier: MIT */
/*
 * How ranks of other hosts learn of a rank's end (store/tcp_client.c, comm/hierarchy_link.c). RANK leaves a will with the store, and may be killed
 * between any two of its steps. The kernel then closes its connection. SERVER serves the store: it carries the will out when it sees the end of the
 * connection, and at any time it may itself be closed, in order, or killed. WAITER looks again and again for a fault, in the store or by the end of
 * its own connection.
 *
 * Shown: WAITER finds no fault of a rank that has left in order, and none if the server was closed in order. If a rank or the server is killed, WAITER
 * finds that in the end: it never waits for ever.
 *
 * Twins: NO_END, where a rank that leaves does not take its will back; NO_GOODBYE, where a server that is closed does not say so; NO_WILL, where the
 * rank leaves none.
 */
bool will, fault, left; /* in the server */
bool line = true;       /* RANK's connection is open */
bool killed, ended;     /* RANK: without leaving; either */
bool own = true;        /* WAITER's connection is open */
bool goodbye, server_killed;

active proctype Rank()
{
#ifndef NO_WILL
    if
    :: atomic { own -> will = true }
    :: else
    fi;
#endif
    if
    :: killed = true; goto dead
    :: left = true /* a request, answered */
    fi;
    if
    :: killed = true; goto dead /* it has not left yet */
    :: true
    fi;
#ifndef NO_END
    will = false;
#endif
dead:
    line = false;
    ended = true
}

active proctype Server()
{
    bool seen;
    do
    :: atomic { !line && !seen -> seen = true;
        if
        :: will -> fault = true; will = false
        :: else
        fi }
    :: seen -> break
    :: atomic { own -> server_killed = true; own = false }; break
    :: atomic { ended && !killed && own ->
#ifndef NO_GOODBYE
        goodbye = true;
#endif
        own = false }; break
    od
}

active proctype Waiter()
{
    do
    :: atomic { fault && own -> assert(killed) }; break
    :: atomic { !own && !goodbye -> assert(server_killed) }; break
    :: atomic { left && own }; break /* it finds the key of a rank that has left */
    :: atomic { !own && goodbye }; break /* nothing waits for a server that was closed in order */
    od
}
