/* SPDX-License-Identifier: MIT */
/*
 * Finds communicators whose operations were called in different orders: a rank waits in one
 * communicator for a rank that waits in another one, and so on in a circle. Each communicator by
 * itself shows only ranks that have not entered its operation.
 *
 * A node of the search is a wait: a rank that waits in an operation which others have not entered.
 * From a node the search goes on to the waits of those other ranks' processes in other
 * communicators. It is breadth first, so that it finds a shortest circle.
 */
#include "diagnose.h"

#include <stdlib.h>
#include <string.h>

/* A wait, and how the search came to it. */
struct node {
    size_t verdict;
    int rank;
    size_t from; /* the node before; its own number: the search began here */
    int absent;  /* the rank of `from`'s communicator that leads to this node */
    bool seen;
};

struct search {
    struct verdict *verdicts;
    struct node *nodes;
    size_t count;
    size_t *queue;
};

static bool same_process(const struct dump *a, const struct dump *b)
{
    return a->pid == b->pid && strcmp(a->host, b->host) == 0;
}

/* Whether the process of a rank has several ranks of the communicator, as threads. */
static bool has_company(const struct verdict *verdict, const struct dump *dump)
{
    for (int rank = 0; rank < verdict->world_size; rank++)
        if (rank != dump->rank && verdict->of[rank] && same_process(verdict->of[rank], dump))
            return true;
    return false;
}

/* Whether the ranks of two communicators are one caller. Threads of one process are compared by
 * their rank numbers. */
static bool same_caller(const struct verdict *a, int rank, const struct verdict *b, int other)
{
    const struct dump *left = a->of[rank], *right = b->of[other];
    if (!left || !right || !same_process(left, right))
        return false;
    return rank == other || (!has_company(a, left) && !has_company(b, right));
}

static const struct dump_operation *wait_of(const struct verdict *verdict, int rank)
{
    const struct dump *dump = verdict->of[rank];
    const struct culprit *culprit = &verdict->culprits[0];
    if (!dump || verdict->crossed || !verdict->count || culprit->reason != CULPRIT_BEHIND)
        return NULL;
    for (size_t i = 0; i < dump->count; i++) {
        const struct dump_operation *operation = &dump->operations[i];
        if (operation->pending && operation->lane == culprit->lane &&
            operation->sequence == culprit->sequence)
            return operation;
    }
    return NULL;
}

/* Queues the waits, in other communicators, of the ranks that have not entered the operation of
 * node `from`. Returns whether the search's first node is among them. */
static bool step(struct search *search, size_t from, size_t first, size_t *queued, int *absent)
{
    const struct node *node = &search->nodes[from];
    const struct verdict *verdict = &search->verdicts[node->verdict];
    for (int c = 0; c < verdict->count; c++)
        for (size_t n = 0; n < search->count; n++) {
            struct node *next = &search->nodes[n];
            if (next->verdict == node->verdict || (next->seen && n != first) ||
                !same_caller(verdict, verdict->culprits[c].rank, &search->verdicts[next->verdict],
                             next->rank))
                continue;
            *absent = verdict->culprits[c].rank;
            if (n == first)
                return true;
            next->seen = true;
            next->from = from;
            next->absent = *absent;
            search->queue[(*queued)++] = n;
        }
    return false;
}

static int waits_before(const struct search *search, size_t last)
{
    int count = 0;
    for (size_t at = last; search->nodes[at].from != at; at = search->nodes[at].from)
        count++;
    return count;
}

/* Collects the waits of a circle, from the last one back to the first. False if there are too many.
 */
static bool circle_tell(const struct search *search, size_t last, int absent,
                        struct crossing *crossing)
{
    size_t at = last;
    crossing->count = waits_before(search, last) + 1;
    for (int i = crossing->count - 1; crossing->count <= CROSSING_WAITS_MOST; i--) {
        const struct node *node = &search->nodes[at];
        struct verdict *verdict = &search->verdicts[node->verdict];
        crossing->waits[i] = (struct crossing_wait){
            .verdict = verdict,
            .operation = wait_of(verdict, node->rank),
            .rank = node->rank,
            .absent = absent,
        };
        if (node->from == at)
            return true;
        absent = node->absent;
        at = node->from;
    }
    return false;
}

static bool circle_find(struct search *search, size_t first, struct crossing *crossing)
{
    size_t queued = 0;
    for (size_t n = 0; n < search->count; n++)
        search->nodes[n].seen = false;
    search->nodes[first].seen = true;
    search->nodes[first].from = first;
    search->queue[queued++] = first;
    for (size_t done = 0; done < queued; done++) {
        int absent;
        if (step(search, search->queue[done], first, &queued, &absent))
            return circle_tell(search, search->queue[done], absent, crossing);
    }
    return false;
}

int diagnose_crossed(struct verdict *verdicts, size_t count, struct crossing *crossing)
{
    const size_t most = count * WORLD_RANKS;
    struct search search = {.verdicts = verdicts};
    int found = 0;
    search.nodes = calloc(most + 1, sizeof *search.nodes);
    search.queue = calloc(most + 1, sizeof *search.queue);
    for (size_t v = 0; v < count && search.nodes; v++)
        for (int rank = 0; rank < verdicts[v].world_size; rank++)
            if (wait_of(&verdicts[v], rank))
                search.nodes[search.count++] = (struct node){.verdict = v, .rank = rank};
    if (!search.nodes || !search.queue)
        found = -1;
    for (size_t first = 0; first < search.count && found == 0; first++)
        found = circle_find(&search, first, crossing);
    for (int i = 0; i < crossing->count && found > 0; i++)
        crossing->waits[i].verdict->crossed = true;
    free(search.nodes);
    free(search.queue);
    return found;
}
