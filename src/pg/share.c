/* SPDX-License-Identifier: MIT */
#include "pg/share.h"

#include "cpu/local.h"
#include "error.h"
#include "ipc/channel.h"
#include "ipc/segment.h"
#include "pg/sparse.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TURNS = 2 };

/* A rank's memory of one turn; without a base there is none. */
struct lent {
    void *base;
    size_t bytes;
    uint64_t number; /* among those that its rank has made, from 1 */
};

/* What a rank tells the others of a turn. */
struct told {
    uint64_t status;
    uint64_t bytes;
    uint64_t capacity;
    uint64_t number;
};

enum { TOLD_WORDS = sizeof(struct told) / sizeof(uint64_t) };

struct pg_share {
    struct tutti_comm *comm;
    enum pg_share_use use;
    int turn;
    uint64_t made; /* by this rank */
    struct lent lent[TUTTI_MAX_RANKS][TURNS];
    uint64_t settled[TUTTI_MAX_RANKS][TURNS]; /* numbers that all ranks have taken */
    struct told told[TUTTI_MAX_RANKS];
    uint64_t votes[TUTTI_MAX_RANKS];
    struct sparse_memory gathered; /* where links do not join all ranks */
};

struct pg_share *pg_share_create(struct tutti_comm *comm, enum pg_share_use use)
{
    struct pg_share *share = calloc(1, sizeof *share);
    if (!share)
        return NULL;
    share->comm = comm;
    share->use = use;
    return share;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static bool is_remote(const struct pg_share *share, int rank)
{
    return share->comm->cpu.remote >> rank & 1;
}

/* By which threads of this process find a rank's memory: its arena is one place for all of them,
 * and begins a line, so that the uses of one arena have keys of their own. */
static void key_make(const struct pg_share *share, int rank, uint64_t number, uint8_t *key)
{
    const uint64_t words[2] = {(uintptr_t)share->comm->cpu.arenas[rank] + share->use, number};
    memcpy(key, words, sizeof words);
}

static void lent_drop(const struct pg_share *share, int rank, struct lent *lent)
{
    if (lent->base && is_remote(share, rank))
        segment_unmap(&(struct segment){.base = lent->base, .bytes = lent->bytes});
    else if (lent->base)
        local_release(lent->base);
    *lent = (struct lent){0};
}

/* Nobody else reads it any more, on any rank. */
static void turn_drop(struct pg_share *share, int turn)
{
    for (int r = 0; r < share->comm->world_size; r++) {
        lent_drop(share, r, &share->lent[r][turn]);
        share->settled[r][turn] = 0;
    }
}

void pg_share_destroy(struct pg_share *share)
{
    if (!share)
        return;
    for (int turn = 0; turn < TURNS; turn++)
        turn_drop(share, turn);
    pg_share_forget(share);
}

void pg_share_forget(struct pg_share *share)
{
    if (share)
        sparse_memory_fini(&share->gathered);
    free(share);
}

/* To the ranks of other processes. A rank that gets none would wait for it: the group has failed
 * then. */
static enum tutti_status hand_out(struct pg_share *share, int fd, int64_t timeout_ms)
{
    struct cpu_group *cpu = &share->comm->cpu;
    for (int r = 0; r < cpu->size && !cpu->sparse; r++) {
        if (!is_remote(share, r))
            continue;
        enum tutti_status status = channel_send_fd(cpu->channel, r, fd, timeout_ms);
        if (status != TUTTI_OK)
            return cpu_group_fail(cpu,
                                  &(struct tutti_fault){.struct_size = sizeof(struct tutti_fault),
                                                        .status = status,
                                                        .rank = cpu->rank,
                                                        .peer = r,
                                                        .sequence = cpu->sequence});
    }
    return TUTTI_OK;
}

/* The segment is the share's from here on. */
static enum tutti_status lend(struct pg_share *share, struct segment *segment, int fd,
                              int64_t timeout_ms)
{
    const int rank = share->comm->rank;
    uint8_t key[16];
    key_make(share, rank, ++share->made, key);
    enum tutti_status status = local_publish(key, rank, segment);
    if (status != TUTTI_OK) {
        segment_unmap(segment);
        return status;
    }
    share->lent[rank][share->turn] = (struct lent){segment->base, segment->bytes, share->made};
    return hand_out(share, fd, timeout_ms);
}

enum tutti_status pg_share_reserve(struct pg_share *share, size_t bytes, int64_t timeout_ms,
                                   void **memory)
{
    const int rank = share->comm->rank;
    struct lent *own = &share->lent[rank][share->turn];
    struct segment segment;
    int fd;
    *memory = own->base;
    if (own->base && bytes <= own->bytes)
        return TUTTI_OK;

    lent_drop(share, rank, own);
    size_t room = bytes + bytes / 4; /* the next one is often a little larger */
    enum tutti_status status = segment_create("tutti-share", room, &segment, &fd);
    if (status != TUTTI_OK)
        return status;
    status = lend(share, &segment, fd, timeout_ms);
    *memory = own->base;
    close(fd);
    return status;
}

enum tutti_status pg_share_offer(struct pg_share *share, int fd, size_t bytes, int64_t timeout_ms)
{
    struct segment segment;
    enum tutti_status status = segment_map(fd, bytes, &segment);
    return status == TUTTI_OK ? lend(share, &segment, fd, timeout_ms) : status;
}

/* Takes what a rank has made anew. */
static enum tutti_status borrow(struct pg_share *share, int rank, const struct told *told,
                                int64_t timeout_ms)
{
    struct lent *lent = &share->lent[rank][share->turn];
    struct segment segment;
    uint8_t key[16];
    int fd;
    lent_drop(share, rank, lent);
    if (told->number == 0)
        return TUTTI_OK;
    if (!is_remote(share, rank)) {
        key_make(share, rank, told->number, key);
        *lent = (struct lent){local_acquire(key, rank), told->capacity, told->number};
        return lent->base ? TUTTI_OK
                          : error_set(TUTTI_ERR_SYSTEM,
                                      "rank %d is of this process but shows nothing here", rank);
    }
    enum tutti_status status = channel_recv_fd(share->comm->cpu.channel, rank, &fd, timeout_ms);
    if (status != TUTTI_OK)
        return status;
    status = segment_map(fd, told->capacity, &segment);
    close(fd);
    if (status == TUTTI_OK)
        *lent = (struct lent){segment.base, segment.bytes, told->number};
    return status == TUTTI_OK ? TUTTI_OK
                              : error_context(status, "what rank %d shows to the others", rank);
}

/* All that is new; goes on after a failure, so that what has been sent is received. */
static enum tutti_status borrow_all(struct pg_share *share, int64_t timeout_ms)
{
    enum tutti_status first = TUTTI_OK;
    for (int r = 0; r < share->comm->world_size; r++) {
        const struct told *told = &share->told[r];
        if (r == share->comm->rank || told->number == share->settled[r][share->turn])
            continue;
        enum tutti_status status = borrow(share, r, told, timeout_ms);
        if (first == TUTTI_OK)
            first = status;
    }
    return first;
}

/* ---- word between the ranks ------------------------------------------------------------------ */

/* Each rank's words for all: of the others they are zero until they are here. */
static enum tutti_status words_gather(struct pg_share *share, void *words, size_t count,
                                      int64_t timeout_ms)
{
    return comm_all_reduce(share->comm, words, count, TUTTI_UINT64, TUTTI_BOR, timeout_ms);
}

/* The status of the first rank that has another one than OK. */
static enum tutti_status first_failed(struct pg_share *share, const uint64_t *status, size_t stride,
                                      int *culprit)
{
    for (int r = 0; r < share->comm->world_size; r++) {
        enum tutti_status theirs = (enum tutti_status)status[(size_t)r * stride];
        if (theirs == TUTTI_OK)
            continue;
        *culprit = r;
        if (r != share->comm->rank)
            (void)error_set(theirs, "rank %d could not do its part (%s): look at its own error", r,
                            tutti_status_text(theirs));
        return theirs;
    }
    return TUTTI_OK;
}

/* All go on, or none does; then nothing of the turn is kept, and the next one begins anew. */
static enum tutti_status vote(struct pg_share *share, enum tutti_status status, int64_t timeout_ms,
                              int *culprit)
{
    memset(share->votes, 0, sizeof share->votes);
    share->votes[share->comm->rank] = (uint64_t)status;
    enum tutti_status result =
        words_gather(share, share->votes, (size_t)share->comm->world_size, timeout_ms);
    if (result == TUTTI_OK)
        result = first_failed(share, share->votes, 1, culprit);
    if (*culprit >= 0)
        turn_drop(share, share->turn);
    return result;
}

/* ---- by mapped memory ------------------------------------------------------------------------ */

static bool any_new(const struct pg_share *share)
{
    bool any = false;
    for (int r = 0; r < share->comm->world_size; r++)
        any |= share->told[r].number != share->settled[r][share->turn];
    return any;
}

/* A rank may leave, and what it has made with it, once all have taken it: hence the vote. */
static enum tutti_status show_mapped(struct pg_share *share, int64_t timeout_ms,
                                     struct pg_shown *shown, int *culprit)
{
    if (any_new(share)) {
        enum tutti_status status = borrow_all(share, timeout_ms);
        status = vote(share, status, timeout_ms, culprit);
        if (status != TUTTI_OK)
            return status;
    }
    for (int r = 0; r < share->comm->world_size; r++) {
        const struct lent *lent = &share->lent[r][share->turn];
        const struct told *told = &share->told[r];
        share->settled[r][share->turn] = told->number;
        shown[r] = (struct pg_shown){lent->base, told->bytes};
        if (told->bytes <= lent->bytes)
            continue;
        *culprit = r;
        return error_set(TUTTI_ERR_MISMATCH,
                         "rank %d shows %" PRIu64 " bytes, but has %zu: it misbehaves", r,
                         told->bytes, lent->bytes);
    }
    return TUTTI_OK;
}

/* ---- along the links ------------------------------------------------------------------------- */

/* Room for all, one after the other, each at the beginning of a line. */
static enum tutti_status gathered_reserve(struct pg_share *share, struct pg_shown *shown,
                                          size_t *bytes)
{
    struct sparse_memory *memory = &share->gathered;
    *bytes = 0;
    for (int r = 0; r < share->comm->world_size; r++) {
        uint64_t size = share->told[r].bytes;
        if (size > (size_t)PTRDIFF_MAX - LAYOUT_LINE - *bytes)
            return error_set(TUTTI_ERR_NO_MEMORY,
                             "the ranks' entries together are more than can be addressed");
        shown[r] = (struct pg_shown){NULL, (size_t)size};
        *bytes += ((size_t)size + LAYOUT_LINE - 1) / LAYOUT_LINE * LAYOUT_LINE;
    }
    if (*bytes > memory->size) {
        sparse_memory_fini(memory);
        memory->bytes = aligned_alloc(LAYOUT_LINE, *bytes);
        if (!memory->bytes)
            return error_errno("aligned_alloc of %zu bytes for the ranks' entries", *bytes);
        memory->size = *bytes;
    }
    return TUTTI_OK;
}

static enum tutti_status show_by_links(struct pg_share *share, int64_t timeout_ms,
                                       struct pg_shown *shown, int *culprit)
{
    size_t bytes;
    const int rank = share->comm->rank;
    enum tutti_status status = gathered_reserve(share, shown, &bytes);
    status = vote(share, status, timeout_ms, culprit);
    if (status != TUTTI_OK)
        return status;
    unsigned char *at = share->gathered.bytes;
    for (int r = 0; r < share->comm->world_size; r++) {
        size_t lines = (shown[r].size + LAYOUT_LINE - 1) / LAYOUT_LINE * LAYOUT_LINE;
        shown[r].bytes = at;
        memset(at, 0, lines);
        if (r == rank && lines)
            share->comm->isa->copy(at, share->lent[rank][share->turn].base, shown[r].size);
        at += lines;
    }
    return words_gather(share, share->gathered.bytes, bytes / sizeof(uint64_t), timeout_ms);
}

enum tutti_status pg_share_show(struct pg_share *share, enum tutti_status status, size_t bytes,
                                int64_t timeout_ms, struct pg_shown *shown, int *culprit)
{
    const int rank = share->comm->rank, size = share->comm->world_size;
    const struct lent *own = &share->lent[rank][share->turn];
    memset(share->told, 0, sizeof share->told);
    share->told[rank] = (struct told){
        .status = (uint64_t)status,
        .bytes = status == TUTTI_OK ? bytes : 0,
        .capacity = own->bytes,
        .number = own->number,
    };
    *culprit = -1;
    status = words_gather(share, share->told, (size_t)size * TOLD_WORDS, timeout_ms);
    if (status != TUTTI_OK)
        return status;
    status = share->comm->cpu.sparse ? show_by_links(share, timeout_ms, shown, culprit)
                                     : show_mapped(share, timeout_ms, shown, culprit);
    share->turn = (share->turn + 1) % TURNS;
    if (status == TUTTI_OK)
        status = first_failed(share, &share->told[0].status, TOLD_WORDS, culprit);
    return status;
}
