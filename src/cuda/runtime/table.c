/* SPDX-License-Identifier: MIT */
#include "cuda/runtime/table.h"

#include "base/error.h"
#include "cuda/kernels/tiling.h"

#include <stdio.h>
#include <string.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

/* Choices for kernels that are forced outside their range, or chosen for the links: 8 bytes a
 * thread in many small blocks; a line a thread; or as many blocks as tiles allow, in a loop. A tile
 * of the mesh has a unit for each thread, at most 192. */
static const struct cuda_choice usual[CUDA_KERNELS] = {
    [CUDA_ONE_SHOT_LL] = {CUDA_ONE_SHOT_LL, 1, 64, 512},
    [CUDA_ONE_SHOT_LINES] = {CUDA_ONE_SHOT_LINES, 1, 128, 512},
    [CUDA_TWO_SHOT_LINES] = {CUDA_TWO_SHOT_LINES, 1, 128, 512},
    [CUDA_TWO_SHOT_PIPELINED] = {CUDA_TWO_SHOT_PIPELINED, 1, CUDA_WORKERS, CUDA_TILE_BLOCKS},
    [CUDA_HYBRID_CUBE_MESH] = {CUDA_HYBRID_CUBE_MESH, 1, 192, CUDA_TILE_BLOCKS},
    [CUDA_RING] = {CUDA_RING, 1, CUDA_WORKERS, CUDA_TILE_BLOCKS},
};

/* The built-in rows, for least to most ranks; for one number of ranks in order of bytes. Measured
 * on 2, 3 and 4 H200; the others follow from these. */
static const struct {
    int8_t least, most;
    struct cuda_choice choice; /* kernel, units, threads, blocks */
    uint64_t bytes;
} built_in[] = {
    {2, 2, {CUDA_ONE_SHOT_LL, 1, 64, 512}, 1 * KIB},
    {2, 2, {CUDA_ONE_SHOT_LINES, 1, 64, 512}, 512 * KIB},
    {2, 2, {CUDA_ONE_SHOT_LINES, 1, 256, 512}, 1536 * KIB},
    {2, 2, {CUDA_TWO_SHOT_LINES, 1, 128, 512}, 2 * MIB},
    {2, 2, {CUDA_TWO_SHOT_LINES, 1, 256, 512}, 8 * MIB},
    {2, 2, {CUDA_TWO_SHOT_PIPELINED, 2, CUDA_WORKERS, CUDA_TILE_BLOCKS}, CUDA_TABLE_REST},
    {3, 3, {CUDA_ONE_SHOT_LL, 1, 96, 512}, 32 * KIB},
    {3, 3, {CUDA_ONE_SHOT_LINES, 1, 64, 512}, 256 * KIB},
    {3, 3, {CUDA_TWO_SHOT_LINES, 1, 128, 512}, 768 * KIB},
    {3, 3, {CUDA_TWO_SHOT_LINES, 1, CUDA_WORKERS, 132}, 1 * MIB},
    {3, 3, {CUDA_TWO_SHOT_LINES, 1, 128, 512}, 2 * MIB},
    {3, 3, {CUDA_TWO_SHOT_LINES, 1, 256, 512}, 3 * MIB},
    {4, 4, {CUDA_ONE_SHOT_LL, 1, 96, 512}, 2 * KIB},
    {4, 4, {CUDA_ONE_SHOT_LINES, 1, 64, 512}, 64 * KIB},
    {4, 4, {CUDA_ONE_SHOT_LINES, 1, 128, 512}, 160 * KIB},
    {4, 4, {CUDA_TWO_SHOT_LINES, 1, 128, 512}, 512 * KIB},
    {4, 4, {CUDA_TWO_SHOT_LINES, 1, 384, 132}, 1 * MIB},
    {4, 4, {CUDA_TWO_SHOT_LINES, 1, CUDA_WORKERS, 132}, 2 * MIB},
    {4, 4, {CUDA_TWO_SHOT_LINES, 1, 256, 512}, 4 * MIB},
    {5, 8, {CUDA_ONE_SHOT_LL, 1, 64, 512}, 16 * KIB},
    {5, 5, {CUDA_ONE_SHOT_LINES, 1, 64, 512}, 128 * KIB},
    {6, 8, {CUDA_ONE_SHOT_LINES, 1, 64, 512}, 64 * KIB},
    {5, 8, {CUDA_TWO_SHOT_LINES, 1, 64, 512}, 512 * KIB},
    {5, 8, {CUDA_TWO_SHOT_LINES, 1, 128, 512}, 1 * MIB},
    {5, 8, {CUDA_TWO_SHOT_LINES, 1, CUDA_WORKERS, 512}, 2 * MIB},
    {5, 7, {CUDA_TWO_SHOT_LINES, 1, 256, 512}, 3 * MIB},
    {8, 8, {CUDA_TWO_SHOT_LINES, 1, 256, 512}, 4 * MIB},
    {3, 8, {CUDA_TWO_SHOT_PIPELINED, 1, CUDA_WORKERS, CUDA_TILE_BLOCKS}, CUDA_TABLE_REST},
};

