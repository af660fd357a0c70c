/* SPDX-License-Identifier: MIT */
#include "base/deadline.h"
#include "device.h"
#include "soak.h"
#include "tool.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* What the allocator of memory may keep, and how many mappings of its own it may make. */
enum { SLACK_KIB = 16 << 10, SLACK_MAPPINGS = 16 };

/* What a driver of GPUs loses of each graph that has a user object, at its first launch: 208 to 273
 * bytes seen (bench/README.md). The stand-in loses nothing. */
enum { GRAPH_BYTES = 280 };

static double seconds_of(const struct soak_totals *totals)
{
    return (double)(deadline_now() - totals->begin_ns) / 1e9;
}

static int64_t lost_kib(const struct soak_meters *meters)
{
    if (!device_is_gpu())
        return 0;
    return (int64_t)((meters->graphs - meters->warm_graphs) * GRAPH_BYTES >> 10);
}

const char *report_growth(const struct soak *soak)
{
    static char text[200];
    for (int s = 0; s < SOAK_SLOTS && !*text; s++) {
        const struct soak_meters *meters = &soak->shared->meters[s];
        if (!meters->warm_mappings || SOAK_SANITIZED)
            continue;
        if (meters->rss_kib > meters->warm_rss_kib + lost_kib(meters) + SLACK_KIB ||
            meters->mappings > meters->warm_mappings + SLACK_MAPPINGS)
            snprintf(text, sizeof text,
                     "process %d has grown from %lld KiB and %d mappings to %lld KiB and %d, of "
                     "which the driver has lost %lld KiB in graphs",
                     s, (long long)meters->warm_rss_kib, meters->warm_mappings,
                     (long long)meters->rss_kib, meters->mappings, (long long)lost_kib(meters));
    }
    return text;
}

void report_episode(const struct soak *soak, const struct soak_episode *episode, int64_t ns)
{
    static const char *const kinds[] = {"collectives", "symmetric memory", "a group"};
    static const char *const stores[] = {"tcp", "prefix", "file", "rank", "memory"};
    uint64_t operations = 0;
    for (int r = 0; r < episode->size; r++)
        operations += soak->shared->progress[r].operations;
    printf("episode %llu: %.1f ms, %s, %d ranks, %d processes, %d communicators, store %s, "
           "operations %llu of %d, fault %s of %x at %d after %lld us%s%s\n",
           (unsigned long long)episode->number, (double)ns / 1e6, kinds[episode->kind],
           episode->size, episode->processes, episode->count, stores[episode->store],
           (unsigned long long)operations, episode->operations, soak_fault_name(episode->fault),
           episode->victims, episode->fault_at, (long long)episode->delay_us,
           episode->shrinks ? ", shrinks" : "", episode->excludes ? ", excludes" : "");
}

void report_line(const struct soak *soak, const struct soak_totals *totals)
{
    const struct soak_meters *meters = &soak->shared->meters[0];
    printf("%6.0f s: %llu operations and %llu barriers in %llu episodes, %llu communicators, "
           "%llu processes, %lld KiB and %d descriptors in the oldest; faults:",
           seconds_of(totals), (unsigned long long)totals->operations,
           (unsigned long long)totals->barriers, (unsigned long long)totals->episodes,
           (unsigned long long)totals->communicators, (unsigned long long)totals->starts,
           (long long)meters->rss_kib, meters->descriptors);
    for (int f = 1; f < SOAK_FAULTS; f++)
        printf(" %s %llu", soak_fault_name((enum soak_fault)f),
               (unsigned long long)totals->faults[f]);
    printf("\n");
    fflush(stdout);
}

static void text_write(FILE *file, const char *name, const char *text)
{
    fprintf(file, " \"%s\": \"", name);
    for (const char *c = text ? text : "unknown"; *c; c++)
        fprintf(file, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
    fprintf(file, "\",\n");
}

static void number_write(FILE *file, const char *name, uint64_t number)
{
    fprintf(file, " \"%s\": %llu,\n", name, (unsigned long long)number);
}

static void faults_write(FILE *file, const struct soak_totals *totals)
{
    fprintf(file, " \"faults\": {");
    for (int f = 1; f < SOAK_FAULTS; f++)
        fprintf(file, "%s\n  \"%s\": %llu", f > 1 ? "," : "", soak_fault_name((enum soak_fault)f),
                (unsigned long long)totals->faults[f]);
    fprintf(file, "\n },\n");
    fprintf(file, " \"signals\": {\"all\": %llu, \"amid_a_call\": %llu},\n",
            (unsigned long long)totals->signals, (unsigned long long)totals->struck);
    fprintf(file, " \"noticed_ms\": {\"mean\": %.3f, \"most\": %.3f},\n",
            totals->noticed ? totals->noticed_ms / (double)totals->noticed : 0,
            totals->noticed_most_ms);
}

static void meters_write(FILE *file, const struct soak_meters *meters)
{
    fprintf(file, " \"rss_kib\": {\"warm\": %lld, \"end\": %lld},\n",
            (long long)meters->warm_rss_kib, (long long)meters->rss_kib);
    fprintf(file, " \"heap_kib\": {\"warm\": %lld, \"end\": %lld},\n",
            (long long)meters->warm_heap_kib, (long long)meters->heap_kib);
    fprintf(file, " \"graphs\": {\"warm\": %llu, \"end\": %llu},\n",
            (unsigned long long)meters->warm_graphs, (unsigned long long)meters->graphs);
    fprintf(file, " \"descriptors\": {\"warm\": %d, \"end\": %d},\n", meters->warm_descriptors,
            meters->descriptors);
    fprintf(file, " \"mappings\": {\"warm\": %d, \"end\": %d},\n", meters->warm_mappings,
            meters->mappings);
    fprintf(file, " \"of_the_library_left\": %d,\n", meters->leftovers);
}

bool report_json(const struct soak *soak, const struct soak_totals *totals)
{
    const struct soak_config *config = &soak->config;
    char date[32];
    FILE *file = fopen(config->json, "we");
    if (!file) {
        fprintf(stderr, "soak: cannot write %s: %s\n", config->json, strerror(errno));
        return false;
    }
    format_date(date, sizeof date);
    fprintf(file, "{\n");
    text_write(file, "machine", config->machine);
    text_write(file, "commit", config->commit);
    text_write(file, "date", date);
    text_write(file, "command", config->command);
    fprintf(file, " \"seconds\": %.0f,\n", seconds_of(totals));
    number_write(file, "seed", config->seed);
    text_write(file, "device", config->cuda ? "cuda" : "cpu");
    text_write(file, "ranks", config->threads ? "threads" : "processes and threads");
    number_write(file, "most_ranks", (uint64_t)config->most_ranks);
    number_write(file, "episodes", totals->episodes);
    number_write(file, "operations", totals->operations);
    number_write(file, "barriers", totals->barriers);
    number_write(file, "bytes", totals->bytes);
    faults_write(file, totals);
    number_write(file, "communicators", totals->communicators);
    number_write(file, "processes", totals->starts);
    meters_write(file, &soak->shared->meters[0]);
    number_write(file, "starved", totals->starved);
    number_write(file, "wrong", totals->wrong);
    fprintf(file, " \"hangs\": %llu\n}\n", (unsigned long long)totals->hangs);
    return fclose(file) == 0;
}
