/* SPDX-License-Identifier: MIT */
/* How the chunked ring cuts an operation: every element lies in one chunk, chunks begin at lines
 * and are short. */
#include "topology/ring_cut.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void check(uint64_t count, uint64_t size, uint64_t element_bytes, uint64_t partial_bytes)
{
    const struct ring_cut cut = ring_cut_make(count, size, element_bytes, partial_bytes);
    const uint64_t line = RING_CUT_LINE_BYTES / element_bytes;
    assert_true(cut.chunk > 0 && cut.last_chunk > 0);
    assert_int_equal(cut.chunk % line, 0);
    assert_int_equal(cut.last_chunk % line, 0);
    assert_int_equal(cut.piece, cut.chunk * size);
    assert_true(cut.chunk * partial_bytes <= RING_CUT_CHUNK_BYTES);
    assert_true(cut.last_chunk <= cut.chunk);
    /* Whole pieces, then the last one, which is not empty and which its chunks cover with no line
     * to spare. */
    assert_int_equal(cut.last_first % cut.piece, 0);
    assert_true(cut.last_first < count && count - cut.last_first <= cut.piece);
    assert_true(cut.last_chunk * size >= count - cut.last_first);
    assert_true((cut.last_chunk - line) * size < count - cut.last_first);
    /* Not more pieces than the chunks' limit asks for. */
    const uint64_t most = RING_CUT_CHUNK_BYTES / partial_bytes / line * line * size;
    assert_true(cut.last_first / cut.piece < ring_cut_up(count, most));
}

static void cuts_cover_every_count(void **state)
{
    (void)state;
    static const uint64_t widths[][2] = {{1, 4}, {2, 4}, {4, 4}, {8, 8}, {1, 1}, {2, 2}};
    for (uint64_t size = 2; size <= 64; size = size < 9 ? size + 1 : size * 2 - 1)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
            for (uint64_t count = 1; count < 700; count++)
                check(count, size, widths[w][0], widths[w][1]);
            for (uint64_t count = 701; count < UINT64_C(1) << 34; count = count * 7 / 3)
                check(count, size, widths[w][0], widths[w][1]);
        }
}

/* The cut decides with which rank's input an element's sum begins, so it never changes. */
static void cuts_are_fixed(void **state)
{
    (void)state;
    static const struct {
        uint64_t count, size, element, partial;
        struct ring_cut cut;
    } rows[] = {
        {1, 4, 4, 4, {64, 16, 0, 16}},
        {1000, 3, 4, 4, {1008, 336, 0, 336}},
        {100000, 4, 4, 4, {50048, 12512, 50048, 12496}},
        {1000000, 8, 2, 4, {125184, 15648, 876288, 15488}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct ring_cut cut =
            ring_cut_make(rows[i].count, rows[i].size, rows[i].element, rows[i].partial);
        assert_memory_equal(&cut, &rows[i].cut, sizeof cut);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts_cover_every_count),
        cmocka_unit_test(cuts_are_fixed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
