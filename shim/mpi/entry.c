/* SPDX-License-Identifier: MIT */
/* MPI's functions. What Tutti does not serve is passed to MPI. An MPI without the form _c gets the
 * other one: a program that finds one function of that form takes it that the MPI has all. */
#include "shim.h"

#include <limits.h>
#include <stdlib.h>

enum { ARRAYS = 4, COUNT_ERROR = 2 /* MPI_ERR_COUNT in all interfaces */ };

static int pass(const struct real *real, const struct call *call)
{
    switch (call->function) {
#define PASS(name, first, second, end)                                                             \
    case FUNCTION_##name:                                                                          \
        return call->wide ? real->name##_c ARGUMENTS(first, second, end)                           \
                          : real->name ARGUMENTS(first, second, end);
        COLLECTIVE_MAP(PASS)
#undef PASS
    case FUNCTION_Barrier:
        return real->Barrier(call->comm);
    case FUNCTIONS:
        break;
    }
    return real->abi.other;
}

/* ---- the form with ints ---------------------------------------------------------------------- */

static bool fits(int64_t value)
{
    return value >= INT_MIN && value <= INT_MAX;
}

/* Copies an array to one of ints; *array may be NULL. Returns false if an entry does not fit. */
static bool narrow(const void **array, int size, int *copy)
{
    const int64_t *from = *array;
    if (!from)
        return true;
    for (int i = 0; i < size; i++) {
        if (!fits(from[i]))
            return false;
        copy[i] = (int)from[i];
    }
    *array = copy;
    return true;
}

/* How many entries the arrays have on this rank. Of a call with a root only the root reads them;
 * elsewhere their addresses may be anything. */
static int entries_find(const struct real *real, const struct call *call, int *entries)
{
    const bool rooted = call->function == FUNCTION_Gatherv || call->function == FUNCTION_Scatterv;
    int rank = 0, inter = 0;
    int code = real->Comm_test_inter(call->comm, &inter);
    if (code == 0)
        code = real->abi.comm_rank(call->comm, &rank);
    if (code == 0)
        code = (inter ? real->Comm_remote_size : real->abi.comm_size)(call->comm, entries);
    if (rooted && call->root != (inter ? real->abi.root : rank))
        *entries = 0;
    return code;
}

static int pass_narrow(const struct real *real, const struct call *call)
{
    struct call c = *call;
    const void **const arrays[ARRAYS] = {&c.send.counts, &c.send.displs, &c.recv.counts,
                                         &c.recv.displs};
    int entries = 0;
    bool ok = fits(c.send.count) && fits(c.recv.count);
    int code = entries_find(real, call, &entries);
    if (code != 0)
        return code;
    int *copy = malloc(((size_t)entries * ARRAYS + 1) * sizeof *copy);
    if (c.send.buffer == real->abi.in_place && !call_reduces(&c))
        c.send.counts = c.send.displs = NULL; /* they may be anything */
    for (int i = 0; i < ARRAYS && ok && copy; i++)
        ok = narrow(arrays[i], entries, copy + (ptrdiff_t)i * entries);
    c.wide = false;
    if (ok && copy) {
        code = pass(real, &c);
    } else {
        code = copy ? COUNT_ERROR : real->abi.other;
        real->Comm_call_errhandler(c.comm, code);
    }
    free(copy);
    return code;
}

/* ---- the functions --------------------------------------------------------------------------- */

static int run(const struct call *call)
{
    const struct real *real = real_mpi();
    const int64_t begin = report_begin();
    int code = 0;
    const bool served = call_serve(real, call, &code);
    if (!served)
        code = call->wide && !real->Allreduce_c ? pass_narrow(real, call) : pass(real, call);
    if (__builtin_expect(begin != 0, 0) && code == 0)
        report_end(real, call, served ? SERVER_TUTTI : SERVER_MPI, begin);
    return code;
}

#define DEFINE_FORM(name, N, D, is_wide, base, first, second, end)                                 \
    EXPORT int name PARAMETERS(N, D, first, second, end)                                           \
    {                                                                                              \
        const struct call call = {                                                                 \
            .function = FUNCTION_##base, .wide = is_wide, FIELDS(first, second, end)};             \
        return run(&call);                                                                         \
    }
#define DEFINE(name, first, second, end)                                                           \
    DEFINE_FORM(MPI_##name, int, int, false, name, first, second, end)                             \
    DEFINE_FORM(MPI_##name##_c, int64_t, intptr_t, true, name, first, second, end)
COLLECTIVE_MAP(DEFINE)

EXPORT int MPI_Barrier(uintptr_t comm)
{
    const struct call call = {.function = FUNCTION_Barrier, .comm = comm};
    return run(&call);
}
