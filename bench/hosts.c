/* SPDX-License-Identifier: MIT */
/*
 * All-reduces of float32 between the ranks that an MPI launcher has started, by Tutti over the
 * fabric `mpi:` and by MPI_Allreduce(), in turns. scripts/bench-hosts compiles it with the MPI and
 * starts it on two network namespaces, whose names are the hosts' ids.
 *
 * usage: hosts STORE [BYTES...]; STORE: the URL of a store that all ranks reach
 * Prints a line a size: bytes, us of Tutti, us of MPI (the median of the rounds, of the slowest
 * rank), their ratio. Each element is checked: inputs are small integers, whose sums are exact.
 */
#include "now.h"
#include "stats.h"
#include "tutti/fabric.h"
#include "tutti/tutti.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 11, MOST_BYTES = 64 << 20, ROUND_US = 20000, TIMEOUT_MS = 60000 };

static int rank, size;
static tutti_comm_t *comm;
static float *send, *recv;

static void die(const char *what)
{
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, tutti_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void by_tutti(size_t count)
{
    if (tutti_all_reduce(send, recv, count, TUTTI_FLOAT32, TUTTI_SUM, comm, TUTTI_STREAM_DEFAULT))
        die("tutti_all_reduce");
}

static void by_mpi(size_t count)
{
    MPI_Allreduce(send, recv, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void check(size_t count, const char *what)
{
    for (size_t i = 0; i < count; i++)
        if (recv[i] != (float)(size * (size - 1) / 2 + size * (int)(i % 7))) {
            fprintf(stderr, "rank %d: %s of %zu elements: element %zu is %g\n", rank, what, count,
                    i, (double)recv[i]);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    memset(recv, 0, count * sizeof *recv);
}

/* The time of an operation, in us, of the slowest rank. */
static double round_run(void (*run)(size_t count), size_t count, int operations)
{
    double slowest, own;
    MPI_Barrier(MPI_COMM_WORLD);
    own = now_us();
    for (int i = 0; i < operations; i++)
        run(count);
    own = (now_us() - own) / operations;
    MPI_Allreduce(&own, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static void size_run(size_t bytes)
{
    void (*const runs[])(size_t) = {by_tutti, by_mpi};
    static const char *const names[] = {"tutti", "MPI"};
    const size_t count = bytes / sizeof *send;
    double times[2][ROUNDS], us[2];
    for (int way = 0; way < 2; way++) {
        runs[way](count);
        check(count, names[way]);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int way = 0; way < 2; way++) {
            const double once = round_run(runs[way], count, 1);
            const int operations = once > ROUND_US ? 1 : (int)(ROUND_US / once) + 1;
            times[way][round] = round_run(runs[way], count, operations);
        }
    }
    for (int way = 0; way < 2; way++) {
        us[way] = stats_of(times[way], ROUNDS).p50;
        runs[way](count);
        check(count, names[way]);
    }
    if (rank == 0)
        printf("%9zu %10.1f %10.1f %6.2f\n", bytes, us[0], us[1], us[0] / us[1]);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const char *const usual[] = {"8",      "1024",    "16384",   "65536",
                                        "262144", "1048576", "4194304", "16777216"};
    struct tutti_comm_options options = {.struct_size = sizeof options, .timeout_ms = TIMEOUT_MS};
    tutti_store_t *store;
    char host[64] = "";
    int given;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &given);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    gethostname(host, sizeof host - 1);
    setenv("TUTTI_HOST_ID", host, 1);
    send = malloc(MOST_BYTES);
    recv = malloc(MOST_BYTES);
    if (argc < 2 || !send || !recv)
        die("usage: hosts STORE [BYTES...]");
    for (size_t i = 0; i < MOST_BYTES / sizeof *send; i++)
        send[i] = (float)(rank + (int)(i % 7));
    if (tutti_store_open(argv[1], TIMEOUT_MS, &store) ||
        tutti_fabric_open("mpi:", &options.fabric) ||
        tutti_comm_create(store, rank, size, &options, &comm))
        die("set-up");
    if (rank == 0)
        printf("%9s %10s %10s %6s\n", "bytes", "tutti us", "MPI us", "ratio");
    const int sizes = argc > 2 ? argc - 2 : (int)(sizeof usual / sizeof *usual);
    for (int i = 0; i < sizes; i++) {
        const size_t bytes = strtoul(argc > 2 ? argv[2 + i] : usual[i], NULL, 10);
        if (bytes < sizeof *send || bytes > MOST_BYTES)
            die("a size is from 4 to 67108864 bytes");
        size_run(bytes);
    }
    tutti_comm_destroy(comm);
    tutti_fabric_close(options.fabric);
    tutti_store_close(store);
    MPI_Finalize();
    return 0;
}
