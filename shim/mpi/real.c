/* SPDX-License-Identifier: MIT */
/* The program's MPI. Its functions are asked for by its library's handle: Python loads MPI with
 * RTLD_LOCAL, where RTLD_NEXT finds nothing. */
#include "shim.h"

#include "fabric/mpi_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static struct real found; /* constant once it is found */

static void *symbol(const char *name, const char *path, bool needed)
{
    void *address = dlsym(found.library, name);
    if (!address && needed) {
        fprintf(stderr, "libtutti-mpi.so: %s has no %s: an MPI 3.0 or newer is needed\n", path,
                name);
        abort();
    }
    return address;
}

static void find(void)
{
    char path[512];
    found.library = mpi_library_loaded(&found.abi, path, sizeof path);
    if (!found.library) {
        fputs("libtutti-mpi.so: the program calls MPI, but has not loaded a library of an MPI that "
              "is known: do not preload libtutti-mpi.so\n",
              stderr);
        abort();
    }
    const bool large = dlsym(found.library, "PMPI_Allreduce_c"); /* all of them, or none */
#define REAL_FIND(name, arguments) *(void **)&found.name = symbol("PMPI_" #name, path, true);
    REAL_MAP(REAL_FIND)
#undef REAL_FIND
#define REAL_FIND_FORMS(name, first, second, end)                                                  \
    *(void **)&found.name = symbol("PMPI_" #name, path, true);                                     \
    *(void **)&found.name##_c = symbol("PMPI_" #name "_c", path, large);
    COLLECTIVE_MAP(REAL_FIND_FORMS)
#undef REAL_FIND_FORMS
    types_start(&found);
}

const struct real *real_mpi(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find);
    return &found;
}
