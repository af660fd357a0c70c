/* SPDX-License-Identifier: MIT */
/* The MPI of this process, as a rival in `tutti bench --vs mpi`: its collectives on MPI_COMM_WORLD,
 * found at run time. No MPI is linked. A function that returns false leaves the reason in
 * library_error(). For one thread, which the MPI must allow. */
#ifndef TUTTI_TOOL_MPI_CALLS_H
#define TUTTI_TOOL_MPI_CALLS_H

#include "collective.h"
#include "library.h"

/* Finds the library that the process has loaded and initialised: tutti_fabric_open("mpi:") does
 * both. */
bool mpi_calls_open(void);
/* "Open MPI v4.1.4". "": mpi_calls_open() was not called. */
const char *mpi_calls_version(void);
/* Whether MPI can do the collective. What does not reduce is moved as bytes, in any dtype. */
bool mpi_calls_serve(enum tutti_collective which, enum tutti_dtype dtype, tutti_op_t op,
                     size_t count);
bool mpi_calls_run(const struct rival_call *call);
bool mpi_calls_barrier(void);
/* Rank 0's bytes to all ranks. */
bool mpi_calls_share(void *data, size_t bytes);

#endif
