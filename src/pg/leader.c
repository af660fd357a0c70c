/* SPDX-License-Identifier: MIT */
/*
 * The leader counts. An operation that all ranks have announced is begun, in the order in which
 * that came about, which so is the same on all ranks whatever the order in which each submitted.
 * One whose time is over on a rank, or about which two ranks disagree, ends, for all ranks at once;
 * who announces it later hears the same verdict then. A rank that has no such operation announced
 * lets a verdict pass.
 *
 * A ballot lives until all ranks have announced its operation and the verdict is on the board.
 */
#include "pg/pg.h"

#include <stdlib.h>
#include <string.h>

struct ballot {
    struct pg_key key;  /* first: a key is cast to what it begins */
    uint64_t announced; /* bit r: by rank r */
    bool ended;         /* `verdict` is one */
    bool posting;       /* it is in the list */
    struct ballot *next;
    struct layout_verdict verdict; /* expected: what the first rank has */
};

struct pg_leader {
    struct pg_boards *boards;
    uint64_t all;
    struct pg_table ballots;
    struct ballot *first, *last; /* verdicts to be posted */
};

struct pg_leader *pg_leader_create(struct pg_boards *boards)
{
    struct pg_leader *leader = calloc(1, sizeof *leader);
    if (!leader)
        return NULL;
    leader->boards = boards;
    leader->all = boards->size == 64 ? UINT64_MAX : (UINT64_C(1) << boards->size) - 1;
    return leader;
}

void pg_leader_destroy(struct pg_leader *leader)
{
    struct pg_key *key;
    if (!leader)
        return;
    while ((key = pg_table_take_any(&leader->ballots)))
        free((struct ballot *)key);
    free(leader);
}

static void post(struct pg_leader *leader, struct ballot *ballot)
{
    if (ballot->posting)
        return;
    ballot->posting = true;
    ballot->next = NULL;
    if (leader->first)
        leader->last->next = ballot;
    else
        leader->first = ballot;
    leader->last = ballot;
}

static void end(struct pg_leader *leader, struct ballot *ballot, enum tutti_status status, int rank,
                int peer)
{
    ballot->ended = true;
    ballot->verdict.status = (int32_t)status;
    ballot->verdict.rank = rank;
    ballot->verdict.peer = peer;
    post(leader, ballot);
}

/* The ranks may have different numbers of inputs. */
static bool equal(const struct layout_operation *a, const struct layout_operation *b)
{
    size_t dims = a->dims < LAYOUT_DIMS ? a->dims : LAYOUT_DIMS;
    return a->signature == b->signature && a->parameter == b->parameter && a->dims == b->dims &&
           a->device == b->device && memcmp(a->order, b->order, sizeof a->order) == 0 &&
           memcmp(a->sizes, b->sizes, dims * sizeof *a->sizes) == 0;
}

static struct ballot *ballot_make(struct pg_leader *leader,
                                  const struct layout_announcement *announcement, int rank)
{
    struct ballot *ballot = calloc(1, sizeof *ballot);
    if (!ballot)
        return NULL;
    ballot->key.tag = ballot->verdict.tag = announcement->tag;
    ballot->key.sequence = ballot->verdict.sequence = announcement->sequence;
    ballot->verdict.rank = rank;
    ballot->verdict.expected = announcement->operation;
    pg_table_insert(&leader->ballots, &ballot->key);
    return ballot;
}

/* The most of any rank, and whether one has any that are apart. */
static void inputs_count(struct layout_verdict *verdict, uint32_t inputs)
{
    uint32_t apart = (verdict->inputs | inputs) & LAYOUT_APART;
    uint32_t most = verdict->inputs & ~(uint32_t)LAYOUT_APART;
    inputs &= ~(uint32_t)LAYOUT_APART;
    verdict->inputs = (most < inputs ? inputs : most) | apart;
}

/* False if there is no memory: try again later. Late is who withdraws at once. */
static bool count(struct pg_leader *leader, const struct layout_announcement *announcement,
                  int rank, bool late)
{
    const struct layout_operation *operation = &announcement->operation;
    struct ballot *ballot =
        (struct ballot *)pg_table_find(&leader->ballots, announcement->tag, announcement->sequence);
    if (!ballot)
        ballot = ballot_make(leader, announcement, rank);
    if (!ballot)
        return false;
    ballot->announced |= UINT64_C(1) << rank;
    inputs_count(&ballot->verdict, operation->inputs);
    if (ballot->ended) {
        post(leader, ballot); /* once more, for this rank */
    } else if (late) {
        end(leader, ballot, TUTTI_ERR_TIMEOUT, rank, rank);
    } else if (!equal(&ballot->verdict.expected, operation)) {
        ballot->verdict.seen = *operation;
        end(leader, ballot, TUTTI_ERR_MISMATCH, ballot->verdict.rank, rank);
    } else if (ballot->announced == leader->all) {
        end(leader, ballot, TUTTI_OK, rank, -1);
    }
    return true;
}

/* Too late if there is a verdict: it is on its way. */
static void withdraw(struct pg_leader *leader, const struct layout_announcement *announcement,
                     int rank)
{
    struct ballot *ballot =
        (struct ballot *)pg_table_find(&leader->ballots, announcement->tag, announcement->sequence);
    if (ballot && !ballot->ended)
        end(leader, ballot, TUTTI_ERR_TIMEOUT, rank,
            __builtin_ctzll(leader->all & ~ballot->announced));
}

static bool take(struct pg_leader *leader, int rank)
{
    const struct layout_announcement *next = pg_board_next(leader->boards, rank);
    if (!next)
        return false;
    if (next->withdrawn == LAYOUT_WITHDRAWN)
        withdraw(leader, next, rank);
    else if (!count(leader, next, rank, next->withdrawn == LAYOUT_LATE))
        return false;
    pg_board_took(leader->boards, rank);
    return true;
}

static bool rule(struct pg_leader *leader)
{
    struct ballot *ballot = leader->first;
    if (!ballot || !pg_board_rule(leader->boards, &ballot->verdict))
        return false;
    leader->first = ballot->next;
    ballot->posting = false;
    if (ballot->announced == leader->all)
        free((struct ballot *)pg_table_take(&leader->ballots, ballot->key.tag,
                                            ballot->key.sequence));
    return true;
}

bool pg_leader_turn(struct pg_leader *leader)
{
    bool any = false;
    for (int r = 0; r < leader->boards->size; r++)
        while (take(leader, r))
            any = true;
    while (rule(leader))
        any = true;
    return any;
}
