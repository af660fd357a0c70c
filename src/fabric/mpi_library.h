/* SPDX-License-Identifier: MIT */
/*
 * The MPI of this process: the library that the program has loaded, or that of the launcher.
 *
 * Two MPIs in one process would disturb each other, so a loaded one is taken, whatever else is
 * installed. An MPI_Init() without the right launcher does harm: Open MPI's ends the process under
 * a foreign one, and without one each rank is alone in a world of size 1. So a library whose
 * initialisation would be ours is compared with the launcher first.
 */
#ifndef TUTTI_FABRIC_MPI_LIBRARY_H
#define TUTTI_FABRIC_MPI_LIBRARY_H

#include "base/loaded.h"
#include "fabric/mpi_abi.h"

struct mpi_library {
    struct mpi_abi abi;
    char path[LOADED_PATH_BYTES];
    char version[56]; /* "Open MPI v4.1.4" */
    char job[56];     /* equal on all ranks of a launch; "": the launcher gives it no name */
    int rank, size;   /* in MPI_COMM_WORLD */
    int level;        /* of threads: 0 to 3, MPI_THREAD_SINGLE to MULTIPLE */
};

/* The first call finds the library, and initialises it if nobody has. `path`: "", or the file to
 * open if none is loaded. Valid until as many calls of close, the last of which finalises MPI if it
 * was initialised here, unless keep was called. For any thread. Returns DECLINED, SYSTEM. */
enum tutti_status mpi_library_open(const char *path, struct mpi_library **library);
void mpi_library_close(void);
void mpi_library_keep(void);
/* A thread stays inside of MPI for ever: the library stays open, and is not finalised. */
void mpi_library_hold(void);

/*
 * The communicator of the world's ranks of which links are made, while they are made. Open MPI
 * makes a group's communicator by messages that receives of the program with MPI_ANY_SOURCE and
 * MPI_ANY_TAG take away, and then never ends. So the first link of all ranks (`all`) makes a
 * communicator of our own for that; collective then. Until there is one, it is MPI_COMM_WORLD.
 */
enum tutti_status mpi_library_parent(const struct mpi_library *library, bool all,
                                     uintptr_t *parent);

/* The library that the program has loaded, whether or not it is initialised: its handle of
 * dlopen(), path and functions. NULL: there is none. For a drop-in, which opens and initialises
 * nothing. */
void *mpi_library_loaded(struct mpi_abi *abi, char *path, size_t size);

/* Whether MPI functions may be called: the program may have finalised MPI. */
bool mpi_library_works(const struct mpi_library *library);

#endif