/* Hashes field by field (FNV-1a), because padding may differ between equal rows. */
void cuda_table_hash(struct cuda_table *table)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int i = 0; i < table->count; i++) {
        const struct cuda_table_row *row = &table->rows[i];
        const uint64_t fields[] = {
            (uint64_t)row->capability, (uint64_t)row->size, row->choice.kernel, row->choice.units,
            row->choice.threads,       row->choice.blocks,  row->bytes};
        for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
            for (int shift = 0; shift < 64; shift += 8)
                hash = (hash ^ (fields[f] >> shift & 255)) * UINT64_C(0x100000001b3);
    }
    table->hash = hash;
}

void cuda_table_built_in(struct cuda_table *table)
{
    static_assert(sizeof built_in / sizeof *built_in * CUDA_RANKS <= CUDA_TABLE_ROWS, "rows");
    memset(table, 0, sizeof *table);
    for (int size = 2; size <= CUDA_RANKS; size++)
        for (size_t i = 0; i < sizeof built_in / sizeof *built_in; i++)
            if (size >= built_in[i].least && size <= built_in[i].most)
                table->rows[table->count++] = (struct cuda_table_row){.size = (int16_t)size,
                                                                      .choice = built_in[i].choice,
                                                                      .bytes = built_in[i].bytes};
    snprintf(table->source, sizeof table->source, "built in");
    cuda_table_hash(table);
}

/* ---- a communicator's plan ------------------------------------------------------------------- */

bool cuda_plan_has(const struct cuda_plan *plan, enum cuda_kernel kernel)
{
    return !plan->staged || !cuda_kernel_has_lines(kernel);
}

static void plan_add(struct cuda_plan *plan, const struct cuda_choice *choice, uint64_t bytes)
{
    plan->choices[plan->count] = *choice;
    plan->bytes[plan->count++] = bytes;
}

/* Over PCIe the arrival counts of tiles cost more than flags in band, for sizes that flags serve:
 * 4 H200, 128 KiB, 49 us against about 40. */
static void plan_add_staged(struct cuda_plan *plan)
{
    plan_add(plan, &usual[CUDA_ONE_SHOT_LL], cuda_kernel_capacity(CUDA_ONE_SHOT_LL, plan->size));
    plan_add(plan, &usual[CUDA_TWO_SHOT_PIPELINED], CUDA_TABLE_REST);
}

