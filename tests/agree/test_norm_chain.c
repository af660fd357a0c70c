/* SPDX-License-Identifier: MIT */
/*
 * Operations of which each takes what the one before has written, as in a decoder: all-reduces with
 * RMSNorm, and plain ones. On GPUs with a wait behind each, without, and in a graph that is
 * launched twice. A kernel that let the next one start too early would change the bits.
 *
 * usage: test_norm_chain threads|processes WORLD_SIZE [programmatic]
 */
#include "device.h"
#include "ranks.h"

#include "../tools/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 12, TOKENS = 6, HIDDEN = 520, COUNT = TOKENS * HIDDEN, BYTES = 2 * COUNT };
/* The state is hidden states and residual; a rank's own weight lies behind it. */
enum { STATE_BYTES = 2 * BYTES, ALL_BYTES = STATE_BYTES + 2 * HIDDEN };
enum way { WAITING, EAGER, CAPTURED, WAYS };

static bool programmatic;

static enum tutti_status enqueue_step(unsigned char *memory, int step, tutti_comm_t *comm,
                                      tutti_stream_t stream)
{
    const struct tutti_call_options options = {.struct_size = sizeof options,
                                               .algo = step % 2 ? TUTTI_ALGO_TWO_SHOT
                                                                : TUTTI_ALGO_ONE_SHOT};
    const struct tutti_rms_norm norm = {.struct_size = sizeof norm,
                                        .tokens = step % 3 ? TOKENS : 1,
                                        .hidden = HIDDEN,
                                        .dtype = TUTTI_BFLOAT16,
                                        .input = memory,
                                        .residual_in = memory + BYTES,
                                        .residual_out = memory + BYTES,
                                        .weight = memory + STATE_BYTES,
                                        .weight_dtype = TUTTI_BFLOAT16,
                                        .norm_out = memory};
    return step % 4 == 3 ? device_all_reduce(memory, memory, COUNT, TUTTI_BFLOAT16, TUTTI_AVG, comm,
                                             stream, &options)
                         : device_all_reduce_rms_norm(&norm, comm, stream, &options);
}

/* Runs the chain twice, and copies the state. */
static int run_way(struct ranks *ranks, int rank, tutti_comm_t *comm, tutti_stream_t stream,
                   unsigned char *memory, enum way way, unsigned char *found)
{
    for (int turn = 0; turn < (way == CAPTURED ? 1 : 2); turn++) {
        RANKS_CHECK(way != CAPTURED || gpu_capture_begin(stream));
        for (int step = 0; step < STEPS; step++) {
            RANKS_CHECK(enqueue_step(memory, step, comm, stream) == TUTTI_OK);
            RANKS_CHECK(way != WAITING || !device_is_cuda() || gpu_stream_synchronize(stream));
        }
    }
    if (way == CAPTURED) {
        void *graph = gpu_capture_end(stream);
        RANKS_CHECK(graph && gpu_graph_launch(graph, stream) && gpu_graph_launch(graph, stream));
        RANKS_CHECK(gpu_stream_synchronize(stream));
        gpu_graph_destroy(graph);
    }
    if (device_is_cuda())
        RANKS_CHECK(gpu_stream_synchronize(stream) && gpu_copy(found, memory, STATE_BYTES));
    else
        memcpy(found, memory, STATE_BYTES);
    return 0;
}

static int chain(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_comm_options options = {
        .struct_size = sizeof options,
        .programmatic_launch = programmatic ? TUTTI_PROGRAMMATIC_ON : TUTTI_PROGRAMMATIC_AUTO};
    const bool cuda = device_is_cuda();
    tutti_stream_t stream = TUTTI_STREAM_DEFAULT;
    tutti_comm_t *comm;
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    unsigned char *start = aligned_alloc(64, (ALL_BYTES + 63) / 64 * 64), *memory = start;
    unsigned char *found[WAYS] = {malloc(STATE_BYTES), malloc(STATE_BYTES), malloc(STATE_BYTES)};
    RANKS_CHECK(start && found[WAITING] && found[EAGER] && found[CAPTURED]);
    RANKS_CHECK(!cuda || ((memory = gpu_alloc(ALL_BYTES)) && gpu_stream_create(&stream)));
    for (size_t i = 0; i < ALL_BYTES / 2; i++) { /* bfloat16 from .5 to 2 */
        const uint16_t code = (uint16_t)(0x3f00 + ((i + (size_t)rank) * 2654435761u >> 20 & 0xff));
        memcpy(start + 2 * i, &code, sizeof code);
    }
    int failed = 0;
    const enum way last = !cuda ? WAITING : device_is_shared() ? EAGER : CAPTURED;
    for (enum way way = WAITING; way <= last && !failed; way++) {
        RANKS_CHECK(!cuda || gpu_copy(memory, start, ALL_BYTES));
        failed = run_way(ranks, rank, comm, stream, memory, way, found[way]);
        RANKS_CHECK(failed || memcmp(found[way], found[WAITING], STATE_BYTES) == 0);
    }
    for (size_t i = 0; i < COUNT && !failed; i++) /* all ones in the exponent: infinite, or NaN */
        RANKS_CHECK((found[WAITING][2 * i + 1] & 0x7f) != 0x7f || !(found[WAITING][2 * i] & 0x80));
    RANKS_CHECK(tutti_comm_status(comm, NULL) == TUTTI_OK);
    tutti_comm_destroy(comm);
    if (cuda) {
        gpu_stream_destroy(stream);
        gpu_free(memory);
    }
    free(start);
    for (int way = 0; way < WAYS; way++)
        free(found[way]);
    return failed;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    const int size = atoi(argv[2]);
    const int skip = ranks_skip(size);
    if (skip)
        return skip;
    programmatic = argc > 3 && strcmp(argv[3], "programmatic") == 0;
    struct ranks *ranks = ranks_create(size, strcmp(argv[1], "threads") == 0 ? 0 : size, 0);
    const int failures = ranks_run(ranks, chain);
    ranks_destroy(ranks);
    return failures ? 1 : 0;
}
