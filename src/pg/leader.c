/* SPDX-License-Identifier: MIT */
/*
 * The leader, rank 0, counts the announcements of each operation. Once all ranks have announced an
 * operation, its verdict starts it. The verdicts come in one order, so all ranks run the operations
 * in the same order, whatever the order in which each rank submitted them. If the time-out of an
 * operation passes on one rank, or two ranks announce different operations, its verdict ends it on
 * all ranks. A rank that announces the operation later gets the same verdict. A rank ignores a
 * verdict about an operation that it has not announced.
 *
 * A pending_op lives until all ranks have announced the operation and its verdict is posted.
 */
#include "base/log.h"
#include "base/rank_set.h"
#include "base/reminder.h"
#include "base/text.h"
#include "pg/pg.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct pending_op {
    struct pg_key key; /* must be the first member: a pointer to it is cast to struct pending_op */
    struct rank_set announced; /* the ranks that have announced it */
    bool decided;              /* `verdict` is final */
    bool is_queued;            /* it is in the list of verdicts to post */
    int64_t began;             /* the first check that found it undecided; 0: none yet */
    struct pending_op *next;
    struct layout_verdict verdict; /* `expected` is what the first rank announced */
};

struct pg_leader {
    struct pg_control *control;
    struct rank_set all_ranks;
    struct pg_map pending_ops;
    int64_t checked_at;              /* the last check for operations that wait long */
    struct reminder reminder;        /* of the operation that has waited longest */
    struct pending_op *first, *last; /* verdicts to post */
};

struct pg_leader *pg_leader_create(struct pg_control *control)
{
    struct pg_leader *leader = calloc(1, sizeof *leader);
    if (!leader)
        return NULL;
    leader->control = control;
    leader->all_ranks = rank_set_all(control->size);
    return leader;
}

void pg_leader_destroy(struct pg_leader *leader)
{
    struct pg_key *key;
    if (!leader)
        return;
    while ((key = pg_map_take_any(&leader->pending_ops)))
        free((struct pending_op *)key);
    pg_map_clear(&leader->pending_ops);
    free(leader);
}

static void queue_verdict(struct pg_leader *leader, struct pending_op *pending)
{
    if (pending->is_queued)
        return;
    pending->is_queued = true;
    pending->next = NULL;
    if (leader->first)
        leader->last->next = pending;
    else
        leader->first = pending;
    leader->last = pending;
}

static void decide(struct pg_leader *leader, struct pending_op *pending, enum tutti_status status,
                   int rank, int peer)
{
    pending->decided = true;
    pending->verdict.status = (int32_t)status;
    pending->verdict.rank = rank;
    pending->verdict.peer = peer;
    queue_verdict(leader, pending);
}

/* Whether two ranks announced the same operation. Their numbers of inputs may differ. */
static bool same_operation(const struct layout_operation *a, const struct layout_operation *b)
{
    size_t dims = a->dims < LAYOUT_DIMS ? a->dims : LAYOUT_DIMS;
    return a->signature == b->signature && a->parameter == b->parameter && a->dims == b->dims &&
           a->device == b->device && a->format == b->format && a->pairs == b->pairs &&
           a->more_pairs == b->more_pairs && memcmp(a->order, b->order, sizeof a->order) == 0 &&
           memcmp(a->sizes, b->sizes, dims * sizeof *a->sizes) == 0;
}

static struct pending_op *pending_op_make(struct pg_leader *leader,
                                          const struct layout_announcement *announcement, int rank)
{
    struct pending_op *pending = calloc(1, sizeof *pending);
    if (!pending)
        return NULL;
    pending->key.tag = pending->verdict.tag = announcement->tag;
    pending->key.sequence = pending->verdict.sequence = announcement->sequence;
    pending->verdict.rank = rank;
    pending->verdict.expected = announcement->operation;
    pending->verdict.facts = LAYOUT_FACTS;
    pg_map_insert(&leader->pending_ops, &pending->key);
    return pending;
}

/* Return false if there is no memory: the announcement is handled again later. `input_late`: the
 * rank withdraws the operation at once. */
