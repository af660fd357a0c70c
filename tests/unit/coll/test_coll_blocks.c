/* SPDX-License-Identifier: MIT */
/* What is refused of a v-form's operands: random ones beside a slow check, byte by byte; and what
 * the messages say. */
#include "base/error.h"
#include "coll/coll.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 4, MEMORY = 256, ROUNDS = 60000 };

static const enum tutti_collective kinds[] = {
    TUTTI_COLLECTIVE_ALL_GATHER_V, TUTTI_COLLECTIVE_REDUCE_SCATTER_V, TUTTI_COLLECTIVE_ALL_TO_ALL_V,
    TUTTI_COLLECTIVE_GATHER_V, TUTTI_COLLECTIVE_SCATTER_V};
enum { KINDS = sizeof kinds / sizeof *kinds };

static _Alignas(16) unsigned char memory[MEMORY];

/* An operand, as the slow check sees it. */
struct plain {
    bool there, many;
    size_t at; /* in the memory */
    int blocks;
    size_t count[RANKS], displacement[RANKS]; /* in bytes */
};

static unsigned below(unsigned bound)
{
    return (unsigned)rand() % bound;
}

static bool has_byte(const struct plain *operand, int block, size_t byte)
{
    const size_t begin = operand->at + operand->displacement[block];
    return byte >= begin && byte < begin + operand->count[block];
}

static size_t blocks_with(const struct plain *operand, size_t byte)
{
    size_t count = 0;
    for (int b = 0; b < operand->blocks; b++)
        count += has_byte(operand, b, byte);
    return count;
}

/* Whether the byte lies between the first and the last one of the operand's blocks. */
static bool is_within(const struct plain *operand, size_t byte)
{
    bool before = false, after = false;
    for (size_t i = 0; i < MEMORY; i++) {
        before |= i <= byte && blocks_with(operand, i);
        after |= i >= byte && blocks_with(operand, i);
    }
    return before && after;
}

static enum coll_error check_slowly(const struct plain *send, const struct plain *recv, int rank)
{
    const struct plain *many = send->many ? send : recv, *one = send->many ? recv : send;
    const int own = send->many && recv->many ? rank : 0;
    if (send->there && recv->there && many->count[rank] != one->count[own])
        return COLL_OWN_COUNT;
    for (size_t i = 0; i < MEMORY && recv->there; i++)
        if (blocks_with(recv, i) > 1)
            return COLL_OUTPUTS_OVERLAP;
    if (!send->there || !recv->there)
        return COLL_GOOD;
    for (size_t i = 0; i < MEMORY; i++) {
        if (send->many && recv->many && is_within(send, i) && is_within(recv, i))
            return COLL_OVERLAP;
        for (int b = 0; b < many->blocks && !(send->many && recv->many); b++)
            if (has_byte(one, 0, i) && has_byte(many, b, i) &&
                (b != rank || many->at + many->displacement[b] != one->at))
                return COLL_OVERLAP;
    }
    return COLL_GOOD;
}

/* Draws an operand; what the library is given of it goes to the last three. */
static void operand_draw(struct plain *operand, bool many, bool there, size_t own, size_t *counts,
                         size_t *displacements, struct coll_blocks *blocks)
{
    const bool dense = below(2);
    size_t next = 0;
    *operand =
        (struct plain){.there = there, .many = many, .at = below(40), .blocks = many ? RANKS : 1};
    for (int b = 0; b < operand->blocks; b++) {
        counts[b] = below(3) ? below(8) : 0;
        if (!many)
            counts[b] = own;
        displacements[b] = many && below(8) ? (size_t)b * 8 + below(3) : many ? below(40) : 0;
        operand->count[b] = counts[b];
        operand->displacement[b] = dense ? next : displacements[b];
        next += counts[b];
    }
    *blocks = (struct coll_blocks){.counts = counts, .displacements = dense ? NULL : displacements};
}

