/* SPDX-License-Identifier: MIT */
/*
 * MPI's binary interface, as the library in the process has it. There are three: that of MPICH (and
 * Intel MPI, MVAPICH, ...), that of Open MPI, and the standard one of MPI 5 (libmpi_abi.so.1).
 * Functions have the same names in all; handles and constants differ.
 *
 * A handle is an uintptr_t here. MPICH's are ints, which functions take from the low half of the
 * argument, and which they write to the low half of a variable that was zero. Functions are called
 * by their second names (PMPI_), so that no tool counts them as the program's.
 */
#ifndef TUTTI_FABRIC_MPI_ABI_H
#define TUTTI_FABRIC_MPI_ABI_H

#include "fabric/mpi_handles.h"

/* X(member, name, arguments) */
#define MPI_FUNCTION_MAP(X)                                                                        \
    X(initialized, Initialized, (int *flag))                                                       \
    X(finalized, Finalized, (int *flag))                                                           \
    X(init_thread, Init_thread, (int *argc, char ***argv, int level, int *given))                  \
    X(finalize, Finalize, (void))                                                                  \
    X(query_thread, Query_thread, (int *level))                                                    \
    X(is_thread_main, Is_thread_main, (int *flag))                                                 \
    X(library_version, Get_library_version, (char *text, int *length))                             \
    X(error_string, Error_string, (int code, char *text, int *length))                             \
    X(error_class, Error_class, (int code, int *class_of))                                         \
    X(comm_rank, Comm_rank, (uintptr_t comm, int *rank))                                           \
    X(comm_size, Comm_size, (uintptr_t comm, int *size))                                           \
    X(comm_group, Comm_group, (uintptr_t comm, uintptr_t * group))                                 \
    X(group_incl, Group_incl, (uintptr_t group, int count, const int *ranks, uintptr_t *made))     \
    X(group_free, Group_free, (uintptr_t * group))                                                 \
    X(comm_create, Comm_create, (uintptr_t comm, uintptr_t group, uintptr_t * made))               \
    X(comm_create_group, Comm_create_group,                                                        \
      (uintptr_t comm, uintptr_t group, int tag, uintptr_t *made))                                 \
    X(comm_set_errhandler, Comm_set_errhandler, (uintptr_t comm, uintptr_t handler))               \
    X(comm_free, Comm_free, (uintptr_t * comm))                                                    \
    X(isend, Isend,                                                                                \
      (const void *buffer, int count, uintptr_t type, int to, int tag, uintptr_t comm,             \
       void *request))                                                                             \
    X(irecv, Irecv,                                                                                \
      (void *buffer, int count, uintptr_t type, int from, int tag, uintptr_t comm, void *request)) \
    X(test, Test, (void *request, int *flag, void *status))                                        \
    X(get_count, Get_count, (const void *status, uintptr_t type, int *count))                      \
    X(cancel, Cancel, (void *request))

struct mpi_abi {
    const char *name;
    enum mpi_kind kind;
    int thread_levels[4]; /* MPI_THREAD_SINGLE, FUNNELED, SERIALIZED, MULTIPLE */
    int truncate, other;  /* MPI_ERR_TRUNCATE, MPI_ERR_OTHER: classes of errors */
    int any_source, root; /* MPI_ANY_SOURCE, MPI_ROOT */
    void *in_place;
    uintptr_t handle_bits; /* those of a handle: the others of an argument may be anything */
    uintptr_t world, byte, errors_return;
#define MPI_MEMBER(member, name, arguments) int(*member) arguments;
    MPI_FUNCTION_MAP(MPI_MEMBER)
#undef MPI_MEMBER
};

/* Finds the functions in a library that dlopen() has opened. Returns DECLINED (a function is
 * missing). */
enum tutti_status mpi_abi_find(void *library, const char *path, struct mpi_abi *abi);

/* A predefined handle, which Open MPI has as an object of this name and the others as a number; 0:
 * this MPI does not have it. */
uintptr_t mpi_abi_handle(const struct mpi_abi *abi, void *library, const char *openmpi,
                         uintptr_t mpich, uintptr_t standard);

/* The index of the level in thread_levels, or 0. */
int mpi_thread_level(const struct mpi_abi *abi, int level);

/* SYSTEM, with the engine's text of the code. */
enum tutti_status mpi_error(const struct mpi_abi *abi, const char *call, int code);

#endif
