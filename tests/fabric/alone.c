/* SPDX-License-Identifier: MIT */
/*
 * alone STORE URL: a program without MPI.
 * alone STORE URL LIBRARY [LEVEL]: one that opens MPI at run time, keeps its symbols to itself, as
 * Python's mpi4py does, and initialises it. LEVEL: "-" leaves MPI uninitialised, "end" finalises
 * it.
 */
#include "rank.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    int (*init)(int *, char ***) = NULL, (*finalize)(void) = NULL;
    const char *level = argc > 4 ? argv[4] : "";
    if (argc < 3)
        return 2;
    if (argc > 3) {
        void *library = dlopen(argv[3], RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            fprintf(stderr, "%s\n", dlerror());
            return 2;
        }
        *(void **)&init = dlsym(library, "MPI_Init");
        *(void **)&finalize = dlsym(library, "MPI_Finalize");
        if (*level != '-' && init(NULL, NULL) != 0)
            return 2;
        if (*level == 'e')
            finalize();
    }
    const int status = fabric_rank(argv, argc > 3 && !*level);
    if (argc > 3 && !*level)
        finalize();
    return status;
}
