/* SPDX-License-Identifier: MIT */
#include "pg/share.h"

#include "base/error.h"
#include "cpu/group.h"
#include "ipc/channel.h"
#include "ipc/segment.h"
#include "pg/pg.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUFFERS = 2 };

/* One of a rank's segments. `base` is NULL if there is none. */
struct rank_segment {
    void *base;
    size_t bytes;
    uint64_t number; /* among the segments that its rank has made, from 1 */
};

/* What a rank tells the others in an exchange. */
struct share_header {
    uint64_t status;
    uint64_t bytes;
    uint64_t capacity;
    uint64_t number;
};

enum { HEADER_WORDS = sizeof(struct share_header) / sizeof(uint64_t) };

struct pg_share {
    struct tutti_comm *comm;
    enum pg_share_use use;
    int current;
    uint64_t created; /* segments that this rank has made */
    struct rank_segment segments[TUTTI_MAX_RANKS][BUFFERS];
    uint64_t mapped_numbers[TUTTI_MAX_RANKS]
                           [BUFFERS]; /* the numbers of the segments that all ranks have mapped */
    struct share_header headers[TUTTI_MAX_RANKS];
    uint64_t statuses[TUTTI_MAX_RANKS];
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
    return rank_set_has(cpu_group_ranks(share->comm->host)->remote, rank);
}

/* The key by which other threads of this process find a rank's segment. All threads have the rank's
 * arena at the same address. It is aligned to a cache line, so adding `use` keeps the keys of
 * different purposes apart. */
static void key_make(const struct pg_share *share, int rank, uint64_t number, uint8_t *key)
{
    const uint64_t words[2] = {(uintptr_t)cpu_group_arena(share->comm->host, rank) + share->use,
                               number};
    memcpy(key, words, sizeof words);
}

static void segment_drop(const struct pg_share *share, int rank, struct rank_segment *mapping)
{
    if (mapping->base && is_remote(share, rank))
        segment_unmap(&(struct segment){.base = mapping->base, .bytes = mapping->bytes});
    else if (mapping->base)
        local_release(mapping->base);
    *mapping = (struct rank_segment){0};
}

/* Called once no rank reads these segments any more. */
static void buffer_drop(struct pg_share *share, int buffer)
{
    for (int r = 0; r < share->comm->world_size; r++) {
        segment_drop(share, r, &share->segments[r][buffer]);
        share->mapped_numbers[r][buffer] = 0;
    }
}

void pg_share_destroy(struct pg_share *share)
{
    if (!share)
        return;
    for (int buffer = 0; buffer < BUFFERS; buffer++)
        buffer_drop(share, buffer);
    free(share);
}

void pg_share_abandon(struct pg_share *share)
{
    free(share);
}

/* Send the descriptor to the ranks of other processes. A rank that does not receive it would wait
 * for it, so a failure fails the group. */
static enum tutti_status send_to_peers(struct pg_share *share, int fd, int64_t timeout_ms)
{
    struct channel *channel = cpu_group_ranks(share->comm->host)->channel;
    for (int r = 0; r < share->comm->world_size; r++) {
        if (!is_remote(share, r))
            continue;
        enum tutti_status status = channel_send_fd(channel, r, fd, timeout_ms);
        if (status != TUTTI_OK)
            return pg_comm_fail(share->comm, status, r);
    }
    return TUTTI_OK;
}

/* Takes over the segment. */
static enum tutti_status segment_publish(struct pg_share *share, struct segment *segment, int fd,
                                         int64_t timeout_ms)
{
    const int rank = share->comm->rank;
    uint8_t key[16];
    key_make(share, rank, ++share->created, key);
    enum tutti_status status = local_publish(key, rank, segment);
    if (status != TUTTI_OK) {
        segment_unmap(segment);
        return status;
    }
    share->segments[rank][share->current] =
        (struct rank_segment){segment->base, segment->bytes, share->created};
    return send_to_peers(share, fd, timeout_ms);
}

enum tutti_status pg_share_reserve(struct pg_share *share, size_t bytes, int64_t timeout_ms,
                                   void **memory)
{
    const int rank = share->comm->rank;
    struct rank_segment *own = &share->segments[rank][share->current];
    struct segment segment;
    int fd;
    *memory = own->base;
    if (own->base && bytes <= own->bytes)
        return TUTTI_OK;

    segment_drop(share, rank, own);
    size_t room = bytes + bytes / 4; /* the next exchange often needs a little more */
    enum tutti_status status = segment_create("tutti-share", room, &segment, &fd);
    if (status != TUTTI_OK)
        return status;
    status = segment_publish(share, &segment, fd, timeout_ms);
    *memory = own->base;
    close(fd);
    return status;
}

enum tutti_status pg_share_use_segment(struct pg_share *share, int fd, size_t bytes,
                                       int64_t timeout_ms)
{
    struct segment segment;
    enum tutti_status status = segment_map(fd, bytes, &segment);
    return status == TUTTI_OK ? segment_publish(share, &segment, fd, timeout_ms) : status;
}

