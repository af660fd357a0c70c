/* SPDX-License-Identifier: MIT */
#include "cuda/tuning/table.h"

#include "base/dtype.h"
#include "base/error.h"
#include "base/invariant.h"
#include "base/text.h"
#include "coll/coll.h"
#include "cuda/kernels/tiling.h"

#include <stdio.h>
#include <string.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

/* The built-in rows, for least to most ranks; for one collective and number of ranks in order of
 * bytes. Measured on 2, 3 and 4 H200; the others follow from these. */
#define ALL_REDUCE TUTTI_COLLECTIVE_ALL_REDUCE
static const struct {
    uint8_t collective;
    int8_t least, most;
    struct cuda_choice choice; /* kernel, units, threads, blocks */
    uint64_t bytes;
} built_in[] = {
    {ALL_REDUCE, 2, 2, {CUDA_ONE_SHOT_LL, 1, 64, 512}, 1 * KIB},
    {ALL_REDUCE, 2, 2, {CUDA_ONE_SHOT_LINES, 1, 64, 512}, 512 * KIB},
    {ALL_REDUCE, 2, 2, {CUDA_ONE_SHOT_LINES, 1, 256, 512}, 1536 * KIB},
    {ALL_REDUCE, 2, 2, {CUDA_TWO_SHOT_LINES, 1, 128, 512}, 2 * MIB},
    {ALL_REDUCE, 2, 2, {CUDA_TWO_SHOT_LINES, 1, 256, 512}, 8 * MIB},
    {ALL_REDUCE,
     2,
     2,
     {CUDA_TWO_SHOT_PIPELINED, 2, CUDA_WORKERS, CUDA_TILE_BLOCKS},
     CUDA_TABLE_REST},
    {ALL_REDUCE, 3, 3, {CUDA_ONE_SHOT_LL, 1, 96, 512}, 32 * KIB},
    {ALL_REDUCE, 3, 3, {CUDA_ONE_SHOT_LINES, 1, 64, 512}, 256 * KIB},
    {ALL_REDUCE, 3, 3, {CUDA_TWO_SHOT_LINES, 1, 128, 512}, 768 * KIB},
    {ALL_REDUCE, 3, 3, {CUDA_TWO_SHOT_LINES, 1, CUDA_WORKERS, 132}, 1 * MIB},
    {ALL_REDUCE, 3, 3, {CUDA_TWO_SHOT_LINES, 1, 128, 512}, 2 * MIB},
    {ALL_REDUCE, 3, 3, {CUDA_TWO_SHOT_LINES, 1, 256, 512}, 3 * MIB},
    {ALL_REDUCE, 4, 4, {CUDA_ONE_SHOT_LL, 1, 96, 512}, 2 * KIB},
    {ALL_REDUCE, 4, 4, {CUDA_ONE_SHOT_LINES, 1, 64, 512}, 64 * KIB},
    {ALL_REDUCE, 4, 4, {CUDA_ONE_SHOT_LINES, 1, 128, 512}, 160 * KIB},
    {ALL_REDUCE, 4, 4, {CUDA_TWO_SHOT_LINES, 1, 128, 512}, 512 * KIB},
    {ALL_REDUCE, 4, 4, {CUDA_TWO_SHOT_LINES, 1, 384, 132}, 1 * MIB},
    {ALL_REDUCE, 4, 4, {CUDA_TWO_SHOT_LINES, 1, CUDA_WORKERS, 132}, 2 * MIB},
    {ALL_REDUCE, 4, 4, {CUDA_TWO_SHOT_LINES, 1, 256, 512}, 4 * MIB},
    {ALL_REDUCE, 5, 8, {CUDA_ONE_SHOT_LL, 1, 64, 512}, 16 * KIB},
    {ALL_REDUCE, 5, 5, {CUDA_ONE_SHOT_LINES, 1, 64, 512}, 128 * KIB},
    {ALL_REDUCE, 6, 8, {CUDA_ONE_SHOT_LINES, 1, 64, 512}, 64 * KIB},
    {ALL_REDUCE, 5, 8, {CUDA_TWO_SHOT_LINES, 1, 64, 512}, 512 * KIB},
    {ALL_REDUCE, 5, 8, {CUDA_TWO_SHOT_LINES, 1, 128, 512}, 1 * MIB},
    {ALL_REDUCE, 5, 8, {CUDA_TWO_SHOT_LINES, 1, CUDA_WORKERS, 512}, 2 * MIB},
    {ALL_REDUCE, 5, 7, {CUDA_TWO_SHOT_LINES, 1, 256, 512}, 3 * MIB},
    {ALL_REDUCE, 8, 8, {CUDA_TWO_SHOT_LINES, 1, 256, 512}, 4 * MIB},
    {ALL_REDUCE,
     3,
     8,
     {CUDA_TWO_SHOT_PIPELINED, 1, CUDA_WORKERS, CUDA_TILE_BLOCKS},
     CUDA_TABLE_REST},
};

