/* SPDX-License-Identifier: MIT */
/*
 * Hybrid cube mesh: two quads; each rank has one partner in the other quad. Data goes to the quad
 * and the partner alone. The order is the canonical one, since the quads are the two halves of the
 * leaf order. Each quad makes a partial result in the accumulation type, without rounding. The
 * sum of both quads is rounded once.
 *
 * A small operation takes two hops, in lines with flags in band (one_shot_ll.cu): the input to the
 * quad; the sum of the four inputs to the partner. A line from the partner depends on all inputs of
 * its quad. So all ranks have entered, and the other half is free.
 *
 * A larger operation is cut into one quarter for each rank of a quad, and quarters into tiles, with
 * a unit for each worker. Column b has tiles b, b + columns, ... of all quarters. A block serves
 * its columns as in tiles.cuh. In turn t it (1) collects tile t - 3 of the others' quarters: waits
 * for their owners' results; (2) crosses t - 2 of its own quarter: waits for the partner's partial
 * result and writes the result to output and quad; (3) folds t - 1: waits for the quad's inputs and
 * sends the partial result, which stays in registers, to the partner; (4) fills t: sends the input
 * to the owners of the quarters.
 *
 * Tiles lie in tiles[hop][column][slot][plane], slot = tile mod 3. Hop 1: inputs from ranks[1] to
 * ranks[3] in planes 0 to 2. Hop 2: their results, then the partner's partial result. Arrival
 * counts of hop 1 tell quad and partner that a tile is filled. Those of hop 2 tell the partner that
 * a tile is folded, and the quad that a tile is crossed (U1, U2). docs/ordering.md says why a slot
 * is free when it is written.
 */
#include "cuda/kernels/tiles.cuh"

