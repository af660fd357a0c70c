/* SPDX-License-Identifier: MIT */
/* linked STORE URL: a program that is linked with MPI. It waits for a message of any rank with any
 * tag while the fabric works, and gets none of the fabric's. */
#include "rank.h"

#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    int rank, size, got = 0, value = 7, given, status;
    MPI_Request request;
    MPI_Status result;
    if (argc < 3 || MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &given) != 0)
        return 2;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Irecv(&got, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &request);
    status = fabric_rank(argv, 1);
    MPI_Send(&value, 1, MPI_INT, (rank + 1) % size, 3, MPI_COMM_WORLD);
    MPI_Wait(&request, &result);
    if (got != 7 || result.MPI_SOURCE != (rank + size - 1) % size)
        status = fprintf(stderr, "rank %d: the program has got a message of the fabric\n", rank);
    MPI_Finalize();
    return status != 0;
}
