/* SPDX-License-Identifier: MIT */
#include "pg/share.h"

#include "base/error.h"
#include "base/fd.h"
#include "cpu/group.h"
#include "ipc/channel.h"
#include "ipc/segment.h"
#include "pg/pg.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUFFERS = 2 };

/* What a rank tells the others in an exchange. */
struct share_header {
    uint64_t status;
    uint64_t bytes;
    uint64_t capacity; /* bytes of the segment */
    /* 1 + the descriptor of a new segment, which the others have to map; 0: there is none. Ranks of
     * other processes receive the descriptor through the channel. */
    uint64_t descriptor;
};

enum { HEADER_WORDS = sizeof(struct share_header) / sizeof(uint64_t) };

struct pg_share {
    struct tutti_comm *comm;
    int current;
    int fd; /* of the own current segment if the others have not mapped it; else -1 */
    struct segment segments[TUTTI_MAX_RANKS][BUFFERS];
    struct share_header headers[TUTTI_MAX_RANKS];
};

struct pg_share *pg_share_create(struct tutti_comm *comm)
{
    struct pg_share *share = calloc(1, sizeof *share);
    if (!share)
        return NULL;
    share->comm = comm;
    share->fd = -1;
    return share;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static bool is_remote(const struct pg_share *share, int rank)
{
    return rank_set_has(cpu_group_ranks(share->comm->host)->remote, rank);
}

/* Called once no rank reads these segments any more. */
static void buffer_drop(struct pg_share *share, int buffer)
{
    for (int r = 0; r < share->comm->world_size; r++)
        segment_unmap(&share->segments[r][buffer]);
}

static void fd_close(struct pg_share *share)
{
    if (share->fd >= 0)
        close(share->fd);
    share->fd = -1;
}

void pg_share_destroy(struct pg_share *share)
{
    if (!share)
        return;
    for (int buffer = 0; buffer < BUFFERS; buffer++)
        buffer_drop(share, buffer);
    fd_close(share);
    free(share);
}

/* Send the descriptor to the ranks of other processes. A rank that does not receive it would wait
 * for it, so a failure fails the group. */
static enum tutti_status send_to_peers(struct pg_share *share, int64_t timeout_ms)
{
    struct channel *channel = cpu_group_ranks(share->comm->host)->channel;
    for (int r = 0; r < share->comm->world_size; r++) {
        if (!is_remote(share, r))
            continue;
        enum tutti_status status = channel_send_fd(channel, r, share->fd, timeout_ms);
        if (status != TUTTI_OK)
            return pg_comm_fail(share->comm, status, r);
    }
    return TUTTI_OK;
}

enum tutti_status pg_share_reserve(struct pg_share *share, size_t bytes, int64_t timeout_ms,
                                   void **memory)
{
    struct segment *own = &share->segments[share->comm->rank][share->current];
    enum tutti_status status = TUTTI_OK;
    if (!own->base || bytes > own->bytes) {
        segment_unmap(own);
        size_t room = bytes + bytes / 4; /* the next exchange often needs a little more */
        status = segment_create("tutti-share", room, own, &share->fd);
        if (status == TUTTI_OK)
            status = send_to_peers(share, timeout_ms);
    }
    *memory = own->base;
    return status;
}

enum tutti_status pg_share_use_segment(struct pg_share *share, int fd, size_t bytes,
                                       int64_t timeout_ms)
{
    struct segment *own = &share->segments[share->comm->rank][share->current];
    enum tutti_status status = segment_map(fd, bytes, own);
    if (status != TUTTI_OK)
        return status;
    share->fd = fd_lift(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    return share->fd >= 0 ? send_to_peers(share, timeout_ms) : error_errno("fcntl of a segment");
}

/* Map the new segment of another rank. */
static enum tutti_status segment_attach(struct pg_share *share, int rank, int64_t timeout_ms)
{
    const struct share_header *header = &share->headers[rank];
    struct segment *mapping = &share->segments[rank][share->current];
    const bool remote = is_remote(share, rank);
    int fd = (int)header->descriptor - 1;
    enum tutti_status status = TUTTI_OK;
    segment_unmap(mapping);
    if (remote)
        status =
            channel_recv_fd(cpu_group_ranks(share->comm->host)->channel, rank, &fd, timeout_ms);
    if (status != TUTTI_OK)
        return status;
    status = segment_map(fd, header->capacity, mapping);
    if (remote)
        close(fd);
    return status == TUTTI_OK ? TUTTI_OK : error_context(status, "the segment of rank %d", rank);
}

/* Map all new segments. Continues after a failure, so that all descriptors that were sent are
 * received. */
static enum tutti_status attach_new(struct pg_share *share, int64_t timeout_ms)
{
    enum tutti_status first = TUTTI_OK;
    for (int r = 0; r < share->comm->world_size; r++) {
        if (r == share->comm->rank || !share->headers[r].descriptor)
            continue;
        enum tutti_status status = segment_attach(share, r, timeout_ms);
        if (first == TUTTI_OK)
            first = status;
    }
    return first;
}

/* ---- the exchange ---------------------------------------------------------------------------- */

/* Some ranks of a hybrid cube mesh are not linked, so it has no all-gather: there the headers,
 * which are zero except the own one, are reduced. */
static enum tutti_status headers_gather(struct pg_share *share, int64_t timeout_ms)
{
    const int rank = share->comm->rank, size = share->comm->world_size;
    const struct share_header own = share->headers[rank];
    struct coll_args args = coll_args_make(&share->headers[rank], share->headers, HEADER_WORDS,
                                           TUTTI_UINT64, TUTTI_BOR, 0);
    enum tutti_collective collective = TUTTI_COLLECTIVE_ALL_GATHER;
    if (!share->comm->rules.paths.all) {
        memset(share->headers, 0, sizeof share->headers);
        share->headers[rank] = own;
        args.send = share->headers;
        args.count *= (size_t)size;
        collective = TUTTI_COLLECTIVE_ALL_REDUCE;
    }
    return comm_run(share->comm, collective, &args, timeout_ms, TUTTI_STREAM_DEFAULT);
}

/* Exchange the headers, with the status of this rank. Return the first status that is not OK, in
 * rank order, or the fault of the communicator. */
static enum tutti_status agree_status(struct pg_share *share, enum tutti_status status,
                                      int64_t timeout_ms, int *failed_rank)
{
    share->headers[share->comm->rank].status = (uint64_t)status;
    status = headers_gather(share, timeout_ms);
    for (int r = 0; r < share->comm->world_size && status == TUTTI_OK; r++) {
        status = (enum tutti_status)share->headers[r].status;
        if (status == TUTTI_OK)
            continue;
        *failed_rank = r;
        if (r != share->comm->rank)
            (void)error_set(status, "rank %d failed (%s): look at its own error", r,
                            tutti_status_text(status));
    }
    return status;
}

static enum tutti_status views_make(const struct pg_share *share, struct pg_view *views,
                                    int *failed_rank)
{
    for (int r = 0; r < share->comm->world_size; r++) {
        const struct segment *mapping = &share->segments[r][share->current];
        const uint64_t bytes = share->headers[r].bytes;
        views[r] = (struct pg_view){mapping->base, bytes};
        if (bytes <= mapping->bytes)
            continue;
        *failed_rank = r;
        return error_set(TUTTI_ERR_MISMATCH,
                         "rank %d offers %" PRIu64 " bytes of a segment of %zu: it misbehaves", r,
                         bytes, mapping->bytes);
    }
    return TUTTI_OK;
}

enum tutti_status pg_share_exchange(struct pg_share *share, enum tutti_status status, size_t bytes,
                                    int64_t timeout_ms, struct pg_view *views, int *failed_rank)
{
    const int rank = share->comm->rank;
    uint64_t any_new = 0;
    share->headers[rank] = (struct share_header){
        .bytes = status == TUTTI_OK ? bytes : 0,
        .capacity = share->segments[rank][share->current].bytes,
        .descriptor = (uint64_t)(share->fd + 1),
    };
    *failed_rank = -1;
    status = agree_status(share, status, timeout_ms, failed_rank);
    if (status != TUTTI_OK && *failed_rank < 0)
        return status;
    /* A rank may leave, and its segments with it, once all ranks have mapped them. So the ranks
     * agree on that. If a rank could not map one, all drop the segments of this exchange, and the
     * next exchange that uses them makes new ones. */
    for (int r = 0; r < share->comm->world_size; r++)
        any_new |= share->headers[r].descriptor;
    if (any_new) {
        int unmapped_rank = -1;
        enum tutti_status mapped = attach_new(share, timeout_ms);
        mapped = agree_status(share, mapped, timeout_ms, &unmapped_rank);
        fd_close(share);
        if (unmapped_rank >= 0)
            buffer_drop(share, share->current);
        if (mapped != TUTTI_OK && status == TUTTI_OK) {
            status = mapped;
            *failed_rank = unmapped_rank;
        }
    }
    if (status == TUTTI_OK)
        status = views_make(share, views, failed_rank);
    share->current = (share->current + 1) % BUFFERS;
    return status;
}
