/* SPDX-License-Identifier: MIT */
#include "soak.h"

#include <string.h>

const char *soak_fault_name(enum soak_fault fault)
{
    static const char *const names[] = {
#define SOAK_FAULT_TEXT(name, text) text,
        SOAK_FAULT_MAP(SOAK_FAULT_TEXT)
#undef SOAK_FAULT_TEXT
    };
    return names[fault];
}

uint64_t soak_below(uint64_t *random, uint64_t bound)
{
    return pool_random(random) % bound;
}

size_t soak_bytes(uint64_t *random, int most_log2)
{
    return soak_below(random, UINT64_C(1) << soak_below(random, (uint64_t)most_log2 + 1));
}

void episode_calm(struct soak_episode *episode)
{
    episode->fault = SOAK_NONE;
    episode->victims = 0;
    episode->shrinks = episode->excludes = false;
}

bool episode_is_deadly(const struct soak_episode *episode)
{
    return episode->fault == SOAK_KILL || episode->fault == SOAK_EXIT ||
           episode->fault == SOAK_KILL_SETUP;
}

bool episode_is_of_setup(const struct soak_episode *episode)
{
    return episode->fault == SOAK_KILL_SETUP || episode->fault == SOAK_LATE_SETUP;
}

/* Ranks dealt out to processes, each of which has at least one. Process 0 is in most episodes: it
 * is never killed, so that it grows old. */
static void deal(uint64_t *random, struct soak_episode *episode)
{
    int slots[SOAK_SLOTS], first = soak_below(random, 4) == 0;
    for (int i = 0; i < SOAK_SLOTS; i++)
        slots[i] = i;
    for (int i = SOAK_SLOTS - 1; i > 1; i--) {
        int other = 1 + (int)soak_below(random, (uint64_t)i), slot = slots[i];
        slots[i] = slots[other];
        slots[other] = slot;
    }
    if (episode->processes == SOAK_SLOTS)
        first = 0;
    for (int r = 0; r < episode->size; r++) {
        int process =
            r < episode->processes ? r : (int)soak_below(random, (uint64_t)episode->processes);
        episode->slot_of[r] = slots[first + process];
    }
    for (int r = episode->size - 1; r > 0; r--) {
        int other = (int)soak_below(random, (uint64_t)r + 1), slot = episode->slot_of[r];
        episode->slot_of[r] = episode->slot_of[other];
        episode->slot_of[other] = slot;
    }
    for (int r = 0; r < episode->size; r++)
        for (int before = 0; before < r; before++)
            episode->thread_of[r] += episode->slot_of[before] == episode->slot_of[r];
}

static void members_make(const struct soak_config *config, uint64_t *random,
                         struct soak_episode *episode)
{
    uint64_t most = episode->kind == SOAK_COLLECTIVES ? SOAK_COMMS : 1;
    int least = config->cuda ? 2 : 1;
    episode->count = 1 + (int)soak_below(random, most);
    if (config->communicators && most > 1)
        episode->count = SOAK_COMMS;
    for (int c = 0; c < episode->count; c++) {
        struct soak_members *members = &episode->comms[c];
        while (members->size < least) {
            uint64_t chosen = c ? pool_random(random) : UINT64_MAX;
            members->size = 0;
            for (int r = 0; r < episode->size; r++)
                if (chosen >> r & 1)
                    members->members[members->size++] = r;
        }
    }
}

/* How often of a thousand. */
static const int odds[SOAK_FAULTS] = {
    [SOAK_KILL] = 90,         [SOAK_EXIT] = 30,         [SOAK_PAUSE] = 30, [SOAK_STOP] = 8,
    [SOAK_LATE] = 8,          [SOAK_COUNT] = 25,        [SOAK_DTYPE] = 25, [SOAK_OP] = 25,
    [SOAK_ABORT_THREAD] = 30, [SOAK_ABORT_SIGNAL] = 30, [SOAK_FORK] = 30,  [SOAK_KILL_SETUP] = 8,
    [SOAK_LATE_SETUP] = 5,
};

static bool is_calm(enum soak_fault fault)
{
    return (fault >= SOAK_COUNT && fault <= SOAK_FORK) || fault == SOAK_PAUSE || fault == SOAK_NONE;
}

/* Whether the fault can happen in this episode, in `processes` ones. */
static bool fault_fits(const struct soak_config *config, const struct soak_episode *episode,
                       enum soak_fault fault)
{
    bool is_signal = fault == SOAK_PAUSE || fault == SOAK_STOP;
    if (config->faultless && !is_calm(fault))
        return false;
    if (config->threads && (is_signal || fault == SOAK_ABORT_SIGNAL || fault == SOAK_FORK))
        return false;
    if (episode->kind == SOAK_SYMMETRIC && fault >= SOAK_STOP && fault != SOAK_KILL_SETUP &&
        fault != SOAK_FORK)
        return false; /* its signals have long time-outs, and know no mismatch */
    if (episode->kind == SOAK_GROUP && (fault == SOAK_STOP || fault == SOAK_ABORT_SIGNAL))
        return false;
    if (fault == SOAK_OP && episode->kind == SOAK_GROUP)
        return true;
    return episode->processes > 1 ||
           !(is_signal || fault == SOAK_KILL || fault == SOAK_EXIT || fault == SOAK_KILL_SETUP);
}

