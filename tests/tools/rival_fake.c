/* SPDX-License-Identifier: MIT */
/* A rival without communication: it knows what the check expects. Its last rank misbehaves as
 * TUTTI_FAKE says: absent, fails, dies, wrong, or late (wrong from the third check on). */
#include "rival.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static int own_rank;
static int world_size;

static bool is_fault(const char *name)
{
    return own_rank == world_size - 1 && strcmp(rival_env("TUTTI_FAKE", ""), name) == 0;
}

static int fake_init(int rank, int size)
{
    own_rank = rank;
    world_size = size;
    return is_fault("absent") ? rival_error("absent, as asked") : 0;
}

static const char *fake_version(void)
{
    return "1.2.3";
}

/* Makes this rank's numbers those of the rank, or the sum of ranks, with that weight. */
static void weigh(float *buffer, size_t count, int weight)
{
    for (size_t i = 0; i < count; i++)
        buffer[i] = buffer[i] / (float)(own_rank + 1) * (float)weight;
}

static int misbehave(float *last)
{
    static int checks; /* what is timed sums zeros */
    checks += *last != 0;
    if (is_fault("fails"))
        return rival_error("failed, as asked");
    if (is_fault("dies"))
        abort();
    if (is_fault("wrong") || (is_fault("late") && checks > 2))
        *last += 1;
    return 0;
}

static int fake_all_reduce(float *buffer, size_t count, int root)
{
    (void)root;
    weigh(buffer, count, world_size * (world_size + 1) / 2);
    return misbehave(buffer + count - 1);
}

static int fake_all_gather(float *buffer, size_t count, int root)
{
    (void)root;
    for (int rank = 0; rank < world_size; rank++)
        weigh(buffer + (size_t)rank * count, count, rank + 1);
    return misbehave(buffer + (size_t)world_size * count - 1);
}

/* As MPI in place: the result is the first block. */
static int fake_reduce_scatter(float *buffer, size_t count, int root)
{
    (void)root;
    memmove(buffer, buffer + (size_t)own_rank * count, count * sizeof *buffer);
    weigh(buffer, count, world_size * (world_size + 1) / 2);
    return misbehave(buffer + count - 1);
}

static int fake_all_to_all(float *buffer, size_t count, int root)
{
    (void)root;
    float *recv = buffer + (size_t)world_size * count;
    for (int rank = 0; rank < world_size; rank++, recv += count) {
        memcpy(recv, buffer + (size_t)own_rank * count, count * sizeof *buffer);
        weigh(recv, count, rank + 1);
    }
    return misbehave(recv - 1);
}

/* The fake ranks know what the others have. */
static int fake_broadcast(float *buffer, size_t count, int root)
{
    weigh(buffer, count, root + 1);
    return misbehave(buffer + count - 1);
}

static int fake_reduce(float *buffer, size_t count, int root)
{
    if (own_rank == root)
        weigh(buffer, count, world_size * (world_size + 1) / 2);
    return misbehave(buffer + count - 1);
}

static int fake_gather(float *buffer, size_t count, int root)
{
    for (int rank = 0; rank < world_size && own_rank == root; rank++)
        weigh(buffer + (size_t)rank * count, count, rank + 1);
    return misbehave(buffer + (size_t)world_size * count - 1);
}

static int fake_scatter(float *buffer, size_t count, int root)
{
    float *own = buffer + (size_t)own_rank * count;
    weigh(own, count, root + 1);
    return misbehave(own + count - 1);
}

static int fake_send_recv(float *buffer, size_t count, int root)
{
    (void)root;
    memcpy(buffer + count, buffer, count * sizeof *buffer);
    weigh(buffer + count, count, (own_rank + world_size - 1) % world_size + 1);
    return misbehave(buffer + 2 * count - 1);
}

static void fake_fini(void)
{
}

int main(void)
{
    static const struct rival_engine engine = {
        .init = fake_init,
        .version = fake_version,
        .operations = {[TUTTI_COLLECTIVE_ALL_REDUCE] = fake_all_reduce,
                       [TUTTI_COLLECTIVE_ALL_GATHER] = fake_all_gather,
                       [TUTTI_COLLECTIVE_REDUCE_SCATTER] = fake_reduce_scatter,
                       [TUTTI_COLLECTIVE_ALL_TO_ALL] = fake_all_to_all,
                       [TUTTI_COLLECTIVE_BROADCAST] = fake_broadcast,
                       [TUTTI_COLLECTIVE_REDUCE] = fake_reduce,
                       [TUTTI_COLLECTIVE_GATHER] = fake_gather,
                       [TUTTI_COLLECTIVE_SCATTER] = fake_scatter,
                       [TUTTI_COLLECTIVE_SEND] = fake_send_recv,
                       [TUTTI_COLLECTIVE_ALL_GATHER_V] = fake_all_gather,
                       [TUTTI_COLLECTIVE_REDUCE_SCATTER_V] = fake_reduce_scatter,
                       [TUTTI_COLLECTIVE_ALL_TO_ALL_V] = fake_all_to_all,
                       [TUTTI_COLLECTIVE_GATHER_V] = fake_gather,
                       [TUTTI_COLLECTIVE_SCATTER_V] = fake_scatter},
        .scatters_to_first = 1,
        .fini = fake_fini,
    };
    return rival_main(&engine);
}
