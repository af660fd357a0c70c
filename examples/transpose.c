/* SPDX-License-Identifier: MIT */
/*
 * Transposes a square matrix whose rows are distributed over the ranks, as a parallel Fourier
 * transform does between two dimensions. A rank transposes its block for each rank, an all-to-all
 * in place exchanges the blocks, and the rank puts each block into its columns.
 *
 *     tutti run -n 4 build/examples/transpose
 */
#include <stdio.h>
#include <stdlib.h>
#include <tutti/tutti.h>

enum { ROWS = 96 }; /* of each rank */

static void must(enum tutti_status status)
{
    if (status == TUTTI_OK)
        return;
    fprintf(stderr, "%s\n", tutti_last_error());
    exit(1);
}

/* `rows`: ROWS rows of ranks * ROWS elements. `blocks`: memory for as many. */
static void transpose(double *rows, double *blocks, size_t ranks, tutti_comm_t *comm)
{
    const size_t size = ranks * ROWS, block = (size_t)ROWS * ROWS;
    for (size_t r = 0; r < ranks; r++)
        for (size_t i = 0; i < ROWS; i++)
            for (size_t j = 0; j < ROWS; j++)
                blocks[r * block + j * ROWS + i] = rows[i * size + r * ROWS + j];
    must(tutti_all_to_all(blocks, blocks, block, TUTTI_FLOAT64, comm, TUTTI_STREAM_DEFAULT));
    for (size_t r = 0; r < ranks; r++)
        for (size_t i = 0; i < ROWS; i++)
            for (size_t j = 0; j < ROWS; j++)
                rows[i * size + r * ROWS + j] = blocks[r * block + i * ROWS + j];
}

int main(void)
{
    tutti_store_t *store;
    tutti_comm_t *comm;
    struct tutti_launcher launcher = {.struct_size = sizeof launcher};
    must(tutti_info_launcher(&launcher));
    must(tutti_store_open("env:", 0, &store));
    must(tutti_comm_create(store, launcher.rank, launcher.world_size, NULL, &comm));

    const size_t ranks = (size_t)launcher.world_size, size = ranks * ROWS;
    const size_t first = (size_t)launcher.rank * ROWS; /* this rank's first row */
    double *rows = malloc(ROWS * size * sizeof *rows), *blocks = malloc(ROWS * size * sizeof *rows);
    if (!rows || !blocks)
        return 1;
    for (size_t i = 0; i < ROWS; i++)
        for (size_t j = 0; j < size; j++)
            rows[i * size + j] = (double)((first + i) * size + j);
    transpose(rows, blocks, ranks, comm);
    size_t wrong = 0;
    for (size_t i = 0; i < ROWS; i++)
        for (size_t j = 0; j < size; j++)
            wrong += rows[i * size + j] != (double)(j * size + first + i);

    if (wrong)
        fprintf(stderr, "rank %d: %zu elements are wrong\n", launcher.rank, wrong);
    else if (launcher.rank == 0)
        printf("transposed %zu x %zu elements on %d ranks\n", size, size, launcher.world_size);
    free(blocks);
    free(rows);
    tutti_comm_destroy(comm);
    tutti_store_close(store);
    return wrong ? 1 : 0;
}
