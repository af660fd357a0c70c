/* SPDX-License-Identifier: MIT */
/* The areas of arenas of every size and number of ranks: they fit, and the pieces in them are as
 * the proof of P1 (docs/ordering.md) needs them. */
#include "cpu/transport/areas.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void check(size_t bytes, int ranks, bool pushes, bool crowded)
{
    const struct areas areas = areas_make(bytes, ranks, pushes, crowded);
    const size_t line = LAYOUT_LINE, peers_line = (size_t)(ranks - 1) * line;
    assert_true(areas.arena_bytes <= bytes &&
                areas.arena_bytes <= (size_t)(crowded ? AREAS_MOST_ARENA : LAYOUT_MOST_ARENA));
    assert_true(areas.pair + areas.pair_places +
                        LAYOUT_WINDOW * ((size_t)(ranks - 1) * areas.message_bytes[0] +
                                         areas.message_bytes[1]) <=
                    areas.arena_bytes ||
                areas.message_bytes[1] == LAYOUT_MESSAGE_BYTES ||
                areas.message_bytes[0] == LAYOUT_MESSAGE_BYTES);
    assert_true(areas.piece_buffer == LAYOUT_AREAS_OFFSET);
    assert_true(areas.piece_buffer + areas.piece_buffer_bytes <= areas.exchange);
    assert_true(areas.exchange + areas.exchange_bytes <= areas.swap);
    assert_true(areas.swap <= areas.pair && areas.pair <= areas.arena_bytes);
    assert_true(areas.exchange % line == 0 && areas.swap % line == 0);
    /* Three pushed pieces, with a line for each peer. */
    assert_true(!areas.exchange_bytes || areas.exchange_bytes / 3 >= peers_line);
    if (ranks == 2) {
        assert_true(areas.exchange_bytes && areas.swap_bytes >= 2 * line);
        assert_true(areas.swap_bytes % (2 * line) == 0);
        assert_true(areas.swap + 2 * line + areas.swap_bytes <= areas.pair);
        return;
    }
    assert_true(areas.piece_bytes % line == 0 && areas.piece_bytes >= peers_line + line);
    assert_true(6 * areas.piece_bytes <= areas.piece_buffer_bytes);
    /* Of a hybrid cube mesh: three sixteenths; one undivided piece of float8 with partial sums. */
    assert_true(ranks != 8 || (8 * areas.piece_bytes <= areas.piece_buffer_bytes &&
                               3 * areas.piece_bytes / 2 >= 18 * line));
}

static void every_arena_has_room(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= NODE_RANKS; ranks++)
        for (size_t bytes = areas_least(ranks); bytes < 2 * (size_t)LAYOUT_MOST_ARENA; bytes += 999)
            for (int i = 0; i < 4; i++)
                check(bytes, ranks, i & 1, i & 2);
}

/* Without a request for less, operations have the sizes that were measured. */
static void the_largest_arena_has_all(void **state)
{
    (void)state;
    struct areas areas = areas_make(AREAS_MOST_ARENA, 2, true, false);
    assert_int_equal(areas.exchange_bytes, 1 << 20);
    assert_int_equal(areas.swap_bytes, 64 << 10);
    areas = areas_make(AREAS_MOST_ARENA, 3, true, false);
    assert_int_equal(areas.exchange_bytes, 1 << 20);
    assert_int_equal(areas.piece_buffer_bytes, 2 << 20);
    assert_int_equal(areas.piece_bytes, 256 << 10);
    /* Ranks that share cores have the same, and more for messages to one rank. */
    const struct areas crowded = areas_make(AREAS_MOST_ARENA, 3, true, true);
    assert_int_equal(crowded.exchange_bytes, areas.exchange_bytes);
    assert_int_equal(crowded.piece_bytes, areas.piece_bytes);
    assert_int_equal(crowded.message_bytes[1], areas.message_bytes[1]);
    assert_int_equal(crowded.message_bytes[0], 7 * areas.message_bytes[0]);
    areas = areas_make(AREAS_MOST_ARENA, 64, false, false);
    assert_int_equal(areas.exchange_bytes, 0);
    assert_int_equal(areas.piece_bytes, 256 << 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_arena_has_room),
        cmocka_unit_test(the_largest_arena_has_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
