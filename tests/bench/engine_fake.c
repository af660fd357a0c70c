/* SPDX-License-Identifier: MIT */
/* An engine without communication: it knows what the worker's check expects. It misbehaves as the
 * variant says. */
#include "worker.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static int own_rank;
static int world_size;

static bool is_variant(const char *name)
{
    return own_rank == world_size - 1 && strcmp(bench_env(BENCH_ENV_VARIANT, ""), name) == 0;
}

static int fake_init(int *argc, char ***argv, int *rank, int *size)
{
    (void)argc;
    (void)argv;
    if (bench_env_rank(rank, size) != 0)
        return -1;
    own_rank = *rank;
    world_size = *size;
    return is_variant("absent") ? bench_error("absent, as asked") : 0;
}

static int fake_all_reduce(float *buffer, size_t count)
{
    if (is_variant("fails"))
        return bench_error("failed, as asked");
    if (is_variant("dies"))
        abort();
    for (size_t i = 0; i < count; i++)
        buffer[i] *= (float)(world_size * (world_size + 1) / 2) / (float)(own_rank + 1);
    if (is_variant("wrong"))
        buffer[count - 1] += 1;
    return 0;
}

static const char *fake_algorithm(size_t count)
{
    return count == 1 ? "one" : "many";
}

static void fake_fini(void)
{
}

const struct bench_engine bench_engine = {
    .init = fake_init,
    .all_reduce = fake_all_reduce,
    .algorithm = fake_algorithm,
    .fini = fake_fini,
};
