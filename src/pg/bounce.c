/* SPDX-License-Identifier: MIT */
#include "pg/bounce.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/log.h"
#include "cpu/group.h"
#include "pg/pg.h"

#include <string.h>
#include <time.h>

enum {
    BYTES = PG_SLOTS * PG_SLOT_BYTES,
    LEAVE_MS = 100,
    NAP_NS = 100000,
};

/* Whether no peer uses the buffer any more. After a failure a peer may still be inside an
 * operation. */
static bool is_unused_by_peers(const struct tutti_pg *pg)
{
    struct cpu_group *host = pg->comm->host;
    const int64_t deadline = deadline_after(LEAVE_MS);
    if (tutti_comm_status(pg->comm, NULL) == TUTTI_OK)
        return true;
    while (direct_is_touched(host)) {
        if (deadline_passed(deadline))
            return false;
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
    return true;
}

void pg_bounce_close(struct tutti_pg *pg)
{
    struct pg_bounce *bounce = &pg->bounce;
    if (bounce->block && is_unused_by_peers(pg))
        cuda_block_give(pg->stage, bounce->block);
    else if (bounce->block)
        cuda_block_lose(pg->stage, bounce->block);
    pg->comm->bounce = NULL;
    pg_share_destroy(bounce->share);
}

void pg_bounce_abandon(struct tutti_pg *pg)
{
    pg->bounce.block = NULL;
    pg_share_abandon(pg->bounce.share);
    pg->bounce.share = NULL;
}

enum tutti_status pg_bounce_open(struct tutti_pg *pg, int64_t timeout_ms)
{
    struct pg_bounce *bounce = &pg->bounce;
    struct pg_view views[TUTTI_MAX_RANKS];
    int failed_rank = -1;
    if (bounce->open_tried)
        return TUTTI_OK;
    bounce->open_tried = true;
    enum tutti_status status = cuda_block_take_shared(pg->stage, BYTES, &bounce->block);
    if (status == TUTTI_OK)
        status = pg_share_use_segment(bounce->share, bounce->block->fd, BYTES, timeout_ms);
    status = pg_share_exchange(bounce->share, status, BYTES, timeout_ms, views, &failed_rank);
    if (status != TUTTI_OK && failed_rank < 0)
        return status;
    if (status != TUTTI_OK) {
        log_write(TUTTI_LOG_INFO, pg->comm->rank, "no bounce buffer that ranks share: %s",
                  tutti_last_error());
        pg_share_destroy(bounce->share);
        cuda_block_give(pg->stage, bounce->block);
        bounce->share = NULL;
        bounce->block = NULL;
        return TUTTI_OK;
    }
    for (int r = 0; r < pg->comm->world_size; r++)
        bounce->buffers[r] = (void *)(uintptr_t)views[r].bytes;
    bounce->view = (struct symm_view){
        .id = LAYOUT_BOUNCE,
        .rank = pg->comm->rank,
        .world_size = pg->comm->world_size,
        .buffers = bounce->buffers,
        .buffer_bytes = BYTES,
    };
    pg->comm->bounce = &bounce->view;
    bounce->ready = true;
    return TUTTI_OK;
}

void *pg_bounce_device_address(const struct pg_bounce *bounce, uint64_t slot)
{
    return bounce->block->memory + slot % PG_SLOTS * PG_SLOT_BYTES;
}

void *pg_bounce_host_address(const struct pg_bounce *bounce, uint64_t slot)
{
    char *base = bounce->buffers[bounce->view.rank];
    return base + slot % PG_SLOTS * PG_SLOT_BYTES;
}
