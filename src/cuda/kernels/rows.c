/* SPDX-License-Identifier: MIT */
#include "cuda/kernels/rows.h"

#include "base/dtype.h"
#include "cuda/kernels/exchange.h"
#include "cuda/kernels/tiling.h"

#include <strings.h>

#define DECLARE_FATBIN(NAME, name) extern const unsigned char cuda_fatbin_##name[];
CUDA_KERNEL_MAP(DECLARE_FATBIN)
#undef DECLARE_FATBIN

enum {
    ALL_REDUCE = 1 << TUTTI_COLLECTIVE_ALL_REDUCE,
    COPIES = 1 << TUTTI_COLLECTIVE_ALL_GATHER | 1 << TUTTI_COLLECTIVE_ALL_TO_ALL |
             1 << TUTTI_COLLECTIVE_BROADCAST | 1 << TUTTI_COLLECTIVE_GATHER |
             1 << TUTTI_COLLECTIVE_SCATTER,
    REDUCTIONS = 1 << TUTTI_COLLECTIVE_REDUCE_SCATTER | 1 << TUTTI_COLLECTIVE_REDUCE,
    MESSAGES = 1 << TUTTI_COLLECTIVE_SEND | 1 << TUTTI_COLLECTIVE_RECV |
               1 << TUTTI_COLLECTIVE_ALL_GATHER_V | 1 << TUTTI_COLLECTIVE_ALL_TO_ALL_V |
               1 << TUTTI_COLLECTIVE_GATHER_V | 1 << TUTTI_COLLECTIVE_SCATTER_V,
    REALS = (1 << DTYPE_REALS) - 1,
    FLOATS = (1 << (TUTTI_FLOAT8_E5M2 + 1)) - 1,
    INTEGERS = REALS & ~FLOATS,
    /* Sums exist for these, and for 2, 3, 4 and 8 ranks. */
    SUMMED = 1 << TUTTI_FLOAT32 | 1 << TUTTI_FLOAT16 | 1 << TUTTI_BFLOAT16,
    HALVES = SUMMED & ~(1 << TUTTI_FLOAT32),
    ANY = 1 << CUDA_ANY,
    SUM = ANY | 1 << CUDA_SUM,
    ONCE = SUM | 1 << CUDA_SUM_ONCE,
    HALF = CUDA_LINE / 2,
    LINE = CUDA_LINE,
    RMS_NORM = 1 << TUTTI_COLLECTIVE_ALL_REDUCE_RMS_NORM,
    ROW_WORKERS = 512,  /* a lane each: rms_norm.cuh */
    MESH_WORKERS = 192, /* a tile has a unit for each, and no more */
};

/* Groups of fields. */
#define KERNEL(kernel, serves)                                                                     \
    .name = #kernel, .fatbin = cuda_fatbin_##kernel, .collectives = serves
#define HAS(algorithm, types, form) .algo = TUTTI_ALGO_##algorithm, .dtypes = types, .forms = form
#define USES(region)                .regions = CUDA_REGION_##region
#define ROOM(bytes, without_own)    .room = bytes, .packed = without_own
#define CUT(unit, into, workers, most)                                                             \
    .unit_bytes = unit, .parts = into, .threads = workers, .blocks = most

