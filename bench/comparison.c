/* SPDX-License-Identifier: MIT */
/*
 * Interleaving: a visit to a size is a few rounds, a round is one block of each instance, and every
 * block has a probe of the cores' distance on either side. The sizes are visited over and over, so
 * that each is sampled at several times and, with luck, under both placements.
 */
#include "comparison.h"

#include "now.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ROUNDS_PER_VISIT   3
#define CALIBRATION_BLOCKS 2
#define MAX_ITERATIONS     200000

/* Whether the comma-separated list names the word; no list names every word. */
static bool listed(const char *list, const char *word)
{
    size_t length = strlen(word);

    for (const char *item = list; item != NULL; item = strchr(item, ',')) {
        item += *item == ',';
        if (strncmp(item, word, length) == 0 && (item[length] == ',' || item[length] == '\0'))
            return true;
    }
    return list == NULL;
}

static bool worth_running(const struct comparison *comparison, const struct setting *setting,
                          size_t bytes)
{
    return comparison->thorough || (bytes >= setting->from && bytes <= setting->to);
}

bool comparison_wants(const struct comparison *comparison, const struct setting *setting)
{
    unsigned use = comparison->place.pinned ? SETTING_PINNED : SETTING_CROWDED;
    bool somewhere = false;

    for (int i = 0; i < comparison->size_count; i++)
        somewhere |= worth_running(comparison, setting, comparison->sizes[i]);
    return somewhere && (setting->uses & use || comparison->thorough) &&
           listed(comparison->engines, setting->library);
}

static bool is_ours(const struct setting *setting)
{
    return strcmp(setting->library, "tutti") == 0;
}

int comparison_start(struct comparison *comparison)
{
    char worker[512];

    for (int i = 0; i < setting_count; i++) {
        const struct setting *setting = &settings[i];
        int next = comparison->instance_count;

        if (!comparison_wants(comparison, setting) || next == COMPARISON_MAX_INSTANCES)
            continue;
        snprintf(worker, sizeof(worker), "%s/%s", comparison->place.programs, setting->program);
        if (access(worker, X_OK) != 0) {
            fprintf(stderr, "compare: %s was not built: left out\n", setting->program);
            continue;
        }
        if (instance_start(&comparison->instances[next], setting, &comparison->place) != 0) {
            comparison->lost |= is_ours(setting);
            continue;
        }
        comparison->alive[next] = true;
        comparison->instance_count++;
    }
    return comparison->instance_count > 0 ? 0 : -1;
}

/* One block of one instance, kept if the cores stayed where they were. */
static void sample(struct comparison *comparison, int size, int which, bool check)
{
    struct cell *cell = &comparison->cells[size][which];
    bool calibrating = cell->blocks < CALIBRATION_BLOCKS;
    double target = calibrating ? comparison->block_ns / 8 : comparison->block_ns;
    struct bench_command command = {.bytes = comparison->sizes[size],
                                    .flags = check ? BENCH_CHECK : 0};
    enum placement placement = PLACEMENT_OVERSUBSCRIBED;
    struct instance_block block;
    double before = 0;
    bool kept = true;

    command.iterations =
        cell->blocks == 0 ? 1 : iterations_for(target, cell->estimate_ns, MAX_ITERATIONS);
    command.warmup = 1 + command.iterations / 8;
    if (comparison->probe != NULL)
        before = probe_round_trip(comparison->probe);
    if (instance_run(&comparison->instances[which], &command, &block) != 0) {
        instance_stop(&comparison->instances[which]);
        comparison->alive[which] = false;
        cell->wrong = block.wrong;
        comparison->lost |= is_ours(comparison->instances[which].setting);
        return;
    }
    if (comparison->probe != NULL)
        kept = placement_of(before, probe_round_trip(comparison->probe), comparison->threshold_ns,
                            &placement);
    cell->blocks++;
    cell->estimate_ns = block.nanoseconds;
    memcpy(cell->algo, block.algo, sizeof(cell->algo));
    comparison->discarded += !kept;
    if (!kept || calibrating)
        return;
    samples_add(&cell->samples[placement], block.nanoseconds);
    if (!block.preempted)
        samples_add(&cell->quiet[placement], block.nanoseconds);
}

