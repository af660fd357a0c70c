/* SPDX-License-Identifier: MIT */
/* The tuning table: what it chooses, what a forced algorithm may do, grids, and the file. */
#include "coll/coll.h"
#include "cuda/kernels/tiling.h"
#include "cuda/tuning/table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define HASH_OF_CHOICES UINT64_C(0x4d0aa09bd43106dd)

static struct cuda_table table;

static struct cuda_plan plan_of(int major, int minor, int size)
{
    struct cuda_plan plan;
    cuda_table_built_in(&table);
    cuda_plan_make(&table, major, minor, size, false, &plan);
    return plan;
}

/* The rows of a collective are neighbours. Returns how many there are. */
static int rows_of(const struct cuda_plan *plan, int collective, int *first)
{
    int count = 0;
    for (int i = 0; i < plan->count; i++)
        if (plan->collectives[i] == collective && count++ == 0)
            *first = i;
    return count;
}

static struct choice_call call_of(enum tutti_dtype dtype, size_t bytes)
{
    return (struct choice_call){
        .collective = TUTTI_COLLECTIVE_ALL_REDUCE, .bytes = bytes, .dtype = dtype, .op = OP_MAX};
}

/* Returns what is launched; .blocks is 0 if the call is refused. */
static struct choice_launch pick_kernel(const struct cuda_plan *plan, enum tutti_algo asked,
                                        int kernel, enum tutti_dtype dtype, size_t bytes)
{
    const struct choice_call call = call_of(dtype, bytes);
    struct choice_launch launch = {0};
    const char *reason = NULL;
    if (cuda_plan_pick(plan, &call, asked, kernel, &launch, &reason) != TUTTI_OK)
        return (struct choice_launch){0};
    assert_non_null(strstr(reason, cuda_kernel_rows[launch.kernel].name));
    return launch;
}

static struct choice_launch pick(const struct cuda_plan *plan, enum tutti_algo asked,
                                 enum tutti_dtype dtype, size_t bytes)
{
    return pick_kernel(plan, asked, 0, dtype, bytes);
}

/* The grid of one kernel with that geometry. */
static int grid(enum cuda_kernel kernel, int units, int threads, int blocks, int size, size_t bytes)
{
    struct cuda_plan plan = {.size = size, .count = 1, .bytes = {CUDA_TABLE_REST}};
    plan.collectives[0] = TUTTI_COLLECTIVE_ALL_REDUCE;
    plan.choices[0] =
        (struct cuda_choice){(uint8_t)kernel, (uint8_t)units, (uint16_t)threads, (uint16_t)blocks};
    const struct choice_launch launch =
        pick_kernel(&plan, cuda_kernel_rows[kernel].algo, 1 + (int)kernel, TUTTI_FLOAT32, bytes);
    assert_int_equal(launch.kernel, kernel);
    assert_int_equal(launch.workers, threads);
    return launch.blocks;
}

static void check_rows(const struct cuda_plan *plan, int collective)
{
    int first = 0;
    const int count = rows_of(plan, collective, &first);
    assert_true(count > 0);
    assert_true(plan->bytes[first + count - 1] == CUDA_TABLE_REST);
    for (int i = first; i < first + count; i++) {
        const struct cuda_choice *choice = &plan->choices[i];
        const struct cuda_kernel_row *row = &cuda_kernel_rows[choice->kernel];
        assert_int_equal(plan->collectives[i], collective);
        assert_true(row->collectives >> collective & 1);
        assert_true(i == first || plan->bytes[i] > plan->bytes[i - 1]);
        assert_true(plan->bytes[i] <= cuda_kernel_capacity(row, plan->size));
        assert_true(choice->threads >= 32 && choice->threads <= 480 && choice->threads % 32 == 0);
        assert_true(choice->blocks >= 1 && choice->blocks <= row->blocks);
        assert_true(choice->units >= 1);
    }
}

/* Every capability and world size has rows for each collective with kernels: in order, that fit,
 * and a last one for the rest. */
