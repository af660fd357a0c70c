/* SPDX-License-Identifier: MIT */
#include "cpu/transport/group.h"

#include "base/deadline.h"
#include "base/invariant.h"
#include "cpu/transport/wait.h"

/* The areas of an arena, and the choices that they allow. */
static struct areas areas_plan(const struct backend_opening *opening,
                               const struct choice_rules *rules, struct cpu_limits *limits)
{
    const size_t most = opening->arena_bytes;
    const int size = opening->size;
    cpu_limits_set(rules, size, opening->oversubscribed, limits);
    const struct areas areas =
        areas_make(most ? most : areas_least(size), size, limits->pushes, opening->oversubscribed);
    limits->pushes = areas.exchange_bytes > 0;
    return areas;
}

size_t cpu_group_least_arena(int ranks)
{
    return areas_least(ranks);
}

size_t cpu_group_most_arena(void)
{
    return AREAS_MOST_ARENA;
}

size_t cpu_group_arena_bytes(const struct backend_opening *opening,
                             const struct choice_rules *rules)
{
    struct cpu_limits limits;
    return areas_plan(opening, rules, &limits).arena_bytes;
}

/* Measures every partner once, before the first operation. Not called with more ranks than cores:
 * a round trip between two ranks of one core takes two switches of the scheduler. */
static enum tutti_status distances_measure(struct cpu_group *group, int64_t deadline)
{
    const struct request request = {.timeout_ms = deadline_left_ms(deadline)};
    enum tutti_status status = TUTTI_OK;
    for (int ranks = 1; ranks < group->peers.size; ranks *= 2)
        if (status == TUTTI_OK)
            status = distance_measure(group, &request);
    return status;
}

struct peers *cpu_group_create(void)
{
    return peers_create(sizeof(struct cpu_group));
}

enum tutti_status cpu_group_open(const struct backend_opening *opening,
                                 const struct choice_rules *rules, struct cpu_group **group)
{
    struct peers *peers = opening->peers;
    struct cpu_group *opened = *group = cpu_group_of(peers);
    opened->areas = areas_plan(opening, rules, &opened->limits);
    invariant(opened->areas.arena_bytes <= peers->arena_bytes);
    if (rules->paths.mesh)
        topology_mesh_role(opening->topology, opening->order, opening->rank, &opened->mesh);
    opened->isa = opening->isa;
    opened->copy_long = reduce_copy_long(opening->isa);
    opened->cache_bytes = reduce_cache_bytes();
    for (int leaf = 0; leaf < peers->size; leaf++)
        opened->order[leaf] = opening->order[leaf];
    peers->operations = &cpu_operations;
    peers->membarrier = bell_prepare(); /* takes 20 ms on machines with many cores */
    return peers->oversubscribed ? TUTTI_OK
                                 : distances_measure(opened, deadline_after(opening->timeout_ms));
}

enum tutti_status cpu_group_open_direct(struct cpu_group *group,
                                        const struct backend_opening *opening)
{
    const enum tutti_status status =
        peers_copies_open(&group->peers, opening->direct, opening->timeout_ms);
    if (status == TUTTI_OK && group->peers.copies.work)
        cpu_limits_set_direct(&group->limits, opening->oversubscribed,
                              LAYOUT_WINDOW * group->areas.message_bytes[0],
                              opening->direct == TUTTI_DIRECT_ON);
    return status;
}

struct cpu_team **cpu_group_team(struct cpu_group *group)
{
    return &group->team;
}
