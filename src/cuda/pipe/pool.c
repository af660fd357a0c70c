/* SPDX-License-Identifier: MIT */
/*
 * Memory that a stage reuses: pinned memory that copies go through, and memory of devices, for
 * results. The group's thread alone takes and gives pinned memory. Any thread with a fence takes
 * and gives results, under the stage's lock, also after the group's end: a stage goes to another
 * group only when all its fences have been given back.
 */
#include "base/error.h"
#include "cuda/pipe/stage_internal.h"

#include <stdlib.h>

enum { LEAST_BYTES = 1 << 16 };

static enum tutti_status memory_make(const struct cuda_driver *driver, struct cuda_block *block)
{
    if (block->device == CUDA_PINNED)
        return cuda_pinned_alloc(driver, block->bytes, CU_MEMHOSTALLOC_PORTABLE, &block->memory);
    CUdeviceptr memory = 0;
    enum tutti_status status = CUDA_CALL(driver, mem_alloc, &memory, block->bytes);
    block->memory = (void *)(uintptr_t)memory;
    return status;
}

static const struct cuda_stage_context *context_of(const struct cuda_stage *stage, int device)
{
    return &stage->contexts[device < 0 ? 0 : cuda_stage_context_of(stage, device)];
}

static enum tutti_status block_make(const struct cuda_stage *stage, int device, size_t bytes,
                                    struct cuda_block **block)
{
    struct cuda_visit visit;
    size_t size = LEAST_BYTES;
    struct cuda_block *made = malloc(sizeof *made);
    if (!made)
        return error_errno("malloc of a block of memory");
    while (size < bytes && size <= SIZE_MAX / 2)
        size *= 2;
    *made = (struct cuda_block){.bytes = size, .device = device};
    enum tutti_status status =
        cuda_visit_begin(stage->driver, context_of(stage, device)->handle, &visit);
    if (status == TUTTI_OK) {
        cuda_stage_call_begin(stage);
        status = memory_make(stage->driver, made);
        cuda_stage_call_end(stage);
        cuda_visit_end(stage->driver, &visit);
    }
    if (status == TUTTI_OK) {
        *block = made;
        return TUTTI_OK;
    }
    free(made);
    return device < 0 ? error_context(status, "%zu bytes of pinned memory", size)
                      : error_context(status, "%zu bytes of device %d", size, device);
}

/* Takes the smallest block of the list that has `bytes`; NULL if there is none. */
static struct cuda_block *list_take(struct cuda_block **list, int device, size_t bytes)
{
    struct cuda_block **best = NULL, *taken = NULL;
    for (struct cuda_block **link = list; *link; link = &(*link)->next)
        if ((*link)->device == device && (*link)->bytes >= bytes &&
            (!best || (*link)->bytes < (*best)->bytes))
            best = link;
    if (best) {
        taken = *best;
        *best = taken->next;
    }
    return taken;
}

static void list_give(struct cuda_block **list, struct cuda_block *block)
{
    block->next = *list;
    *list = block;
}

enum tutti_status cuda_block_take(struct cuda_stage *stage, size_t bytes, struct cuda_block **block)
{
    *block = list_take(&stage->idle, CUDA_PINNED, bytes);
    return *block ? TUTTI_OK : block_make(stage, CUDA_PINNED, bytes, block);
}

void cuda_block_give(struct cuda_stage *stage, struct cuda_block *block)
{
    if (block)
        list_give(&stage->idle, block);
}

void cuda_block_lose(struct cuda_stage *stage, struct cuda_block *block)
{
    list_give(&stage->lost, block);
}

void cuda_blocks_find(struct cuda_stage *stage)
{
    struct cuda_block *block = list_take(&stage->lost, CUDA_PINNED, 0);
    for (; block; block = list_take(&stage->lost, CUDA_PINNED, 0))
        list_give(&stage->idle, block);
}

enum tutti_status cuda_result_take(struct cuda_stage *stage, int device, size_t bytes,
                                   struct cuda_block **result)
{
    pthread_mutex_lock(&stage->lock);
    *result = list_take(&stage->results, device, bytes);
    pthread_mutex_unlock(&stage->lock);
    return *result ? TUTTI_OK : block_make(stage, device, bytes, result);
}

void cuda_result_give(struct cuda_stage *stage, struct cuda_block *result)
{
    if (!result)
        return;
    pthread_mutex_lock(&stage->lock);
    list_give(&stage->results, result);
    pthread_mutex_unlock(&stage->lock);
}

static void list_free(struct cuda_block **list)
{
    while (*list) {
        struct cuda_block *block = *list;
        *list = block->next;
        free(block);
    }
}

void cuda_blocks_free(struct cuda_stage *stage)
{
    list_free(&stage->idle);
    list_free(&stage->lost);
    list_free(&stage->results);
}
