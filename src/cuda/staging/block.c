/* SPDX-License-Identifier: MIT */
/*
 * Pinned memory that copies between devices and the host go through, used again and again. Some is
 * a segment that the ranks of other processes can map, too.
 */
#include "base/error.h"
#include "cuda/staging/stage_internal.h"

#include <stdlib.h>
#include <unistd.h>

enum { LEAST_BYTES = 1 << 16 };

static enum tutti_status pinned_alloc(const struct cuda_driver *driver, struct cuda_block *block)
{
    void *memory = NULL;
    enum tutti_status status = cuda_pinned_alloc(driver, block->bytes, &memory);
    block->memory = memory;
    return status;
}

static enum tutti_status segment_pin(const struct cuda_driver *driver, struct cuda_block *block)
{
    struct segment segment;
    enum tutti_status status = segment_create("tutti-bounce", block->bytes, &segment, &block->fd);
    if (status != TUTTI_OK)
        return status;
    status = cuda_check(
        driver,
        driver->mem_host_register(segment.base, segment.bytes,
                                  CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP),
        "cuMemHostRegister");
    if (status == TUTTI_OK) {
        block->memory = segment.base;
        block->bytes = segment.bytes;
        return TUTTI_OK;
    }
    segment_unmap(&segment);
    close(block->fd);
    return status;
}

static enum tutti_status block_make(const struct cuda_stage *stage, size_t bytes, bool shared,
                                    struct cuda_block **block)
{
    struct cuda_visit visit;
    struct cuda_block *made = malloc(sizeof *made);
    if (!made)
        return error_errno("malloc of a block of pinned memory");
    *made = (struct cuda_block){.bytes = bytes, .fd = -1};
    enum tutti_status status = cuda_visit_begin(stage->driver, stage->places[0].context, &visit);
    if (status == TUTTI_OK) {
        cuda_stage_call_begin(stage);
        status = shared ? segment_pin(stage->driver, made) : pinned_alloc(stage->driver, made);
        cuda_stage_call_end(stage);
        cuda_visit_end(stage->driver, &visit);
    }
    if (status == TUTTI_OK)
        *block = made;
    else
        free(made);
    return status == TUTTI_OK ? status : error_context(status, "%zu bytes of pinned memory", bytes);
}

/* The smallest of those that are idle. */
static struct cuda_block *idle_take(struct cuda_stage *stage, size_t bytes, bool shared)
{
    struct cuda_block **best = NULL, *taken = NULL;
    for (struct cuda_block **link = &stage->idle; *link; link = &(*link)->next)
        if (((*link)->fd >= 0) == shared && (*link)->bytes >= bytes &&
            (!best || (*link)->bytes < (*best)->bytes))
            best = link;
    if (best) {
        taken = *best;
        *best = taken->next;
    }
    return taken;
}

enum tutti_status cuda_block_take(struct cuda_stage *stage, size_t bytes, struct cuda_block **block)
{
    size_t size = LEAST_BYTES;
    *block = idle_take(stage, bytes, false);
    if (*block)
        return TUTTI_OK;
    while (size < bytes && size <= SIZE_MAX / 2)
        size *= 2;
    return block_make(stage, size, false, block);
}

enum tutti_status cuda_block_take_shared(struct cuda_stage *stage, size_t bytes,
                                         struct cuda_block **block)
{
    *block = idle_take(stage, bytes, true);
    return *block ? TUTTI_OK : block_make(stage, bytes, true, block);
}

void cuda_block_give(struct cuda_stage *stage, struct cuda_block *block)
{
    if (!block)
        return;
    block->next = stage->idle;
    stage->idle = block;
}

void cuda_block_lose(struct cuda_stage *stage, struct cuda_block *block)
{
    block->next = stage->lost;
    stage->lost = block;
}

void cuda_blocks_find(struct cuda_stage *stage)
{
    struct cuda_block *lost = stage->lost;
    stage->lost = NULL;
    while (lost) {
        struct cuda_block *block = lost;
        lost = block->next;
        if (block->fd < 0)
            cuda_block_give(stage, block);
        else
            cuda_block_lose(stage, block); /* not to copies, but to a peer */
    }
}

static void block_free(const struct cuda_driver *driver, struct cuda_block *block, bool entered)
{
    if (block->fd < 0 && entered)
        driver->mem_host_free(block->memory);
    if (block->fd >= 0 && entered) {
        driver->mem_host_unregister(block->memory);
        segment_unmap(&(struct segment){.base = block->memory, .bytes = block->bytes});
    }
    if (block->fd >= 0)
        close(block->fd);
    free(block);
}

static void list_free(struct cuda_stage *stage, struct cuda_block **list, bool child)
{
    struct cuda_visit visit;
    bool entered = !child && *list &&
                   cuda_visit_begin(stage->driver, stage->places[0].context, &visit) == TUTTI_OK;
    while (*list) {
        struct cuda_block *block = *list;
        *list = block->next;
        block_free(stage->driver, block, entered);
    }
    if (entered)
        cuda_visit_end(stage->driver, &visit);
}

void cuda_blocks_free(struct cuda_stage *stage, bool child)
{
    list_free(stage, &stage->idle, child);
    list_free(stage, &stage->lost, child);
}
