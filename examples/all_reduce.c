/* SPDX-License-Identifier: MIT */
/* The smallest program: every rank of a launcher (tutti run, torchrun, mpirun, srun) adds four
 * numbers. */
#include <stdio.h>
#include <tutti/tutti.h>

int main(void)
{
    struct tutti_launcher me = {.struct_size = sizeof me};
    tutti_store_t *store = NULL;
    tutti_comm_t *comm = NULL;
    float x[4] = {1, 2, 3, 4};

    if (tutti_info_launcher(&me) || tutti_store_open("env:", 0, &store) ||
        tutti_comm_create(store, me.rank, me.world_size, NULL, &comm) ||
        tutti_all_reduce(x, x, 4, TUTTI_FLOAT32, TUTTI_SUM, comm, TUTTI_STREAM_DEFAULT)) {
        fprintf(stderr, "%s\n", tutti_last_error());
        return 1;
    }
    printf("rank %d of %d: %g %g %g %g\n", me.rank, me.world_size, x[0], x[1], x[2], x[3]);
    tutti_comm_destroy(comm);
    tutti_store_close(store);
    return x[3] == 4 * (float)me.world_size ? 0 : 1;
}
