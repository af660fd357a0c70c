/* SPDX-License-Identifier: MIT */
/*
 * Multiplies a matrix with a vector on a grid of ranks. Each rank has one block of the matrix.
 * Each column of the grid has one part of the vector. A rank multiplies its block with its column's
 * part, and the ranks of a row add their products, which are the row's part of the result. Rows and
 * columns are communicators that are split from the first one.
 *
 *     tutti run -n 4 build/examples/grid
 */
#include <stdio.h>
#include <stdlib.h>
#include <tutti/tutti.h>

enum { ROWS = 300, COLUMNS = 200 }; /* of a rank's block */

static void must(enum tutti_status status)
{
    if (status == TUTTI_OK)
        return;
    fprintf(stderr, "%s\n", tutti_last_error());
    exit(1);
}

static double matrix(int i, int j)
{
    return (i * 3 + j * 5) % 11;
}

static double vector(int j)
{
    return j % 7;
}

/* The largest number of columns of a grid that is not wider than high. */
static int columns_of(int ranks)
{
    int columns = 1;
    for (int i = 1; i * i <= ranks; i++)
        if (ranks % i == 0)
            columns = i;
    return columns;
}

int main(void)
{
    static double block[ROWS][COLUMNS], x[COLUMNS], y[ROWS];
    tutti_store_t *store;
    tutti_comm_t *comm, *in_row, *in_column;
    struct tutti_launcher launcher = {.struct_size = sizeof launcher};
    must(tutti_info_launcher(&launcher));
    must(tutti_store_open("env:", 0, &store));
    must(tutti_comm_create(store, launcher.rank, launcher.world_size, NULL, &comm));

    const int columns = columns_of(launcher.world_size), rows = launcher.world_size / columns;
    const int row = launcher.rank / columns, column = launcher.rank % columns;
    must(tutti_comm_split(comm, row, column, NULL, &in_row));
    must(tutti_comm_split(comm, column, row, NULL, &in_column));
    tutti_comm_destroy(comm); /* rows and columns do not need it */

    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++)
            block[i][j] = matrix(row * ROWS + i, column * COLUMNS + j);
    /* The first row has the vector. */
    for (int j = 0; j < COLUMNS && row == 0; j++)
        x[j] = vector(column * COLUMNS + j);
    must(tutti_broadcast(x, x, COLUMNS, TUTTI_FLOAT64, 0, in_column, TUTTI_STREAM_DEFAULT));
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++)
            y[i] += block[i][j] * x[j];
    must(tutti_all_reduce(y, y, ROWS, TUTTI_FLOAT64, TUTTI_SUM, in_row, TUTTI_STREAM_DEFAULT));

    int wrong = 0;
    for (int i = 0; i < ROWS; i++) {
        double expected = 0; /* whole numbers: exact in any order */
        for (int j = 0; j < columns * COLUMNS; j++)
            expected += matrix(row * ROWS + i, j) * vector(j);
        wrong += y[i] != expected;
    }
    if (wrong)
        fprintf(stderr, "rank %d: %d elements are wrong\n", launcher.rank, wrong);
    else if (launcher.rank == 0)
        printf("multiplied %d x %d elements on a grid of %d x %d ranks\n", rows * ROWS,
               columns * COLUMNS, rows, columns);
    tutti_comm_destroy(in_column);
    tutti_comm_destroy(in_row);
    tutti_store_close(store);
    return wrong ? 1 : 0;
}