static void test_built_in(void **state)
{
    static const int capabilities[][2] = {{8, 0}, {8, 9}, {9, 0}, {10, 0}, {12, 0}, {99, 1}};
    (void)state;
    for (size_t c = 0; c < sizeof capabilities / sizeof *capabilities; c++) {
        for (int size = 2; size <= CUDA_RANKS; size++) {
            struct cuda_plan plan = plan_of(capabilities[c][0], capabilities[c][1], size);
            for (int op = 0; op < TUTTI_COLLECTIVE_SPLIT; op++)
                if (op != TUTTI_COLLECTIVE_BARRIER && coll_rows[op].peer != COLL_PARTNER &&
                    !coll_rows[op].varies && cuda_kernel_serves(op))
                    check_rows(&plan, op);
            for (int k = 0; k < CUDA_KERNELS; k++)
                assert_int_equal(plan.choices[CUDA_PLAN_ROWS + k].kernel, k);
        }
    }
}

/* What is chosen for every capability, number of ranks, and size up to 16 MiB: the hash stands for
 * all of these choices. It changes when a row is measured anew; then write the new one here. */
static void test_unchanged(void **state)
{
    static const int capabilities[][2] = {{8, 0}, {9, 0}, {10, 0}};
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    (void)state;
    for (size_t c = 0; c < sizeof capabilities / sizeof *capabilities; c++)
        for (int size = 2; size <= CUDA_RANKS; size++) {
            struct cuda_plan plan = plan_of(capabilities[c][0], capabilities[c][1], size);
            for (size_t bytes = 1; bytes <= 16 << 20; bytes += bytes < 4096 ? 1 : 255) {
                int row = 0;
                while (bytes > plan.bytes[row])
                    row++;
                const struct cuda_choice *choice = &plan.choices[row];
                const struct choice_launch launch =
                    pick(&plan, TUTTI_ALGO_NONE, TUTTI_FLOAT32, bytes);
                assert_true(launch.kernel == choice->kernel && launch.workers == choice->threads);
                const unsigned fields[] = {choice->kernel, choice->units, choice->threads,
                                           choice->blocks};
                for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
                    hash = (hash ^ fields[f]) * UINT64_C(0x100000001b3);
            }
        }
    assert_true(hash == HASH_OF_CHOICES);
}

/* At every size around a border: the row's kernel for floats, what serves for the others. */
static void test_choice(void **state)
{
    (void)state;
    for (int size = 2; size <= CUDA_RANKS; size++) {
        struct cuda_plan plan = plan_of(9, 0, size);
        int first = 0;
        const int count = rows_of(&plan, TUTTI_COLLECTIVE_ALL_REDUCE, &first);
        assert_int_equal(first, 0);
        for (int i = 0; i < count; i++) {
            uint64_t border = plan.bytes[i] == CUDA_TABLE_REST ? (uint64_t)1 << 33 : plan.bytes[i];
            for (uint64_t bytes = border - 1; bytes <= border + 1; bytes++) {
                int row = bytes <= plan.bytes[i] ? i : i + 1;
                const struct choice_launch floats =
                    pick(&plan, TUTTI_ALGO_NONE, TUTTI_BFLOAT16, bytes);
                assert_true(floats.kernel == plan.choices[row].kernel &&
                            floats.workers == plan.choices[row].threads);
            }
        }
    }
}

/* Integers and bool go by the rows of a reduce to a root, as far as these kernels serve them. */
static void test_integers(void **state)
{
    (void)state;
    for (int size = 2; size <= CUDA_RANKS; size++) {
        struct cuda_plan plan = plan_of(9, 0, size);
        const uint64_t ll = cuda_kernel_capacity(&cuda_kernel_rows[CUDA_ONE_SHOT_LL], size);
        int first = 0;
        const int count = rows_of(&plan, TUTTI_COLLECTIVE_REDUCE, &first);
        for (int i = first; i < first + count; i++) {
            const uint64_t bytes = plan.bytes[i] == CUDA_TABLE_REST ? 1 << 30 : plan.bytes[i];
            const enum cuda_kernel row = plan.choices[i].kernel;
            const struct choice_launch launch =
                pick(&plan, TUTTI_ALGO_NONE, i % 2 ? TUTTI_INT32 : TUTTI_BOOL, bytes);
            if (row == CUDA_REDUCE_LL || row == CUDA_REDUCE_RELAYED)
                assert_int_equal(launch.kernel,
                                 bytes <= ll ? CUDA_ONE_SHOT_LL : CUDA_TWO_SHOT_RELAYED);
            else
                assert_true(launch.kernel == row && launch.workers == plan.choices[i].threads &&
                            (row == CUDA_REDUCE_LINES || row == CUDA_REDUCE_PIPELINED));
        }
    }
}

