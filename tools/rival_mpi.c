/* SPDX-License-Identifier: MIT */
/* The collectives of MPI. Compiled for each installed MPI. */
#include "rival.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>

static int own_rank = -1, world_size = -1; /* of MPI_COMM_WORLD */

static int mpi_init(int rank, int size)
{
    if (MPI_Init(NULL, NULL) != MPI_SUCCESS ||
        MPI_Comm_rank(MPI_COMM_WORLD, &own_rank) != MPI_SUCCESS ||
        MPI_Comm_size(MPI_COMM_WORLD, &world_size) != MPI_SUCCESS)
        return rival_error("MPI_Init failed");
    if (own_rank != rank || world_size != size)
        return rival_error("rank %d of %d, but of MPI_COMM_WORLD rank %d of %d: another MPI's "
                           "launcher?",
                           rank, size, own_rank, world_size);
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

static float *block_of(float *buffer, size_t count, int rank)
{
    return buffer + (size_t)rank * count;
}

/* The operand of a rank that is not the root is its own block. */
static void *in_place_at(int root, float *other)
{
    return own_rank == root ? MPI_IN_PLACE : other;
}

/* For v-forms, with blocks of one length. Sets both arrays. */
static int counts[TUTTI_MAX_RANKS], displacements[TUTTI_MAX_RANKS];

static const int *counts_of(size_t count)
{
    for (int r = 0; counts[0] != (int)count && r < TUTTI_MAX_RANKS; r++) {
        counts[TUTTI_MAX_RANKS - 1 - r] = (int)count;
        displacements[r] = r * (int)count;
    }
    return counts;
}

/* engine_NAME() calls `function` with the other arguments. */
#define OPERATION(name, function, ...)                                                             \
    static int engine_##name(float *buffer, size_t count, int root)                                \
    {                                                                                              \
        (void)root;                                                                                \
        return result(#function, function(__VA_ARGS__));                                           \
    }
#define FLOATS       (int)count, MPI_FLOAT
#define FLOATS_V     counts_of(count), displacements, MPI_FLOAT
#define OWN_BLOCK    block_of(buffer, count, own_rank)
#define BEHIND       block_of(buffer, count, world_size)
#define SUM_OF_WORLD MPI_SUM, MPI_COMM_WORLD

OPERATION(ALL_REDUCE, MPI_Allreduce, MPI_IN_PLACE, buffer, FLOATS, SUM_OF_WORLD)
OPERATION(ALL_GATHER, MPI_Allgather, MPI_IN_PLACE, 0, MPI_FLOAT, buffer, FLOATS, MPI_COMM_WORLD)
OPERATION(REDUCE_SCATTER, MPI_Reduce_scatter_block, MPI_IN_PLACE, buffer, FLOATS, SUM_OF_WORLD)
OPERATION(ALL_TO_ALL, MPI_Alltoall, buffer, FLOATS, BEHIND, FLOATS, MPI_COMM_WORLD)
OPERATION(BROADCAST, MPI_Bcast, buffer, FLOATS, root, MPI_COMM_WORLD)
OPERATION(REDUCE, MPI_Reduce, in_place_at(root, buffer), buffer, FLOATS, MPI_SUM, root,
          MPI_COMM_WORLD)
OPERATION(GATHER, MPI_Gather, in_place_at(root, OWN_BLOCK), FLOATS, buffer, FLOATS, root,
          MPI_COMM_WORLD)
OPERATION(SCATTER, MPI_Scatter, buffer, FLOATS, in_place_at(root, OWN_BLOCK), FLOATS, root,
          MPI_COMM_WORLD)
/* To the next rank, from the one before. */
OPERATION(SEND, MPI_Sendrecv, buffer, FLOATS, (own_rank + 1) % world_size, 0, buffer + count,
          FLOATS, (own_rank + world_size - 1) % world_size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE)
OPERATION(ALL_GATHER_V, MPI_Allgatherv, MPI_IN_PLACE, 0, MPI_FLOAT, buffer, FLOATS_V,
          MPI_COMM_WORLD)
OPERATION(REDUCE_SCATTER_V, MPI_Reduce_scatter, MPI_IN_PLACE, buffer, counts_of(count), MPI_FLOAT,
          SUM_OF_WORLD)
OPERATION(ALL_TO_ALL_V, MPI_Alltoallv, buffer, FLOATS_V, BEHIND, FLOATS_V, MPI_COMM_WORLD)
OPERATION(GATHER_V, MPI_Gatherv, in_place_at(root, OWN_BLOCK), FLOATS, buffer, FLOATS_V, root,
          MPI_COMM_WORLD)
OPERATION(SCATTER_V, MPI_Scatterv, buffer, FLOATS_V, in_place_at(root, OWN_BLOCK), FLOATS, root,
          MPI_COMM_WORLD)

static void mpi_fini(void)
{
    MPI_Finalize();
}

int main(void)
{
    static const struct rival_engine engine = {
        .init = mpi_init,
        .version = mpi_version,
        .operations = {RIVAL_MAP(RIVAL_ROW)},
        .scatters_to_first = 1,
        .fini = mpi_fini,
    };
    return rival_main(&engine);
}