const struct cuda_kernel_row cuda_kernel_rows[CUDA_KERNELS] = {
    [CUDA_ONE_SHOT_LL] = {KERNEL(one_shot_ll, ALL_REDUCE), HAS(ONE_SHOT, REALS, ONCE),
                          USES(FLAGGED), ROOM(CUDA_FLAGGED_BYTES / CUDA_HALVES, 0),
                          CUT(HALF, 1, 64, CUDA_BLOCKS)},
    [CUDA_ONE_SHOT_LINES] = {KERNEL(one_shot_lines, ALL_REDUCE), HAS(ONE_SHOT, FLOATS, ONCE),
                             USES(ONE_SHOT), ROOM(CUDA_ONE_SHOT_BYTES, 1),
                             CUT(LINE, 1, 128, CUDA_BLOCKS)},
    [CUDA_TWO_SHOT_LINES] = {KERNEL(two_shot_lines, ALL_REDUCE), HAS(TWO_SHOT, FLOATS, ONCE),
                             USES(TWO_SHOT), ROOM(CUDA_TWO_SHOT_BYTES / 2, 1),
                             CUT(LINE, CUDA_BY_RANK, 128, CUDA_BLOCKS)},
    [CUDA_TWO_SHOT_PIPELINED] = {KERNEL(two_shot_pipelined, ALL_REDUCE), HAS(TWO_SHOT, FLOATS, SUM),
                                 USES(PIPES),
                                 CUT(LINE, CUDA_BY_RANK, CUDA_WORKERS, CUDA_TILE_BLOCKS),
                                 .other = "two_shot_tiles"},
    [CUDA_TWO_SHOT_RELAYED] = {KERNEL(two_shot_relayed, ALL_REDUCE), HAS(TWO_SHOT, INTEGERS, ANY),
                               USES(COPIES),
                               CUT(LINE, CUDA_BY_RANK, CUDA_WORKERS, CUDA_TILE_BLOCKS),
                               .all_reduces = INTEGERS},
    [CUDA_MESH] = {KERNEL(mesh, ALL_REDUCE), HAS(HYBRID_CUBE_MESH, REALS, ANY), USES(ON_HOST),
                   CUT(LINE, TILING_QUAD, MESH_WORKERS, CUDA_TILE_BLOCKS),
                   .small = &cuda_kernel_rows[CUDA_ONE_SHOT_LL]},
    [CUDA_RING] = {KERNEL(ring, ALL_REDUCE), HAS(RING, REALS, ANY), USES(TILES),
                   CUT(LINE, CUDA_BY_RANK, CUDA_WORKERS, CUDA_TILE_BLOCKS), .ring = true},
    [CUDA_COPY_LL] = {KERNEL(copy_ll, COPIES), HAS(ONE_SHOT, 0, ANY), USES(FLAGGED),
                      ROOM(CUDA_FLAGGED_BYTES / CUDA_HALVES, 0), CUT(HALF, 1, 64, CUDA_BLOCKS)},
    [CUDA_COPY_LINES] = {KERNEL(copy_lines, COPIES), HAS(ONE_SHOT, 0, ANY), USES(ONE_SHOT),
                         ROOM(CUDA_ONE_SHOT_BYTES, 1), CUT(LINE, 1, 128, CUDA_BLOCKS)},
    [CUDA_COPY_PIPELINED] = {KERNEL(copy_pipelined, COPIES), HAS(ONE_SHOT, 0, ANY), USES(COPIES),
                             CUT(LINE, 1, CUDA_WORKERS, CUDA_TILE_BLOCKS)},
    [CUDA_COPY_RELAYED] = {KERNEL(copy_relayed, 1 << TUTTI_COLLECTIVE_BROADCAST),
                           HAS(TWO_SHOT, 0, ANY), USES(COPIES),
                           CUT(LINE, CUDA_BY_RANK, CUDA_WORKERS, CUDA_TILE_BLOCKS), .least = 3},
    [CUDA_COPY_SYMMETRIC] = {KERNEL(copy_symmetric, COPIES), HAS(SYMMETRIC, 0, ANY),
                             .symmetric = true, .parts = 1, .unit_bytes = LINE,
                             .threads = CUDA_WORKERS, .blocks = 32},
    [CUDA_REDUCE_LL] = {KERNEL(reduce_ll, REDUCTIONS), HAS(ONE_SHOT, REALS, SUM), USES(FLAGGED),
                        ROOM(CUDA_FLAGGED_BYTES / CUDA_HALVES, 0), CUT(HALF, 1, 64, CUDA_BLOCKS)},
    [CUDA_REDUCE_LINES] = {KERNEL(reduce_lines, REDUCTIONS), HAS(ONE_SHOT, REALS, SUM),
                           USES(ONE_SHOT), ROOM(CUDA_ONE_SHOT_BYTES, 1),
                           CUT(LINE, 1, 128, CUDA_BLOCKS), .all_reduces = INTEGERS},
    [CUDA_REDUCE_PIPELINED] = {KERNEL(reduce_pipelined, REDUCTIONS), HAS(ONE_SHOT, REALS, SUM),
                               USES(COPIES), CUT(LINE, 1, CUDA_WORKERS, CUDA_TILE_BLOCKS),
                               .all_reduces = INTEGERS},
    [CUDA_REDUCE_RELAYED] = {KERNEL(reduce_relayed, 1 << TUTTI_COLLECTIVE_REDUCE),
                             HAS(TWO_SHOT, REALS, SUM), USES(COPIES),
                             CUT(LINE, CUDA_BY_RANK, CUDA_WORKERS, CUDA_TILE_BLOCKS), .least = 3},
    [CUDA_REDUCE_VARIED] = {KERNEL(reduce_varied, 1 << TUTTI_COLLECTIVE_REDUCE_SCATTER_V),
                            HAS(NONE, REALS, SUM), USES(COPIES),
                            CUT(LINE, 1, CUDA_WORKERS, CUDA_TILE_BLOCKS)},
    [CUDA_REDUCE_COUNTED] = {KERNEL(reduce_counted, 1 << TUTTI_COLLECTIVE_REDUCE_SCATTER_V),
                             HAS(NONE, REALS, SUM), USES(COPIES),
                             CUT(LINE, 1, CUDA_WORKERS, CUDA_TILE_BLOCKS)},
    [CUDA_EXCHANGE] = {KERNEL(exchange, MESSAGES), HAS(NONE, 0, ANY), USES(MESSAGES),
                       .threads = CUDA_WORKERS, .blocks = EXCHANGE_CHANNELS},
    [CUDA_EXCHANGE_COUNTED] = {KERNEL(exchange_counted, 1 << TUTTI_COLLECTIVE_ALL_GATHER_V |
                                                            1 << TUTTI_COLLECTIVE_ALL_TO_ALL_V),
                               HAS(NONE, 0, ANY), USES(MESSAGES), .threads = CUDA_WORKERS,
                               .blocks = EXCHANGE_CHANNELS},
    [CUDA_RMS_NORM_LINES] = {KERNEL(rms_norm_lines, RMS_NORM), HAS(NONE, SUMMED, ONCE),
                             .sums = HALVES, USES(ONE_SHOT), ROOM(CUDA_ONE_SHOT_BYTES, 1),
                             CUT(LINE, 1, ROW_WORKERS, CUDA_BLOCKS)},
    [CUDA_RMS_NORM_TWO_SHOT] = {KERNEL(rms_norm_two_shot, RMS_NORM), HAS(NONE, SUMMED, ONCE),
                                .sums = HALVES, USES(TWO_SHOT), ROOM(CUDA_TWO_SHOT_BYTES / 2, 1),
                                CUT(LINE, CUDA_BY_RANK, ROW_WORKERS, CUDA_BLOCKS)},
    [CUDA_BARRIER] = {KERNEL(barrier, 1 << TUTTI_COLLECTIVE_BARRIER), HAS(NONE, 0, ANY),
                      .blocks = 1, .awaits_headers = true},
    /* of symmetric memory, of streams that wait for the host, behind other kernels, behind the
     * transfers of a fabric, and of a rank alone */
    [CUDA_SYMM] = {KERNEL(symm, 0)},
    [CUDA_STREAM_WAIT] = {KERNEL(stream_wait, 0)},
    [CUDA_RMS_NORM_ROWS] = {KERNEL(rms_norm_rows, 0), HAS(NONE, SUMMED, ANY),
                            .threads = ROW_WORKERS, .blocks = CUDA_BLOCKS},
    [CUDA_COMBINE] = {KERNEL(combine, 0), HAS(NONE, REALS, SUM)},
    [CUDA_REDUCE_ALONE] = {KERNEL(reduce_alone, 0), HAS(NONE, REALS, ANY), .threads = 256,
                           .blocks = UINT16_MAX},
};