static void refuses(const struct cuda_plan *plan, enum tutti_algo asked, int kernel,
                    enum tutti_dtype dtype, uint64_t bytes, const char *first, const char *second)
{
    const struct choice_call call = call_of(dtype, bytes);
    struct choice_launch launch;
    const char *reason;
    assert_int_equal(cuda_plan_pick(plan, &call, asked, kernel, &launch, &reason),
                     TUTTI_ERR_INVALID);
    if (!strstr(tutti_last_error(), first) || !strstr(tutti_last_error(), second))
        fail_msg("\"%s\" and \"%s\" are not in \"%s\"", first, second, tutti_last_error());
}

static void test_forced(void **state)
{
    (void)state;
    for (int size = 2; size <= CUDA_RANKS; size++) {
        struct cuda_plan plan = plan_of(9, 0, size);
        for (int k = 0; k < CUDA_COPY_LL; k++) {
            enum tutti_algo algo = cuda_kernel_rows[k].algo;
            const enum tutti_dtype dtype = k == CUDA_TWO_SHOT_RELAYED ? TUTTI_BOOL : TUTTI_FLOAT32;
            uint64_t most = cuda_kernel_capacity(&cuda_kernel_rows[k], size);
            assert_int_equal(pick_kernel(&plan, algo, 1 + k, dtype, 1).kernel, k);
            if (most == CUDA_TABLE_REST) {
                assert_int_equal(pick_kernel(&plan, algo, 1 + k, dtype, (size_t)1 << 40).kernel, k);
                continue;
            }
            assert_int_equal(pick_kernel(&plan, algo, 1 + k, TUTTI_FLOAT32, most).kernel, k);
            refuses(&plan, algo, 1 + k, TUTTI_FLOAT32, most + 1, cuda_kernel_rows[k].name,
                    "two_shot_pipelined");
        }
        /* No table has rows of these. */
        assert_int_equal(pick(&plan, TUTTI_ALGO_HYBRID_CUBE_MESH, TUTTI_INT8, 3).kernel, CUDA_MESH);
        assert_int_equal(pick(&plan, TUTTI_ALGO_RING, TUTTI_BOOL, (size_t)1 << 40).kernel,
                         CUDA_RING);
        refuses(&plan, TUTTI_ALGO_ONE_SHOT, 1 + CUDA_ONE_SHOT_LINES, TUTTI_INT8, 8, "int8",
                "one_shot_ll");
        refuses(&plan, TUTTI_ALGO_TWO_SHOT, 1 + CUDA_TWO_SHOT_LINES, TUTTI_BOOL, 8, "bool",
                "one_shot_ll");
        /* A kernel that is forced for another algorithm changes nothing. */
        assert_int_equal(
            pick_kernel(&plan, TUTTI_ALGO_RING, 1 + CUDA_ONE_SHOT_LL, TUTTI_INT32, 8).kernel,
            CUDA_RING);
    }
}

