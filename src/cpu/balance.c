/* SPDX-License-Identifier: MIT */
#include "cpu/balance.h"

#include "order.h"

enum {
    LOOK_NS = 1000000,    /* between two looks, of about 1 us each */
    FRESH_NS = 4000000,   /* after a longer pause the others may be elsewhere than they said */
    MOVE_NS = 10000000,   /* between two moves, of some 50 us each */
    CROWDED_NS = 1000000, /* ranks that wait give the core back within microseconds */
    TRIAL_NS = 20000000,  /* after a move */
    LEAST_REST_MS = 100,  /* after one that was taken back; doubles until one lasts */
    MOST_REST_MS = 51200,
    PLENTY = 4, /* cores a rank */
};

int balance_target(const int *cores, int size, int rank, const cpu_set_t *allowed)
{
    unsigned char ranks[CPU_SETSIZE] = {0};
    int own = cores[rank], target = -1;
    if (own < 0 || own >= CPU_SETSIZE)
        return -1;
    for (int r = 0; r < size; r++) {
        if (cores[r] == own && r > rank)
            return -1;
        if (cores[r] >= 0 && cores[r] < CPU_SETSIZE)
            ranks[cores[r]]++;
    }
    int limit = ranks[own] - 1;
    for (int core = 0; core < CPU_SETSIZE && limit > 0; core++) {
        if (CPU_ISSET(core, allowed) && ranks[core] < limit) {
            limit = ranks[core];
            target = core;
        }
    }
    return target;
}

bool balance_move(int core)
{
    cpu_set_t mask, one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    return sched_getaffinity(0, sizeof mask, &mask) == 0 &&
           sched_setaffinity(0, sizeof one, &one) == 0 &&
           sched_setaffinity(0, sizeof mask, &mask) == 0;
}

bool balance_part(const cpu_set_t *allowed, int cores, int rank, int size, cpu_set_t *part)
{
    if (CPU_COUNT(allowed) != cores || size < 2 || cores < size || cores >= PLENTY * size)
        return false;
    CPU_ZERO(part);
    for (int core = 0, i = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, allowed) && i++ * size / cores == rank)
            CPU_SET(core, part);
    return true;
}

void balance_keep_to_part(int cores, int rank, int size)
{
    cpu_set_t allowed, part;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0 &&
        balance_part(&allowed, cores, rank, size, &part))
        (void)sched_setaffinity(0, sizeof part, &part); /* it may be forbidden: as well as before */
}

/* Relaxed: a core that is out of date costs a needless move, or some polls, at worst. */
static void publish(struct cpu_group *group, int core)
{
    group->core = core;
    order_store_relaxed_u32(&group->own->core, (uint32_t)core + 1);
}

static void look_around(struct cpu_group *group, int *cores)
{
    group->mates = 0;
    for (int r = 0; r < group->size; r++) {
        cores[r] = (int)order_load_relaxed_u32(&group->arenas[r]->core) - 1;
        if (r != group->rank && cores[r] == group->core)
            group->mates |= UINT64_C(1) << r;
    }
}

static void spread(struct cpu_group *group, int64_t now, const int *cores)
{
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return;
    int from = group->core, to = balance_target(cores, group->size, group->rank, &allowed);
    if (to < 0)
        return;
    group->move_at = now + MOVE_NS;
    if (balance_move(to)) {
        publish(group, to);
        group->came_from = from;
        group->trial_ends = now + TRIAL_NS;
    }
}

static void go_back(struct cpu_group *group, int64_t now)
{
    if (balance_move(group->came_from))
        publish(group, group->came_from);
    group->trial_ends = 0;
    group->rest_ms = group->rest_ms == 0             ? LEAST_REST_MS
                     : group->rest_ms < MOST_REST_MS ? 2 * group->rest_ms
                                                     : MOST_REST_MS;
    group->move_at = now + (int64_t)group->rest_ms * 1000000;
}

void balance_look(struct cpu_group *group, int64_t now, int64_t yielded_ns)
{
    int core = sched_getcpu(), cores[TUTTI_MAX_RANKS];
    bool fresh = now < group->look_at + FRESH_NS && core == group->core;
    publish(group, core);
    look_around(group, cores);
    group->look_at = now + LOOK_NS;
    if (yielded_ns > CROWDED_NS && now - yielded_ns < group->trial_ends) {
        go_back(group, now);
        return;
    }
    if (group->trial_ends != 0 && now >= group->trial_ends) {
        group->trial_ends = 0;
        group->rest_ms = 0;
    }
    if (fresh && now >= group->move_at)
        spread(group, now, cores);
}

bool balance_core_is_wanted(const struct cpu_group *group, int peer, const uint32_t *word,
                            uint32_t value)
{
    const ptrdiff_t at = (const char *)word - (const char *)group->arenas[peer];
    if (!group->oversubscribed || group->sparse)
        return true;
    for (uint64_t rest = group->mates; rest; rest &= rest - 1) {
        const char *arena = (const char *)group->arenas[__builtin_ctzll(rest)];
        /* Relaxed: it tells who should run, and nothing else. */
        if ((int32_t)(order_load_relaxed_u32((const uint32_t *)(arena + at)) - value) < 0)
            return true;
    }
    return false;
}
