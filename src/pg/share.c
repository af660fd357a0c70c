/* SPDX-License-Identifier: MIT */
#include "pg/share.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/point.h"
#include "ipc/segment.h"
#include "peers/segments.h"
#include "pg/pg.h"
#include "store/status_agree.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUFFERS = 2 };

/* What a rank tells the others in an exchange. */
struct share_header {
    uint64_t bytes;
    uint64_t capacity;   /* bytes of the segment */
    uint64_t descriptor; /* 1 + that of a new segment, which the others have to map; 0: none */
};

/* A header with the rank's status: struct gather's `terse`. */
enum { ROW_WORDS = 1 + sizeof(struct share_header) / sizeof(uint64_t) };

struct pg_share {
    struct tutti_comm *comm;
    int current;
    struct segment gathered[BUFFERS]; /* of ranks of several hosts: the bytes of all */
    int fd; /* of the own current segment if the others have not mapped it; else -1 */
    struct segment segments[WORLD_RANKS][BUFFERS];
    struct share_header headers[WORLD_RANKS];
    struct gather gather;
    uint64_t rows[WORLD_RANKS * ROW_WORDS];
};

/* struct gather's run(). Some ranks of a hybrid cube mesh are not linked, so it has no all-gather:
 * there all rows, which are zero except the own one, are reduced. */
static enum tutti_status share_gather(void *context, const void *own, size_t bytes, void *all,
                                      int64_t timeout_ms)
{
    struct tutti_comm *comm = context;
    const size_t before = (size_t)comm->rank * bytes, total = (size_t)comm->world_size * bytes;
    struct coll_args args =
        coll_args_make(own, all, bytes / sizeof(uint64_t), TUTTI_UINT64, TUTTI_BOR, 0);
    enum tutti_collective collective = TUTTI_COLLECTIVE_ALL_GATHER;
    if (!comm->rules.paths.all) {
        memset(all, 0, before);
        memset((char *)all + before + bytes, 0, total - before - bytes);
        args.send = all;
        args.count = total / sizeof(uint64_t);
        collective = TUTTI_COLLECTIVE_ALL_REDUCE;
    }
    return comm_run(comm, collective, &args, timeout_ms, TUTTI_STREAM_DEFAULT);
}

