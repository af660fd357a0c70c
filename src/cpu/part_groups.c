/* SPDX-License-Identifier: MIT */
#include "cpu/algo/parts.h"

#include "base/error.h"
#include "peers/part.h"

#include <stdlib.h>

enum { PARTS_MOST = 64, PART_ARENA_BYTES = 1 << 20 };

/* How many parts an operation has at most; below 2: it is not cut. */
static int most_parts(const struct backend_opening *opening)
{
    if (opening->size < 2 || !opening->rules->paths.all)
        return 0;
    return opening->parts < PARTS_MOST ? opening->parts : PARTS_MOST;
}

static size_t arena_bytes(const struct backend_opening *opening)
{
    const size_t least = cpu_group_least_arena(opening->size);
    const size_t most =
        opening->arena_bytes < PART_ARENA_BYTES ? opening->arena_bytes : (size_t)PART_ARENA_BYTES;
    return most > least ? most : least;
}

size_t parts_arenas_bytes(const struct backend_opening *opening)
{
    const int count = most_parts(opening);
    return count > 1 ? (size_t)count * arena_bytes(opening) : 0;
}

static enum tutti_status part_open(const struct backend_opening *opening, size_t offset,
                                   struct cpu_group *whole, struct part *part)
{
    const size_t bytes = arena_bytes(opening);
    struct backend_opening own = *opening;
    own.arena_bytes = bytes;
    own.peers = cpu_group_create();
    part->state = malloc(CPU_STATE_BYTES);
    if (own.peers)
        part->group = cpu_group_of(own.peers);
    if (!own.peers || !part->state)
        return error_set(TUTTI_ERR_NO_MEMORY, "no memory for the groups of %d threads",
                         opening->parts);
    peers_part(&whole->peers, offset, bytes, opening->parts_crowded, own.peers);
    return cpu_group_open(&own, opening->rules, &part->group);
}

enum tutti_status parts_open(const struct backend_opening *opening, size_t offset,
                             struct cpu_group *group)
{
    const size_t bytes = arena_bytes(opening);
    const int count = most_parts(opening);
    enum tutti_status status = TUTTI_OK;
    if (count < 2)
        return TUTTI_OK;
    group->parts = calloc(1, sizeof *group->parts + (size_t)count * sizeof *group->parts->part);
    if (!group->parts)
        return error_set(TUTTI_ERR_NO_MEMORY, "no memory for %d parts of operations", count);
    group->parts->parallel = opening->parallel;
    group->parts->context = opening->parallel_context;
    group->parts->threads = opening->threads;
    for (int i = 0; i < count && status == TUTTI_OK; i++, group->parts->count++)
        status = part_open(opening, offset + (size_t)i * bytes, group, &group->parts->part[i]);
    if (status != TUTTI_OK)
        parts_close(group);
    return status;
}

void parts_close(struct cpu_group *group)
{
    for (int i = 0; group->parts && i < group->parts->count; i++) {
        peers_free(group->parts->part[i].group ? &group->parts->part[i].group->peers : NULL);
        free(group->parts->part[i].state);
    }
    free(group->parts);
    group->parts = NULL;
    group->peers.part = NULL;
}
