/* SPDX-License-Identifier: MIT */
/*
 * Data parallelism with a sharded optimizer (ZeRO, Rajbhandari et al. 2020): each rank has all
 * weights and computes gradients from its own samples. A reduce-scatter gives each rank the average
 * gradient of its shard, the rank updates that shard, and an all-gather gives all ranks the new
 * weights. So each rank keeps the optimizer's state of its shard only.
 *
 * The model is linear, y = w x. The ranks learn weights that are known. At the end every rank has
 * the same bits.
 *
 *     tutti run -n 4 build/examples/sharded_update
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tutti/tutti.h>

enum { STEPS = 300, SHARD = 16, SAMPLES = 64 };
static const float rate = 0.05F, momentum = 0.9F;

static void must(enum tutti_status status)
{
    if (status == TUTTI_OK)
        return;
    fprintf(stderr, "%s\n", tutti_last_error());
    exit(1);
}

/* A number from -1 to 1. Each rank can compute it. */
static float number(unsigned i)
{
    i = (i ^ 61U ^ i >> 16) * 9U;
    i = (i ^ i >> 4) * 0x27d4eb2dU;
    return (float)(i ^ i >> 15) / 2147483648.0F - 1.0F;
}

/* Adds a sample's gradient of the squared error. Returns the error. */
static float sample(unsigned seed, size_t size, const float *weights, float *gradient)
{
    float error = 0;
    for (size_t i = 0; i < size; i++)
        error += (weights[i] - number((unsigned)i)) * number(seed + (unsigned)i);
    for (size_t i = 0; i < size; i++)
        gradient[i] += error * number(seed + (unsigned)i) / SAMPLES;
    return error;
}

int main(void)
{
    tutti_store_t *store;
    tutti_comm_t *comm;
    struct tutti_launcher launcher = {.struct_size = sizeof launcher};
    must(tutti_info_launcher(&launcher));
    must(tutti_store_open("env:", 0, &store));
    must(tutti_comm_create(store, launcher.rank, launcher.world_size, NULL, &comm));

    const size_t size = SHARD * (size_t)launcher.world_size;
    float *weights = calloc(size, sizeof *weights), *gradient = calloc(size, sizeof *gradient);
    float *own = weights + SHARD * (size_t)launcher.rank; /* this rank's shard */
    float shard[SHARD], speed[SHARD] = {0}, error = 0;
    if (!weights || !gradient)
        return 1;
    for (unsigned step = 0; step < STEPS; step++) {
        memset(gradient, 0, size * sizeof *gradient);
        error = 0;
        for (unsigned s = 0; s < SAMPLES; s++) {
            const unsigned seed =
                ((step * SAMPLES + s) * TUTTI_MAX_RANKS + (unsigned)launcher.rank + 1) * 100000U;
            error = fmaxf(error, fabsf(sample(seed, size, weights, gradient)));
        }
        must(tutti_reduce_scatter(gradient, shard, SHARD, TUTTI_FLOAT32, TUTTI_AVG, comm,
                                  TUTTI_STREAM_DEFAULT));
        for (int i = 0; i < SHARD; i++) {
            speed[i] = momentum * speed[i] - rate * shard[i];
            own[i] += speed[i];
        }
        must(tutti_all_gather(own, weights, SHARD, TUTTI_FLOAT32, comm, TUTTI_STREAM_DEFAULT));
    }

    float worst = 0, difference = 0;
    float *most = malloc(size * sizeof *most);
    if (!most)
        return 1;
    must(tutti_all_reduce(weights, most, size, TUTTI_FLOAT32, TUTTI_MAX, comm,
                          TUTTI_STREAM_DEFAULT));
    for (size_t i = 0; i < size; i++) {
        worst = fmaxf(worst, fabsf(weights[i] - number((unsigned)i)));
        difference = fmaxf(difference, most[i] - weights[i]);
    }
    if (launcher.rank == 0)
        printf("%zu weights on %d ranks, %d steps: off by %.1e at most\n", size,
               launcher.world_size, STEPS, (double)worst);
    const bool good = worst < 1e-3F && difference == 0;
    if (!good)
        fprintf(stderr, "rank %d: weights off by %g, ranks differ by %g\n", launcher.rank,
                (double)worst, (double)difference);
    free(most);
    free(gradient);
    free(weights);
    tutti_comm_destroy(comm);
    tutti_store_close(store);
    return good ? 0 : 1;
}