/* Map the new segment of another rank. */
static enum tutti_status segment_attach(struct pg_share *share, int rank,
                                        const struct share_header *header, int64_t timeout_ms)
{
    struct rank_segment *mapping = &share->segments[rank][share->current];
    struct segment segment;
    uint8_t key[16];
    int fd;
    segment_drop(share, rank, mapping);
    if (header->number == 0)
        return TUTTI_OK;
    if (!is_remote(share, rank)) {
        key_make(share, rank, header->number, key);
        *mapping =
            (struct rank_segment){local_acquire(key, rank), header->capacity, header->number};
        return mapping->base
                   ? TUTTI_OK
                   : error_set(TUTTI_ERR_SYSTEM,
                               "rank %d is of this process but has published no segment here",
                               rank);
    }
    enum tutti_status status =
        channel_recv_fd(cpu_group_ranks(share->comm->host)->channel, rank, &fd, timeout_ms);
    if (status != TUTTI_OK)
        return status;
    status = segment_map(fd, header->capacity, &segment);
    close(fd);
    if (status == TUTTI_OK)
        *mapping = (struct rank_segment){segment.base, segment.bytes, header->number};
    return status == TUTTI_OK ? TUTTI_OK : error_context(status, "the segment of rank %d", rank);
}

/* Map all new segments. Continues after a failure, so that all descriptors that were sent are
 * received. */
static enum tutti_status attach_new(struct pg_share *share, int64_t timeout_ms)
{
    enum tutti_status first = TUTTI_OK;
    for (int r = 0; r < share->comm->world_size; r++) {
        const struct share_header *header = &share->headers[r];
        if (r == share->comm->rank || header->number == share->mapped_numbers[r][share->current])
            continue;
        enum tutti_status status = segment_attach(share, r, header, timeout_ms);
        if (first == TUTTI_OK)
            first = status;
    }
    return first;
}

/* ---- all-reduces of words -------------------------------------------------------------------- */

/* Collect the words that each rank has set; each rank's words are zero on the other ranks. */
static enum tutti_status words_gather(struct pg_share *share, void *words, size_t count,
                                      int64_t timeout_ms)
{
    return comm_all_reduce(share->comm, words, count, TUTTI_UINT64, TUTTI_BOR, timeout_ms);
}

/* Return the first status that is not OK, in rank order. */
static enum tutti_status first_failed(struct pg_share *share, const uint64_t *status, size_t stride,
                                      int *failed_rank)
{
    for (int r = 0; r < share->comm->world_size; r++) {
        enum tutti_status theirs = (enum tutti_status)status[(size_t)r * stride];
        if (theirs == TUTTI_OK)
            continue;
        *failed_rank = r;
        if (r != share->comm->rank)
            (void)error_set(theirs, "rank %d failed (%s): see its own error message", r,
                            tutti_status_text(theirs));
        return theirs;
    }
    return TUTTI_OK;
}

/* Agree on a status: all ranks go on, or none does. If none does, all segments of this exchange are
 * dropped, and the next exchange that uses them makes new ones. */
static enum tutti_status agree_status(struct pg_share *share, enum tutti_status status,
                                      int64_t timeout_ms, int *failed_rank)
{
    memset(share->statuses, 0, sizeof share->statuses);
    share->statuses[share->comm->rank] = (uint64_t)status;
    enum tutti_status result =
        words_gather(share, share->statuses, (size_t)share->comm->world_size, timeout_ms);
    if (result == TUTTI_OK)
        result = first_failed(share, share->statuses, 1, failed_rank);
    if (*failed_rank >= 0)
        buffer_drop(share, share->current);
    return result;
}

/* ---- the exchange ---------------------------------------------------------------------------- */

static bool any_new(const struct pg_share *share)
{
    bool any = false;
    for (int r = 0; r < share->comm->world_size; r++)
        any |= share->headers[r].number != share->mapped_numbers[r][share->current];
    return any;
}

/* A rank may leave, and its segments with it, once all ranks have mapped them. So the ranks agree
 * on that first. */
static enum tutti_status exchange_mapped(struct pg_share *share, int64_t timeout_ms,
                                         struct pg_view *views, int *failed_rank)
{
    if (any_new(share)) {
        enum tutti_status status = attach_new(share, timeout_ms);
        status = agree_status(share, status, timeout_ms, failed_rank);
        if (status != TUTTI_OK)
            return status;
    }
    for (int r = 0; r < share->comm->world_size; r++) {
        const struct rank_segment *mapping = &share->segments[r][share->current];
        const struct share_header *header = &share->headers[r];
        share->mapped_numbers[r][share->current] = header->number;
        views[r] = (struct pg_view){mapping->base, header->bytes};
        if (header->bytes <= mapping->bytes)
            continue;
        *failed_rank = r;
        return error_set(TUTTI_ERR_MISMATCH,
                         "rank %d offers %" PRIu64 " bytes of a segment of %zu: it misbehaves", r,
                         header->bytes, mapping->bytes);
    }
    return TUTTI_OK;
}

enum tutti_status pg_share_exchange(struct pg_share *share, enum tutti_status status, size_t bytes,
                                    int64_t timeout_ms, struct pg_view *views, int *failed_rank)
{
    const int rank = share->comm->rank, size = share->comm->world_size;
    const struct rank_segment *own = &share->segments[rank][share->current];
    memset(share->headers, 0, sizeof share->headers);
    share->headers[rank] = (struct share_header){
        .status = (uint64_t)status,
        .bytes = status == TUTTI_OK ? bytes : 0,
        .capacity = own->bytes,
        .number = own->number,
    };
    *failed_rank = -1;
    status = words_gather(share, share->headers, (size_t)size * HEADER_WORDS, timeout_ms);
    if (status != TUTTI_OK)
        return status;
    status = exchange_mapped(share, timeout_ms, views, failed_rank);
    share->current = (share->current + 1) % BUFFERS;
    if (status == TUTTI_OK)
        status = first_failed(share, &share->headers[0].status, HEADER_WORDS, failed_rank);
    return status;
}
