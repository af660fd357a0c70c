/* SPDX-License-Identifier: MIT */
/*
 * Pieces on their way through slots: each is copied in, runs and is copied out, once and in order.
 * A slot is taken again when its piece is out and `lag` later ones have run. An error at any step
 * ends the operation. Then the places of blocks in a slot.
 */
#include "cuda/pipe/pipe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { PIECES = 9, SLOTS = 4, NEVER = -1 };

enum step { IN, RUN, OUT, STEPS };

struct trip {
    struct cuda_pipe pipe;
    int counts[STEPS];  /* calls of each step */
    bool wrong[STEPS];  /* a call of the step was out of order */
    enum step fails_in; /* the step that fails, */
    int fails_at;       /* with this piece */
};

static enum tutti_status take(struct trip *trip, enum step step, uint64_t piece, bool right)
{
    trip->wrong[step] |= !right || trip->counts[step] != (int)piece;
    trip->counts[step] = (int)piece + 1;
    return step == trip->fails_in && (int)piece == trip->fails_at ? TUTTI_ERR_CUDA : TUTTI_OK;
}

static enum tutti_status in(void *context, uint64_t piece)
{
    struct trip *trip = context;
    const int former = (int)piece - (int)trip->pipe.slots, lag = (int)trip->pipe.lag;
    const bool is_free =
        former < 0 || (trip->counts[OUT] > former && trip->counts[RUN] > former + lag);
    return take(trip, IN, piece, is_free);
}

static enum tutti_status run(void *context, uint64_t piece)
{
    struct trip *trip = context;
    return take(trip, RUN, piece, trip->counts[IN] > (int)piece);
}

static enum tutti_status out(void *context, uint64_t piece)
{
    struct trip *trip = context;
    return take(trip, OUT, piece, trip->counts[RUN] > (int)piece);
}

static void go(const struct cuda_pipe *pipe, enum step fails_in, int fails_at)
{
    struct trip trip = {.pipe = *pipe, .fails_in = fails_in, .fails_at = fails_at};
    trip.pipe.context = &trip;
    trip.pipe.in = in;
    trip.pipe.run = run;
    trip.pipe.out = out;
    assert_int_equal(cuda_pipe_run(&trip.pipe), fails_at == NEVER ? TUTTI_OK : TUTTI_ERR_CUDA);
    for (enum step step = IN; step < STEPS; step++) {
        assert_false(trip.wrong[step]);
        if (fails_at == NEVER)
            assert_int_equal(trip.counts[step], pipe->pieces);
    }
}

static void pieces_go_in_order(void **state)
{
    struct cuda_pipe pipe = {.slots = 1};
    (void)state;
    for (; pipe.slots <= SLOTS; pipe.slots++)
        for (pipe.lag = 0; pipe.lag < pipe.slots; pipe.lag++)
            for (pipe.pieces = 1; pipe.pieces <= PIECES; pipe.pieces++)
                for (enum step step = IN; step < STEPS; step++)
                    for (int at = NEVER; at < (int)pipe.pieces; at++)
                        go(&pipe, step, at);
}

/* 3 ranks, 10 elements of 4 bytes in a block, 4 of them in a piece. */
static void blocks_have_places(void **state)
{
    struct cuda_cut cut = {.coll = &coll_rows[TUTTI_COLLECTIVE_ALL_GATHER],
                           .rank = 1,
                           .size = 3,
                           .own = 10,
                           .width = 4,
                           .place_bytes = 16};
    (void)state;
    cuda_cut_set(&cut, cut.own);
    assert_int_equal(cuda_cut_places(cut.coll, cut.size), 3);
    assert_int_equal(cut.pieces, 3);
    assert_int_equal(cuda_cut_count(&cut, 10, 0), 4);
    assert_int_equal(cuda_cut_count(&cut, 10, 2), 2);
    assert_int_equal(cuda_cut_count(&cut, 5, 2), 0);
    assert_int_equal(cuda_cut_stride(&cut, 0), 16);
    assert_int_equal(cuda_cut_stride(&cut, 2), 8);
    assert_int_equal(cuda_cut_place(&cut, CUDA_RECV, 2, 2), 16);
    assert_int_equal(cuda_cut_place(&cut, CUDA_SEND, 0, 0), 16); /* the rank's own */
    assert_true(cuda_cut_is_rows(&cut, 3, 0));
    cut.own = INT32_MAX / cut.width; /* the largest pitch of a copy */
    assert_true(cuda_cut_is_rows(&cut, 3, 0));
    cut.own++;
    assert_false(cuda_cut_is_rows(&cut, 3, 0));
    cut.own = 10;
    cut.coll = &coll_rows[TUTTI_COLLECTIVE_ALL_REDUCE]; /* of several tensors */
    assert_int_equal(cuda_cut_place(&cut, CUDA_SEND, 2, 2), 32);
    assert_int_equal(cuda_cut_place(&cut, CUDA_RECV, 2, 2), 32);
    cut.coll = &coll_rows[TUTTI_COLLECTIVE_ALL_TO_ALL_V];
    assert_int_equal(cuda_cut_places(cut.coll, cut.size), 6);
    assert_int_equal(cuda_cut_place(&cut, CUDA_SEND, 2, 0), 32);
    assert_int_equal(cuda_cut_place(&cut, CUDA_RECV, 0, 0), 48);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_go_in_order),
        cmocka_unit_test(blocks_have_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