/* one_shot and two_shot leave the transport to the table, as far as its row is one of theirs. */
static void test_family(void **state)
{
    struct cuda_plan plan = plan_of(9, 0, 4);
    (void)state;
    for (uint64_t bytes = 1; bytes <= (uint64_t)64 << 20; bytes *= 2) {
        const struct choice_launch free = pick(&plan, TUTTI_ALGO_NONE, TUTTI_FLOAT16, bytes);
        const struct choice_launch one = pick(&plan, TUTTI_ALGO_ONE_SHOT, TUTTI_FLOAT16, bytes);
        const struct choice_launch two = pick(&plan, TUTTI_ALGO_TWO_SHOT, TUTTI_FLOAT16, bytes);
        bool free_is_one = free.kernel <= CUDA_ONE_SHOT_LINES;
        assert_memory_equal(free_is_one ? &one : &two, &free, sizeof free);
        assert_true(!one.blocks || one.kernel <= CUDA_ONE_SHOT_LINES);
        assert_true(two.blocks && two.kernel >= CUDA_TWO_SHOT_LINES);
        assert_true((one.blocks == 0) ==
                    (bytes > cuda_kernel_capacity(&cuda_kernel_rows[CUDA_ONE_SHOT_LINES], 4)));
    }
    assert_int_equal(pick(&plan, TUTTI_ALGO_TWO_SHOT, TUTTI_INT32, 64).kernel,
                     CUDA_TWO_SHOT_RELAYED);
    assert_int_equal(pick(&plan, TUTTI_ALGO_ONE_SHOT, TUTTI_INT32, 1 << 20).kernel,
                     CUDA_REDUCE_PIPELINED);
    refuses(&plan, TUTTI_ALGO_ONE_SHOT, 0, TUTTI_FLOAT32, 1 << 20, "one_shot",
            "two_shot_pipelined");
}

/* An operation without data has the barrier's kernel, whatever is asked for. */
static void test_empty(void **state)
{
    struct cuda_plan plan = plan_of(9, 0, 3);
    const struct choice_call call = call_of(TUTTI_INT8, 0);
    struct choice_launch launch;
    const char *reason = "as before";
    (void)state;
    assert_int_equal(cuda_plan_pick(&plan, &call, TUTTI_ALGO_ONE_SHOT, 0, &launch, &reason),
                     TUTTI_OK);
    assert_true(launch.kernel == CUDA_BARRIER && launch.form == CUDA_ANY && launch.workers == 0 &&
                launch.blocks == 1);
    assert_string_equal(reason, "as before");
}

static void test_grid(void **state)
{
    const size_t large = (size_t)1 << 40;
    (void)state;
    assert_int_equal(grid(CUDA_ONE_SHOT_LL, 1, 64, 512, 4, 1), 1);
    assert_int_equal(grid(CUDA_ONE_SHOT_LL, 1, 64, 512, 4, 512), 1);
    assert_int_equal(grid(CUDA_ONE_SHOT_LL, 1, 64, 512, 4, 513), 2);
    assert_int_equal(grid(CUDA_ONE_SHOT_LL, 1, 64, 512, 4, 1024), 2);
    assert_int_equal(grid(CUDA_ONE_SHOT_LL, 1, 64, 512, 4, 64 << 10), 128);
    assert_int_equal(grid(CUDA_ONE_SHOT_LL, 1, 32, 100, 4, 64 << 10), 100);
    assert_int_equal(grid(CUDA_ONE_SHOT_LINES, 2, 128, 512, 4, 4096), 1);
    assert_int_equal(grid(CUDA_ONE_SHOT_LINES, 2, 128, 512, 4, 4097), 2);
    assert_int_equal(grid(CUDA_TWO_SHOT_LINES, 1, 128, 512, 4, 8192), 1);
    assert_int_equal(grid(CUDA_TWO_SHOT_LINES, 1, 128, 512, 4, 8193), 2);
    assert_int_equal(grid(CUDA_TWO_SHOT_LINES, 1, 128, 512, 3, 1), 1);
    assert_int_equal(grid(CUDA_TWO_SHOT_PIPELINED, 1, 480, 128, 2, large), 128);
    assert_int_equal(grid(CUDA_MESH, 1, 192, 128, 8, 1), 1);
    assert_int_equal(grid(CUDA_MESH, 1, 192, 128, 8, 192 * 8 + 1), 2);
    assert_int_equal(grid(CUDA_MESH, 1, 192, 128, 8, 65536), 43);     /* 8 bytes a thread */
    assert_int_equal(grid(CUDA_MESH, 1, 192, 128, 8, 65536 + 16), 6); /* a line of a quarter */
    assert_int_equal(grid(CUDA_MESH, 1, 192, 128, 8, large), 128);
    assert_int_equal(grid(CUDA_RING, 1, 480, 128, 2, 2 * 576 * 16), 1);
    assert_int_equal(grid(CUDA_RING, 1, 480, 128, 2, 2 * 576 * 16 + 32), 2);
    assert_int_equal(grid(CUDA_RING, 1, 480, 128, 8, 8 * 64 * 16), 1);
    assert_int_equal(grid(CUDA_RING, 1, 480, 128, 8, large), 128);
}