static void test_random(void **state)
{
    int seen[COLL_OUTPUTS_OVERLAP + 1] = {0};
    (void)state;
    srand(5);
    for (int i = 0; i < ROUNDS; i++) {
        struct plain send, recv;
        size_t counts[2][RANKS], displacements[2][RANKS];
        const enum tutti_collective which = kinds[below(KINDS)];
        const struct coll *coll = &coll_rows[which];
        const int rank = (int)below(RANKS);
        struct coll_args args = {
            .count = below(8), .dtype = TUTTI_UINT8, .op = TUTTI_SUM, .peer = (int)below(2) * rank};
        const bool sends = coll_has(coll->send, rank, args.peer);
        const bool receives = coll_has(coll->recv, rank, args.peer);
        operand_draw(&send, coll->send_all, sends, args.count, counts[0], displacements[0],
                     &args.send_blocks);
        if (coll->send_all && (coll->send == COLL_OF_ALL || below(4)))
            args.count = counts[0][rank];
        operand_draw(&recv, coll->recv_all, receives, args.count, counts[1], displacements[1],
                     &args.recv_blocks);
        if (below(3) == 0 && coll->send_all != coll->recv_all) { /* in place */
            struct plain *one = coll->send_all ? &recv : &send;
            const struct plain *many = coll->send_all ? &send : &recv;
            one->at = many->at + many->displacement[rank];
        } else if (coll->send_all && coll->recv_all && below(2)) {
            recv.at += 60;
        }
        if (below(4) && coll->recv_all && sends) /* as it should be */
            counts[1][rank] = recv.count[rank] = coll->send_all ? counts[0][rank] : args.count;
        for (int b = 1; b < recv.blocks && !args.recv_blocks.displacements; b++)
            recv.displacement[b] = recv.displacement[b - 1] + recv.count[b - 1];
        args.send = memory + send.at;
        args.recv = memory + recv.at;
        const enum coll_error right = check_slowly(&send, &recv, rank);
        const enum coll_error error = coll_check(coll, &args, 1, rank, RANKS);
        if (error != right)
            fail_msg("round %d: %s: %d, not %d", i, coll->call, (int)error, (int)right);
        if (error != COLL_GOOD)
            assert_int_equal(coll_explain(coll->call, coll, &args, error, rank, RANKS, "send"),
                             TUTTI_ERR_INVALID);
        seen[error]++;
    }
    assert_true(seen[COLL_GOOD] > ROUNDS / 10 && seen[COLL_OVERLAP] > ROUNDS / 100);
    assert_true(seen[COLL_OWN_COUNT] > ROUNDS / 100 && seen[COLL_OUTPUTS_OVERLAP] > ROUNDS / 100);
}

static const size_t counts[] = {3, 2}, others[] = {2, 1}, huge[] = {SIZE_MAX / 2, 2};
static const size_t far[] = {0, SIZE_MAX / 4}, wraps[] = {0, SIZE_MAX / 4 - 8}, same[] = {0, 2};
#define AT(elements) (memory + 4 * (elements))

