/* SPDX-License-Identifier: MIT */
/*
 * What the arithmetic of a sparse all-reduce costs one rank on one core: float32 tensors of ROWS x
 * WIDTH with NNZ random entries a rank. Prints the median of some rounds of each step, with memory
 * that the rounds before have used.
 */
#include "pg/sparse.h"
#include "now.h"
#include "stats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct problem {
    size_t rows, width, nnz;
    int ranks;
    struct sparse_shape shape;
    struct sparse_worker worker;
    struct sparse_entries shuffled[TUTTI_MAX_RANKS]; /* with repetitions */
    struct sparse_result parts[TUTTI_MAX_RANKS];     /* the same, coalesced */
    struct sparse_result result;
};

typedef enum tutti_status step_fn(struct problem *problem);

static enum tutti_status check(struct problem *p)
{
    return sparse_check(&p->shape, &p->parts[0].entries);
}

static enum tutti_status recognise(struct problem *p)
{
    return sparse_is_coalesced(&p->shape, &p->parts[0].entries) ? TUTTI_OK : TUTTI_ERR_INVALID;
}

static enum tutti_status coalesce(struct problem *p)
{
    return sparse_coalesce(&p->worker, &p->shape, &p->shuffled[0], 1, &p->result);
}

static enum tutti_status unite(struct problem *p)
{
    struct sparse_entries entries[TUTTI_MAX_RANKS];

    for (int rank = 0; rank < p->ranks; rank++)
        entries[rank] = p->parts[rank].entries;
    return sparse_union(&p->worker, &p->shape, entries, p->ranks, &p->result);
}

static enum tutti_status unite_afresh(struct problem *p)
{
    sparse_memory_fini(&p->result.memory);
    return unite(p);
}

/* What moving the rows costs, as many of them as the result has. */
static enum tutti_status copy_rows(struct problem *p)
{
    const size_t row_bytes = sparse_row_bytes(&p->shape);
    char *to = (char *)(uintptr_t)p->result.entries.values;
    size_t left = p->result.entries.nnz;

    for (int rank = 0; rank < p->ranks; rank++) {
        const struct sparse_entries *entries = &p->parts[rank].entries;
        const size_t nnz = entries->nnz < left ? entries->nnz : left;

        p->worker.isa->copy(to, entries->values, nnz * row_bytes);
        to += nnz * row_bytes;
        left -= nnz;
    }
    return TUTTI_OK;
}

static const struct {
    const char *name;
    step_fn *step;
} steps[] = {
    {"check indices", check}, {"recognise a coalesced tensor", recognise},
    {"coalesce", coalesce},   {"union, allocated anew", unite_afresh},
    {"union", unite},         {"copy that many rows, to compare", copy_rows},
};

static int fill(struct problem *p, int rank)
{
    int64_t *indices = malloc(p->nnz * sizeof(*indices));
    float *values = malloc(p->nnz * p->width * sizeof(*values));

    if (indices == NULL || values == NULL)
        return -1;
    for (size_t i = 0; i < p->nnz; i++)
        indices[i] = (int64_t)((size_t)lrand48() % p->rows);
    for (size_t i = 0; i < p->nnz * p->width; i++)
        values[i] = (float)drand48();
    p->shuffled[rank] = (struct sparse_entries){indices, values, p->nnz};
    return sparse_coalesce(&p->worker, &p->shape, &p->shuffled[rank], 1, &p->parts[rank]) ==
                   TUTTI_OK
               ? 0
               : -1;
}

static int measure(struct problem *p, int rounds)
{
    for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++) {
        struct samples samples = {0};

        for (int round = 0; round < rounds; round++) {
            double begun = now_us();

            if (steps[i].step(p) != TUTTI_OK || samples_add(&samples, now_us() - begun) != 0)
                return -1;
        }
        printf("%-32s %10.1f us\n", steps[i].name, samples_median(&samples));
        samples_fini(&samples);
    }
    return 0;
}

int main(int argc, char **argv)
{
    static struct problem problem;
    struct problem *p = &problem;
    int64_t sizes[2];
    int rounds = argc > 5 ? atoi(argv[5]) : 101;

    p->rows = argc > 1 ? strtoul(argv[1], NULL, 10) : 1000000;
    p->width = argc > 2 ? strtoul(argv[2], NULL, 10) : 64;
    p->nnz = argc > 3 ? strtoul(argv[3], NULL, 10) : 10000;
    p->ranks = argc > 4 ? atoi(argv[4]) : 4;
    if (argc > 6 || p->rows < 1 || p->width < 1 || p->nnz < 1 || p->ranks < 1 ||
        p->ranks > TUTTI_MAX_RANKS || rounds < 1) {
        fprintf(stderr, "usage: sparse [ROWS (1000000)] [WIDTH (64)] [NNZ (10000)] [RANKS (4)] "
                        "[ROUNDS (101)]\n");
        return EXIT_FAILURE;
    }
    sizes[0] = (int64_t)p->rows;
    sizes[1] = (int64_t)p->width;
    p->shape = (struct sparse_shape){TUTTI_FLOAT32, 1, 1, sizes};
    p->worker.isa = reduce_isa_best();
    for (int rank = 0; rank < p->ranks; rank++) {
        if (fill(p, rank) != 0) {
            fprintf(stderr, "sparse: no memory\n");
            return EXIT_FAILURE;
        }
    }
    if (measure(p, rounds) != 0) {
        fprintf(stderr, "sparse: %s\n", tutti_last_error());
        return EXIT_FAILURE;
    }
    for (int rank = 0; rank < p->ranks; rank++) {
        free((void *)(uintptr_t)p->shuffled[rank].indices);
        free((void *)(uintptr_t)p->shuffled[rank].values);
        sparse_memory_fini(&p->parts[rank].memory);
    }
    sparse_memory_fini(&p->result.memory);
    sparse_memory_fini(&p->worker.scratch);
    return EXIT_SUCCESS;
}
