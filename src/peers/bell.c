/* SPDX-License-Identifier: MIT */
/*
 * A sleeper must not miss a wake-up, and the waker must not pay for a fence.
 *
 * The sleeper adds itself to `sleepers`, then reads the word again. The waker writes the word, then
 * reads `sleepers`. Each side stores, then loads, so at least one side needs a full fence. The
 * waker is on the fast path, so the sleeper calls membarrier(), which runs a fence on every core
 * that runs a registered process. Where the kernel lacks membarrier(), a sleeper wakes after short
 * slices instead.
 */
#include "peers/bell.h"

#include "ipc/futex.h"

#include <linux/membarrier.h>

enum { SLICE_MS = 50, SHORT_SLICE_MS = 1 };

bool bell_prepare(void)
{
    return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
}

void bell_ring(struct peers *peers)
{
    order_fetch_add_u32(&peers->own->bell, 1); /* W1 pairs A5 */
    futex_wake_all(&peers->own->bell);
}

static void ring_all(struct peers *peers)
{
    bell_ring(peers);
    for (int r = 0; r < peers->size; r++)
        if (r != peers->rank)
            futex_wake_all(&peers->arenas[r]->bell);
}

void bell_ring_all(struct peers *peers)
{
    ring_all(peers);
    for (struct peers *part = peers->part; part && !peers->whole; part = part->part)
        ring_all(part);
}

void bell_sleep(struct peers *peers, int peer, const uint32_t *word, uint32_t value,
                int64_t left_ms)
{
    struct layout_arena *arena = peers->arenas[peer];
    int64_t slice = peers->membarrier && !peers->progress_often ? SLICE_MS : SHORT_SLICE_MS;
    if (left_ms >= 0 && left_ms < slice)
        slice = left_ms;

    uint32_t bell = order_load_acquire_u32(&arena->bell); /* A5 pairs W1 */
    order_fetch_add_u32(&arena->sleepers, 1);
    if (peers->membarrier)
        syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
    const uint32_t *aborted = &peers_whole(peers)->faults.aborted;
    if (order_load_acquire_u32(word) != value && !order_load_relaxed_u32(aborted))
        futex_sleep(&arena->bell, bell, slice);
    order_fetch_add_u32(&arena->sleepers, (uint32_t)-1);
}
