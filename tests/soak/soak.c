/* SPDX-License-Identifier: MIT */
/*
 * Random operations of communicators that come and go, under random faults, every result and every
 * error checked; see soak.h. Repeats what it does from its seed.
 *
 * usage: soak [--seconds N] [--operations N] [--communicators N] [--episodes N] [--seed N]
 *             [--from EPISODE] [--threads] [--faultless] [--json FILE] [--machine TEXT]
 *             [--commit TEXT] [--verbose]
 * It ends when the first limit is reached. With --communicators each lives for a few operations and
 * nobody is killed. TUTTI_TEST_DEVICE=cuda takes GPUs.
 */
#include "soak.h"

#include "device.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SECONDS = 10 }; /* where nothing is said */

/* Positive numbers, options of their own letter. */
static bool option_take(struct soak_config *config, int option)
{
    const char *text = optarg;
    long long number = text ? atoll(text) : 0;
    switch (option) {
    case 's':
        config->seconds = number;
        return number > 0;
    case 'o':
        config->operations = (uint64_t)number;
        return number > 0;
    case 'c':
        config->communicators = (uint64_t)number;
        return number > 0;
    case 'e':
        config->episodes = (uint64_t)number;
        return number > 0;
    case 'r':
        config->seed = (uint64_t)number;
        return number > 0;
    case 'f':
        config->from = (uint64_t)number;
        return number >= 0;
    case 't':
        return config->threads = true;
    case 'v':
        return config->verbose = true;
    case 'n':
        return config->faultless = true;
    case 'j':
        config->json = text;
        return true;
    case 'm':
        config->machine = text;
        return true;
    case 'g':
        config->commit = text;
        return true;
    default:
        return false;
    }
}

static bool options_read(int argc, char **argv, struct soak_config *config)
{
    static const struct option options[] = {
        {"seconds", 1, NULL, 's'},
        {"operations", 1, NULL, 'o'},
        {"communicators", 1, NULL, 'c'},
        {"episodes", 1, NULL, 'e'},
        {"seed", 1, NULL, 'r'},
        {"from", 1, NULL, 'f'},
        {"threads", 0, NULL, 't'},
        {"faultless", 0, NULL, 'n'},
        {"json", 1, NULL, 'j'},
        {"machine", 1, NULL, 'm'},
        {"commit", 1, NULL, 'g'},
        {"verbose", 0, NULL, 'v'},
        {0},
    };
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;)
        if (!option_take(config, option))
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

/* The links of a ring of so many ranks. */
static void ring_write(struct soak *soak, int size)
{
    char *path = soak->ring_files[size];
    snprintf(path, sizeof soak->ring_files[size], "%s-ring-%d", soak->directory, size);
    FILE *file = fopen(path, "we");
    if (!file)
        abort();
    fprintf(file, "tutti-topology 1\nranks %d\n", size);
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j++) {
            bool are_linked = (i + 1) % size == j || (j + 1) % size == i;
            fprintf(file, "%s%c",
                    i == j       ? "X"
                    : are_linked ? "1"
                                 : "0",
                    j == size - 1 ? '\n' : ' ');
        }
    fclose(file);
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
    for (int size = 3; size <= SOAK_RANKS; size++)
        ring_write(soak, size);
    pools_make(soak);
}

static void soak_close(struct soak *soak)
{
    for (int size = 1; size <= SOAK_RANKS; size++)
        for (int reversed = 0; reversed < 2; reversed++) {
            pool_destroy(soak->pools[size][reversed]);
            pool_destroy(soak->doubles[size][reversed]);
        }
    for (int size = 3; size <= SOAK_RANKS; size++)
        unlink(soak->ring_files[size]);
    tutti_op_destroy(soak->premul_sum);
    munmap(soak->ranks, shared_bytes());
}

int main(int argc, char **argv)
{
    struct soak soak = {.config = {.seed = 1, .cuda = device_is_cuda()}};
    struct soak_totals totals = {0};
    char command[1024];
    int skip = ranks_skip(2);
    if (skip)
        return skip;
    if (!options_read(argc, argv, &soak.config)) {
        fprintf(stderr, "soak: see the head of tests/soak/soak.c\n");
        return 2;
    }
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