/* Of each collective on blocks that the kernel serves. Two ranks measured on H200, the others not
 * yet. */
static const struct {
    int8_t least, most;
    struct cuda_choice choice;
    uint64_t bytes; /* of a block */
} built_in_blocks[] = {
    {2, 2, {CUDA_COPY_LL, 1, 64, 512}, 2 * KIB},
    {2, 2, {CUDA_COPY_LINES, 1, 96, 512}, 32 * KIB},
    {2, 2, {CUDA_COPY_LINES, 1, 128, 512}, 1 * MIB},
    {2, 2, {CUDA_COPY_PIPELINED, 2, CUDA_WORKERS, CUDA_TILE_BLOCKS}, CUDA_TABLE_REST},
    {2, 2, {CUDA_REDUCE_LL, 1, 64, 512}, 32 * KIB},
    {2, 2, {CUDA_REDUCE_LINES, 1, 128, 512}, 1 * MIB},
    {2, 2, {CUDA_REDUCE_PIPELINED, 2, CUDA_WORKERS, CUDA_TILE_BLOCKS}, CUDA_TABLE_REST},
    {3, 8, {CUDA_COPY_LL, 1, 64, 512}, 4 * KIB},
    {3, 4, {CUDA_COPY_LINES, 1, 128, 512}, 256 * KIB},
    {5, 8, {CUDA_COPY_LINES, 1, 128, 512}, 128 * KIB},
    {3, 8, {CUDA_COPY_RELAYED, 1, CUDA_WORKERS, CUDA_TILE_BLOCKS}, CUDA_TABLE_REST},
    {3, 8, {CUDA_COPY_PIPELINED, 1, CUDA_WORKERS, CUDA_TILE_BLOCKS}, CUDA_TABLE_REST},
    {3, 8, {CUDA_REDUCE_LL, 1, 64, 512}, 4 * KIB},
    {3, 4, {CUDA_REDUCE_LINES, 1, 128, 512}, 256 * KIB},
    {5, 8, {CUDA_REDUCE_LINES, 1, 128, 512}, 128 * KIB},
    {3, 8, {CUDA_REDUCE_RELAYED, 1, CUDA_WORKERS, CUDA_TILE_BLOCKS}, CUDA_TABLE_REST},
    {3, 8, {CUDA_REDUCE_PIPELINED, 1, CUDA_WORKERS, CUDA_TILE_BLOCKS}, CUDA_TABLE_REST},
};

/* Hashes field by field (FNV-1a), because padding may differ between equal rows. */
void cuda_table_hash(struct cuda_table *table)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int i = 0; i < table->count; i++) {
        const struct cuda_table_row *row = &table->rows[i];
        const uint64_t fields[] = {
            (uint64_t)row->capability, (uint64_t)row->size, row->collective,    row->choice.kernel,
            row->choice.units,         row->choice.threads, row->choice.blocks, row->bytes};
        for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
            for (int shift = 0; shift < 64; shift += 8)
                hash = (hash ^ (fields[f] >> shift & 255)) * UINT64_C(0x100000001b3);
    }
    table->hash = hash;
}

enum {
    ROWS = sizeof built_in / sizeof *built_in,
    BLOCK_ROWS = sizeof built_in_blocks / sizeof *built_in_blocks,
};

