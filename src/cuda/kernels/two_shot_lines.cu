/* SPDX-License-Identifier: MIT */
/*
 * Two-shot with full lines, for floats of some hundred KiB to a few MiB: two hops, no barrier. The
 * units are cut into one chunk for each rank. Every rank pushes unit i of chunk r to rank r, its
 * owner. The owner's thread for i waits for the line of every source, reduces, and pushes the
 * result to all. Then it waits for the results of unit i of the other chunks and writes them.
 *
 * A buffer holds [hop][source][unit of a chunk], packed. A line has one writer (its source) and one
 * reader (the arena owner's thread that serves its unit). lines.cuh says why it is empty when it is
 * written. A phase is pushed whole before a thread waits.
 */
#include "cuda/kernels/lines.cuh"

namespace
{

/* ONCE: as in one_shot.cuh, of chunks that are alike. */
template <typename D, int SUM_OF, bool ONCE>
__device__ __forceinline__ void two_shot_lines(const cuda_launch &launch)
{
    constexpr int LEAVES = SUM_OF ? SUM_OF : CUDA_RANKS;
    const int size = SUM_OF ? SUM_OF : launch.size;
    const operands<D, 2> user(launch);
    const unsigned units = (unsigned)(ONCE ? user.count / user.ELEMENTS : user.units());
    const unsigned chunk = (ONCE ? units : units + size - 1) / size;
    const unsigned first = worker_index(), step = worker_count();

    operation running;
    if (is_control_warp()) {
        operation_begin(launch, running);
        if (operation_take(launch, running)) {
            lines_take(&running.buffers.high, 2 * (size - 1) * chunk);
            operation_control(launch, running);
        }
        return;
    }
    const unsigned stride = chunk * CUDA_LINE, hop = (size - 1) * stride;
    unsigned char *targets[LEAVES];
    unsigned chunks = chunks_of<LEAVES, ONCE>(launch, user, chunk, size, first);
    uint64_t ready = chunks;
    operation_targets<true>(launch, size, offsetof(cuda_arena, two_shot), stride, first * CUDA_LINE,
                            targets, ready);
    operation_begin(launch, running, ready);
    unit<2> u[LEAVES];
    chunks_load<ONCE>(launch, user, chunk, size, chunks, first, u);
    if (!operation_take(launch, running))
        return;
    unit<2> mine = u[0];
    const lines_use use = lines_take(&running.buffers.high, 2 * (size - 1) * chunk);
    const unsigned buffer = use.buffer * CUDA_TWO_SHOT_BYTES;
    const unsigned char *const slots = launch.own->two_shot[use.buffer];

    /* 1. Push every chunk to its owner. */
    unsigned offset = buffer;
    for (unsigned i = first; i < chunk; offset += step * CUDA_LINE) {
        chunks_push([&](int p) { return targets[p] + offset; }, chunks, u);
        if (ONCE)
            break;
        i += step;
        if (i < chunk) {
            chunks = chunks_of<LEAVES, ONCE>(launch, user, chunk, size, i);
            chunks_load<ONCE>(launch, user, chunk, size, chunks, i, u);
        }
    }
    order_block_arrive(ORDER_ROW);
    lines_empty(launch.own->two_shot[use.last], use.dirty);

    /* 2. Reduce the own chunk and push it to all. */
    const uint64_t own_chunk = launch.rank * chunk;
    offset = buffer + hop;
    for (unsigned i = first; i < chunk && (ONCE || own_chunk + i < units);
         offset += step * CUDA_LINE) {
        unit<2> x[LEAVES];
        if (!lines_await<true>(launch, running, slots + i * CUDA_LINE, stride, size,
                               all_peers(size), mine, x))
            return;
        const unit<2> result = reduction<D, SUM_OF, 2>::reduce(x, launch);
        operation_push(targets, size, offset, line_of(result));
        if (ONCE) {
            user.store_at_once(chunk_offset<true>(launch, 0, chunk, i), result);
            break;
        }
        user.store(own_chunk + i, result);
        i += step;
        if (i < chunk && own_chunk + i < units)
            mine = user.load(own_chunk + i);
    }

    /* 3. Write the others' results. */
    for (unsigned i = first; i < chunk; i += step)
        if (!chunks_collect<true, LEAVES, ONCE>(
                launch, running, user, chunk, slots + hop + i * CUDA_LINE, stride, size,
                chunks_of<LEAVES, ONCE>(launch, user, chunk, size, i), i) ||
            ONCE)
            return;
}

} // namespace

#define KERNEL_ANY(name, T, SUM_OF, suffix)                                                        \
    KERNEL_DEFINE(BOUNDS_ANY, two_shot_lines_##name##suffix,                                       \
                  two_shot_lines<dtype_##T, SUM_OF, false>)
#define KERNEL(name, T, SUM_OF, suffix)                                                            \
    KERNEL_DEFINE(BOUNDS, two_shot_lines_##name##suffix, two_shot_lines<dtype_##T, SUM_OF, false>)
#define KERNEL_ONCE(name, T, SUM_OF, suffix)                                                       \
    KERNEL_DEFINE(BOUNDS, two_shot_lines_##name##suffix##_once,                                    \
                  two_shot_lines<dtype_##T, SUM_OF, true>)
KERNELS_OF_FLOATS(KERNEL_ANY)
KERNELS_OF_SUMS(KERNEL)
KERNELS_OF_SUMS(KERNEL_ONCE)
