/* SPDX-License-Identifier: MIT */
/*
 * Messages between the ranks' group threads, in the arenas; layout.h describes the bytes. A rank
 * announces its operations to the leader, rank 0. The leader posts verdicts for all ranks.
 * Announcements and verdicts are each a ring of posts with one writer. A reader counts the posts
 * that it has taken; the writer overwrites only those. A thread with an event for a rank advances
 * that rank's bell.
 *
 * To wake a thread costs more than the rest of a submission. So an idle thread naps before it
 * sleeps: each nap lasts an eighth of its idle time, at most 1 ms. Events that are not urgent wait
 * until the nap ends (pg_control_wake_if_asleep()). A caller that starts to wait for a work handles
 * the events itself (pg_control_take_over()), or wakes the thread (pg_control_wake()).
 */
#ifndef TUTTI_PG_CONTROL_RING_H
#define TUTTI_PG_CONTROL_RING_H

#include "base/layout.h"
#include "base/rank_set.h"

#include <stdbool.h>

struct pg_wire;

/* A rank's view of all ranks' control rings. Only the rank's own thread uses it, except that any
 * thread may notify. */
struct pg_control {
    struct layout_control_ring *rings[WORLD_RANKS];
    struct layout_control_ring *own;
    struct pg_wire *wire; /* of ranks of several hosts: wire.h; the rings of others are copies */
    int rank;
    int size;
    bool spare_cores; /* there are idle cores, on which the thread may spin */
    unsigned char pad[LAYOUT_LINE];
    int64_t idle_since;       /* since when this rank has had no event; 0: it has just had one */
    uint32_t announced;       /* announcements posted by this rank */
    uint32_t verdicts_taken;  /* verdicts that this rank has taken */
    uint32_t verdicts_posted; /* leader only: verdicts posted */
    uint32_t announcements_taken[WORLD_RANKS]; /* leader only: announcements taken, of each rank */
};

/* Return the count of the own bell. Read it before looking for events. */
uint32_t pg_control_bell(const struct pg_control *control);
/* Return once the own bell differs from `bell`, once poll() returns true, or after `ms`; false in
 * the last case. poll() looks for events that advance no bell; it may be NULL. `busy`: this rank
 * has operations. */
bool pg_control_sleep(struct pg_control *control, uint32_t bell, int64_t ms, bool busy,
                      bool (*poll)(void *context), void *context);
/* Waiting threads handle the events: sleep for a moment. */
void pg_control_nap(struct pg_control *control);
/* A waiting thread begins to handle the events: no thread has to wake the owner. */
void pg_control_take_over(struct layout_control_ring *ring);
/* The waiting thread stops handling the events. `busy`: the owner has operations to go on with. */
void pg_control_hand_back(struct layout_control_ring *ring, bool busy);
/* There was an event, so more may follow soon: poll again before the next nap. */
void pg_control_reset_idle(struct pg_control *control);
/* Announce an event to the owner, and wake it if it naps or sleeps, not if it rests. */
void pg_control_notify(struct layout_control_ring *ring);
/* Announce an event that is not urgent: wake the owner only if it sleeps. A nap ends by itself. */
void pg_control_wake_if_asleep(struct layout_control_ring *ring);
/* A thread waits for the owner: wake it from a nap, too. */
void pg_control_wake(struct layout_control_ring *ring);

/* Post an announcement; the caller has set all but post_number. Return false, with nothing done, if
 * the ring is full. */
bool pg_control_announce(struct pg_control *control,
                         const struct layout_announcement *announcement);
/* Leader: return the next announcement of a rank, NULL if there is none. Then report that it has
 * been taken. */
const struct layout_announcement *pg_control_next_announcement(const struct pg_control *control,
                                                               int rank);
void pg_control_announcement_taken(struct pg_control *control, int rank);
/* Leader: post a verdict. Return false, with nothing done, if a rank has taken none of the last
 * 32. */
bool pg_control_post_verdict(struct pg_control *control, const struct layout_verdict *verdict);
/* Take the next verdict. Return false if there is none. */
bool pg_control_take_verdict(struct pg_control *control, struct layout_verdict *verdict);
/* Return the rank because of which the leader does not answer: a rank that takes no verdicts, so
 * that there is no room for another; else the leader itself. This rank has taken all verdicts. */
int pg_control_unresponsive_rank(const struct pg_control *control);
/* This rank leaves the group because of the rank `cause`: itself, or a rank that had left. */
void pg_control_leave(struct pg_control *control, int cause);
/* Return the other ranks that have left. What they posted before can be read by then. [out] cause:
 * the rank because of which the first of them has left. */
struct rank_set pg_control_left(const struct pg_control *control, int *cause);
/* The rank because of which a rank is gone: itself, unless it has left because of another one. */
int pg_control_exit_cause(const struct pg_control *control, int rank);

#endif