static void row_add(struct cuda_table *table, int size, int collective,
                    const struct cuda_choice *choice, uint64_t bytes)
{
    invariant(table->count < CUDA_TABLE_ROWS);
    table->rows[table->count++] = (struct cuda_table_row){
        .size = (int8_t)size, .collective = (uint8_t)collective, .choice = *choice, .bytes = bytes};
}

/* Adds the rows of a collective on blocks, if it has kernels. The first row for the rest is the
 * last one. */
static void blocks_add(struct cuda_table *table, int size, int collective)
{
    uint64_t last = 0;
    for (int i = 0; i < BLOCK_ROWS && last != CUDA_TABLE_REST; i++) {
        const struct cuda_choice *choice = &built_in_blocks[i].choice;
        if (!(cuda_kernel_rows[choice->kernel].collectives >> collective & 1) ||
            size < built_in_blocks[i].least || size > built_in_blocks[i].most)
            continue;
        last = built_in_blocks[i].bytes;
        row_add(table, size, collective, choice, last);
    }
}

void cuda_table_built_in(struct cuda_table *table)
{
    memset(table, 0, sizeof *table);
    for (int size = 2; size <= CUDA_RANKS; size++) {
        for (int i = 0; i < ROWS; i++)
            if (size >= built_in[i].least && size <= built_in[i].most)
                row_add(table, size, built_in[i].collective, &built_in[i].choice,
                        built_in[i].bytes);
        for (size_t c = 0; c < sizeof coll_rows / sizeof *coll_rows; c++)
            blocks_add(table, size, (int)c);
    }
    snprintf(table->source, sizeof table->source, "built in");
    cuda_table_hash(table);
}

/* ---- a communicator's plan ------------------------------------------------------------------- */

static void plan_add(struct cuda_plan *plan, enum tutti_collective collective,
                     const struct cuda_choice *choice, uint64_t bytes)
{
    plan->collectives[plan->count] = (uint8_t)collective;
    plan->choices[plan->count] = *choice;
    plan->bytes[plan->count++] = bytes;
}

/* The choice for a kernel that no row names: its usual grid, within what fits on the devices. */
static struct cuda_choice *choice_of(struct cuda_plan *plan, enum cuda_kernel kernel)
{
    return &plan->choices[CUDA_PLAN_ROWS + kernel];
}

/* Over PCIe the arrival counts of tiles cost more than flags in band, for sizes that flags serve:
 * 4 H200, 128 KiB, 49 us against about 40. */
static void plan_add_on_host(struct cuda_plan *plan)
{
    plan_add(plan, ALL_REDUCE, choice_of(plan, CUDA_ONE_SHOT_LL),
             cuda_kernel_capacity(&cuda_kernel_rows[CUDA_ONE_SHOT_LL], plan->size));
    plan_add(plan, ALL_REDUCE, choice_of(plan, CUDA_TWO_SHOT_PIPELINED), CUDA_TABLE_REST);
}

void cuda_plan_make(const struct cuda_table *table, int major, int minor, int size, bool on_host,
                    struct cuda_plan *plan)
{
    uint32_t own = 0; /* collectives with rows of this capability */
    for (int i = 0; i < table->count; i++)
        if (table->rows[i].size == size && table->rows[i].capability == 10 * major + minor)
            own |= UINT32_C(1) << table->rows[i].collective;
    memset(plan, 0, sizeof *plan);
    plan->size = size;
    plan->on_host = on_host;
    for (int k = 0; k < CUDA_KERNELS; k++) {
        const struct cuda_kernel_row *row = &cuda_kernel_rows[k];
        *choice_of(plan, (enum cuda_kernel)k) =
            (struct cuda_choice){(uint8_t)k, 1, row->threads, row->blocks};
    }
    if (on_host) {
        plan_add_on_host(plan);
        return;
    }
    for (int i = 0; i < table->count && plan->count < CUDA_PLAN_ROWS; i++) {
        const struct cuda_table_row *row = &table->rows[i];
        const int capability = own >> row->collective & 1 ? 10 * major + minor : 0;
        if (row->size == size && row->capability == capability)
            plan_add(plan, (enum tutti_collective)row->collective, &row->choice, row->bytes);
    }
}

