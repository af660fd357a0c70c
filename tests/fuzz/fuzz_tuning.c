/* SPDX-License-Identifier: MIT */
/* The tuning file: what is accepted gives every capability and world size a whole plan. */
#include "cuda/runtime/table.h"
#include "fuzz.h"

#include <string.h>

static void check_plan(const struct cuda_plan *plan, int size)
{
    fuzz_check(plan->size == size && plan->count > 0 && plan->count <= CUDA_PLAN_ROWS);
    fuzz_check(plan->bytes[plan->count - 1] == CUDA_TABLE_REST);
    for (int i = 0; i < plan->count; i++) {
        const struct cuda_choice *choice = &plan->choices[i];
        fuzz_check(i == 0 || plan->bytes[i] > plan->bytes[i - 1]);
        fuzz_check(choice->kernel < CUDA_KERNELS && choice->units);
        fuzz_check(plan->bytes[i] <= cuda_kernel_capacity((enum cuda_kernel)choice->kernel, size));
        fuzz_check(choice->threads >= 32 && choice->threads <= 1024 && choice->threads % 32 == 0);
        fuzz_check(cuda_choice_blocks(choice, size, 1) == 1);
        fuzz_check(cuda_choice_blocks(choice, size, (size_t)1 << 45) <= CUDA_BLOCKS);
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
