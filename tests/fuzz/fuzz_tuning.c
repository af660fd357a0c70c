/* SPDX-License-Identifier: MIT */
/* The tuning file: what is accepted gives every capability and world size a whole plan. */
#include "cuda/tuning/table.h"
#include "fuzz.h"

#include <string.h>

static void check_plan(const struct cuda_plan *plan, int size)
{
    fuzz_check(plan->size == size && plan->count > 0 && plan->count <= CUDA_PLAN_ROWS);
    for (int i = 0; i < plan->count; i++) {
        const struct cuda_choice *choice = &plan->choices[i];
        const uint8_t collective = plan->collectives[i];
        const bool first = i == 0 || plan->collectives[i - 1] != collective;
        fuzz_check(first || plan->bytes[i] > plan->bytes[i - 1]);
        fuzz_check((i + 1 < plan->count && plan->collectives[i + 1] == collective) ==
                   (plan->bytes[i] != CUDA_TABLE_REST));
        fuzz_check(choice->kernel < CUDA_KERNELS && choice->units);
        fuzz_check(plan->bytes[i] <= cuda_kernel_capacity(&cuda_kernel_rows[choice->kernel], size));
        fuzz_check(choice->threads >= 32 && choice->threads <= 1024 && choice->threads % 32 == 0);
        const uint64_t most = (uint64_t)1 << 45, bytes = plan->bytes[i];
        const struct choice_call call = {.collective = (enum tutti_collective)collective,
                                         .bytes = bytes < most ? bytes : most,
                                         .op = OP_SUM};
        struct choice_launch launch;
        const char *reason;
        fuzz_check(cuda_plan_pick(plan, &call, TUTTI_ALGO_NONE, 0, &launch, &reason) == TUTTI_OK);
        fuzz_check(launch.kernel == choice->kernel && launch.workers == choice->threads);
        fuzz_check(launch.blocks >= 1 && launch.blocks <= choice->blocks);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static struct cuda_table table;
    struct cuda_plan plan;
    char *text = malloc(size ? size : 1); /* exact, so that a read past the end is seen */
    if (!text)
        return 0;
    memcpy(text, bytes, size);
    cuda_table_built_in(&table);
    if (cuda_table_parse(text, size, "fuzz", &table) == TUTTI_OK) {
        fuzz_check(table.count > 0 && table.count <= CUDA_TABLE_ROWS);
        for (int ranks = 2; ranks <= CUDA_RANKS; ranks++) {
            cuda_plan_make(&table, 9, 0, ranks, false, &plan);
            check_plan(&plan, ranks);
            cuda_plan_make(&table, 8, 6, ranks, false, &plan);
            check_plan(&plan, ranks);
        }
    }
    free(text);
    return 0;
}
