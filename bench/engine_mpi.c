/* SPDX-License-Identifier: MIT */
/* MPI_Allreduce; compiled once for each MPI that is installed. */
#include "worker.h"

#include <mpi.h>

static int mpi_init(int *argc, char ***argv, int *rank, int *size)
{
    if (MPI_Init(argc, argv) != MPI_SUCCESS || MPI_Comm_rank(MPI_COMM_WORLD, rank) != MPI_SUCCESS ||
        MPI_Comm_size(MPI_COMM_WORLD, size) != MPI_SUCCESS)
        return bench_error("MPI_Init failed");
    return 0;
}

static int mpi_all_reduce(float *buffer, size_t count)
{
    int error = MPI_Allreduce(MPI_IN_PLACE, buffer, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);

    return error == MPI_SUCCESS ? 0 : bench_error("MPI_Allreduce gave error %d", error);
}

static void mpi_fini(void)
{
    MPI_Finalize();
}

const struct bench_engine bench_engine = {
    .init = mpi_init,
    .all_reduce = mpi_all_reduce,
    .fini = mpi_fini,
};