static bool takes_part(const struct comparison *comparison, int size, int which)
{
    return comparison->alive[which] &&
           worth_running(comparison, comparison->instances[which].setting, comparison->sizes[size]);
}

static void visit(struct comparison *comparison, int size, const volatile int *interrupted)
{
    bool fresh = false;
    int rounds = ROUNDS_PER_VISIT;

    for (int i = 0; i < comparison->instance_count; i++)
        fresh |= takes_part(comparison, size, i) && comparison->cells[size][i].blocks == 0;
    if (fresh)
        rounds += CALIBRATION_BLOCKS;
    for (int round = 0; round < rounds && !*interrupted; round++) {
        /* Another one goes first each time, lest one always follows the same neighbour. */
        for (int i = 0; i < comparison->instance_count; i++) {
            int which = (i + round) % comparison->instance_count;

            if (takes_part(comparison, size, which))
                sample(comparison, size, which, round == 0);
        }
    }
}

/* The fewest samples that any instance has of the placement at this size. */
static size_t fewest(const struct comparison *comparison, int size, enum placement placement)
{
    size_t least = SIZE_MAX;

    for (int i = 0; i < comparison->instance_count; i++) {
        size_t count = comparison->cells[size][i].samples[placement].count;

        if (takes_part(comparison, size, i) && count < least)
            least = count;
    }
    return least;
}

static bool enough(const struct comparison *comparison, int size)
{
    bool near = fewest(comparison, size, PLACEMENT_NEAR) >= comparison->wanted;
    bool far = fewest(comparison, size, PLACEMENT_FAR) >= comparison->wanted;

    if (comparison->probe == NULL)
        return fewest(comparison, size, PLACEMENT_OVERSUBSCRIBED) >= comparison->wanted;
    return comparison->both ? near && far : near || far;
}

/* A line that replaces itself, on terminals only. */
static void show_progress(const struct comparison *comparison, double left_s)
{
    int done = 0;

    if (!isatty(STDERR_FILENO))
        return;
    for (int size = 0; size < comparison->size_count; size++)
        done += enough(comparison, size);
    fprintf(stderr, "\rsampled %d of %d sizes, at most %.0f s left \033[K", done,
            comparison->size_count, left_s > 0 ? left_s : 0);
}

/* Visits the sizes over and over. */
static void sample_all(struct comparison *comparison, const volatile int *interrupted)
{
    double deadline = now_s() + comparison->budget_s;
    bool done = false;

    while (!done && !*interrupted) {
        done = true;
        for (int size = 0; size < comparison->size_count && !*interrupted; size++) {
            if (enough(comparison, size))
                continue;
            done = false;
            show_progress(comparison, deadline - now_s());
            visit(comparison, size, interrupted);
            if (now_s() > deadline)
                return;
        }
    }
}

void comparison_run(struct comparison *comparison, const volatile int *interrupted)
{
    sample_all(comparison, interrupted);
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K");
}

void comparison_stop(struct comparison *comparison)
{
    for (int i = 0; i < comparison->instance_count; i++) {
        if (comparison->alive[i])
            instance_stop(&comparison->instances[i]);
        comparison->alive[i] = false;
    }
}

void comparison_fini(struct comparison *comparison)
{
    for (int size = 0; size < comparison->size_count; size++) {
        for (int i = 0; i < comparison->instance_count; i++) {
            for (int placement = 0; placement < PLACEMENT_COUNT; placement++) {
                samples_fini(&comparison->cells[size][i].samples[placement]);
                samples_fini(&comparison->cells[size][i].quiet[placement]);
            }
        }
    }
}