/* Calls of rank 1 of two, with float32, that are refused. */
static const struct {
    enum tutti_collective which;
    struct coll_args args;
    const char *why;
} messages[] = {
    {TUTTI_COLLECTIVE_ALL_GATHER_V,
     {.send = AT(0), .recv = AT(8), .count = 2},
     "the counts of recv are NULL: expected one for each rank"},
    {TUTTI_COLLECTIVE_REDUCE_SCATTER_V,
     {.send = AT(0), .recv = AT(8)},
     "the counts of send are NULL"},
    {TUTTI_COLLECTIVE_ALL_TO_ALL_V,
     {.send = AT(0), .recv = AT(8), .send_blocks = {.counts = counts}},
     "the counts of recv are NULL"},
    {TUTTI_COLLECTIVE_GATHER_V,
     {.send = AT(0), .recv = NULL, .count = 2, .peer = 1, .recv_blocks = {.counts = counts}},
     "recv is NULL, but its blocks are not empty"},
    {TUTTI_COLLECTIVE_SCATTER_V,
     {.send = NULL, .recv = AT(8), .count = 2, .peer = 1, .send_blocks = {.counts = counts}},
     "send is NULL, but"},
    {TUTTI_COLLECTIVE_SCATTER_V, {.recv = NULL, .count = 2}, "recv is NULL, but"},
    {TUTTI_COLLECTIVE_SCATTER_V,
     {.send = AT(0), .recv = AT(8), .count = 3, .peer = 1, .send_blocks = {.counts = counts}},
     "rank 1 sends 2 elements to itself and expects 3"},
    {TUTTI_COLLECTIVE_ALL_GATHER_V,
     {.send = AT(0), .recv = AT(8), .count = 1, .recv_blocks = {.counts = counts}},
     "rank 1 sends 1 elements to itself and expects 2"},
    {TUTTI_COLLECTIVE_ALL_TO_ALL_V,
     {.send = AT(0),
      .recv = AT(8),
      .send_blocks = {.counts = counts},
      .recv_blocks = {.counts = others}},
     "rank 1 sends 2 elements to itself and expects 1"},
    {TUTTI_COLLECTIVE_ALL_TO_ALL_V,
     {.send = AT(0),
      .recv = AT(2),
      .send_blocks = {.counts = counts},
      .recv_blocks = {.counts = counts}},
     "overlap: use disjoint ones"},
    {TUTTI_COLLECTIVE_ALL_TO_ALL_V,
     {.send = AT(0),
      .recv = AT(8),
      .send_blocks = {.counts = counts},
      .recv_blocks = {.counts = counts, .displacements = same}},
     "two blocks of recv overlap"},
    {TUTTI_COLLECTIVE_ALL_GATHER_V,
     {.send = AT(0), .recv = AT(0), .count = 2, .recv_blocks = {.counts = counts}},
     "overlap in part: use the own block of recv as send"},
    {TUTTI_COLLECTIVE_REDUCE_SCATTER_V,
     {.send = AT(0), .recv = AT(4), .send_blocks = {.counts = counts}},
     "overlap in part: use the own block of send as recv"},
    {TUTTI_COLLECTIVE_REDUCE_SCATTER_V,
     {.send = AT(0),
      .recv = AT(2),
      .send_blocks = {.counts = counts, .displacements = same}}, /* in place, but for block 0 */
     "overlap in part"},
    {TUTTI_COLLECTIVE_REDUCE_SCATTER_V,
     {.send = AT(0), .recv = AT(8) + 2, .send_blocks = {.counts = counts}},
     "is not aligned to the 4 bytes of float32"},
    {TUTTI_COLLECTIVE_REDUCE_SCATTER_V,
     {.send = AT(0), .recv = AT(8), .send_blocks = {.counts = huge}},
     "a block of send has a count or a displacement that is more than memory can hold"},
    {TUTTI_COLLECTIVE_REDUCE_SCATTER_V,
     {.send = AT(0), .recv = AT(8), .send_blocks = {.counts = counts, .displacements = far}},
     "a block of send has a count"},
    {TUTTI_COLLECTIVE_ALL_GATHER_V,
     {.send = AT(0),
      .recv = AT(8),
      .count = 2,
      .recv_blocks = {.counts = counts, .displacements = wraps}},
     "a block of recv has a count"},
    {TUTTI_COLLECTIVE_GATHER_V, {.send = AT(0), .count = SIZE_MAX / 4}, "a block of send has"},
    {TUTTI_COLLECTIVE_GATHER_V,
     {.send = AT(0), .count = 1, .peer = 2},
     "root is 2: expected 0 to 1"},
};

static void test_messages(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        const struct coll *coll = &coll_rows[messages[i].which];
        struct coll_args args = messages[i].args;
        args.dtype = TUTTI_FLOAT32;
        args.op = TUTTI_SUM;
        const enum coll_error error = coll_check(coll, &args, 4, 1, 2);
        if (error == COLL_GOOD)
            fail_msg("row %zu is not refused", i);
        assert_int_equal(coll_explain(coll->call, coll, &args, error, 1, 2, "send"),
                         TUTTI_ERR_INVALID);
        if (!strstr(tutti_last_error(), messages[i].why) || !strstr(tutti_last_error(), coll->call))
            fail_msg("row %zu: \"%s\" is not in \"%s\"", i, messages[i].why, tutti_last_error());
    }
}

/* What a rank does not have is ignored, and so are operands without elements. */
static void test_ignored(void **state)
{
    static const size_t none[] = {0, 0};
    const struct coll_args args = {.dtype = TUTTI_FLOAT32, .op = TUTTI_SUM};
    struct coll_args empty = args, leaf = args;
    (void)state;
    empty.send_blocks = empty.recv_blocks =
        (struct coll_blocks){.counts = none, .displacements = far};
    empty.send = AT(0) + 1;
    for (int k = 0; k < KINDS; k++)
        assert_int_equal(coll_check(&coll_rows[kinds[k]], &empty, 4, 1, 2), COLL_GOOD);
    leaf.send = leaf.recv = AT(0);
    leaf.count = 3;
    assert_int_equal(coll_check(&coll_rows[TUTTI_COLLECTIVE_GATHER_V], &leaf, 4, 1, 2), COLL_GOOD);
    assert_int_equal(coll_check(&coll_rows[TUTTI_COLLECTIVE_SCATTER_V], &leaf, 4, 1, 2), COLL_GOOD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
