/* SPDX-License-Identifier: MIT */
/*
 * Random operations of communicators that come and go, under random faults, every result and every
 * error checked; see soak.h. Repeats what it does from its seed;
 * `soak --help` lists the options.
 */
#include "soak.h"

#include "device.h"
#include "tool.h"

#include <getopt.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SECONDS = 10 }; /* where nothing is said */

static const char usage[] =
    "usage: soak [OPTION...]\n"
    "  --seconds N        ends when the first limit is reached (10 s unless one is given)\n"
    "  --operations N     of reductions that were checked\n"
    "  --communicators N  each lives for a few operations, and nobody dies or is late\n"
    "  --episodes N\n"
    "  --seed N           what happens follows from it (1)\n"
    "  --from N           the first episode (0)\n"
    "  --threads          all ranks are threads of one process\n"
    "  --faultless        nobody dies or is late\n"
    "  --verbose          a line an episode\n"
    "  --json FILE        the report; --machine and --commit TEXT stand in it\n"
    "TUTTI_TEST_DEVICE=cuda takes GPUs.\n";

enum kind { FLAG, NUMBER, TEXT };

static const struct row {
    const char *name;
    enum kind kind;
    size_t field;
} rows[] = {
    {"seconds", NUMBER, offsetof(struct soak_config, seconds)},
    {"operations", NUMBER, offsetof(struct soak_config, operations)},
    {"communicators", NUMBER, offsetof(struct soak_config, communicators)},
    {"episodes", NUMBER, offsetof(struct soak_config, episodes)},
    {"seed", NUMBER, offsetof(struct soak_config, seed)},
    {"from", NUMBER, offsetof(struct soak_config, from)},
    {"threads", FLAG, offsetof(struct soak_config, threads)},
    {"faultless", FLAG, offsetof(struct soak_config, faultless)},
    {"verbose", FLAG, offsetof(struct soak_config, verbose)},
    {"help", FLAG, offsetof(struct soak_config, help)},
    {"json", TEXT, offsetof(struct soak_config, json)},
    {"machine", TEXT, offsetof(struct soak_config, machine)},
    {"commit", TEXT, offsetof(struct soak_config, commit)},
};

enum { ROWS = sizeof rows / sizeof *rows };

static bool option_take(struct soak_config *config, const struct row *row, const char *text)
{
    void *field = (char *)config + row->field;
    long number = 0;
    if (row->kind == NUMBER && !parse_integer(text, 0, LONG_MAX, &number))
        return false;
    if (row->kind == NUMBER)
        *(uint64_t *)field = (uint64_t)number;
    else if (row->kind == TEXT)
        *(const char **)field = text;
    else
        *(bool *)field = true;
    return true;
}

static bool options_read(int argc, char **argv, struct soak_config *config)
{
    struct option options[ROWS + 1] = {{0}};
    for (int i = 0; i < ROWS; i++)
        options[i] = (struct option){rows[i].name, rows[i].kind != FLAG, NULL, 0};
    for (int index, got; (got = getopt_long(argc, argv, "", options, &index)) != -1;)
        if (got != 0 || !option_take(config, &rows[index], optarg))
            return false;
    if (config->communicators)
        config->faultless = true;
    if (!config->seconds && !config->operations && !config->communicators && !config->episodes)
        config->seconds = SECONDS;
    return optind == argc;
}

static void command_join(int argc, char **argv, char *text, size_t size)
{
    size_t used = 0;
    *text = 0;
    for (int i = 0; i < argc && used < size; i++) {
        bool is_text = strchr(argv[i], ' ') != NULL;
        used += (size_t)snprintf(text + used, size - used, "%s%s%s%s", i ? " " : "",
                                 is_text ? "'" : "", argv[i], is_text ? "'" : "");
    }
}

static void pools_make(struct soak *soak)
{
    for (int size = 1; size <= soak->config.most_ranks; size++)
        for (int reversed = 0; reversed < 2; reversed++) {
            int order[2 * SOAK_RANKS];
            for (int i = 0; i < size; i++)
                order[i] = size - 1 - i;
            soak->pools[size][reversed] = pool_create(size, reversed ? order : NULL, 7);
            for (int i = 0; i < 2 * size; i++) /* ranks reversed, a rank's tensors not */
                order[i] = 2 * (size - 1 - i / 2) + i % 2;
            if (!soak->config.cuda)
                soak->doubles[size][reversed] = pool_create(2 * size, reversed ? order : NULL, 8);
        }
}

static size_t shared_bytes(void)
{
    return sizeof(struct ranks) + sizeof(struct soak_shared);
}

static void soak_open(struct soak *soak)
{
    /* Not ranks_create(): the supervisor forks, and opens no store. */
    soak->ranks =
        mmap(NULL, shared_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (soak->ranks == MAP_FAILED)
        abort();
    soak->shared = (struct soak_shared *)(void *)soak->ranks->shared;
    snprintf(soak->directory, sizeof soak->directory, "/tmp/tutti-soak-XXXXXX");
    if (!mkdtemp(soak->directory) ||
        tutti_op_create_premul_sum(POOL_SCALAR, &soak->premul_sum) != TUTTI_OK)
        abort();
    setenv("TUTTI_DIR", soak->directory, 1);
    pools_make(soak);
}

static void soak_close(struct soak *soak)
{
    for (int size = 1; size <= SOAK_RANKS; size++)
        for (int reversed = 0; reversed < 2; reversed++) {
            pool_destroy(soak->pools[size][reversed]);
            pool_destroy(soak->doubles[size][reversed]);
        }
    tutti_op_destroy(soak->premul_sum);
    munmap(soak->ranks, shared_bytes());
}

int main(int argc, char **argv)
{
    struct soak soak = {.config = {.seed = 1, .cuda = device_is_cuda()}};
    struct soak_totals totals = {0};
    char command[1024];
    bool understood = options_read(argc, argv, &soak.config);
    if (!understood || soak.config.help) {
        fputs(usage, understood ? stdout : stderr);
        return understood ? 0 : 2;
    }
    int skip = ranks_skip(2);
    if (skip)
        return skip;
    command_join(argc, argv, command, sizeof command);
    soak.config.command = command;
    soak.config.shares = device_is_shared();
    soak.config.most_ranks =
        soak.config.cuda && device_count(NULL) < SOAK_RANKS ? device_count(NULL) : SOAK_RANKS;
    printf("soak: seed %llu, up to %d ranks\n", (unsigned long long)soak.config.seed,
           soak.config.most_ranks);
    soak_open(&soak);
    int failed = boss_run(&soak, &totals);
    if (soak.config.json && !report_json(&soak, &totals))
        failed = 1;
    soak_close(&soak);
    return failed;
}
