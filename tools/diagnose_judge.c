/* SPDX-License-Identifier: MIT */
/*
 * Names the culprits. The evidence is checked in this order; the first step that names a rank
 * decides:
 *
 *   1. The first operation about which ranks disagree: the smaller side, or both if they are equal.
 *   2. The fault that came first, if it says which rank died, left or aborted.
 *   3. Ranks that have not entered an operation in which others wait, or have failed waiting.
 *   4. A rank for whose message another rank waits in a process group, and that waits for none
 *      itself; ranks that wait for each other's messages.
 *   5. A rank that others wait for and that does not wait itself, inside an operation of all ranks.
 *   6. The rank that the first fault names: it was late, and has caught up since.
 *   7. Ranks without a dump.
 */
#include "diagnose.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One operation of one rank. */
struct one {
    const struct dump_operation *operation;
    int rank;
};

struct evidence {
    struct dump *const *dumps;
    size_t count;
    struct one *all; /* by lane, then sequence, then rank */
    size_t operations;
    const struct dump *of[WORLD_RANKS]; /* NULL: no dump */
    struct verdict *verdict;
};

bool same_communicator(const struct dump *a, const struct dump *b)
{
    return strcmp(a->name, b->name) == 0 && a->generation == b->generation &&
           strcmp(a->meeting, b->meeting) == 0 && a->world_size == b->world_size;
}

const char *culprit_reason_text(enum culprit_reason reason)
{
#define ROW(name, text) [CULPRIT_##name] = text,
    static const char *const texts[] = {CULPRIT_MAP(ROW)};
#undef ROW
    return texts[reason];
}

const char *culprit_reason_name(enum culprit_reason reason)
{
#define ROW(name, text) [CULPRIT_##name] = #name,
    static const char *const names[] = {CULPRIT_MAP(ROW)};
#undef ROW
    return names[reason];
}

/* ---- what all ranks did ---------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    const struct one *left = a, *right = b;
    const struct dump_operation *l = left->operation, *r = right->operation;
    if (l->lane != r->lane)
        return l->lane < r->lane ? -1 : 1;
    if (l->sequence != r->sequence)
        return l->sequence < r->sequence ? -1 : 1;
    return (left->rank > right->rank) - (left->rank < right->rank);
}

/* Drops the second of two equal operations of one rank. Only a damaged dump has such operations. */
static void drop_repeated(struct evidence *evidence)
{
    size_t kept = 0;
    for (size_t i = 0; i < evidence->operations; i++)
        if (kept == 0 || compare(&evidence->all[kept - 1], &evidence->all[i]) != 0)
            evidence->all[kept++] = evidence->all[i];
    evidence->operations = kept;
}

static bool gather(struct evidence *evidence)
{
    size_t total = 0;
    for (size_t d = 0; d < evidence->count; d++)
        total += evidence->dumps[d]->count;
    evidence->all = calloc(total ? total : 1, sizeof *evidence->all);
    if (!evidence->all)
        return false;
    for (size_t d = 0; d < evidence->count; d++) {
        const struct dump *dump = evidence->dumps[d];
        evidence->of[dump->rank] = dump;
        for (size_t i = 0; i < dump->count; i++)
            if (dump->operations[i].lane != DIAGNOSE_MESSAGE)
                evidence->all[evidence->operations++] =
                    (struct one){.operation = &dump->operations[i], .rank = dump->rank};
    }
    qsort(evidence->all, evidence->operations, sizeof *evidence->all, compare);
    drop_repeated(evidence);
    return true;
}

/* Returns the index after the last operation of the same lane, or of the same lane and sequence. */
static size_t end_of(const struct evidence *evidence, size_t first, bool sequence)
{
    const struct dump_operation *head = evidence->all[first].operation;
    size_t end = first + 1;
    while (end < evidence->operations && evidence->all[end].operation->lane == head->lane &&
           (!sequence || evidence->all[end].operation->sequence == head->sequence))
        end++;
    return end;
}

/* The last operation of a lane that a rank entered, as far as the dumps tell; -1: unknown. */
static int64_t last_of(const struct evidence *evidence, int64_t lane, int rank)
{
    const struct dump *own = evidence->of[rank];
    int64_t last = own ? 0 : -1;
    for (size_t i = 0; own && i < own->count; i++)
        if (own->operations[i].lane == lane && own->operations[i].sequence > last)
            last = own->operations[i].sequence;
    for (size_t d = 0; d < evidence->count && lane == DIAGNOSE_CALLS; d++)
        if (evidence->dumps[d]->entered[rank] > 0 && evidence->dumps[d]->entered[rank] > last)
            last = evidence->dumps[d]->entered[rank];
    return last;
}