/* The rows agree with themselves and with the tables. */
static void test_rows(void **state)
{
    uint32_t tuned = 0;
    (void)state;
    for (enum cuda_kernel k = 0; k < CUDA_KERNELS; k++) {
        const struct cuda_kernel_row *row = &cuda_kernel_rows[k];
        const bool reduces = row->collectives >> TUTTI_COLLECTIVE_ALL_REDUCE & 1;
        const bool moves = row->collectives >> TUTTI_COLLECTIVE_BROADCAST & 1;
        const bool reduces_blocks = row->collectives >> TUTTI_COLLECTIVE_REDUCE & 1;
        /* no table has these */
        const bool varied = k == CUDA_REDUCE_VARIED || k == CUDA_REDUCE_COUNTED ||
                            k == CUDA_RMS_NORM_LINES || k == CUDA_RMS_NORM_TWO_SHOT;
        /* another kernel, transfers; or of a rank alone */
        const bool follows = k == CUDA_RMS_NORM_ROWS || k == CUDA_COMBINE || k == CUDA_REDUCE_ALONE;
        const bool has_data = reduces || moves || reduces_blocks;
        assert_non_null(row->name);
        assert_non_null(row->fatbin);
        assert_int_equal(cuda_kernel_find(row->name), cuda_kernel_is_tuned(row) ? k : CUDA_KERNELS);
        assert_true((row->dtypes != 0) == (reduces || reduces_blocks || varied || follows));
        assert_true((row->unit_bytes != 0) == (has_data || varied));
        assert_true((row->algo != TUTTI_ALGO_NONE) == has_data);
        tuned |= cuda_kernel_is_tuned(row) ? row->collectives : 0;
    }
    assert_true(__builtin_popcount(tuned) <= CUDA_TUNED_COLLECTIVES);
    assert_int_equal(cuda_kernel_find("ONE_SHOT_lines"), CUDA_ONE_SHOT_LINES);
    assert_int_equal(cuda_kernel_find("two_shot_tiles"), CUDA_KERNELS);
    const uint32_t served = 1 << TUTTI_COLLECTIVE_ALL_REDUCE | 1 << TUTTI_COLLECTIVE_BARRIER |
                            1 << TUTTI_COLLECTIVE_SEND | 1 << TUTTI_COLLECTIVE_RECV |
                            1 << TUTTI_COLLECTIVE_ALL_GATHER | 1 << TUTTI_COLLECTIVE_ALL_TO_ALL |
                            1 << TUTTI_COLLECTIVE_BROADCAST | 1 << TUTTI_COLLECTIVE_GATHER |
                            1 << TUTTI_COLLECTIVE_SCATTER | 1 << TUTTI_COLLECTIVE_REDUCE_SCATTER |
                            1 << TUTTI_COLLECTIVE_REDUCE | 1 << TUTTI_COLLECTIVE_ALL_GATHER_V |
                            1 << TUTTI_COLLECTIVE_REDUCE_SCATTER_V |
                            1 << TUTTI_COLLECTIVE_ALL_TO_ALL_V | 1 << TUTTI_COLLECTIVE_GATHER_V |
                            1 << TUTTI_COLLECTIVE_SCATTER_V;
    for (int c = TUTTI_COLLECTIVE_ALL_REDUCE; c <= TUTTI_COLLECTIVE_SPLIT; c++)
        assert_int_equal(cuda_kernel_serves((enum tutti_collective)c), served >> c & 1);
}

/* A chunk of a ring is whole lines of 64 bytes. The chunks have all elements, and would not with a
 * line less. */
