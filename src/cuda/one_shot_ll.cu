/* SPDX-License-Identifier: MIT */
/*
 * One-shot with flags in band, for the smallest operations: one hop, no barrier, nothing to clear.
 *
 * Every rank stores each 8 bytes of its input, next to the operation's flag, as one line into its
 * slot of every peer's arena; then it polls its own arena for the peers' lines, reduces, and writes
 * the result. A thread serves the same units on all ranks. There is exactly one writer of a line
 * (the peer whose slot it is in) and one reader (the thread of the owner that serves its unit).
 *
 * A line is free when it is written: operation e writes half e mod 2, last used by e - 2. A peer's
 * data of e - 1, which ended here before e began, proves that the peer had entered e - 1 and so
 * left e - 2. A line is new when its flag is this operation's: flags hold the sequence, which never
 * comes again.
 */
#include "cuda/operation.cuh"
#include "cuda/reduce.cuh"

namespace
{

/* Polls until all peers' lines of a unit have come: `slots` is source 0's. Leaves in the
 * communicator's order; the own one is `mine`. */
template <int LEAVES>
__device__ __forceinline__ bool flagged_wait(const cuda_launch &launch, const operation &op,
                                             const unsigned char *slots, unsigned stride, int size,
                                             unit<1> mine, unit<1> (&leaf)[LEAVES])
{
    uint64_t start_ns = 0;
    for (unsigned polls = 1;; polls++) {
        order_line line[LEAVES];
        int missing = -1;
#pragma unroll
        for (int l = 0; l < LEAVES; l++)
            line[l] = order_load_line_if(l < size && launch.order[l] != launch.rank,
                                         slots + launch.order[l] * stride);
#pragma unroll
        for (int l = 0; l < LEAVES; l++) {
            const bool own = l >= size || launch.order[l] == launch.rank;
            leaf[l] = own ? mine : unit<1>{line[l].low};
            if (!own && line[l].high != op.flag)
                missing = launch.order[l];
        }
        if (missing < 0)
            return true;
        if (polls % 1024 == 0) {
            start_ns = operation_keep_waiting(launch, op.sequence, missing, start_ns);
            if (start_ns == 0)
                return false;
        }
    }
}

template <typename D, int SUM_OF>
__device__ __forceinline__ void one_shot_ll(const cuda_launch &launch)
{
    constexpr int LEAVES = SUM_OF ? SUM_OF : CUDA_RANKS;
    const int size = SUM_OF ? SUM_OF : launch.size;
    const operands<D, 1> user(launch);
    const unsigned units = (unsigned)user.units(), first = worker_index(), step = worker_count();
    const unsigned stride = CUDA_FLAGGED_BYTES / CUDA_HALVES / size / CUDA_LINE * CUDA_LINE;

    operation op;
    operation_begin(launch, op);
    if (is_clerk()) {
        if (operation_take(op))
            operation_clerk(launch, op);
        return;
    }
    const unit<1> kept = first < units ? user.load(first) : unit<1>{};
    if (!operation_take(op))
        return;
    const unsigned half = (op.sequence & 1) * (CUDA_FLAGGED_BYTES / CUDA_HALVES);

    /* 1. Push. */
    unsigned slot = half + launch.rank * stride + first * CUDA_LINE;
    for (unsigned at = first; at < units; at += step, slot += step * CUDA_LINE) {
        const unit<1> u = at == first ? kept : user.load(at);
#pragma unroll
        for (int i = 1; i < LEAVES; i++)
            if (i < size)
                order_store_line(launch.peers[i]->flagged + slot, {u.word[0], op.flag});
    }
    order_block_arrive();

    /* 2. Collect, reduce, write. */
    slot = half + first * CUDA_LINE;
    for (unsigned at = first; at < units; at += step, slot += step * CUDA_LINE) {
        const unit<1> mine = at == first ? kept : user.load(at);
        unit<1> leaf[LEAVES];
        if (!flagged_wait<LEAVES>(launch, op, launch.own->flagged + slot, stride, size, mine, leaf))
            return;
        user.store(at, reduction<D, SUM_OF, 1>::reduce(leaf, launch));
    }
}

} // namespace

#define KERNEL(name, T, SUM_OF, suffix)                                                            \
    extern "C" __global__ void __launch_bounds__(CUDA_THREADS)                                     \
        one_shot_ll_##name##suffix(const __grid_constant__ cuda_launch launch)                     \
    {                                                                                              \
        one_shot_ll<dtype_##T, SUM_OF>(launch);                                                    \
    }
KERNELS_OF_FLOATS(KERNEL)
KERNELS_OF_INTEGERS(KERNEL)
KERNELS_OF_SUMS(KERNEL)
