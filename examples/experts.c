/* SPDX-License-Identifier: MIT */
/*
 * A mixture of experts with one expert a rank. Each rank sorts its tokens by their experts, tells
 * each expert how many tokens it will get, and sends them by an all-to-all with blocks of different
 * lengths. The expert processes its tokens, and they go back the same way.
 *
 *     tutti run -n 4 build/examples/experts
 */
#include <stdio.h>
#include <stdlib.h>
#include <tutti/tutti.h>

enum { TOKENS = 500, WIDTH = 64 }; /* of each rank; floats of a token */

static void must(enum tutti_status status)
{
    if (status == TUTTI_OK)
        return;
    fprintf(stderr, "%s\n", tutti_last_error());
    exit(1);
}

/* Some experts get many of a rank's tokens, others none. */
static size_t expert_of(size_t rank, size_t token, size_t experts)
{
    return token * token % (rank + 3) % experts;
}

/* The elements of the blocks, from counts of tokens. */
static void to_elements(size_t *counts, size_t ranks)
{
    for (size_t r = 0; r < ranks; r++)
        counts[r] *= WIDTH;
}

/* Sends the tokens, sorted by expert, to the experts, and gets them back. Returns how many tokens
 * this rank's expert had. */
static size_t experts_run(float *sorted, size_t *counts, size_t ranks, size_t rank,
                          tutti_comm_t *comm)
{
    size_t incoming[TUTTI_MAX_RANKS], total = 0;
    must(tutti_all_to_all(counts, incoming, 1, TUTTI_UINT64, comm, TUTTI_STREAM_DEFAULT));
    for (size_t r = 0; r < ranks; r++)
        total += incoming[r];
    float *tokens = malloc((total + 1) * WIDTH * sizeof *tokens);
    if (!tokens)
        exit(1);
    to_elements(counts, ranks);
    to_elements(incoming, ranks);
    must(tutti_all_to_all_v(sorted, counts, NULL, tokens, incoming, NULL, TUTTI_FLOAT32, comm,
                            TUTTI_STREAM_DEFAULT));
    for (size_t i = 0; i < total * WIDTH; i++) /* the expert's work */
        tokens[i] *= (float)(rank + 2);
    must(tutti_all_to_all_v(tokens, incoming, NULL, sorted, counts, NULL, TUTTI_FLOAT32, comm,
                            TUTTI_STREAM_DEFAULT));
    free(tokens);
    return total;
}

int main(void)
{
    static float sorted[TOKENS][WIDTH];
    static size_t origin[TOKENS]; /* of the sorted tokens */
    size_t counts[TUTTI_MAX_RANKS] = {0}, at = 0, wrong = 0;
    tutti_store_t *store;
    tutti_comm_t *comm;
    struct tutti_launcher launcher = {.struct_size = sizeof launcher};
    must(tutti_info_launcher(&launcher));
    must(tutti_store_open("env:", 0, &store));
    must(tutti_comm_create(store, launcher.rank, launcher.world_size, NULL, &comm));

    const size_t ranks = (size_t)launcher.world_size, rank = (size_t)launcher.rank;
    for (size_t expert = 0; expert < ranks; expert++)
        for (size_t token = 0; token < TOKENS; token++)
            if (expert_of(rank, token, ranks) == expert) {
                for (size_t i = 0; i < WIDTH; i++)
                    sorted[at][i] = (float)(token + i);
                counts[expert]++;
                origin[at++] = token;
            }
    const size_t served = experts_run(&sorted[0][0], counts, ranks, rank, comm);
    for (at = 0; at < TOKENS; at++)
        for (size_t i = 0; i < WIDTH; i++)
            wrong += sorted[at][i] !=
                     (float)((origin[at] + i) * (expert_of(rank, origin[at], ranks) + 2));

    if (wrong)
        fprintf(stderr, "rank %zu: %zu values are wrong\n", rank, wrong);
    else
        printf("expert %zu served %zu tokens\n", rank, served);
    tutti_comm_destroy(comm);
    tutti_store_close(store);
    return wrong ? 1 : 0;
}