void cuda_plan_make(const struct cuda_table *table, int major, int minor, int size, bool staged,
                    struct cuda_plan *plan)
{
    int capability = 0;
    for (int i = 0; i < table->count; i++)
        if (table->rows[i].size == size && table->rows[i].capability == 10 * major + minor)
            capability = table->rows[i].capability;
    memset(plan, 0, sizeof *plan);
    plan->size = size;
    plan->staged = staged;
    memcpy(&plan->choices[CUDA_PLAN_ROWS], usual, sizeof usual);
    if (staged) {
        plan_add_staged(plan);
        return;
    }
    for (int i = 0; i < table->count && plan->count < CUDA_PLAN_ROWS; i++) {
        const struct cuda_table_row *row = &table->rows[i];
        if (row->size != size || row->capability != capability)
            continue;
        plan_add(plan, &row->choice, row->bytes);
    }
}

uint64_t cuda_kernel_capacity(enum cuda_kernel kernel, int size)
{
    const uint64_t ranks = (uint64_t)size;
    switch (kernel) {
    case CUDA_ONE_SHOT_LL:
        return CUDA_FLAGGED_BYTES / CUDA_HALVES / ranks / CUDA_LINE * 8;
    case CUDA_ONE_SHOT_LINES:
        return CUDA_ONE_SHOT_BYTES / (ranks - 1) / CUDA_LINE * CUDA_LINE;
    case CUDA_TWO_SHOT_LINES:
        return CUDA_TWO_SHOT_BYTES / 2 / (ranks - 1) / CUDA_LINE * CUDA_LINE * ranks;
    case CUDA_TWO_SHOT_PIPELINED:
    case CUDA_HYBRID_CUBE_MESH:
    case CUDA_RING:
    case CUDA_KERNELS:
        break;
    }
    return CUDA_TABLE_REST;
}

static bool serves(const struct cuda_plan *plan, enum cuda_kernel kernel, enum tutti_dtype dtype,
                   size_t bytes)
{
    return (dtype_is_float(dtype) || !cuda_kernel_has_lines(kernel)) &&
           cuda_plan_has(plan, kernel) && bytes <= cuda_kernel_capacity(kernel, plan->size);
}

static bool is_one_shot(enum cuda_kernel kernel)
{
    return kernel == CUDA_ONE_SHOT_LL || kernel == CUDA_ONE_SHOT_LINES;
}

/* Returns true if the caller leaves the choice to the table, or asks for this kernel's algorithm.
 */
static bool allows(enum tutti_algo asked, enum cuda_kernel kernel)
{
    if (asked == TUTTI_ALGO_NONE || asked == TUTTI_ALGO_HOST_STAGED)
        return true;
    if (asked == TUTTI_ALGO_ONE_SHOT)
        return is_one_shot(kernel);
    if (asked == TUTTI_ALGO_TWO_SHOT)
        return kernel == CUDA_TWO_SHOT_LINES || kernel == CUDA_TWO_SHOT_PIPELINED;
    return cuda_kernel_algo(kernel) == asked;
}

static enum tutti_status refuse(const struct cuda_plan *plan, enum tutti_algo asked,
                                enum tutti_dtype dtype, size_t bytes)
{
    char served[256];
    int length = 0;
    for (int k = 0; k < CUDA_TABLE_KERNELS && length < (int)sizeof served; k++)
        if (serves(plan, (enum cuda_kernel)k, dtype, bytes))
            length += snprintf(served + length, sizeof served - (size_t)length, "%s%s",
                               length ? ", " : "",
                               tutti_algo_name(cuda_kernel_algo((enum cuda_kernel)k)));
    return error_set(TUTTI_ERR_INVALID,
                     "algorithm %d (%s) does not serve %zu bytes of %s among %d ranks%s: use "
                     "%s",
                     (int)asked, tutti_algo_name(asked), bytes, tutti_dtype_name(dtype), plan->size,
                     plan->staged ? " with arenas in the host's memory" : "", served);
}