/* ---- the choice ------------------------------------------------------------------------------ */

static bool serves(const struct cuda_plan *plan, const struct cuda_kernel_row *row,
                   const struct choice_call *call)
{
    const enum tutti_dtype dtype = dtype_component(call->dtype);
    return (row->collectives >> call->collective & 1 ||
            (call->collective == ALL_REDUCE && row->all_reduces >> dtype & 1)) &&
           row->symmetric == ((call->flags & TUTTI_CALL_SYMMETRIC) != 0) &&
           cuda_kernel_has(row, plan->size, plan->on_host, dtype, CUDA_ANY) &&
           call->bytes <= cuda_kernel_capacity(row, plan->size);
}

bool cuda_plan_serves(const struct cuda_plan *plan, const struct choice_call *call)
{
    bool any = !call->bytes && cuda_kernel_serves(call->collective);
    for (int k = 0; k < CUDA_KERNELS && !any; k++)
        any = serves(plan, &cuda_kernel_rows[k], call);
    return any;
}

/* Returns true if the caller leaves the choice to the table, or asks for the row's algorithm and,
 * unless `only` is NULL, for that row. */
static bool allows(enum tutti_algo asked, const struct cuda_kernel_row *only,
                   const struct cuda_kernel_row *row)
{
    if (only)
        return row == only;
    return asked == TUTTI_ALGO_NONE || asked == TUTTI_ALGO_HOST_STAGED || row->algo == asked;
}

static enum tutti_status refuse(const struct cuda_plan *plan, const struct choice_call *call,
                                enum tutti_algo asked, const struct cuda_kernel_row *only)
{
    char served[256] = "";
    int length = 0;
    for (int k = 0; k < CUDA_KERNELS; k++) {
        const struct cuda_kernel_row *row = &cuda_kernel_rows[k];
        if (cuda_kernel_is_tuned(row) && serves(plan, row, call))
            text_append(served, sizeof served, &length, "%s%s (kernel %s)", length ? ", " : "",
                        tutti_algo_name(row->algo), row->name);
    }
    return error_set(TUTTI_ERR_INVALID,
                     "algorithm %d (%s)%s%s does not serve %zu bytes of %s among %d ranks%s: use "
                     "%s",
                     (int)asked, tutti_algo_name(asked), only ? " by kernel " : "",
                     only ? only->name : "", call->bytes, tutti_dtype_name(call->dtype), plan->size,
                     plan->on_host ? " with arenas in the host's memory" : "", served);
}

/* Between 2 H200, in this form of two-shot, blocks of up to this size are 1 to 8 percent faster,
 * larger ones 2 percent slower. */
enum { TWO_SHOT_ONCE_THREADS = 256 };

static uint64_t divide_up(uint64_t count, uint64_t by)
{
    return (count + by - 1) / by;
}

/* Fills form and grid. There are as many columns as have work, within the limit of the choice, and
 * as many blocks, within that of the call. The form without loops serves if each thread has at most
 * one unit, whole and aligned, and all ranks have equally many units. Ranks may differ in this. */
static void launch_fill(const struct cuda_plan *plan, const struct choice_call *call,
                        const struct cuda_choice *choice, struct choice_launch *launch)
{
    const struct cuda_kernel_row *row = &cuda_kernel_rows[choice->kernel], *cut = row;
    const enum tutti_dtype dtype = dtype_component(call->dtype);
    *launch = (struct choice_launch){choice->kernel, CUDA_ANY, choice->threads, choice->blocks, 1};
    if (!call->bytes)
        return;
    if (row->small && call->bytes <= cuda_kernel_capacity(row->small, plan->size))
        cut = row->small;
    const size_t unit = cut->unit_bytes, parts = cuda_kernel_parts(cut, plan->size);
    const size_t block = row->ring ? tiling_ring(2 * (unsigned)plan->size - 2)
                                   : (size_t)choice->threads * choice->units;
    const uint64_t blocks = divide_up(divide_up(divide_up(call->bytes, unit), parts), block);
    if (blocks < choice->blocks)
        launch->blocks = (uint16_t)blocks;
    launch->columns = launch->blocks;
    if (call->max_blocks && call->max_blocks < launch->blocks)
        launch->blocks = (uint16_t)call->max_blocks;
    if (call->op != OP_SUM || !cuda_kernel_has(row, plan->size, plan->on_host, dtype, CUDA_SUM) ||
        (launch->blocks < launch->columns && !cuda_kernel_sums_columns(row, plan->size)))
        return;
    const bool once = (call->operands & (unit - 1)) == 0 && call->bytes % (unit * parts) == 0 &&
                      call->bytes / (unit * parts) <= (size_t)launch->blocks * choice->threads &&
                      (parts == 1 || choice->threads <= TWO_SHOT_ONCE_THREADS) &&
                      cuda_kernel_has(row, plan->size, plan->on_host, dtype, CUDA_SUM_ONCE);
    launch->form = once ? CUDA_SUM_ONCE : CUDA_SUM;
}

