/* SPDX-License-Identifier: MIT */
/*
 * Chunked ring, for ranks with links between neighbours alone: data goes to the next rank.
 * An operation is cut into a chunk for each rank. Chunk c starts at the rank at position c as a
 * partial result in the accumulation type. Each step adds the input of one rank. The last rank
 * rounds once, and the result goes round again. So all ranks get the same bits, but
 * not those of the canonical tree: each chunk is one chain of additions.
 *
 * The units of a chunk are cut into tiles. Column b has tiles b, b + columns, ... of every chunk.
 * In turn t tile k is at step t - k: a turn moves every tile under way one rank further. A step
 * writes into its own lane, for this turn and the next: tiles[1][column][turn mod 2][lane][plane].
 * The arrival count of hop 1 tells the next rank (U1). The arrival count of hop 2 tells the rank
 * before that the operation has begun, and that a turn has ended (U2).
 *
 * A place is free when it is written. Turn t comes after turn t - 1 of the next rank, which has
 * read what turn t - 2 wrote there; and after that rank has begun, when all of earlier operations
 * had been read. A rank knows nothing else of the others. So the tiles of hop 1, with which other
 * kernels begin, stay unchanged. A block serves its columns as in tiles.cuh.
 */
#include "cuda/kernels/tiles.cuh"

namespace
{

constexpr unsigned TURNS = TILING_RING_TURNS;

/* A rank's part in an operation. */
template <typename D> struct course {
    static constexpr unsigned WIDER = partial<D, 2>::WIDER;

    const cuda_launch &launch;
    const operation &running;
    const operands<D, 2> user;
    uint64_t units, chunk; /* units of 16 bytes: all, of a chunk */
    unsigned planes;       /* of a turn's messages */
    unsigned tile, tiles;  /* units of a tile, tiles of the column */
    int size;

    __device__ __forceinline__ course(const cuda_launch &operands, const operation &operation)
        : launch(operands), running(operation), user(operands), units(user.units()),
          size(operands.size)
    {
        chunk = tiling_ring_chunk(user.count, size, sizeof(typename D::element)) / user.ELEMENTS;
        planes = tiling_ring_plane(2 * size - 2, size - 1, WIDER);
        tile = tiling_ring(planes);
        const uint64_t all = (chunk + tile - 1) / tile;
        tiles = tiling_tiles(all, running.column, launch.columns);
    }

    /* Unit i of tile k of the present chunk of a step; `units` or more if there is none. */
    __device__ __forceinline__ uint64_t unit_of(int step, unsigned k, unsigned i) const
    {
        const uint64_t at = ((uint64_t)k * launch.columns + running.column) * tile + i;
        const int c = (launch.ring.position + 2 * size - step) % size;
        return at < chunk ? c * chunk + at : units;
    }

    /* Where the message of a step in a turn lies. */
    __device__ __forceinline__ unsigned char *spot(cuda_arena *arena, unsigned turn, int step,
                                                   unsigned i) const
    {
        const unsigned plane = tiling_ring_plane((unsigned)step, size - 1, WIDER);
        const uint64_t messages = (uint64_t)running.column * TURNS + turn % TURNS;
        return arena->tiles[1] + ((messages * planes + plane) * tile + i) * CUDA_LINE;
    }

    /* One unit's step: from the previous rank to the next rank. */
    __device__ __forceinline__ void step_unit(unsigned turn, int step, unsigned i,
                                              uint64_t at) const
    {
        const unsigned char *const from = spot(launch.own, turn - 1, step - 1, i);
        unsigned char *const to = spot(launch.arenas[launch.ring.after], turn, step, i);
        const uint64_t plane = (uint64_t)tile * CUDA_LINE;
        const typename D::acc factor = factor_of<D>(launch);
        if (step == 0) {
            const unit<2> own = user.load(at);
            partial_store(to, plane, partial_of<D, 2>([&](const position &e) {
                              return input_at<D>(own, e, launch, factor);
                          }));
            return;
        }
        if (step < size) {
            const unit<2> own = user.load(at);
            const partial<D, 2> sum = partial_load<D>(from, plane);
            const auto both = [&](const position &e) {
                return D::combine(launch.op, partial_at(sum, e),
                                  input_at<D>(own, e, launch, factor));
            };
            if (step < size - 1) {
                partial_store(to, plane, partial_of<D, 2>(both));
                return;
            }
            const unit<2> result = result_of<D, 2>(launch, both);
            unit_store(to, result);
            user.store(at, result);
            return;
        }
        const unit<2> result = unit_load<2>(from);
        if (step < 2 * size - 2)
            unit_store(to, result);
        user.store(at, result);
    }

    /* Moves every tile under way; warps within a tile. */
    __device__ __forceinline__ void turn_run(unsigned turn) const
    {
        const unsigned steps = 2 * size - 1, workers = blockDim.x - CUDA_CONTROL_THREADS;
        for (unsigned j = threadIdx.x - CUDA_CONTROL_THREADS; j < steps * tile; j += workers) {
            const unsigned step = j / tile, i = j % tile, k = turn - step;
            if (step > turn || k >= tiles)
                continue;
            const uint64_t at = unit_of((int)step, k, i);
            if (at < units)
                step_unit(turn, (int)step, i, at);
        }
    }

    /* Waits until the previous rank's data of its last turn has arrived, and the next rank has
     * ended that turn. */
    __device__ __forceinline__ bool turn_hear(unsigned turn) const
    {
        const unsigned self = threadIdx.x - CUDA_CONTROL_THREADS;
        bool come = true;
        if (self == 0 && turn > 0)
            come = arrivals_hear(launch, running, 0, launch.ring.before, turn - 1);
        if (self == 1)
            come = arrivals_hear(launch, running, 1, launch.ring.after, turn);
        return order_workers_all(come);
    }

    __device__ __forceinline__ void turn_tell(unsigned turn) const
    {
        const unsigned self = threadIdx.x - CUDA_CONTROL_THREADS;
        order_workers_all(true);
        if (self == 0)
            arrivals_tell(launch, running, 0, launch.ring.after, turn);
        if (self == 1)
            arrivals_tell(launch, running, 1, launch.ring.before, turn + 1);
    }

    /* Returns false if a wait has failed. */
    __device__ __forceinline__ bool run() const
    {
        if (tiles == 0)
            return true;
        const unsigned last = tiles + 2 * size - 3;
        if (threadIdx.x - CUDA_CONTROL_THREADS == 1)
            arrivals_tell(launch, running, 1, launch.ring.before, 0);
        for (unsigned turn = 0; turn <= last; turn++) {
            if (!turn_hear(turn))
                return false;
            turn_run(turn);
            if (turn < last)
                turn_tell(turn);
        }
        return true;
    }
};

template <typename D> __device__ __forceinline__ void ring(const cuda_launch &launch)
{
    operation running;
    if (operation_begin_tiles(launch, running))
        columns_run(launch, running, [&] { return course<D>(launch, running).run(); });
}

} // namespace

#define KERNEL(name, T, SUM_OF, suffix) KERNEL_DEFINE(BOUNDS, ring_##name##suffix, ring<dtype_##T>)
KERNELS_OF_FLOATS(KERNEL)
KERNELS_OF_INTEGERS(KERNEL)
