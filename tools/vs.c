/* SPDX-License-Identifier: MIT */
/*
 * The order of the measurement. A visit to a size is a few rounds. A round is one block of each
 * setting. Before and after each block Tutti's own ranks measure the distance of the cores. The
 * sizes are visited again and again, so that each is measured at several times.
 */
#include "vs.h"

#include "tool.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    ROUNDS_PER_VISIT = 3,
    CALIBRATION_BLOCKS = 2,
    WANTED = 15,
    MOST_ITERATIONS = 200000,
    SLOW_US = 200000
};

struct vs_cell *vs_cell(const struct vs *vs, int row, int instance)
{
    return &vs->cells[row * VS_INSTANCES + instance];
}

/* Whether near and far can be distinguished. */
static bool is_probed(const struct bench_config *config)
{
    return config->placement.bound && config->ranks > 1;
}

const char *vs_placement_name(const struct bench_config *config, int placement)
{
    if (is_probed(config))
        return placement == VS_NEAR ? "near" : "far";
    return config->ranks > config->placement.cores ? "oversubscribed" : "unknown";
}

/* ---- start and end --------------------------------------------------------------------------- */

static bool worth_running(const struct vs_setting *setting, size_t bytes)
{
    return bytes >= setting->from && bytes <= setting->to;
}

/* Whether the setting takes part in this run at all. */
static bool is_wanted(const struct bench_config *config, const struct vs_setting *setting)
{
    bool crowded = config->ranks > config->placement.cores, somewhere = false;
    for (int row = 0; row < config->row_count; row++)
        somewhere |= worth_running(setting, config->rows[row].bytes);
    if (setting->all_reduce_only && config->collective != TUTTI_COLLECTIVE_ALL_REDUCE)
        return false;
    return somewhere && setting->uses & (crowded ? VS_CROWDED : VS_BOUND) &&
           config->vs_libraries >> setting->library & 1;
}

static void add_instance(struct vs *vs, const struct vs_setting *setting)
{
    struct vs_instance *instance = &vs->instances[vs->instance_count++];
    *instance = (struct vs_instance){.setting = setting, .config = vs->config, .ping = vs->ping};
    for (int row = 0; row < vs->config->row_count; row++)
        if (vs->config->rows[row].bytes > instance->capacity)
            instance->capacity = vs->config->rows[row].bytes;
}

static bool start_ours(struct vs *vs)
{
    bool ok = true;
    for (int i = VS_OURS; i < VS_FIRST_RIVAL; i++)
        add_instance(vs, &vs_settings[i]);
    for (int i = VS_OURS; i < VS_FIRST_RIVAL && ok; i++)
        ok = vs_instance_fork(&vs->instances[i]);
    if (ok && tutti_store_open("tcp://127.0.0.1:0?server=1", 0, &vs->store))
        ok = tool_fail("%s", tutti_last_error());
    for (int i = VS_OURS; i < VS_FIRST_RIVAL && ok; i++)
        ok = vs_instance_meet(&vs->instances[i], tutti_store_url(vs->store));
    return ok;
}

/* One message is enough for a library without a program. */
static bool start_rivals(struct vs *vs)
{
    unsigned missing = 0;
    for (int i = VS_FIRST_RIVAL; i < vs_setting_count; i++) {
        const struct vs_setting *setting = &vs_settings[i];
        if (!is_wanted(vs->config, setting) || missing >> setting->library & 1)
            continue;
        add_instance(vs, setting);
        struct vs_instance *instance = &vs->instances[vs->instance_count - 1];
        if (vs_instance_fork(instance) && vs_instance_meet(instance, tutti_store_url(vs->store)))
            continue;
        if (instance->ranks.count == 0)
            missing |= 1u << setting->library;
        vs_instance_stop(instance);
        vs->instance_count--;
    }
    return vs->instance_count > VS_FIRST_RIVAL || tool_fail("--vs: no rival could be started");
}