enum tutti_status cuda_plan_pick(const struct cuda_plan *plan, enum tutti_algo asked,
                                 enum tutti_dtype dtype, size_t bytes,
                                 const struct cuda_choice **choice, const char **reason)
{
    const bool forced = asked != TUTTI_ALGO_NONE && asked != TUTTI_ALGO_HOST_STAGED;
    int i = 0;
    while (bytes > plan->bytes[i])
        i++;
    if (asked == TUTTI_ALGO_HOST_STAGED && !plan->staged)
        return error_set(
            TUTTI_ERR_INVALID,
            "algorithm %d (%s): this communicator's arenas are in device memory: set the "
            "algorithm in the options or TUTTI_ALGO when you create a communicator",
            (int)asked, tutti_algo_name(asked));
    *choice = &plan->choices[i];
    *reason = forced         ? "forced by the call, the options or TUTTI_ALGO"
              : plan->staged ? "staged through the host's memory"
                             : "the tuning table";
    enum cuda_kernel kernel = (enum cuda_kernel)(*choice)->kernel;
    if (__builtin_expect(allows(asked, kernel) && serves(plan, kernel, dtype, bytes), 1))
        return TUTTI_OK;
    if (!forced)
        *reason = "the tuning table's is for floats only";
    /* In each family the kernel that is faster for few bytes comes first. */
    for (kernel = 0; kernel < CUDA_KERNELS; kernel++)
        if (allows(asked, kernel) && serves(plan, kernel, dtype, bytes)) {
            *choice = cuda_plan_forced(plan, kernel);
            return TUTTI_OK;
        }
    return refuse(plan, asked, dtype, bytes);
}

static uint64_t parts_of(uint64_t count, uint64_t by)
{
    return (count + by - 1) / by;
}

/* Units of a block of the kernels for few links, and the number of ranks among which they are
 * divided. In the mesh an operation of two hops has 8 bytes a thread, as one_shot_ll. A tile of the
 * ring is as large as the room of its messages (ring.cu), if partial results are as wide as
 * elements. */
static size_t links_units(const struct cuda_choice *choice, int size, size_t bytes, size_t *parts)
{
    *parts = TILING_QUAD;
    if (choice->kernel == CUDA_RING) {
        *parts = (size_t)size;
        return tiling_ring(2 * (unsigned)size - 2);
    }
    if (bytes <= cuda_kernel_capacity(CUDA_ONE_SHOT_LL, size))
        *parts = 1;
    return choice->threads;
}

unsigned cuda_choice_blocks(const struct cuda_choice *choice, int size, size_t bytes)
{
    size_t each = (size_t)choice->threads * choice->units, parts = 1;
    if (choice->kernel >= CUDA_TABLE_KERNELS)
        each = links_units(choice, size, bytes, &parts);
    else if (!is_one_shot((enum cuda_kernel)choice->kernel))
        parts = (size_t)size;
    const bool half = choice->kernel == CUDA_ONE_SHOT_LL ||
                      (choice->kernel == CUDA_HYBRID_CUBE_MESH && parts == 1);
    const size_t line = half ? CUDA_LINE / 2 : CUDA_LINE;
    const uint64_t units = parts_of(parts_of(bytes, line), parts), blocks = parts_of(units, each);
    return blocks < choice->blocks ? (unsigned)blocks : choice->blocks;
}

/* Between 2 H200, in this form of two-shot, blocks of up to this size are 1 to 8 percent faster,
 * larger ones 2 percent slower. */
enum { TWO_SHOT_ONCE_THREADS = 256 };

bool cuda_choice_is_once(const struct cuda_choice *choice, int size, const void *send,
                         const void *recv, size_t bytes, unsigned blocks)
{
    const size_t unit = choice->kernel == CUDA_ONE_SHOT_LL ? CUDA_LINE / 2 : CUDA_LINE;
    const size_t all = is_one_shot((enum cuda_kernel)choice->kernel) ? unit : unit * (size_t)size;
    return (((uintptr_t)send | (uintptr_t)recv) & (unit - 1)) == 0 && bytes % all == 0 &&
           bytes / all <= (size_t)blocks * choice->threads &&
           (all == unit || choice->threads <= TWO_SHOT_ONCE_THREADS);
}