/* Why a kernel was chosen. */
enum { BY_CALLER, BY_TABLE, BY_STAGING, BY_DTYPE, REASONS };

static const char *const reasons[CUDA_KERNELS][REASONS] = {
#define REASON(NAME, name)                                                                         \
    [CUDA_##NAME] = {"kernel " #name ": forced by the call, the options or TUTTI_ALGO",            \
                     "kernel " #name ": the tuning table",                                         \
                     "kernel " #name ": staged through the host's memory",                         \
                     "kernel " #name ": the tuning table's does not serve the dtype"},
    CUDA_KERNEL_MAP(REASON)
#undef REASON
};

/* The collective whose rows say how a call runs. An all-reduce of integers or bool in one hop moves
 * on each link what a reduce to a root moves there. */
static enum tutti_collective tuned_as(const struct cuda_plan *plan, const struct choice_call *call)
{
    const bool as_reduce = call->collective == ALL_REDUCE && !plan->on_host &&
                           !dtype_is_float(dtype_component(call->dtype));
    return as_reduce ? TUTTI_COLLECTIVE_REDUCE : call->collective;
}

enum tutti_status cuda_plan_pick(const struct cuda_plan *plan, const struct choice_call *call,
                                 enum tutti_algo asked, int kernel, struct choice_launch *launch,
                                 const char **reason)
{
    const struct cuda_kernel_row *rows = cuda_kernel_rows;
    const struct cuda_kernel_row *only =
        kernel && rows[kernel - 1].algo == asked ? &rows[kernel - 1] : NULL;
    int why = asked != TUTTI_ALGO_NONE ? BY_CALLER : plan->on_host ? BY_STAGING : BY_TABLE, i = 0;
    if (asked == TUTTI_ALGO_HOST_STAGED && !plan->on_host)
        return error_set(
            TUTTI_ERR_INVALID,
            "algorithm %d (%s): this communicator's arenas are in device memory: set the "
            "algorithm in the options or TUTTI_ALGO when you create a communicator",
            (int)asked, tutti_algo_name(asked));
    if (!call->bytes) {
        while (!rows[i].awaits_headers)
            i++;
        launch_fill(plan, call, &plan->choices[CUDA_PLAN_ROWS + i], launch);
        return TUTTI_OK;
    }
    const enum tutti_collective tuned = tuned_as(plan, call);
    while (i < plan->count && (plan->collectives[i] != tuned || call->bytes > plan->bytes[i]))
        i++;
    const struct cuda_kernel_row *chosen = &rows[plan->choices[i].kernel];
    if (i == plan->count || !allows(asked, only, chosen) || !serves(plan, chosen, call)) {
        why = why == BY_TABLE ? BY_DTYPE : why;
        i = CUDA_PLAN_ROWS;
        while (i < CUDA_PLAN_CHOICES && (!allows(asked, only, &rows[i - CUDA_PLAN_ROWS]) ||
                                         !serves(plan, &rows[i - CUDA_PLAN_ROWS], call)))
            i++;
        if (i == CUDA_PLAN_CHOICES)
            return refuse(plan, call, asked, only);
    }
    launch_fill(plan, call, &plan->choices[i], launch);
    *reason = reasons[launch->kernel][why];
    return TUTTI_OK;
}