static const char *text_at(const struct evidence *evidence, int64_t lane, int64_t sequence,
                           int rank)
{
    const struct dump *dump = evidence->of[rank];
    for (size_t i = 0; dump && i < dump->count; i++)
        if (dump->operations[i].lane == lane && dump->operations[i].sequence == sequence)
            return dump->operations[i].what;
    return "";
}

static void blame(struct evidence *evidence, int rank, enum culprit_reason reason, int64_t lane,
                  int64_t sequence, const char *others)
{
    struct verdict *verdict = evidence->verdict;
    struct culprit *culprit = &verdict->culprits[verdict->count];
    if (rank < 0 || rank >= verdict->world_size || verdict->count == verdict->world_size)
        return;
    *culprit = (struct culprit){
        .rank = rank,
        .reason = reason,
        .lane = lane,
        .sequence = sequence,
        .last = last_of(evidence, lane, rank),
    };
    snprintf(culprit->own, sizeof culprit->own, "%s", text_at(evidence, lane, sequence, rank));
    snprintf(culprit->others, sizeof culprit->others, "%s", others);
    verdict->count++;
}

/* ---- 1: disagreement ------------------------------------------------------------------------- */

/* Names the ranks that disagree about one operation, whose entries are `first` to `end` - 1. */
static void split(struct evidence *evidence, size_t first, size_t end)
{
    const struct one *all = evidence->all;
    size_t most = 0, rivals = 0, votes_of_most = 0;
    for (size_t i = first; i < end; i++) {
        size_t votes = 0;
        for (size_t j = first; j < end; j++)
            votes += strcmp(all[i].operation->what, all[j].operation->what) == 0;
        if (votes > votes_of_most) {
            votes_of_most = votes;
            most = i;
            rivals = 0;
        }
        rivals += votes == votes_of_most &&
                  strcmp(all[i].operation->what, all[most].operation->what) != 0;
    }
    const char *others = all[most].operation->what;
    for (size_t i = first; i < end; i++) {
        const struct dump_operation *operation = all[i].operation;
        bool same = strcmp(operation->what, others) == 0;
        const char *against = same ? all[end - 1].operation->what : others;
        for (size_t j = first; j < end && same; j++)
            if (strcmp(all[j].operation->what, others) != 0)
                against = all[j].operation->what;
        if (rivals || !same)
            blame(evidence, all[i].rank, rivals ? CULPRIT_DISAGREE : CULPRIT_MISMATCH,
                  operation->lane, operation->sequence, against);
    }
}

static void find_disagreement(struct evidence *evidence)
{
    for (size_t first = 0, end; first < evidence->operations; first = end) {
        end = end_of(evidence, first, true);
        for (size_t i = first + 1; i < end; i++)
            if (strcmp(evidence->all[i].operation->what, evidence->all[first].operation->what)) {
                split(evidence, first, end);
                return;
            }
    }
    /* Names the sides of a mismatch from the fault: dumps are missing, or the recorders no longer
     * have the operation. */
    const struct dump_fault *fault = evidence->verdict->first;
    if (!fault || strcmp(fault->status, "TUTTI_ERR_MISMATCH") != 0)
        return;
    blame(evidence, fault->rank, CULPRIT_DISAGREE, DIAGNOSE_CALLS, fault->sequence, fault->seen);
    blame(evidence, fault->peer, CULPRIT_DISAGREE, DIAGNOSE_CALLS, fault->sequence,
          fault->expected);
}

/* ---- 2 and 6: the first fault ---------------------------------------------------------------- */

static const struct dump_fault *first_fault(const struct evidence *evidence)
{
    const struct dump_fault *first = NULL;
    for (size_t d = 0; d < evidence->count; d++) {
        const struct dump_fault *fault = &evidence->dumps[d]->fault;
        if (fault->status && (!first || fault->sequence < first->sequence))
            first = fault;
    }
    return first;
}

static void find_fault(struct evidence *evidence, const char *status, enum culprit_reason reason)
{
    const struct dump_fault *fault = evidence->verdict->first;
    if (fault && strcmp(fault->status, status) == 0)
        blame(evidence, fault->peer, reason, DIAGNOSE_CALLS, fault->sequence, "");
}

/* Names ranks that have ended and that another rank waits for. */
static void find_gone(struct evidence *evidence)
{
    for (size_t d = 0; d < evidence->count; d++) {
        const struct dump *dump = evidence->dumps[d];
        const char *life = dump->awaits < 0 ? NULL : dump->lives[dump->awaits];
        if (!life || (strcmp(life, "dead") != 0 && strcmp(life, "left") != 0))
            continue;
        blame(evidence, dump->awaits, CULPRIT_GONE, DIAGNOSE_CALLS, 0, "");
        return;
    }
}

/* ---- 3: ranks that are behind ---------------------------------------------------------------- */

