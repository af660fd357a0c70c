/* SPDX-License-Identifier: MIT */
/* What other folders ask about a group. */
#include "cpu/transport/group.h"

uint64_t cpu_group_sequence(const void *group)
{
    return order_load_relaxed_u64(&((const struct cpu_group *)group)->op.sequence);
}

void cpu_group_sequence_add(struct cpu_group *group, int count)
{
    /* Relaxed: other threads read it for their reports. */
    order_store_relaxed_u64(&group->op.sequence, group->op.sequence + (uint64_t)(int64_t)count);
}

bool cpu_group_has_failed(const struct cpu_group *group)
{
    return faults_stand(&group->faults);
}

bool cpu_group_is_aborted(const struct cpu_group *group)
{
    return order_load_relaxed_u32(&group->faults.aborted);
}

const struct cpu_ranks *cpu_group_ranks(const struct cpu_group *group)
{
    return &group->ranks;
}

struct layout_arena *cpu_group_arena(const struct cpu_group *group, int rank)
{
    return group->arenas[rank];
}

size_t cpu_group_least_arena(int ranks)
{
    return areas_least(ranks);
}

size_t cpu_group_arena_bytes(const struct cpu_group *group)
{
    return group->areas.arena_bytes;
}

struct cpu_team **cpu_group_team(struct cpu_group *group)
{
    return &group->team;
}
