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

/* Whether it is one of the worker's checks, the third or a later one: what is timed sums zeros. */
static bool is_late(const float *buffer, size_t count)
{
    static int checks;

    checks += buffer[count - 1] != 0;
    return checks > 2;
}

static int fake_all_reduce(float *buffer, size_t count)
{
    bool late = is_late(buffer, count);

    if (is_variant("fails"))
        return bench_error("failed, as asked");
    if (is_variant("dies"))
        abort();
    for (size_t i = 0; i < count; i++)
        buffer[i] *= (float)(world_size * (world_size + 1) / 2) / (float)(own_rank + 1);
    if (is_variant("wrong") || (is_variant("late") && late))
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
