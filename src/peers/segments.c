/* SPDX-License-Identifier: MIT */
#include "peers/segments.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/fork_mutex.h"
#include "ipc/channel.h"
#include "peers/peers_internal.h"
#include "store/status_agree.h"

#include <stdlib.h>
#include <unistd.h>

/* ---- of this process ------------------------------------------------------------------------- */

struct shared {
    uint64_t id;
    int holders;
    struct segment segment;
    struct shared *next;
};

static void forget_all(void);

static struct fork_mutex lock = FORK_MUTEX(forget_all);
static struct shared *list;
static uint64_t created;

/* A child of fork() has none of the mappings; others may come to lie there. */
static void forget_all(void)
{
    for (struct shared *entry = list; entry; entry = entry->next)
        entry->segment.base = NULL;
}

enum tutti_status segments_create(const char *label, size_t bytes, struct segment *segment, int *fd,
                                  uint64_t *id)
{
    struct shared *entry = malloc(sizeof *entry);
    if (!entry)
        return error_set(TUTTI_ERR_NO_MEMORY, "no memory for %zu bytes", sizeof *entry);
    enum tutti_status status = segment_create(label, bytes, segment, fd);
    if (status != TUTTI_OK) {
        free(entry);
        return status;
    }
    fork_mutex_lock(&lock);
    *id = ++created;
    *entry = (struct shared){.id = *id, .holders = 1, .segment = *segment, .next = list};
    list = entry;
    fork_mutex_unlock(&lock);
    return TUTTI_OK;
}

/* The link to the segment of that id, or, if that is 0, at that address; else to NULL. */
static struct shared **find(uint64_t id, const void *base)
{
    struct shared **link = &list;
    while (*link && (id ? (*link)->id != id : (*link)->segment.base != base))
        link = &(*link)->next;
    return link;
}

static void *hold(uint64_t id, void *base)
{
    fork_mutex_lock(&lock);
    struct shared *entry = *find(id, base);
    if (entry)
        entry->holders++;
    fork_mutex_unlock(&lock);
    return entry ? entry->segment.base : NULL;
}

void segments_hold(void *base)
{
    (void)hold(0, base);
}

void segments_leave(void *base, size_t bytes)
{
    struct segment segment = {.base = base, .bytes = bytes};
    fork_mutex_lock(&lock);
    struct shared **link = find(0, base), *entry = *link;
    if (entry && --entry->holders > 0) {
        entry = NULL;
        segment.base = NULL;
    } else if (entry) {
        *link = entry->next;
        segment = entry->segment;
    }
    fork_mutex_unlock(&lock);
    segment_unmap(&segment);
    free(entry);
}

/* ---- of any rank ----------------------------------------------------------------------------- */

enum tutti_status segments_join(const struct peers *peers, int rank, int fd, uint64_t id,
                                size_t bytes, size_t part, void **base)
{
    struct segment segment = {.base = NULL};
    enum tutti_status status = TUTTI_OK;
    if (rank_set_has(peers->ranks.remote, rank))
        status = segment_map_part(fd, bytes, part, &segment);
    else if (!(segment.base = hold(id, NULL)))
        status = error_set(TUTTI_ERR_PEER_DEAD, "rank %d, of this process, has given up", rank);
    *base = segment.base;
    return status;
}

/* Keeps the first failure, with its message. */
static void note(struct status_report *first, enum tutti_status status, int rank)
{
    if (status != TUTTI_OK && first->status == TUTTI_OK)
        *first = status_report_make(status, rank);
}

/* A peer that has failed, or knows of an abort, sends no descriptor. */
static enum tutti_status ask_fault(void *context)
{
    struct peers *peers = context;
    struct tutti_fault fault;
    return peers_check(peers, -1, false, &fault) ? peers_fail(peers, &fault) : TUTTI_OK;
}

enum tutti_status segments_exchange(struct peers *peers, const int *fds, segments_map_fn *map,
                                    void *context, int64_t deadline)
{
    const struct interrupt interrupt = {.ask = ask_fault, .context = peers};
    struct channel *channel = peers->ranks.channel;
    const struct interrupt *const opening = channel_interrupt(channel, &interrupt);
    const struct rank_set remote = peers->ranks.remote;
    const int rank = peers->rank, own = fds[rank];
    struct status_report first = {.status = TUTTI_OK};
    if (opening) /* nobody has failed an operation yet */
        (void)channel_interrupt(channel, opening);
    for (int r = rank_set_next(remote, -1); r >= 0 && own >= 0; r = rank_set_next(remote, r)) {
        const enum tutti_status status =
            channel_send_fd(channel, r, own, deadline_left_ms(deadline));
        note(&first, status, rank);
        if (status != TUTTI_OK) /* a packet without a descriptor ends the peer's wait */
            (void)channel_send_fd(channel, r, -1, 0);
    }
    for (int r = 0; r < peers->size; r++) {
        const bool is_remote = rank_set_has(remote, r);
        enum tutti_status status = TUTTI_OK;
        int fd = fds[r];
        if (r == rank || fd < 0)
            continue;
        if (is_remote)
            status = channel_recv_fd(channel, r, &fd, deadline_left_ms(deadline));
        if (status == TUTTI_OK && first.status == TUTTI_OK)
            status = map(context, r, fd);
        note(&first, status, rank);
        if (is_remote)
            fd_drop(&fd);
    }
    (void)channel_interrupt(channel, opening);
    return first.status == TUTTI_OK ? TUTTI_OK : status_report_error(&first, rank);
}
