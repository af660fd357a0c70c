/* SPDX-License-Identifier: MIT */
#include "../report.h"

#include "shim.h"

const char *const function_names[FUNCTIONS] = {
#define FUNCTION_NAME(name, first, second, end) "MPI_" #name,
    COLLECTIVE_MAP(FUNCTION_NAME)
#undef FUNCTION_NAME
        "MPI_Barrier",
};

static const struct report_text text = {
    .variable = "TUTTI_MPI_REPORT",
    .title = "MPI",
    .unit = "us",
    .servers = {"tutti", "mpi"},
    .functions = function_names,
    .count = FUNCTIONS,
};

/* What the rank itself gives, or takes of a root: 0 where that is in place, and on
 * intercommunicators. */
static int64_t bytes_of(const struct real *real, const struct call *call)
{
    const enum function f = call->function;
    const bool takes = f == FUNCTION_Bcast || f == FUNCTION_Scatter || f == FUNCTION_Scatterv;
    const bool has_blocks = f == FUNCTION_Alltoall || f == FUNCTION_Alltoallv ||
                            f == FUNCTION_Reduce_scatter || f == FUNCTION_Reduce_scatter_block;
    const struct side *side = takes ? &call->recv : &call->send;
    struct type type = {.bytes = 0};
    int64_t count = 0;
    int size = 1, inter = 0;
    if (f == FUNCTION_Barrier || real->Comm_test_inter(call->comm, &inter) != 0 || inter ||
        (side->buffer == real->abi.in_place && !call_reduces(call)) ||
        !type_find(real, side->type, &type))
        return 0;
    if (has_blocks)
        (void)real->abi.comm_size(call->comm, &size);
    for (int r = 0; r < size; r++)
        count += block_count(call, side, r);
    return count * (int64_t)type.bytes;
}

void report_end(const struct real *real, const struct call *call, enum server server, int64_t begin)
{
    report_add((int)call->function, (int)server, (uint64_t)bytes_of(real, call), begin);
}