enum cuda_kernel cuda_kernel_find(const char *name)
{
    enum cuda_kernel kernel = 0;
    while (kernel < CUDA_KERNELS && (!cuda_kernel_is_tuned(&cuda_kernel_rows[kernel]) ||
                                     strcasecmp(cuda_kernel_rows[kernel].name, name) != 0))
        kernel++;
    return kernel;
}

bool cuda_kernel_serves(enum tutti_collective collective)
{
    uint32_t all = 0;
    for (int k = 0; k < CUDA_KERNELS; k++)
        all |= cuda_kernel_rows[k].collectives;
    return all >> collective & 1;
}

uint64_t cuda_kernel_capacity(const struct cuda_kernel_row *row, int size)
{
    if (size < row->least)
        return 0;
    if (!row->room)
        return UINT64_MAX;
    return row->room / (unsigned)(size - row->packed) / CUDA_LINE * row->unit_bytes *
           cuda_kernel_parts(row, size);
}

bool cuda_kernel_has(const struct cuda_kernel_row *row, int size, bool on_host,
                     enum tutti_dtype dtype, enum cuda_form form)
{
    if (size < row->least)
        return false;
    if (!row->dtypes)
        return row->forms >> form & 1 && !(on_host && row->regions & ~CUDA_REGION_ON_HOST);
    if (!cuda_kernel_is_own(row, on_host, dtype))
        return on_host && row->other && form == CUDA_ANY;
    return row->forms >> form & 1 &&
           (form == CUDA_ANY ||
            ((size <= 4 || size == 8) && (row->sums ? row->sums : SUMMED) >> dtype & 1));
}