struct pg_share *pg_share_create(struct tutti_comm *comm)
{
    struct pg_share *share = calloc(1, sizeof *share);
    if (!share)
        return NULL;
    share->comm = comm;
    share->fd = -1;
    share->gather = (struct gather){.run = share_gather,
                                    .context = comm,
                                    .rank = comm->rank,
                                    .size = comm->world_size,
                                    .rows = share->rows,
                                    .terse = true};
    return share;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Called once no rank reads these segments any more. */
static void buffer_drop(struct pg_share *share, int buffer)
{
    for (int r = 0; r < share->comm->world_size; r++)
        segment_unmap(&share->segments[r][buffer]);
    segment_unmap(&share->gathered[buffer]);
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

enum tutti_status pg_share_reserve(struct pg_share *share, size_t bytes, void **memory)
{
    struct segment *own = &share->segments[share->comm->rank][share->current];
    enum tutti_status status = TUTTI_OK;
    if (!own->base || bytes > own->bytes) {
        segment_unmap(own);
        size_t room = bytes + bytes / 4; /* the next exchange often needs a little more */
        status = segment_create("tutti-share", room, own, &share->fd);
    }
    *memory = own->base;
    return status;
}

/* Map the new segment of another rank. */
static enum tutti_status segment_attach(void *context, int rank, int fd)
{
    struct pg_share *share = context;
    struct segment *mapping = &share->segments[rank][share->current];
    segment_unmap(mapping);
    enum tutti_status status = segment_map(fd, share->headers[rank].capacity, mapping);
    return status == TUTTI_OK ? TUTTI_OK : error_context(status, "the segment of rank %d", rank);
}

/* ---- several hosts -------------------------------------------------------------------------- */

static size_t line_round(size_t bytes)
{
    return (bytes + LAYOUT_LINE - 1) / LAYOUT_LINE * LAYOUT_LINE;
}

/* Gather the bytes of all ranks. */
static enum tutti_status bytes_gather(struct pg_share *share, int64_t timeout_ms,
                                      struct pg_view *views)
{
    struct tutti_comm *comm = share->comm;
    struct segment *gathered = &share->gathered[share->current];
    size_t counts[WORLD_RANKS], displacements[WORLD_RANKS], total = 0;
    int fd = -1;
    for (int r = 0; r < comm->world_size; r++) {
        counts[r] = share->headers[r].bytes;
        displacements[r] = total;
        total += line_round(counts[r]);
    }
    enum tutti_status status = TUTTI_OK;
    if (total > gathered->bytes) {
        segment_unmap(gathered);
        status = segment_create("tutti-share", total + total / 4, gathered, &fd);
    }
    if (fd >= 0)
        close(fd);
    status = status_agree(&share->gather, status, timeout_ms);
    struct coll_args args = coll_args_make(share->segments[comm->rank][share->current].base,
                                           gathered->base, 0, TUTTI_UINT8, NULL, 0);
    args.count = counts[comm->rank];
    args.recv_blocks = (struct coll_blocks){.counts = counts, .displacements = displacements};
    if (status == TUTTI_OK)
        status =
            comm_run(comm, TUTTI_COLLECTIVE_ALL_GATHER_V, &args, timeout_ms, TUTTI_STREAM_DEFAULT);
    for (int r = 0; r < comm->world_size && status == TUTTI_OK; r++)
        views[r] = (struct pg_view){(unsigned char *)gathered->base + displacements[r], counts[r]};
    return status;
}

/* ---- the exchange ---------------------------------------------------------------------------- */

/* Exchange the headers, with the status of this rank. */
static enum tutti_status headers_exchange(struct pg_share *share, enum tutti_status status,
                                          size_t bytes, int64_t timeout_ms)
{
    const struct share_header own = {
        .bytes = bytes,
        .capacity = share->segments[share->comm->rank][share->current].bytes,
        .descriptor = (uint64_t)(share->fd + 1),
    };
    status = gather_agree(&share->gather, status, &own, sizeof own, timeout_ms);
    for (int r = 0; r < share->comm->world_size; r++)
        gather_value(&share->gather, r, &share->headers[r], sizeof own);
    return status;
}

/* Map all new segments. A rank may leave, and its segments with it, once all ranks have mapped
 * them. So the ranks agree on that. */
static enum tutti_status new_attach(struct pg_share *share, int64_t timeout_ms)
{
    int fds[NODE_RANKS];
    bool any_new = false;
    for (int r = 0; r < share->comm->world_size; r++) {
        fds[r] = (int)share->headers[r].descriptor - 1;
        any_new |= fds[r] >= 0;
    }
    if (!any_new)
        return TUTTI_OK;
    const enum tutti_status status = segments_exchange(share->comm->peers, fds, segment_attach,
                                                       share, deadline_after(timeout_ms));
    return status_agree(&share->gather, status, timeout_ms);
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
    status = headers_exchange(share, status, bytes, timeout_ms);
    POINT("share.headers");
    const bool hosts = share->comm->hosts.group;
    if (status == TUTTI_OK)
        status = hosts ? bytes_gather(share, timeout_ms, views) : new_attach(share, timeout_ms);
    *failed_rank = share->gather.blamed;
    /* After a failure all ranks drop the segments of this exchange, and the next exchange that uses
     * them makes new ones. */
    if (status != TUTTI_OK)
        buffer_drop(share, share->current);
    fd_close(share);
    if (status == TUTTI_OK && !hosts)
        status = views_make(share, views, failed_rank);
    share->current = (share->current + 1) % BUFFERS;
    return status;
}
