/* SPDX-License-Identifier: MIT */
/* With TUTTI_MPI_REPORT=1 a process writes at its end which calls it made, and who served them. */
#include "base/deadline.h"
#include "base/order.h"
#include "shim.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const function_names[FUNCTIONS] = {
#define FUNCTION_NAME(name, first, second, end) "MPI_" #name,
    COLLECTIVE_MAP(FUNCTION_NAME)
#undef FUNCTION_NAME
        "MPI_Barrier",
};

static struct {
    uint64_t calls, bytes, ns; /* relaxed: any thread adds */
} rows[FUNCTIONS][SERVERS];

static bool wanted;

static void report_write(void)
{
    static const char *const names[] = {"tutti", "mpi"};
    fprintf(stderr, "MPI calls of process %d:\n%-28s %-8s %10s %16s %12s\n", (int)getpid(),
            "function", "server", "calls", "bytes", "us");
    for (int function = 0; function < FUNCTIONS; function++)
        for (int server = 0; server < SERVERS; server++)
            if (rows[function][server].calls)
                fprintf(stderr, "%-28s %-8s %10" PRIu64 " %16" PRIu64 " %12.1f\n",
                        function_names[function], names[server], rows[function][server].calls,
                        rows[function][server].bytes, (double)rows[function][server].ns / 1e3);
}

static void read_wanted(void)
{
    const char *text = getenv("TUTTI_MPI_REPORT");
    wanted = text && strcmp(text, "1") == 0 && atexit(report_write) == 0;
}

int64_t report_begin(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_wanted);
    return __builtin_expect(wanted, 0) ? deadline_now() : 0;
}

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
    const uint64_t ns = (uint64_t)(deadline_now() - begin);
    order_fetch_add_relaxed_u64(&rows[call->function][server].calls, 1);
    order_fetch_add_relaxed_u64(&rows[call->function][server].bytes,
                                (uint64_t)bytes_of(real, call));
    order_fetch_add_relaxed_u64(&rows[call->function][server].ns, ns);
}
