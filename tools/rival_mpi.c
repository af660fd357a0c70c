/* SPDX-License-Identifier: MIT */
/* The collectives of MPI. Compiled for each installed MPI. */
#include "rival.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>

static int mpi_init(int rank, int size)
{
    int mpi_rank = -1, mpi_size = -1;
    if (MPI_Init(NULL, NULL) != MPI_SUCCESS ||
        MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank) != MPI_SUCCESS ||
        MPI_Comm_size(MPI_COMM_WORLD, &mpi_size) != MPI_SUCCESS)
        return rival_error("MPI_Init failed");
    if (mpi_rank != rank || mpi_size != size)
        return rival_error("rank %d of %d, but of MPI_COMM_WORLD rank %d of %d: another MPI's "
                           "launcher?",
                           rank, size, mpi_rank, mpi_size);
    return 0;
}

/* Finds the first number with dots, as in "Open MPI v4.1.4, package" and "MPICH Version: 5.0.2". */
static const char *mpi_version(void)
{
    static char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    if (MPI_Get_library_version(text, &length) != MPI_SUCCESS)
        return "";
    char *number = text + strcspn(text, "0123456789");
    number[strspn(number, "0123456789.")] = '\0';
    return number;
}

static int result(const char *call, int error)
{
    return error == MPI_SUCCESS ? 0 : rival_error("%s gave error %d", call, error);
}

static int mpi_all_reduce(float *buffer, size_t count, int root)
{
    (void)root;
    return result("MPI_Allreduce", MPI_Allreduce(MPI_IN_PLACE, buffer, (int)count, MPI_FLOAT,
                                                 MPI_SUM, MPI_COMM_WORLD));
}

static int mpi_all_gather(float *buffer, size_t count, int root)
{
    (void)root;
    return result("MPI_Allgather", MPI_Allgather(MPI_IN_PLACE, 0, MPI_FLOAT, buffer, (int)count,
                                                 MPI_FLOAT, MPI_COMM_WORLD));
}

static int mpi_reduce_scatter(float *buffer, size_t count, int root)
{
    (void)root;
    return result("MPI_Reduce_scatter_block",
                  MPI_Reduce_scatter_block(MPI_IN_PLACE, buffer, (int)count, MPI_FLOAT, MPI_SUM,
                                           MPI_COMM_WORLD));
}

static int mpi_all_to_all(float *buffer, size_t count, int root)
{
    (void)root;
    int size;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    return result("MPI_Alltoall",
                  MPI_Alltoall(buffer, (int)count, MPI_FLOAT, buffer + (size_t)size * count,
                               (int)count, MPI_FLOAT, MPI_COMM_WORLD));
}

static int mpi_broadcast(float *buffer, size_t count, int root)
{
    return result("MPI_Bcast", MPI_Bcast(buffer, (int)count, MPI_FLOAT, root, MPI_COMM_WORLD));
}

static int is_rank(int root)
{
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank == root;
}

static int mpi_reduce(float *buffer, size_t count, int root)
{
    const void *send = is_rank(root) ? MPI_IN_PLACE : buffer;
    return result("MPI_Reduce",
                  MPI_Reduce(send, buffer, (int)count, MPI_FLOAT, MPI_SUM, root, MPI_COMM_WORLD));
}

static float *own_block(float *buffer, size_t count)
{
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return buffer + (size_t)rank * count;
}

static int mpi_gather(float *buffer, size_t count, int root)
{
    const void *send = is_rank(root) ? MPI_IN_PLACE : own_block(buffer, count);
    return result("MPI_Gather", MPI_Gather(send, (int)count, MPI_FLOAT, buffer, (int)count,
                                           MPI_FLOAT, root, MPI_COMM_WORLD));
}

static int mpi_scatter(float *buffer, size_t count, int root)
{
    void *recv = is_rank(root) ? MPI_IN_PLACE : own_block(buffer, count);
    return result("MPI_Scatter", MPI_Scatter(buffer, (int)count, MPI_FLOAT, recv, (int)count,
                                             MPI_FLOAT, root, MPI_COMM_WORLD));
}

/* ---- v-forms, with blocks of one length, and messages ---------------------------------------- */

static int counts[TUTTI_MAX_RANKS], displacements[TUTTI_MAX_RANKS];