static enum soak_fault fault_choose(const struct soak_config *config, uint64_t *random,
                                    const struct soak_episode *episode)
{
    int roll = (int)soak_below(random, 1000);
    for (int f = SOAK_NONE + 1; f < SOAK_FAULTS; f++) {
        roll -= odds[f];
        if (roll < 0)
            return fault_fits(config, episode, (enum soak_fault)f) ? (enum soak_fault)f : SOAK_NONE;
    }
    return SOAK_NONE;
}

/* One rank, or all of one or two processes, but for process 0 and the last one that is left. */
static uint32_t victims_make(uint64_t *random, const struct soak_episode *episode)
{
    bool is_whole = episode_is_deadly(episode) || episode->fault == SOAK_STOP;
    int rank = (int)soak_below(random, (uint64_t)episode->size);
    uint32_t victims = 0, all = (UINT32_C(1) << episode->size) - 1;
    if (!is_whole && episode->fault != SOAK_PAUSE)
        return UINT32_C(1) << rank;
    for (int more = episode->fault != SOAK_STOP && soak_below(random, 5) == 0; more >= 0; more--) {
        uint32_t process = 0;
        while (episode->slot_of[rank] == 0)
            rank = (rank + 1) % episode->size;
        for (int r = 0; r < episode->size; r++)
            if (episode->slot_of[r] == episode->slot_of[rank])
                process |= UINT32_C(1) << r;
        if ((victims | process) != all)
            victims |= process;
        rank = (int)soak_below(random, (uint64_t)episode->size);
    }
    return victims;
}

static void fault_make(const struct soak_config *config, uint64_t *random,
                       struct soak_episode *episode)
{
    uint64_t shrinks = soak_below(random, 2), excludes = soak_below(random, 2);
    episode->fault = fault_choose(config, random, episode);
    episode->victims = episode->fault ? victims_make(random, episode) : 0;
    if (!episode->victims)
        episode->fault = SOAK_NONE;
    episode->fault_at = (int)soak_below(random, (uint64_t)episode->operations);
    episode->delay_us = (int64_t)soak_bytes(random, 9);
    int left = episode->size;
    bool dies = episode_is_deadly(episode);
    for (int r = 0; r < episode->size; r++)
        left -= dies && episode->victims >> r & 1;
    episode->shrinks = shrinks && !episode_is_of_setup(episode) && episode->kind != SOAK_GROUP &&
                       episode->fault != SOAK_PAUSE && episode->fault != SOAK_FORK &&
                       left >= (config->cuda ? 2 : 1);
    episode->excludes = excludes && !dies && episode->fault && left > 2;
    /* Whose time-outs are short must not wait elsewhere. */
    if (episode->fault == SOAK_STOP || episode->fault == SOAK_LATE)
        episode->count = 1;
}

static void store_make(uint64_t *random, struct soak_episode *episode)
{
    episode->store = (enum soak_store)soak_below(random, SOAK_STORE_MEMORY);
    if (episode->processes == 1 && soak_below(random, 2))
        episode->store = SOAK_STORE_MEMORY;
    /* A shrink wants a store that lives. */
    if (episode->store == SOAK_STORE_RANK && episode_is_deadly(episode) && episode->victims & 1)
        episode->store = SOAK_STORE_TCP;
    episode->known =
        episode->store == SOAK_STORE_TCP && !episode_is_of_setup(episode) && soak_below(random, 2);
}

void episode_make(const struct soak_config *config, uint64_t number, struct soak_episode *episode)
{
    /* Far apart: the sequence of one episode is not that of the next one a step later. */
    uint64_t seed = config->seed, random = number;
    random = pool_random(&random) ^ pool_random(&seed);
    memset(episode, 0, sizeof *episode);
    episode->number = number;
    /* Few ranks more often than many, which take turns on few cores. */
    int sizes[2];
    for (int i = 0; i < 2; i++)
        sizes[i] = 2 + (int)soak_below(&random, (uint64_t)config->most_ranks - 1);
    episode->size = sizes[0] < sizes[1] ? sizes[0] : sizes[1];
    episode->processes = 1 + (int)soak_below(&random, (uint64_t)episode->size);
    /* A rank a process, mostly; always where they share a GPU: a process' ranks would wait for each
     * other's kernels to end before memory is freed. */
    if (soak_below(&random, 2) || config->shares)
        episode->processes = episode->size;
    if (config->threads)
        episode->processes = 1;
    uint64_t kind = soak_below(&random, 10);
    if (!config->cuda && kind < (config->communicators ? 2 : 5))
        episode->kind = kind % 5 ? SOAK_GROUP : SOAK_SYMMETRIC;
    deal(&random, episode);
    episode->reversed = soak_below(&random, 3) == 0;
    members_make(config, &random, episode);
    episode->operations = 1 + (int)soak_bytes(&random, 12);
    if (config->communicators) /* they are what counts */
        episode->operations = 1 + episode->operations % 4;
    episode->graph = config->shares ? 0 : (int)soak_below(&random, 4);
    episode->streams = 1 + (int)soak_below(&random, 2);
    fault_make(config, &random, episode);
    store_make(&random, episode);
    episode->random = pool_random(&random);
}