static void test_ring_chunk(void **state)
{
    (void)state;
    for (unsigned bytes = 1; bytes <= 8; bytes *= 2)
        for (unsigned size = 2; size <= CUDA_RANKS; size++)
            for (uint64_t count = 1; count < 100000; count += count < 2000 ? 1 : 977) {
                const uint64_t line = 64 / bytes, chunk = tiling_ring_chunk(count, size, bytes);
                assert_true(chunk % line == 0 && chunk * size >= count);
                assert_true((chunk - line) * size < count);
            }
}

/* ---- the file -------------------------------------------------------------------------------- */

static enum tutti_status parse(const char *text)
{
    cuda_table_built_in(&table);
    return cuda_table_parse(text, strlen(text), "test.tuning", &table);
}

#define HEAD   "# made by hand\n\ntutti-tuning 1 # the first\n"
#define LL_ROW "sm_90 ranks 4 bytes 1000 kernel one_shot_ll threads 32 blocks 7 units 2 # why not\n"
#define REST_ROW                                                                                   \
    "sm_90\tranks 4 bytes rest kernel two_shot_pipelined threads 256 blocks 64 units 1\n"

/* Makes the plan of 4 ranks by a file. Returns how many rows of the collective it has. */
static int rows_parsed(const char *text, int collective, struct cuda_plan *plan, int *first)
{
    assert_int_equal(parse(text), TUTTI_OK);
    cuda_plan_make(&table, 9, 0, 4, false, plan);
    return rows_of(plan, collective, first);
}

static void test_file(void **state)
{
    enum { ALL_REDUCE = TUTTI_COLLECTIVE_ALL_REDUCE };
    struct cuda_plan plan, built_in = plan_of(9, 0, 3);
    uint64_t hash = table.hash;
    int row = 0;
    (void)state;
    assert_int_equal(rows_parsed(HEAD LL_ROW REST_ROW, ALL_REDUCE, &plan, &row), 2);
    assert_true(table.hash != hash);
    assert_string_equal(table.source, "test.tuning");
    assert_true(plan.bytes[row] == 1000 && plan.choices[row].threads == 32 &&
                plan.choices[row].blocks == 7 && plan.choices[row].units == 2);
    assert_int_equal(pick(&plan, TUTTI_ALGO_NONE, TUTTI_FLOAT32, 1001).workers, 256);
    /* The rest is as it was. */
    cuda_plan_make(&table, 9, 0, 3, false, &plan);
    assert_memory_equal(&plan, &built_in, sizeof plan);
    cuda_plan_make(&table, 8, 0, 4, false, &plan);
    assert_true(plan.count > 2);
    /* A block of 512 threads, which older versions had, is one of the most that there are. */
    assert_int_equal(rows_parsed(HEAD "sm_90 ranks 4 bytes rest kernel two_shot_pipelined threads "
                                      "512 blocks 64 units 1\n",
                                 ALL_REDUCE, &plan, &row),
                     1);
    assert_int_equal(plan.choices[row].threads, 480);
    /* A row names its collective, or is of all_reduce. */
    assert_int_equal(rows_parsed(HEAD LL_ROW
                                 "sm_90 ranks 4 collective all_reduce bytes rest kernel "
                                 "two_shot_pipelined threads 64 blocks 9 units 1\n",
                                 ALL_REDUCE, &plan, &row),
                     2);
    assert_int_equal(plan.choices[row + 1].blocks, 9);
    assert_int_equal(rows_parsed(HEAD "sm_90 ranks 4 collective broadcast bytes rest kernel "
                                      "copy_pipelined threads 64 blocks 5 units 1\n",
                                 TUTTI_COLLECTIVE_BROADCAST, &plan, &row),
                     1);
    assert_int_equal(plan.choices[row].blocks, 5);
    /* Of two groups of one capability and number of ranks the later one counts. */
    assert_int_equal(rows_parsed(HEAD REST_ROW LL_ROW REST_ROW, ALL_REDUCE, &plan, &row), 2);
    /* A file without rows changes nothing. */
    assert_int_equal(parse("tutti-tuning 1"), TUTTI_OK);
    assert_true(table.hash == hash);
}

