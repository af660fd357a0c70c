/* SPDX-License-Identifier: MIT */
/*
 * libtutti-mpi.so: a preloaded library that serves an MPI program's collectives by Tutti.
 *
 *   calls.h    what is served, with its arguments
 *   entry.c    MPI's functions, in both forms; what MPI serves
 *   serve.c    what Tutti serves
 *   operand.c  its operands as bytes
 *   comm.c     the communicator of Tutti's beside one of MPI's
 *   types.c    MPI's types and operations as Tutti's
 *   real.c     the program's MPI
 *   report.c   who served what
 *
 * Who serves a call follows from what all its ranks know: the function, a reduction's type and
 * operation, and the communicator. Other types are packed to bytes, since two ranks may describe
 * equal data by different types.
 */
#ifndef SHIM_MPI_SHIM_H
#define SHIM_MPI_SHIM_H

#include "calls.h"

#define EXPORT __attribute__((visibility("default")))

/* ---- real.c ---------------------------------------------------------------------------------- */

struct real {
    struct mpi_abi abi;
    void *library; /* of dlopen() */
#define REAL_MEMBER(name, arguments) int(*name) arguments;
    REAL_MAP(REAL_MEMBER)
#undef REAL_MEMBER
#define REAL_FORMS(name, first, second, end)                                                       \
    int(*name) PARAMETERS(int, int, first, second, end);                                           \
    int(*name##_c) PARAMETERS(int64_t, intptr_t, first, second, end);
    /* The second forms are NULL if this MPI does not have them. */
    COLLECTIVE_MAP(REAL_FORMS)
#undef REAL_FORMS
};

/* The program's MPI. A program that calls a collective has one; without it the process ends. */
const struct real *real_mpi(void);

/* ---- types.c --------------------------------------------------------------------------------- */

struct type {
    uintptr_t handle;
    size_t bytes;           /* of the data of one element */
    intptr_t extent;        /* from one element to the next */
    bool is_plain;          /* predefined, and an element is its bytes */
    enum tutti_dtype dtype; /* if there are operations */
    uint32_t ops;           /* a bit 1 << kind for each constant that the type has */
};

/* Fills the tables. Before other calls. */
void types_start(const struct real *real);
/* A type of the table; else NULL. */
const struct type *type_plain(const struct real *real, uintptr_t handle);
/* Any type. Returns false if MPI does not know the handle. */
bool type_find(const struct real *real, uintptr_t handle, struct type *type);
/* The operation of a reduction; NULL if Tutti does not have it for this type. *is_logical: an
 * element that is not 0 counts as 1. */
tutti_op_t op_find(const struct real *real, uintptr_t handle, const struct type *type,
                   bool *is_logical);

/* ---- comm.c ---------------------------------------------------------------------------------- */

struct comm {
    tutti_comm_t *tutti;
    uintptr_t handle; /* MPI's */
    const struct real *real;
    int rank, size;
    int calls; /* so far, until there are 2 */
    /* Of the call: when it first waited, or 0, and when MPI last made progress. */
    int64_t waits_from, probed;
    int rests; /* in its waits */
    bool progress_soon;
};

/* The communicator that serves a call; NULL if MPI does. Collective: the second call makes it. */
struct comm *comm_find(const struct real *real, uintptr_t handle);
/* Lets the MPI make progress. */
void comm_probe(const struct comm *comm);

/* ---- serve.c --------------------------------------------------------------------------------- */

/* Sets MPI's code. False, with no effect: MPI serves the call. */
bool call_serve(const struct real *real, const struct call *call, int *code);

/* ---- report.c -------------------------------------------------------------------------------- */

enum server { SERVER_TUTTI, SERVER_MPI };

/* Counts a call, if TUTTI_MPI_REPORT is set. begin: 0 if it is not. */
int64_t report_begin(void);
void report_end(const struct real *real, const struct call *call, enum server server,
                int64_t begin);

extern const char *const function_names[FUNCTIONS];

#endif