static bool prepare(struct vs *vs)
{
    vs->instances = calloc(VS_INSTANCES, sizeof *vs->instances);
    vs->cells = calloc((size_t)vs->config->row_count * VS_INSTANCES, sizeof *vs->cells);
    void *ping =
        mmap(NULL, sizeof *vs->ping, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    vs->ping = ping == MAP_FAILED ? NULL : ping;
    return (vs->instances && vs->cells && vs->ping) || tool_fail("no memory for the rivals");
}

void vs_finish(struct vs *vs)
{
    for (int i = 0; i < vs->instance_count; i++)
        vs_instance_stop(&vs->instances[i]);
    tutti_store_close(vs->store);
    if (vs->ping)
        munmap(vs->ping, sizeof *vs->ping);
    free(vs->instances);
    free(vs->cells);
}

/* ---- a block --------------------------------------------------------------------------------- */

/* Measures the round trip between Tutti's ranks 0 and 1. 0: unknown. */
static bool probe(struct vs *vs, double *round_trip_ns)
{
    struct rival_command command = {.bytes = 0};
    struct vs_block block = {0};
    *round_trip_ns = 0;
    if (!is_probed(vs->config))
        return true;
    *vs->ping = (struct ping){0}; /* clear what a failed probe left */
    if (!vs_instance_run(&vs->instances[VS_OURS], &command, &block))
        return false;
    *round_trip_ns = block.round_trip_ns;
    return true;
}

static uint32_t iterations_of(const struct vs *vs, const struct vs_cell *cell)
{
    bool calibrating = cell->blocks < CALIBRATION_BLOCKS;
    double target_us = (calibrating ? 0.2 : 1) * vs->config->block_ms * 1e3;
    double fit = cell->blocks == 0 ? 1 : target_us / cell->last_us;
    return fit < 1 ? 1 : fit < MOST_ITERATIONS ? (uint32_t)fit : MOST_ITERATIONS;
}

static void keep(struct vs_cell *cell, int placement, const struct vs_block *block)
{
    struct vs_samples *samples = &cell->samples[placement];
    if (samples->count < VS_SAMPLES)
        samples->us[samples->count++] = block->us;
    if (samples->quiet_count < VS_SAMPLES && !block->preempted)
        samples->quiet[samples->quiet_count++] = block->us;
}

/* Runs one block of one setting, and keeps it if the cores' distance did not change. False if
 * Tutti's own ranks have failed. */
static bool measure(struct vs *vs, int row, int which, bool check)
{
    struct vs_instance *instance = &vs->instances[which];
    struct vs_cell *cell = vs_cell(vs, row, which);
    struct rival_command command = {.bytes = vs->config->rows[row].bytes, .check = check};
    struct vs_block block;
    double before, after;
    command.iterations = iterations_of(vs, cell);
    command.warmup = 1 + command.iterations / 8;
    if (!probe(vs, &before))
        return false;
    if (!vs_instance_run(instance, &command, &block)) {
        vs_instance_stop(instance);
        cell->wrong = block.wrong;
        return which >= VS_FIRST_RIVAL;
    }
    if (!probe(vs, &after))
        return false;
    /* A block of a slow setting is always kept. */
    bool calibrating = cell->blocks < CALIBRATION_BLOCKS && block.us < SLOW_US;
    cell->blocks++;
    cell->last_us = block.us > 0 ? block.us : 1e-3;
    memcpy(cell->algo, block.algo, sizeof cell->algo);
    bool far = after >= PING_NEAR_NS;
    bool moved =
        is_probed(vs->config) && (before <= 0 || after <= 0 || far != (before >= PING_NEAR_NS));
    vs->discarded += moved;
    if (!moved && !calibrating)
        keep(cell, far ? VS_FAR : VS_NEAR, &block);
    return true;
}

/* If ranks share cores, a library that does not yield can take a second for an operation, and
 * use up all the time. It gets the fewest blocks, and none at larger sizes. */
static bool is_slow(const struct vs *vs, int row, int which)
{
    return vs_cell(vs, row, which)->last_us > SLOW_US;
}

bool vs_takes_part(const struct vs *vs, int row, int which)
{
    const struct vs_instance *instance = &vs->instances[which];
    const struct bench_row *rows = vs->config->rows;
    bool slow = false;
    for (int i = 0; i < vs->config->row_count; i++)
        slow |= rows[i].bytes < rows[row].bytes && is_slow(vs, i, which);
    return instance->alive && !slow && worth_running(instance->setting, rows[row].bytes);
}

static bool wants_blocks(const struct vs *vs, int row, int which)
{
    const struct vs_samples *samples = vs_cell(vs, row, which)->samples;
    return vs_takes_part(vs, row, which) &&
           (!is_slow(vs, row, which) ||
            samples[VS_NEAR].count + samples[VS_FAR].count < VS_LEAST_SAMPLES);
}

static bool visit(struct vs *vs, int row)
{
    int rounds = ROUNDS_PER_VISIT;
    if (vs_cell(vs, row, VS_OURS)->blocks == 0)
        rounds += CALIBRATION_BLOCKS;
    for (int round = 0; round < rounds; round++)
        /* Each round begins with another setting, so that no setting always follows the same one.
         */
        for (int i = 0; i < vs->instance_count; i++) {
            int which = (i + round) % vs->instance_count;
            if (wants_blocks(vs, row, which) && !measure(vs, row, which, round == 0))
                return false;
        }
    return true;
}

/* ---- all blocks ------------------------------------------------------------------------------ */

/* The fewest samples that any setting has. */
static int fewest(const struct vs *vs, int row, int placement)
{
    int least = VS_SAMPLES;
    for (int i = 0; i < vs->instance_count; i++) {
        int count = vs_cell(vs, row, i)->samples[placement].count;
        if (wants_blocks(vs, row, i) && count < least)
            least = count;
    }
    return least;
}

static bool is_enough(const struct vs *vs, int row)
{
    bool near = fewest(vs, row, VS_NEAR) >= WANTED, far = fewest(vs, row, VS_FAR) >= WANTED;
    return vs->config->vs_both && is_probed(vs->config) ? near && far : near || far;
}

/* Prints a line that replaces itself, on terminals only. */
static void show_progress(const struct vs *vs, double left)
{
    int done = 0;
    if (!isatty(STDERR_FILENO))
        return;
    for (int row = 0; row < vs->config->row_count; row++)
        done += is_enough(vs, row);
    fprintf(stderr, "\r\033[K%d of %d sizes measured, at most %.0f s left", done,
            vs->config->row_count, left > 0 ? left : 0);
}

static bool measure_all(struct vs *vs)
{
    double deadline = clock_seconds() + vs->config->vs_seconds;
    bool ok = true, done = false;
    while (ok && !done && clock_seconds() < deadline) {
        done = true;
        for (int row = 0; row < vs->config->row_count && ok; row++) {
            if (is_enough(vs, row) || (clock_seconds() > deadline && vs_cell(vs, row, 0)->blocks))
                continue;
            done = false;
            show_progress(vs, deadline - clock_seconds());
            ok = visit(vs, row);
        }
    }
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
    return ok;
}

bool vs_measure(struct vs *vs)
{
    return prepare(vs) && start_ours(vs) && start_rivals(vs) && measure_all(vs);
}
