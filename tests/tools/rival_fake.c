/* SPDX-License-Identifier: MIT */
/* A rival without communication: it knows what the check expects. Its last rank misbehaves as
 * TUTTI_FAKE says: absent, fails, dies, wrong, or late (wrong from the third check on). */
#include "rival.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static int own_rank;
static int world_size;

static bool is_fault(const char *name)
{
    return own_rank == world_size - 1 && strcmp(rival_env("TUTTI_FAKE", ""), name) == 0;
}

static int fake_init(int rank, int size)
{
    own_rank = rank;
    world_size = size;
    return is_fault("absent") ? rival_error("absent, as asked") : 0;
}

static const char *fake_version(void)
{
    return "1.2.3";
}

static int fake_all_reduce(float *buffer, size_t count)
{
    static int checks; /* what is timed sums zeros */
    checks += buffer[count - 1] != 0;
    if (is_fault("fails"))
        return rival_error("failed, as asked");
    if (is_fault("dies"))
        abort();
    for (size_t i = 0; i < count; i++)
        buffer[i] *= (float)(world_size * (world_size + 1) / 2) / (float)(own_rank + 1);
    if (is_fault("wrong") || (is_fault("late") && checks > 2))
        buffer[count - 1] += 1;
    return 0;
}

static void fake_fini(void)
{
}

int main(void)
{
    static const struct rival_engine engine = {
        .init = fake_init,
        .version = fake_version,
        .all_reduce = fake_all_reduce,
        .fini = fake_fini,
    };
    return rival_main(&engine);
}