namespace
{

constexpr int QUAD = TILING_QUAD;

/* The partial result of a quad's four inputs of a unit. */
template <typename D, int WORDS>
__device__ __forceinline__ partial<D, WORDS> fold(const cuda_launch &launch,
                                                  const unit<WORDS> (&x)[QUAD])
{
    const typename D::acc factor = factor_of<D>(launch);
    return partial_of<D, WORDS>([&](const position &at) {
        typename D::acc leaf[QUAD];
#pragma unroll
        for (int p = 0; p < QUAD; p++)
            leaf[p] = input_at<D>(x[p], at, launch, factor);
        return tree<D>(leaf, QUAD, launch.op);
    });
}

/* The result of both quads' partial results. */
template <typename D, int WORDS>
__device__ __forceinline__ unit<WORDS>
cross(const cuda_launch &launch, const partial<D, WORDS> &own, const partial<D, WORDS> &theirs)
{
    return result_of<D, WORDS>(launch, [&](const position &at) {
        return D::combine(launch.op, partial_at(own, at), partial_at(theirs, at));
    });
}

/* ---- two hops -------------------------------------------------------------------------------- */

constexpr unsigned LINES = TILING_MESH_LINES;

/* The lines of a source in an arena, from its line `at` on. */
__device__ __forceinline__ unsigned char *lines_of(cuda_arena *arena, const operation &running,
                                                   int source, uint64_t at)
{
    const uint64_t half = running.sequence & 1;
    return arena->flagged + ((half * CUDA_RANKS + source) * LINES + at) * CUDA_LINE;
}

template <typename D>
__device__ __forceinline__ void mesh_flagged(const cuda_launch &launch, const operation &running,
                                             const operands<D, 1> &user)
{
    constexpr int WIDER = partial<D, 1>::WIDER;
    const unsigned units = (unsigned)user.units(), step = worker_count();
    const int partner = launch.mesh.partner;
    const auto has_come = [&](const order_line &line) { return line.high == running.flag; };

    for (unsigned at = worker_index(); at < units; at += step) {
        const unit<1> u = user.load(at);
#pragma unroll
        for (int p = 1; p < QUAD; p++)
            order_store_line(lines_of(launch.peers[p], running, launch.rank, at),
                             {u.word[0], running.flag});
    }
    for (unsigned at = worker_index(); at < units; at += step) {
        unit<1> x[QUAD];
        order_line line[QUAD], across;
        partial<D, 1> theirs;
        x[0] = user.load(at);
        if (!operation_await<false>(launch, running, lines_of(launch.own, running, 0, at),
                                    LINES * CUDA_LINE, QUAD, all_peers(QUAD), line, has_come))
            return;
#pragma unroll
        for (int p = 1; p < QUAD; p++)
            x[p] = {line[p].low};
        const partial<D, 1> own = fold<D>(launch, x);
#pragma unroll
        for (int i = 0; i < WIDER; i++)
            order_store_line(
                lines_of(launch.arenas[partner], running, launch.rank, (uint64_t)i * units + at),
                {own.part[i].word[0], running.flag});
#pragma unroll
        for (int i = 0; i < WIDER; i++) {
            if (!operation_await_line(
                    launch, running.sequence,
                    lines_of(launch.own, running, partner, (uint64_t)i * units + at), partner,
                    across, has_come))
                return;
            theirs.part[i] = {across.low};
        }
        user.store(at, cross<D>(launch, own, theirs));
    }
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* One rank's part in a column; tiles are numbered there. */
template <typename D> struct tiled {
    static constexpr int WIDER = partial<D, 2>::WIDER;
    static constexpr unsigned PLANES = QUAD - 1 + WIDER; /* of hop 2; hop 1 leaves some */

    const cuda_launch &launch;
    const operation &running;
    const operands<D, 2> user;
    uint64_t units, quarter; /* units of 16 bytes: all, of a quarter */
    unsigned tile, tiles;    /* units of a tile, tiles of the column */
    unsigned worker;         /* of the block: the unit of the tile */
    unsigned quad, partner;  /* bits of ranks */
    partial<D, 2> sums;      /* of the tile that was folded last */

    __device__ __forceinline__ tiled(const cuda_launch &operands, const operation &operation)
        : launch(operands), running(operation), user(operands), units(user.units()),
          quarter((units + QUAD - 1) / QUAD), worker(threadIdx.x - CUDA_CONTROL_THREADS),
          partner(1u << operands.mesh.partner)
    {
        tile = tiling_mesh(blockDim.x - CUDA_CONTROL_THREADS, WIDER);
        const uint64_t all = (quarter + tile - 1) / tile;
        tiles = tiling_tiles(all, running.column, launch.columns);
        quad = 0;
        for (int p = 1; p < QUAD; p++)
            quad |= 1u << launch.ranks[p];
    }

    /* The worker's unit of tile k, in the quarter of ranks[p]: `units` or more if there is none. */
    __device__ __forceinline__ uint64_t unit_of(int p, unsigned k) const
    {
        const uint64_t in_quarter = ((uint64_t)k * launch.columns + running.column) * tile + worker;
        return worker < tile && in_quarter < quarter
                   ? launch.mesh.quarters[p] * quarter + in_quarter
                   : units;
    }

    /* The worker's place for tile k in an arena. */
    __device__ __forceinline__ unsigned char *spot(cuda_arena *arena, int hop, unsigned k,
                                                   unsigned plane) const
    {
        const uint64_t slot = (uint64_t)running.column * CUDA_TILE_SLOTS + k % CUDA_TILE_SLOTS;
        return arena->tiles[hop] + ((slot * PLANES + plane) * tile + worker) * CUDA_LINE;
    }

    __device__ __forceinline__ void fill_tile(unsigned k) const
    {
        unit<2> u[QUAD];
#pragma unroll
        for (int p = 1; p < QUAD; p++)
            if (unit_of(p, k) < units)
                u[p] = user.load(unit_of(p, k));
#pragma unroll
        for (int p = 1; p < QUAD; p++)
            if (unit_of(p, k) < units)
                unit_store(spot(launch.peers[p], 0, k, p - 1), u[p]);
        tile_tell(launch, running, 0, quad | partner, k);
    }

    /* Call it when the inputs of the quad have arrived. */
    __device__ __forceinline__ void fold_unit(unsigned k, uint64_t at)
    {
        unit<2> x[QUAD];
        x[0] = user.load(at);
#pragma unroll
        for (int p = 1; p < QUAD; p++)
            x[p] = unit_load<2>(spot(launch.own, 0, k, p - 1));
        sums = fold<D>(launch, x);
    }

    __device__ __forceinline__ bool fold_tile(unsigned k)
    {
        const uint64_t at = unit_of(0, k);
        if (!tile_hear(launch, running, 0, quad | partner, k))
            return false;
        if (at < units) {
            fold_unit(k, at);
            partial_store(spot(launch.arenas[launch.mesh.partner], 1, k, QUAD - 1),
                          (uint64_t)tile * CUDA_LINE, sums);
        }
        tile_tell(launch, running, 1, partner, k);
        return true;
    }

    __device__ __forceinline__ bool cross_tile(unsigned k)
    {
        const uint64_t at = unit_of(0, k);
        if (!tile_hear(launch, running, 1, partner, k))
            return false;
        if (at < units) {
            const partial<D, 2> theirs =
                partial_load<D>(spot(launch.own, 1, k, QUAD - 1), (uint64_t)tile * CUDA_LINE);
            const unit<2> result = cross<D>(launch, sums, theirs);
#pragma unroll
            for (int p = 1; p < QUAD; p++)
                unit_store(spot(launch.peers[p], 1, k, p - 1), result);
            user.store(at, result);
        }
        tile_tell(launch, running, 1, quad, k);
        return true;
    }

    __device__ __forceinline__ bool collect_tile(unsigned k) const
    {
        if (!tile_hear(launch, running, 1, quad, k))
            return false;
#pragma unroll
        for (int p = 1; p < QUAD; p++)
            if (unit_of(p, k) < units)
                user.store(unit_of(p, k), unit_load<2>(spot(launch.own, 1, k, p - 1)));
        return true;
    }

    /* Returns false if a wait has failed. */
    __device__ __forceinline__ bool run()
    {
        if (tiles == 0)
            return true;
        for (unsigned turn = 0; turn < tiles + 3; turn++) {
            if (turn >= 3 && !collect_tile(turn - 3))
                return false;
            if (turn >= 2 && turn - 2 < tiles && !cross_tile(turn - 2))
                return false;
            if (turn >= 1 && turn - 1 < tiles && !fold_tile(turn - 1))
                return false;
            if (turn < tiles)
                fill_tile(turn);
        }
        return true;
    }
};

template <typename D> __device__ __forceinline__ void mesh(const cuda_launch &launch)
{
    operation running;
    if (!operation_begin_tiles(launch, running))
        return;
    const operands<D, 1> user(launch);
    if (user.units() * partial<D, 1>::WIDER <= LINES)
        mesh_flagged<D>(launch, running, user);
    else
        columns_run(launch, running, [&] { return tiled<D>(launch, running).run(); });
}

} // namespace

#define KERNEL(name, T, SUM_OF, suffix) KERNEL_DEFINE(BOUNDS, mesh_##name##suffix, mesh<dtype_##T>)
KERNELS_OF_FLOATS(KERNEL)
KERNELS_OF_INTEGERS(KERNEL)
