/* SPDX-License-Identifier: MIT */
/*
 * Random splits: of the first communicator or of one that was split before, with random colors,
 * keys and leaf orders, some ranks outside. Each new communicator has the members and the order
 * that MPI gives it, and the bits of the scalar reference in its own leaf order.
 *
 * usage: test_split_random threads|processes WORLD_SIZE
 */
#include "device.h"
#include "pool.h"
#include "ranks.h"
#include "reference.h"

#include <stdlib.h>
#include <string.h>

enum { SPLITS = 400, SPLITS_SHORT = 40, LIVING = 5, MOST = 3000 };

/* A communicator and what it must be; `comm` is NULL where this rank is no member. */
struct made {
    tutti_comm_t *comm;
    int size;
    int world[TUTTI_MAX_RANKS]; /* the first communicator's numbers, by rank */
    int leaves[TUTTI_MAX_RANKS];
};

static float input(int world_rank, int split, int i)
{
    uint64_t random = (uint64_t)world_rank << 40 ^ (uint64_t)split << 20 ^ (uint64_t)i;
    const int64_t bits = (int64_t)(pool_random(&random) >> 30);
    return (float)(bits - (INT64_C(1) << 33)) / (float)(1 << (bits & 31) / 2);
}

static bool has_right_bits(const struct made *made, int split, size_t count)
{
    static _Thread_local float in[TUTTI_MAX_RANKS][MOST], out[MOST], expected[MOST];
    const void *leaves[TUTTI_MAX_RANKS];
    for (int leaf = 0; leaf < made->size; leaf++) {
        const int r = made->leaves[leaf];
        leaves[leaf] = in[r];
        for (size_t i = 0; i < count; i++)
            in[r][i] = input(made->world[r], split, (int)i);
    }
    reference_reduce(expected, leaves, made->size, count, TUTTI_FLOAT32, TUTTI_SUM, 0);
    return tutti_all_reduce(in[tutti_comm_rank(made->comm)], out, count, TUTTI_FLOAT32, TUTTI_SUM,
                            made->comm, TUTTI_STREAM_DEFAULT) == TUTTI_OK &&
           memcmp(out, expected, count * sizeof *out) == 0;
}

/* Fisher-Yates. */
static void shuffle(uint64_t *random, int *numbers, int size)
{
    for (int i = size - 1; i > 0; i--) {
        const int j = (int)(pool_random(random) % (uint64_t)(i + 1)), kept = numbers[i];
        numbers[i] = numbers[j];
        numbers[j] = kept;
    }
}

/* All ranks of `from` draw the same. */
static bool split_one(uint64_t seed, const struct made *from, int world_rank, struct made *made)
{
    uint64_t state = seed, *random = &state;
    int colors[TUTTI_MAX_RANKS], keys[TUTTI_MAX_RANKS], own = -1;
    const uint64_t color_count = 1 + pool_random(random) % 3;
    for (int r = 0; r < from->size; r++) {
        colors[r] = (int)(pool_random(random) % (color_count + 1)) - 1;
        keys[r] = (int)(pool_random(random) % 4) - 2;
        if (from->world[r] == world_rank)
            own = r;
    }
    const bool is_dup = pool_random(random) % 8 == 0, has_leaves = pool_random(random) % 2;
    *made = (struct made){.size = 0};
    for (int key = -2; key < 2; key++)
        for (int r = 0; r < from->size; r++)
            if (is_dup ? key == 0 : colors[r] == colors[own] && colors[r] >= 0 && keys[r] == key)
                made->world[made->size++] = from->world[r];
    for (int r = 0; r < made->size; r++)
        made->leaves[r] = is_dup && !has_leaves ? from->leaves[r] : r;
    state += (uint64_t)(is_dup ? 0 : colors[own]);
    if (has_leaves)
        shuffle(random, made->leaves, made->size);
    const struct tutti_comm_options options = {.struct_size = sizeof options,
                                               .arena_bytes = device_is_cuda() ? 0 : 64 << 10,
                                               .leaf_order = has_leaves ? made->leaves : NULL};
    const enum tutti_status status =
        is_dup ? tutti_comm_dup(from->comm, &options, &made->comm)
               : tutti_comm_split(from->comm, colors[own], keys[own], &options, &made->comm);
    return status == TUTTI_OK && (made->comm != NULL) == (made->size > 0) &&
           (!made->comm || (tutti_comm_world_size(made->comm) == made->size &&
                            made->world[tutti_comm_rank(made->comm)] == world_rank));
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct made living[LIVING] = {{.size = ranks->size}};
    uint64_t random = 4711;
    for (int r = 0; r < ranks->size; r++)
        living[0].world[r] = living[0].leaves[r] = r;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &living[0].comm) == TUTTI_OK);
    for (int i = 0; i < ranks_operations(SPLITS, SPLITS_SHORT); i++) {
        const uint64_t from = pool_random(&random) % LIVING, to = 1 + pool_random(&random) % 4;
        const size_t count = 1 + pool_random(&random) % (i % 4 ? 40 : MOST);
        const uint64_t seed = pool_random(&random);
        /* Ranks have different communicators in a place, or none. */
        const struct made *parent = &living[from];
        struct made made = {.size = 0};
        RANKS_CHECK(!parent->comm || split_one(seed, parent, rank, &made));
        RANKS_CHECK(!made.comm || has_right_bits(&made, i, count));
        RANKS_CHECK(!parent->comm || has_right_bits(parent, i, count));
        tutti_comm_destroy(living[to].comm);
        living[to] = made;
    }
    RANKS_CHECK(has_right_bits(&living[0], -1, MOST));
    for (int i = 0; i < LIVING; i++)
        tutti_comm_destroy(living[i].comm);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    const int size = atoi(argv[2]);
    struct ranks *ranks = ranks_create(size, strcmp(argv[1], "threads") == 0 ? 0 : size, 0);
    const int failures = ranks_run(ranks, live);
    ranks_destroy(ranks);
    return failures ? 1 : 0;
}
