/* SPDX-License-Identifier: MIT */
/*
 * Two-shot in tiles, for arenas in host memory. The units are cut into one chunk for each rank,
 * chunks into tiles. Column b of every rank has tiles b, b + columns, ... of all chunks. In its
 * k-th turn of a column a block (1) pushes tile k of every chunk to the chunk's owner; (2) waits
 * for tile k - 1 of its own chunk from all sources, reduces, and pushes the result to all; (3)
 * waits for tile k - 2 of the others' chunks from their owners and writes it.
 *
 * Data lies in tiles[hop][column][source][slot], slot = tile mod 3. An arrival count says how many
 * tiles have come: one worker of the source's block writes it, one of ours polls it. Its release
 * (hop 1: U1, hop 2: U2): the data, a barrier, a fence, the line. Its acquire (U1a, U2a): the line,
 * a fence, a barrier, the data.
 *
 * A slot is free when it is written. Hop 1, tile k: in turn k - 1 this block wrote the results of
 * tile k - 3 to the output, so the owner had reduced that tile. Hop 2, tile k: the owner has seen
 * the arrival count of hop 1 for tile k. We sent it in turn k, after turn k - 1, in which we wrote
 * tile k - 3 to the output.
 *
 * A block serves its columns one after the other, from the least on (columns_run()). Of all columns
 * that a rank has still to serve, the least one is therefore served on every rank, and goes on.
 */
#ifndef TUTTI_CUDA_TILES_CUH
#define TUTTI_CUDA_TILES_CUH

#include "cuda/kernels/operation.cuh"
#include "cuda/kernels/reduce.cuh"
#include "cuda/kernels/tiling.h"

struct tiling {
    uint64_t units, chunk;    /* 16-byte units: all, of a chunk */
    uint64_t source;          /* bytes of a source's slots */
    unsigned slot;            /* bytes of a slot */
    unsigned column, columns; /* the one that is served, all */
    unsigned tile, tiles;     /* units of a tile, tiles of the column */
};

static __device__ __forceinline__ tiling tiling_of(uint64_t units, int size, unsigned column,
                                                   unsigned columns)
{
    tiling plan;
    plan.units = units;
    plan.chunk = (units + size - 1) / size;
    plan.tile = tiling_two_shot(size);
    const uint64_t all = (plan.chunk + plan.tile - 1) / plan.tile;
    plan.column = column;
    plan.columns = columns;
    plan.tiles = tiling_tiles(all, column, columns);
    plan.slot = plan.tile * CUDA_LINE;
    plan.source = plan.slot * CUDA_TILE_SLOTS;
    return plan;
}

/* The first unit of a column's k-th tile in its chunk. */
static __device__ __forceinline__ uint64_t tile_start(const tiling &plan, unsigned k)
{
    return ((uint64_t)k * plan.columns + plan.column) * plan.tile;
}

static __device__ __forceinline__ unsigned char *
tile_slot(const tiling &plan, cuda_arena *arena, int hop, int source, int size, unsigned k)
{
    return arena->tiles[hop] + (plan.column * (uint64_t)size + source) * plan.source +
           k % CUDA_TILE_SLOTS * plan.slot;
}

/* ---- arrival counts -------------------------------------------------------------------------- */

/* Tells a rank that tile k of this hop has arrived from this rank. */
static __device__ __forceinline__ void
arrivals_tell(const cuda_launch &launch, const operation &running, int hop, int peer, unsigned k)
{
    order_fence(); /* U1 pairs U1a, U2 pairs U2a */
    order_store_line(&launch.arenas[peer]->arrivals[hop][running.column][launch.rank],
                     {(uint64_t)k + 1, running.flag});
}

/* Waits until a rank's tile k of this hop has arrived. An arrival count of the next operation (its
 * number wraps in 48 bits) says the same: a rank that counts for the next operation has ended this
 * one, and no rank ends the next before this rank has entered it. */
static __device__ __forceinline__ bool
arrivals_hear(const cuda_launch &launch, const operation &running, int hop, int peer, unsigned k)
{
    order_line line;
    const bool come = operation_await_line(
        launch, running.sequence, &launch.own->arrivals[hop][running.column][peer], peer, line,
        [&](const order_line &count) {
            const uint64_t ahead = (count.high - (running.sequence << 16)) >> 16;
            return count.high == running.flag ? count.low > k : ahead == 1 && count.low > 0;
        });
    order_fence(); /* U1a pairs U1, U2a pairs U2 */
    return come;
}

/* Bit r is rank r. */
static __device__ __forceinline__ unsigned all_others(const cuda_launch &launch)
{
    return ((1u << launch.size) - 1) & ~(1u << launch.rank);
}

/* Tells these ranks that tile k of this hop has come, after the stores of the whole block. */
static __device__ __forceinline__ void
tile_tell(const cuda_launch &launch, const operation &running, int hop, unsigned ranks, unsigned k)
{
    const unsigned self = threadIdx.x - CUDA_CONTROL_THREADS;
    order_workers_all(true);
    if (self < CUDA_RANKS && ranks >> self & 1)
        arrivals_tell(launch, running, hop, (int)self, k);
}

/* Waits until tile k of this hop has come from all of these ranks; returns the same to the whole
 * block. */
static __device__ __forceinline__ bool
tile_hear(const cuda_launch &launch, const operation &running, int hop, unsigned ranks, unsigned k)
{
    const unsigned self = threadIdx.x - CUDA_CONTROL_THREADS;
    bool come = true;
    if (self < CUDA_RANKS && ranks >> self & 1)
        come = arrivals_hear(launch, running, hop, (int)self, k);
    return order_workers_all(come);
}

