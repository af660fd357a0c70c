/* SPDX-License-Identifier: MIT */
/*
 * How ranks of a communicator that share only a store agree which of them go on together.
 *
 * The first proposal for a key is the answer for all ranks. A round has these keys:
 *   entry/R   rank R takes part
 *   decision  the members, or why there are none. A rank proposes it once it has the entries of all
 *             expected ranks, or cannot wait any longer.
 *   result    how the members' work came out. A member proposes OK behind a barrier of all members.
 *             A member that fails proposes its failure, which ends the waits of the others.
 *   over      how many members have read a result that is OK
 * A round with a decision is closed. A rank writes its own entry only in a round that is open, and
 * deletes it when the round is decided. The last member deletes result and over. If the members are
 * all ranks, it deletes the decision and all that earlier rounds have left, since no rank looks for
 * these any more: a rank begins the next agreement at the round after this one. Else the decision
 * stays for ranks that were left out.
 *
 * All keys contain the communicator's nonce, so no other communicator, and no earlier run, has
 * written them.
 */
#ifndef TUTTI_AGREE_H
#define TUTTI_AGREE_H

#include "base/interrupt.h"
#include "base/rank_set.h"
#include "bootstrap/meet.h"
#include "store/status_agree.h"

struct peers;

enum { AGREE_KEY_BYTES = 448, AGREE_MEETINGS = 2 };

struct agree_decision {
    struct status_report report; /* OK, or why there are no members */
    struct rank_set members;
    struct rank_set absent;                  /* if TIMEOUT: the ranks that have not come */
    uint64_t completed_all;                  /* the last operation that all members completed */
    uint64_t completed_any;                  /* the last that any member completed */
    struct meeting meetings[AGREE_MEETINGS]; /* of the members' new communicators */
};

struct agree {
    /* Set by the caller: */
    const char *call;     /* the public function, for messages */
    const char *name;     /* of the communicator */
    const uint8_t *nonce; /* of the communicator, 16 bytes */
    struct peers *peers;  /* of the communicator: tells which ranks have exited */
    /* The ranks of other hosts that have left; NULL: there are none. */
    struct rank_set (*left_elsewhere)(void *hierarchy);
    void *hierarchy;
    const uint32_t *aborts; /* a value other than `aborts_before` means an abort */
    uint32_t aborts_before;
    int rank;
    const char *topic;         /* what the round is about, as a part of its keys */
    int made;                  /* how many communicators the members make */
    const char *subject;       /* what the ranks come to, for messages */
    const char *exited_advice; /* what to do about a member that has exited */
    const char *late_advice;   /* what to do about a rank that does not come */
    tutti_store_t *store;      /* a view that ends at the deadline, or by `aborted` */
    int64_t deadline;
    struct rank_set ranks;    /* the expected ranks */
    struct rank_set excluded; /* those of `ranks` that this rank excludes */
    uint64_t completed;       /* this rank's last operation that ended well */
    bool all_needed;          /* a rank that exits ends the round; otherwise it is left out */
    /* Called for a rank that has not come: OK, or why the round fails. May be NULL. */
    enum tutti_status (*check_missing)(const struct agree *self, int rank);
    void *context;      /* of check_missing */
    const char *beside; /* a key that is deleted with this rank's entry; NULL: none */
    int first;          /* the first round that may have keys; the same on all ranks */

    int round; /* at first `first` */
    /* Set by agree_begin() and the calls after it: */
    int rounds_joined;
    int64_t checked_at;
    struct agree_decision decision; /* of the round */
    struct interrupt interrupt;     /* of the members' work: an abort, a failure, an exit */
    struct interrupt aborted;       /* of the agreement */
};

void agree_begin(struct agree *self);
/* A key of the round. rank: -1 if it is not a rank's. */
void agree_key_make(const struct agree *self, const char *what, int rank,
                    char key[AGREE_KEY_BYTES]);
/* Read the round's decision, if there is one. */
enum tutti_status agree_decision_look(const struct agree *self, struct agree_decision *decision,
                                      bool *found);
/* Propose that the round fails with this status and the thread's last error. *decision is set to
 * the round's decision. */
enum tutti_status agree_fail(const struct agree *self, enum tutti_status why,
                             struct rank_set absent, struct agree_decision *decision);
/* Take part in the round until it is decided. Returns the decision's status: OK, TIMEOUT (the error
 * names the ranks that have not come), PEER_DEAD, ABORTED, what check_missing() and a store return.
 */
enum tutti_status agree_join(struct agree *self);

/* How the members' work came out in the round of an earlier decision. */
struct agree_result {
    struct status_report report;
    struct rank_set dead; /* members that have exited; set if the report is of a failure */
};
enum tutti_status agree_result_look(const struct agree *self, struct agree_result *result,
                                    bool *found);
/* Exclude these members, and the ranks that were not members, from the next round. Returns whether
 * this rank is still a part of it. */
bool agree_exclude(struct agree *self, struct rank_set dead);
/* End the members' work, which came out as `mine` on this rank. Returns how it came out for all.
 * *again: members have exited, so the other members must agree in the next round. */
enum tutti_status agree_conclude(struct agree *self, enum tutti_status mine, bool *again);

/* The number of a rank among the members. */
static inline int agree_new_rank(struct rank_set members, int rank)
{
    return rank_set_count(rank_set_common(members, rank_set_all(rank)));
}

#endif