static const struct {
    const char *text, *word;
} wrong[] = {
    {"", "tutti-tuning 1"},
    {"tutti-tuning 2\n", "line 1"},
    {LL_ROW REST_ROW, "line 1"},
    {HEAD LL_ROW, "rest"},
    {HEAD LL_ROW LL_ROW REST_ROW, "not more"},
    {HEAD LL_ROW "any ranks 4 bytes rest kernel two_shot_pipelined threads 32 blocks 1 units 1",
     "lack"},
    {HEAD "sm_90 ranks 4 bytes rest kernel two_shot_pipelined threads 32 blocks 1", "13"},
    {HEAD "sm_90 ranks 4 bytes rest kernel two_shot_pipelined threads 32 blocks 1 units 1 x", "13"},
    {HEAD "sm_90 ranks 4 bytes rest kernel two_shot_pipelined blocks 1 threads 32 units 1", "13"},
    {HEAD "sm_90 ranks 4 collective bytes rest kernel two_shot_pipelined threads 32 blocks 1 units "
          "1",
     "13"},
    {HEAD "sm_90 ranks 4 collective all_gather bytes rest kernel two_shot_pipelined threads 32 "
          "blocks 1 units 1",
     "collective"},
    {HEAD "sm_90 ranks 4 collective barrier bytes rest kernel barrier threads 32 blocks 1 units 1",
     "collective"},
    {HEAD "sm_90", "13"},
    {HEAD "sm_75 ranks 4 bytes rest kernel two_shot_pipelined threads 32 blocks 1 units 1",
     "sm_80"},
    {HEAD "sm_9000 ranks 4 bytes rest kernel two_shot_pipelined threads 32 blocks 1 units 1",
     "sm_80"},
    {HEAD "any ranks 1 bytes rest kernel two_shot_pipelined threads 32 blocks 1 units 1", "2 to 8"},
    {HEAD "any ranks 9 bytes rest kernel two_shot_pipelined threads 32 blocks 1 units 1", "2 to 8"},
    {HEAD "any ranks 2 bytes -1 kernel two_shot_pipelined threads 32 blocks 1 units 1", "bytes"},
    {HEAD "any ranks 2 bytes 1k kernel two_shot_pipelined threads 32 blocks 1 units 1", "bytes"},
    {HEAD "any ranks 2 bytes 0 kernel two_shot_pipelined threads 32 blocks 1 units 1", "bytes"},
    {HEAD "any ranks 2 bytes 99999999999999999999 kernel two_shot_pipelined threads 32 blocks 1 "
          "units 1",
     "bytes"},
    {HEAD "any ranks 2 bytes rest kernel three_shot threads 32 blocks 1 units 1", "kernel"},
    {HEAD "any ranks 2 bytes rest kernel ring threads 32 blocks 1 units 1", "kernel"},
    {HEAD "any ranks 8 bytes rest kernel mesh threads 32 blocks 1 units 1", "kernel"},
    {HEAD "any ranks 2 bytes rest kernel one_shot_ll threads 32 blocks 1 units 1", "more than"},
    {HEAD "any ranks 2 bytes rest kernel two_shot_pipelined threads 33 blocks 1 units 1",
     "threads"},
    {HEAD "any ranks 2 bytes rest kernel two_shot_pipelined threads 544 blocks 1 units 1",
     "threads"},
    {HEAD "any ranks 2 bytes rest kernel two_shot_pipelined threads 32 blocks 129 units 1",
     "blocks"},
    {HEAD "any ranks 2 bytes rest kernel two_shot_pipelined threads 32 blocks 1 units 0", "units"},
};

static void test_file_wrong(void **state)
{
    static const char zero[] = HEAD "any\0ranks";
    char row[600];
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (parse(wrong[i].text) != TUTTI_ERR_INVALID)
            fail_msg("%zu is accepted: %s", i, wrong[i].text);
        if (!strstr(tutti_last_error(), wrong[i].word) ||
            !strstr(tutti_last_error(), "test.tuning"))
            fail_msg("%zu: \"%s\" is not in \"%s\"", i, wrong[i].word, tutti_last_error());
    }
    cuda_table_built_in(&table);
    assert_int_equal(cuda_table_parse(zero, sizeof zero - 1, "test.tuning", &table),
                     TUTTI_ERR_INVALID);
    memset(row, 'x', sizeof row - 1);
    row[sizeof row - 1] = 0;
    assert_int_equal(parse(row), TUTTI_ERR_INVALID);
    assert_non_null(strstr(tutti_last_error(), "too long"));
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* Too large to be one: what was expected, and what to do. */
static void assert_too_large(const char *path, const char *remedy)
{
    const char *const words[] = {path, "262144 bytes or more", "expected", "tutti-tuning 1",
                                 remedy};
    assert_int_equal(cuda_table_load(&table), TUTTI_ERR_INVALID);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strstr(tutti_last_error(), words[i]))
            fail_msg("\"%s\" is not in \"%s\"", words[i], tutti_last_error());
}