static bool handle_announcement(struct pg_leader *leader,
                                const struct layout_announcement *announcement, int rank,
                                bool input_late)
{
    const struct layout_operation *operation = &announcement->operation;
    struct pending_op *pending = (struct pending_op *)pg_map_find(
        &leader->pending_ops, announcement->tag, announcement->sequence);
    if (!pending)
        pending = pending_op_make(leader, announcement, rank);
    if (!pending)
        return false;
    rank_set_add(&pending->announced, rank);
    if (pending->verdict.inputs < announcement->inputs)
        pending->verdict.inputs = announcement->inputs;
    pending->verdict.facts &= announcement->facts;
    if (pending->decided) {
        queue_verdict(leader, pending); /* post it again, for this rank */
    } else if (input_late) {
        decide(leader, pending, TUTTI_ERR_TIMEOUT, rank, rank);
    } else if (!same_operation(&pending->verdict.expected, operation)) {
        pending->verdict.seen = *operation;
        decide(leader, pending, TUTTI_ERR_MISMATCH, pending->verdict.rank, rank);
    } else if (rank_set_equal(pending->announced, leader->all_ranks)) {
        decide(leader, pending, TUTTI_OK, rank, -1);
    }
    return true;
}

static struct rank_set missing_ranks(const struct pg_leader *leader,
                                     const struct pending_op *pending)
{
    return rank_set_minus(leader->all_ranks, pending->announced);
}

/* A withdrawal after the verdict has no effect: the verdict is on its way. */
static void handle_withdrawal(struct pg_leader *leader,
                              const struct layout_announcement *announcement, int rank)
{
    struct pending_op *pending = (struct pending_op *)pg_map_find(
        &leader->pending_ops, announcement->tag, announcement->sequence);
    if (pending && !pending->decided)
        decide(leader, pending, TUTTI_ERR_TIMEOUT, rank,
               rank_set_next(missing_ranks(leader, pending), -1));
}

static bool take_announcement(struct pg_leader *leader, int rank)
{
    const struct layout_announcement *next = pg_control_next_announcement(leader->control, rank);
    if (!next)
        return false;
    if (next->kind == LAYOUT_WITHDRAWN)
        handle_withdrawal(leader, next, rank);
    else if (!handle_announcement(leader, next, rank, next->kind == LAYOUT_LATE))
        return false;
    pg_control_announcement_taken(leader->control, rank);
    return true;
}

static bool post_next(struct pg_leader *leader)
{
    struct pending_op *pending = leader->first;
    if (!pending || !pg_control_post_verdict(leader->control, &pending->verdict))
        return false;
    leader->first = pending->next;
    pending->is_queued = false;
    if (rank_set_equal(pending->announced, leader->all_ranks))
        free((struct pending_op *)pg_map_take(&leader->pending_ops, pending->key.tag,
                                              pending->key.sequence));
    return true;
}

bool pg_leader_poll(struct pg_leader *leader)
{
    bool any = false;
    for (int r = 0; r < leader->control->size; r++)
        while (take_announcement(leader, r))
            any = true;
    while (post_next(leader))
        any = true;
    return any;
}

/* ---- operations that wait long --------------------------------------------------------------- */

struct search {
    int64_t now;
    struct pending_op *oldest; /* NULL: none */
    int undecided;
};

static void search_oldest(void *context, struct pg_key *key)
{
    struct search *search = context;
    struct pending_op *pending = (struct pending_op *)key;
    if (pending->decided)
        return;
    if (!pending->began)
        pending->began = search->now;
    if (!search->oldest || pending->began < search->oldest->began)
        search->oldest = pending;
    search->undecided++;
}

void pg_leader_remind(struct pg_leader *leader, int64_t now, const char *group)
{
    enum { CHECK_NS = 1000000000 };
    struct search search = {.now = now};
    char ranks[300], more[48] = "";
    if (now - leader->checked_at < CHECK_NS)
        return;
    leader->checked_at = now;
    pg_map_each(&leader->pending_ops, search_oldest, &search);
    struct pending_op *oldest = search.oldest;
    if (!oldest)
        return;
    if (leader->reminder.began != oldest->began)
        leader->reminder = reminder_start(oldest->began);
    const int waited_s = reminder_due(&leader->reminder, now);
    if (!waited_s)
        return;
    if (search.undecided > 1)
        snprintf(more, sizeof more, "; %d more operations wait", search.undecided - 1);
    log_write(TUTTI_LOG_WARN, leader->control->rank,
              "%s %" PRIu64 " of tag %" PRIu32
              " of a process group%s%s has waited %d s for %s (not "
              "submitted there, or the input is not ready)%s",
              pg_description_name(&oldest->verdict.expected), oldest->key.sequence, oldest->key.tag,
              *group ? " " : "", group, waited_s,
              text_ranks(missing_ranks(leader, oldest), ranks, sizeof ranks), more);
}
