/* SPDX-License-Identifier: MIT */
/*
 * How the kernels with tiles cut an operation. A tile has units of 16 bytes, for whole warps.
 * Compiles as C11 and as CUDA: the host computes grids and the tests check the cut.
 */
#ifndef TUTTI_CUDA_TILING_H
#define TUTTI_CUDA_TILING_H

#include "cuda/kernels/launch.h"

enum {
    TILING_QUAD = 4,       /* of a hybrid cube mesh */
    TILING_RING_TURNS = 2, /* turns whose messages a ring keeps */
    /* The most lines, of 8 bytes of data, that a mesh sends in two hops; others use tiles. */
    TILING_MESH_LINES = CUDA_FLAGGED_BYTES / CUDA_HALVES / CUDA_RANKS / CUDA_LINE,
};

/* Units of a tile, of two_shot_tiles. */
LAUNCH_FN unsigned tiling_two_shot(int size)
{
    return CUDA_TILES_BYTES / CUDA_TILE_BLOCKS / CUDA_TILE_SLOTS / CUDA_LINE / size / 32 * 32;
}

/* ... of the mesh, one a worker, where partial results are `wider` times as wide as elements. */
LAUNCH_FN unsigned tiling_mesh(unsigned workers, int wider)
{
    const unsigned most = CUDA_TILES_BYTES / CUDA_TILE_BLOCKS / CUDA_TILE_SLOTS / CUDA_LINE /
                          (TILING_QUAD - 1 + wider) / 32 * 32;
    return workers < most ? workers : most;
}

/* The first plane of a step's lane in a ring: the steps before `turning` hand on partial results,
 * `wider` planes each, the others results. */
LAUNCH_FN unsigned tiling_ring_plane(unsigned step, unsigned turning, unsigned wider)
{
    return step < turning ? step * wider : turning * wider + (step - turning);
}

/* ... of the ring; a turn's messages have `planes` planes. */
LAUNCH_FN unsigned tiling_ring(unsigned planes)
{
    return CUDA_TILES_BYTES / CUDA_TILE_BLOCKS / TILING_RING_TURNS / CUDA_LINE / planes / 32 * 32;
}

/* Elements of a chunk of a ring, whole 64 bytes; the last chunks may have fewer, or none. */
LAUNCH_FN uint64_t tiling_ring_chunk(uint64_t count, unsigned size, unsigned element_bytes)
{
    const uint64_t line = 64 / element_bytes;
    return ((count + line - 1) / line + size - 1) / size * line;
}

/* How many of all tiles a column has. */
LAUNCH_FN unsigned tiling_tiles(uint64_t all, unsigned column, unsigned columns)
{
    return all > column ? (all - column - 1) / columns + 1 : 0;
}

#endif
