/* SPDX-License-Identifier: MIT */
/* What other rooms ask about the ranks. */
#include "ipc/segment.h"
#include "peers/peers_internal.h"

uint64_t peers_sequence(const void *peers)
{
    return order_load_relaxed_u64(&((const struct peers *)peers)->sequence);
}

void peers_sequence_add(struct peers *peers, int count)
{
    /* Relaxed: other threads read it for their reports. */
    order_store_relaxed_u64(&peers->sequence, peers->sequence + (uint64_t)(int64_t)count);
}

bool peers_have_failed(const struct peers *peers)
{
    return faults_stand(&peers->faults);
}

bool peers_are_aborted(const struct peers *peers)
{
    return order_load_relaxed_u32(&peers->faults.aborted);
}

const struct peers_ranks *peers_ranks(const struct peers *peers)
{
    return &peers->ranks;
}

struct layout_arena *peers_arena(const struct peers *peers, int rank)
{
    return peers->arenas[rank];
}

int peers_arena_nodes(const struct peers *peers, int nodes[NODE_RANKS])
{
    const void *pages[NODE_RANKS];
    for (int r = 0; r < peers->size; r++)
        pages[r] = peers->arenas[r];
    segment_nodes(pages, peers->size, nodes);
    return peers->size;
}

size_t peers_arena_bytes(const struct peers *peers)
{
    return peers->arena_bytes;
}