/* In the lane of entries `first` to `end` - 1: finds the last operation in which a rank waits, and
 * names the ranks that have not entered it. */
static void find_behind_in(struct evidence *evidence, size_t first, size_t end)
{
    const struct dump_operation *waits = NULL;
    for (size_t i = first; i < end; i++)
        if (evidence->all[i].operation->pending)
            waits = evidence->all[i].operation;
    for (int rank = 0; waits && rank < evidence->verdict->world_size; rank++) {
        int64_t last = last_of(evidence, waits->lane, rank);
        /* The other ranks may know little about a rank without a dump. */
        if (last < waits->sequence && (evidence->of[rank] || last > 0))
            blame(evidence, rank, CULPRIT_BEHIND, waits->lane, waits->sequence, waits->what);
    }
}

static void find_behind(struct evidence *evidence)
{
    for (size_t first = 0, end; first < evidence->operations && !evidence->verdict->count;
         first = end) {
        end = end_of(evidence, first, false);
        find_behind_in(evidence, first, end);
    }
}

/* ---- 4: whose message is awaited ------------------------------------------------------------- */

/* The first message of one peer that a rank waits for; NULL: none, or there is no dump. */
static const struct dump_operation *message_of(const struct dump *dump)
{
    for (size_t i = 0; dump && i < dump->count; i++)
        if (dump->operations[i].lane == DIAGNOSE_MESSAGE && dump->operations[i].peer >= 0)
            return &dump->operations[i];
    return NULL;
}

static void find_unmatched(struct evidence *evidence, bool circles)
{
    bool blamed[WORLD_RANKS] = {false};
    for (size_t d = 0; d < evidence->count; d++) {
        const struct dump_operation *waits = message_of(evidence->dumps[d]);
        if (!waits || waits->peer >= evidence->verdict->world_size || blamed[waits->peer] ||
            (!circles && message_of(evidence->of[waits->peer])))
            continue;
        blamed[waits->peer] = true;
        blame(evidence, waits->peer, CULPRIT_UNMATCHED, DIAGNOSE_CALLS, 0, waits->what);
    }
}

/* ---- 5: the rank that all wait for ------------------------------------------------------------
 */

static void find_stuck(struct evidence *evidence)
{
    for (size_t d = 0; d < evidence->count; d++) {
        int rank = evidence->dumps[d]->awaits;
        for (int step = 0; rank >= 0 && step < WORLD_RANKS; step++) {
            const struct dump *dump = evidence->of[rank];
            if (!dump || dump->awaits < 0)
                break;
            rank = dump->awaits;
        }
        const struct dump *dump = rank < 0 ? NULL : evidence->of[rank];
        if (!dump || dump->awaits >= 0)
            continue; /* the ranks wait in a circle, or the dumps do not tell */
        int64_t last = last_of(evidence, DIAGNOSE_CALLS, rank);
        blame(evidence, rank, CULPRIT_STUCK, DIAGNOSE_CALLS, last, "");
        return;
    }
}

/* ---- 7: ranks without a dump ----------------------------------------------------------------- */

static void find_missing(struct evidence *evidence)
{
    for (int rank = 0; rank < evidence->verdict->world_size; rank++)
        if (!evidence->of[rank])
            blame(evidence, rank, CULPRIT_MISSING, DIAGNOSE_CALLS, 0, "");
}

bool diagnose_judge(struct dump *const *dumps, size_t count, struct verdict *verdict)
{
    struct evidence evidence = {.dumps = dumps, .count = count, .verdict = verdict};
    *verdict = (struct verdict){
        .name = dumps[0]->name,
        .generation = dumps[0]->generation,
        .world_size = dumps[0]->world_size,
    };
    for (size_t d = 0; d < count; d++) {
        verdict->dumped += !verdict->of[dumps[d]->rank];
        verdict->of[dumps[d]->rank] = dumps[d];
    }
    if (!gather(&evidence))
        return false;
    verdict->first = first_fault(&evidence);
    find_disagreement(&evidence);
    if (!verdict->count)
        find_fault(&evidence, "TUTTI_ERR_PEER_DEAD", CULPRIT_GONE);
    if (!verdict->count)
        find_fault(&evidence, "TUTTI_ERR_ABORTED", CULPRIT_ABORTED);
    if (!verdict->count)
        find_gone(&evidence);
    if (!verdict->count)
        find_behind(&evidence);
    for (int circles = 0; circles < 2 && !verdict->count; circles++)
        find_unmatched(&evidence, circles);
    if (!verdict->count)
        find_stuck(&evidence);
    if (!verdict->count)
        find_fault(&evidence, "TUTTI_ERR_TIMEOUT", CULPRIT_LATE);
    if (!verdict->count)
        find_missing(&evidence);
    free(evidence.all);
    return true;
}
