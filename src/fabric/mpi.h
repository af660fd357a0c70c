/* SPDX-License-Identifier: MIT */
/* MPI as a fabric, for memory of the host. */
#ifndef TUTTI_FABRIC_MPI_H
#define TUTTI_FABRIC_MPI_H

#include "fabric/fabric.h"

extern const struct fabric_ops mpi_fabric;

/* The longest message that is one of MPI's; at most INT_MAX. Longer ones are cut. Tests lower it,
 * on all ranks, before the first link. */
extern size_t mpi_piece_bytes;

#endif