/* Sets both arrays. */
static void blocks_set(size_t count)
{
    if (counts[0] == (int)count)
        return;
    for (int r = 0; r < TUTTI_MAX_RANKS; r++) {
        counts[r] = (int)count;
        displacements[r] = r * (int)count;
    }
}

static int mpi_all_gather_v(float *buffer, size_t count, int root)
{
    (void)root;
    blocks_set(count);
    return result("MPI_Allgatherv", MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_FLOAT, buffer, counts,
                                                   displacements, MPI_FLOAT, MPI_COMM_WORLD));
}

static int mpi_reduce_scatter_v(float *buffer, size_t count, int root)
{
    (void)root;
    blocks_set(count);
    return result("MPI_Reduce_scatter", MPI_Reduce_scatter(MPI_IN_PLACE, buffer, counts, MPI_FLOAT,
                                                           MPI_SUM, MPI_COMM_WORLD));
}

static int mpi_all_to_all_v(float *buffer, size_t count, int root)
{
    (void)root;
    int size;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    blocks_set(count);
    return result("MPI_Alltoallv", MPI_Alltoallv(buffer, counts, displacements, MPI_FLOAT,
                                                 buffer + (size_t)size * count, counts,
                                                 displacements, MPI_FLOAT, MPI_COMM_WORLD));
}

static int mpi_gather_v(float *buffer, size_t count, int root)
{
    const void *send = is_rank(root) ? MPI_IN_PLACE : own_block(buffer, count);
    blocks_set(count);
    return result("MPI_Gatherv", MPI_Gatherv(send, (int)count, MPI_FLOAT, buffer, counts,
                                             displacements, MPI_FLOAT, root, MPI_COMM_WORLD));
}

static int mpi_scatter_v(float *buffer, size_t count, int root)
{
    void *recv = is_rank(root) ? MPI_IN_PLACE : own_block(buffer, count);
    blocks_set(count);
    return result("MPI_Scatterv", MPI_Scatterv(buffer, counts, displacements, MPI_FLOAT, recv,
                                               (int)count, MPI_FLOAT, root, MPI_COMM_WORLD));
}

static int mpi_send_recv(float *buffer, size_t count, int root)
{
    (void)root;
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    return result("MPI_Sendrecv",
                  MPI_Sendrecv(buffer, (int)count, MPI_FLOAT, (rank + 1) % size, 0, buffer + count,
                               (int)count, MPI_FLOAT, (rank + size - 1) % size, 0, MPI_COMM_WORLD,
                               MPI_STATUS_IGNORE));
}

static void mpi_fini(void)
{
    MPI_Finalize();
}

int main(void)
{
    static const struct rival_engine engine = {
        .init = mpi_init,
        .version = mpi_version,
        .operations = {[TUTTI_COLLECTIVE_ALL_REDUCE] = mpi_all_reduce,
                       [TUTTI_COLLECTIVE_ALL_GATHER] = mpi_all_gather,
                       [TUTTI_COLLECTIVE_REDUCE_SCATTER] = mpi_reduce_scatter,
                       [TUTTI_COLLECTIVE_ALL_TO_ALL] = mpi_all_to_all,
                       [TUTTI_COLLECTIVE_BROADCAST] = mpi_broadcast,
                       [TUTTI_COLLECTIVE_REDUCE] = mpi_reduce,
                       [TUTTI_COLLECTIVE_GATHER] = mpi_gather,
                       [TUTTI_COLLECTIVE_SCATTER] = mpi_scatter,
                       [TUTTI_COLLECTIVE_SEND] = mpi_send_recv,
                       [TUTTI_COLLECTIVE_ALL_GATHER_V] = mpi_all_gather_v,
                       [TUTTI_COLLECTIVE_REDUCE_SCATTER_V] = mpi_reduce_scatter_v,
                       [TUTTI_COLLECTIVE_ALL_TO_ALL_V] = mpi_all_to_all_v,
                       [TUTTI_COLLECTIVE_GATHER_V] = mpi_gather_v,
                       [TUTTI_COLLECTIVE_SCATTER_V] = mpi_scatter_v},
        .scatters_to_first = 1,
        .fini = mpi_fini,
    };
    return rival_main(&engine);
}
