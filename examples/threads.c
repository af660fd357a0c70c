/* SPDX-License-Identifier: MIT */
/*
 * Averages a long vector over ranks that have several threads each, as one rank a NUMA node has.
 * The threads of OpenMP that compute the vector also share the work of the all-reduce. The result
 * has the same bits for any number of threads, which may differ from rank to rank.
 *
 *     OMP_NUM_THREADS=2 tutti run -n 2 build/examples/threads
 */
#include <stdio.h>
#include <stdlib.h>
#include <tutti/openmp.h>
#include <tutti/tutti.h>

enum { COUNT = 1 << 20, STEPS = 3 };

static void must(enum tutti_status status)
{
    if (status == TUTTI_OK)
        return;
    fprintf(stderr, "%s\n", tutti_last_error());
    exit(1);
}

static void compute(float *gradient, int rank, int step)
{
#ifdef _OPENMP
#pragma omp parallel for
#endif
    for (int i = 0; i < COUNT; i++)
        gradient[i] = (float)(i % 7 + rank + step);
}

int main(void)
{
    const char *given = getenv("OMP_NUM_THREADS");
    struct tutti_launcher launcher = {.struct_size = sizeof launcher};
    struct tutti_comm_options options = {.struct_size = sizeof options};
    float *gradient = malloc(COUNT * sizeof *gradient);
    tutti_store_t *store;
    tutti_comm_t *comm;
    int wrong = 0;
    if (!gradient)
        return 1;
    /* Also finds the library that this program was linked with, if it was compiled for OpenMP. */
    must(tutti_parallel_find(&options.parallel));
    options.threads = given ? atoi(given) : 2;
    must(tutti_info_launcher(&launcher));
    must(tutti_store_open("env:", 10000, &store));
    must(tutti_comm_create(store, launcher.rank, launcher.world_size, &options, &comm));
    for (int step = 0; step < STEPS; step++) {
        compute(gradient, launcher.rank, step);
        must(tutti_all_reduce(gradient, gradient, COUNT, TUTTI_FLOAT32, TUTTI_AVG, comm,
                              TUTTI_STREAM_DEFAULT));
        for (int i = 0; i < COUNT; i++)
            wrong += gradient[i] != (float)(i % 7 + step) + (float)(launcher.world_size - 1) / 2;
    }
    printf("rank %d, %d threads: %d wrong elements\n", launcher.rank, options.threads, wrong);
    tutti_comm_destroy(comm);
    tutti_store_close(store);
    free(gradient);
    return wrong != 0;
}