static void test_too_large(void **state)
{
    char folder[] = "/tmp/tutti-table-XXXXXX", path[256];
    (void)state;
    setenv("TUTTI_TUNING_FILE", "/dev/zero", 1);
    assert_too_large("/dev/zero", "or unset TUTTI_TUNING_FILE");
    unsetenv("TUTTI_TUNING_FILE");

    assert_non_null(mkdtemp(folder));
    setenv("XDG_CACHE_HOME", folder, 1);
    snprintf(path, sizeof path, "%s/tutti", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/tutti/tuning", folder);
    assert_int_equal(symlink("/dev/zero", path), 0);
    assert_too_large(path, "or remove it");

    snprintf(path, sizeof path, "rm -r %s", folder);
    assert_int_equal(system(path), 0);
}

static void test_paths(void **state)
{
    char folder[] = "/tmp/tutti-table-XXXXXX", path[256], expected[256];
    (void)state;
    assert_non_null(mkdtemp(folder));
    unsetenv("TUTTI_TUNING_FILE");
    setenv("XDG_CACHE_HOME", folder, 1);
    snprintf(expected, sizeof expected, "%s/tutti/tuning", folder);
    cuda_table_cache_path(path, sizeof path);
    assert_string_equal(path, expected);
    assert_int_equal(cuda_table_load(&table), TUTTI_OK); /* there is none */
    assert_string_equal(table.source, "built in");

    snprintf(path, sizeof path, "%s/tutti", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    write_file(expected, HEAD LL_ROW REST_ROW);
    assert_int_equal(cuda_table_load(&table), TUTTI_OK);
    assert_non_null(strstr(table.source, "tutti/tuning"));
    write_file(expected, "nonsense\n");
    assert_int_equal(cuda_table_load(&table), TUTTI_ERR_INVALID);
    assert_non_null(strstr(tutti_last_error(), expected));

    /* What is named comes before the cache, and must be there. */
    snprintf(path, sizeof path, "%s/mine", folder);
    setenv("TUTTI_TUNING_FILE", path, 1);
    assert_int_equal(cuda_table_load(&table), TUTTI_ERR_SYSTEM);
    assert_non_null(strstr(tutti_last_error(), path));
    write_file(path, HEAD REST_ROW);
    assert_int_equal(cuda_table_load(&table), TUTTI_OK);
    assert_string_equal(table.source, path);

    unsetenv("TUTTI_TUNING_FILE");
    setenv("XDG_CACHE_HOME", "not/absolute", 1);
    setenv("HOME", folder, 1);
    snprintf(expected, sizeof expected, "%s/.cache/tutti/tuning", folder);
    cuda_table_cache_path(path, sizeof path);
    assert_string_equal(path, expected);
    unsetenv("HOME");
    cuda_table_cache_path(path, sizeof path);
    assert_string_equal(path, "");
    assert_int_equal(cuda_table_load(&table), TUTTI_OK);

    snprintf(path, sizeof path, "rm -r %s", folder);
    assert_int_equal(system(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_built_in),  cmocka_unit_test(test_choice),
        cmocka_unit_test(test_integers),  cmocka_unit_test(test_forced),
        cmocka_unit_test(test_family),    cmocka_unit_test(test_grid),
        cmocka_unit_test(test_file),      cmocka_unit_test(test_file_wrong),
        cmocka_unit_test(test_paths),     cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_unchanged), cmocka_unit_test(test_ring_chunk),
        cmocka_unit_test(test_empty),     cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