/* Serves the block's columns. `serve` returns false if a wait has failed. */
template <typename SERVE>
static __device__ __forceinline__ void columns_run(const cuda_launch &launch, operation &running,
                                                   SERVE serve)
{
#pragma unroll 1
    for (running.column = blockIdx.x; running.column < launch.columns; running.column += gridDim.x)
        if (!serve())
            return;
}

/* ---- two-shot -------------------------------------------------------------------------------- */

/* Pushes one tile of every peer's chunk to its owner. */
template <typename O>
static __device__ __forceinline__ void tile_push(const cuda_launch &launch, const O &user,
                                                 const tiling &plan, int size, unsigned k)
{
    const uint64_t start = tile_start(plan, k);
    for (unsigned i = threadIdx.x - CUDA_CONTROL_THREADS; i < plan.tile && start + i < plan.chunk;
         i += blockDim.x - CUDA_CONTROL_THREADS) {
        unit<2> u[CUDA_RANKS];
#pragma unroll
        for (int p = 1; p < CUDA_RANKS; p++) {
            const uint64_t at = launch.ranks[p] * plan.chunk + start + i;
            if (p < size && at < plan.units)
                u[p] = user.load(at);
        }
#pragma unroll
        for (int p = 1; p < CUDA_RANKS; p++) {
            const int peer = launch.ranks[p];
            if (p < size && peer * plan.chunk + start + i < plan.units)
                unit_store(tile_slot(plan, launch.peers[p], 0, launch.rank, size, k) +
                               (uint64_t)i * CUDA_LINE,
                           u[p]);
        }
    }
}

/* Reduces one tile of the own chunk: from the sources to the output and all peers. */
template <typename D, typename O>
static __device__ __forceinline__ void tile_reduce(const cuda_launch &launch,
                                                   const operation &running, const O &user,
                                                   const tiling &plan, int size, unsigned k)
{
    const uint64_t start = tile_start(plan, k), chunk_start = launch.rank * plan.chunk + start;
    for (unsigned i = threadIdx.x - CUDA_CONTROL_THREADS;
         i < plan.tile && start + i < plan.chunk && chunk_start + i < plan.units;
         i += blockDim.x - CUDA_CONTROL_THREADS) {
        unit<2> leaf[CUDA_RANKS];
#pragma unroll
        for (int p = 0; p < CUDA_RANKS; p++) {
            leaf[p] = {0, 0};
            if (p == 0)
                leaf[p] = user.load(chunk_start + i);
            else if (p < size)
                leaf[p] = unit_load<2>(tile_slot(plan, launch.own, 0, launch.ranks[p], size, k) +
                                       (uint64_t)i * CUDA_LINE);
        }
        const unit<2> result = reduction<D, 0, 2>::reduce(leaf, launch);
#pragma unroll
        for (int p = 1; p < CUDA_RANKS; p++)
            if (p < size)
                unit_store(tile_slot(plan, launch.peers[p], 1, launch.rank, size, k) +
                               (uint64_t)i * CUDA_LINE,
                           result);
        user.store(chunk_start + i, result);
    }
}

/* Writes one tile of every peer's chunk to the output. */
template <typename O>
static __device__ __forceinline__ void tile_write(const cuda_launch &launch,
                                                  const operation &running, const O &user,
                                                  const tiling &plan, int size, unsigned k)
{
    const uint64_t start = tile_start(plan, k);
    for (unsigned i = threadIdx.x - CUDA_CONTROL_THREADS; i < plan.tile && start + i < plan.chunk;
         i += blockDim.x - CUDA_CONTROL_THREADS) {
        unit<2> u[CUDA_RANKS];
#pragma unroll
        for (int p = 1; p < CUDA_RANKS; p++)
            if (p < size)
                u[p] = unit_load<2>(tile_slot(plan, launch.own, 1, launch.ranks[p], size, k) +
                                    (uint64_t)i * CUDA_LINE);
#pragma unroll
        for (int p = 1; p < CUDA_RANKS; p++) {
            const uint64_t at = launch.ranks[p] * plan.chunk + start + i;
            if (p < size && at < plan.units)
                user.store(at, u[p]);
        }
    }
}

/* Returns false if a wait has failed. */
template <typename D>
static __device__ __forceinline__ bool two_shot_column(const cuda_launch &launch,
                                                       const operation &running)
{
    const int size = launch.size;
    const unsigned others = all_others(launch);
    const operands<D, 2> user(launch);
    const tiling plan = tiling_of(user.units(), size, running.column, launch.columns);
    for (unsigned k = 0; k < plan.tiles + 2; k++) {
        if (k < plan.tiles) {
            tile_push(launch, user, plan, size, k);
            tile_tell(launch, running, 0, others, k);
        }
        if (k >= 1 && k - 1 < plan.tiles) {
            if (!tile_hear(launch, running, 0, others, k - 1))
                return false;
            tile_reduce<D>(launch, running, user, plan, size, k - 1);
            tile_tell(launch, running, 1, others, k - 1);
        }
        if (k >= 2) {
            if (!tile_hear(launch, running, 1, others, k - 2))
                return false;
            tile_write(launch, running, user, plan, size, k - 2);
        }
    }
    return true;
}

template <typename D>
static __device__ __forceinline__ void two_shot_tiles(const cuda_launch &launch)
{
    operation running;
    if (operation_begin_tiles(launch, running))
        columns_run(launch, running, [&] { return two_shot_column<D>(launch, running); });
}

#endif
