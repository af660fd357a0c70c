/* SPDX-License-Identifier: MIT */
/*
 * Halo exchange: heat spreads along a rod whose cells are divided among the ranks. In each step a
 * rank needs the cell beyond each of its ends. One group of calls exchanges them with both
 * neighbours, and sums the heat of the step before at the same time.
 *
 *     tutti run -n 4 build/examples/halo
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tutti/tutti.h>

enum { CELLS = 1000, STEPS = 200 };

static void must(enum tutti_status status)
{
    if (status == TUTTI_OK)
        return;
    fprintf(stderr, "%s\n", tutti_last_error());
    exit(1);
}

/* cells[0] and cells[CELLS + 1] are the neighbours' cells. The ends of the rod stay as they are. */
static void exchange(double *cells, const double *heat, double *sum, tutti_comm_t *comm)
{
    const int rank = tutti_comm_rank(comm), last = tutti_comm_world_size(comm) - 1;
    must(tutti_group_start());
    if (rank > 0) {
        must(tutti_send(&cells[1], 1, TUTTI_FLOAT64, rank - 1, comm, TUTTI_STREAM_DEFAULT));
        must(tutti_recv(&cells[0], 1, TUTTI_FLOAT64, rank - 1, comm, TUTTI_STREAM_DEFAULT));
    }
    if (rank < last) {
        must(tutti_send(&cells[CELLS], 1, TUTTI_FLOAT64, rank + 1, comm, TUTTI_STREAM_DEFAULT));
        must(tutti_recv(&cells[CELLS + 1], 1, TUTTI_FLOAT64, rank + 1, comm, TUTTI_STREAM_DEFAULT));
    }
    must(tutti_all_reduce(heat, sum, 1, TUTTI_FLOAT64, TUTTI_SUM, comm, TUTTI_STREAM_DEFAULT));
    must(tutti_group_end());
}

int main(void)
{
    static double cells[CELLS + 2], next[CELLS + 2];
    tutti_store_t *store;
    tutti_comm_t *comm;
    struct tutti_launcher launcher = {.struct_size = sizeof launcher};
    must(tutti_info_launcher(&launcher));
    must(tutti_store_open("env:", 0, &store));
    must(tutti_comm_create(store, launcher.rank, launcher.world_size, NULL, &comm));

    double heat = 0, sum = 0, first = 0;
    if (launcher.rank == launcher.world_size / 2)
        cells[CELLS / 2] = heat = 1000;
    for (int step = 0; step < STEPS; step++) {
        exchange(cells, &heat, &sum, comm);
        if (step == 0)
            first = sum;
        heat = 0;
        for (int i = 1; i <= CELLS; i++) {
            next[i] = cells[i] + 0.25 * (cells[i - 1] - 2 * cells[i] + cells[i + 1]);
            heat += next[i];
        }
        for (int i = 1; i <= CELLS; i++)
            cells[i] = next[i];
    }
    if (launcher.rank == 0)
        printf("%d steps of %d cells: the heat is %.6f, at the beginning %.6f\n", STEPS,
               CELLS * launcher.world_size, sum, first);
    tutti_comm_destroy(comm);
    tutti_store_close(store);
    return fabs(sum - first) < 1e-6 ? 0 : 1;
}
