/* SPDX-License-Identifier: MIT */
/* How the sums of a row come about: waits for lines, several at a time, and reduces them. */
#ifndef TUTTI_CUDA_RMS_NORM_AWAIT_CUH
#define TUTTI_CUDA_RMS_NORM_AWAIT_CUH

#include "cuda/kernels/rms_norm.cuh"

/* One block fits on a multiprocessor. */
#define RMS_BOUNDS __launch_bounds__(RMS_WORKERS + CUDA_CONTROL_THREADS, 1)

/* The kernels of a function template that exist: RMS_FUNCTION is its name, and the beginning of
 * theirs. Sums of so many ranks: of 16-bit floats only, with fewer units of a row (rms_norm.cuh).
 */
#define RMS_DTYPES(X)                                                                              \
    X(float32, f32)                                                                                \
    X(float16, half)                                                                               \
    X(bfloat16, bfloat)
#define RMS_SUMS(X)                                                                                \
    KERNELS_OF_SUM(X, float16, half)                                                               \
    KERNELS_OF_SUM(X, bfloat16, bfloat)
#define RMS_JOIN(function, rest)  function##rest
#define RMS_NAMED(function, rest) RMS_JOIN(function, rest)
#define RMS_KERNEL(rest, T, SUM_OF, UNITS)                                                         \
    extern "C" __global__ void RMS_BOUNDS RMS_NAMED(RMS_FUNCTION, rest)(                           \
        const __grid_constant__ cuda_rms_norm norm)                                                \
    {                                                                                              \
        RMS_FUNCTION<dtype_##T, SUM_OF, UNITS>(norm);                                              \
    }
#define RMS_KERNEL_ANY(name, T) RMS_KERNEL(_##name, T, 0, RMS_MANY_UNITS)
#define RMS_KERNEL_SUM(name, T, SUM_OF, suffix)                                                    \
    RMS_KERNEL(_##name##suffix, T, SUM_OF, RMS_SOME_UNITS)
#define RMS_KERNEL_ONCE(name, T, SUM_OF, suffix)                                                   \
    RMS_KERNEL(_##name##suffix##_once, T, SUM_OF, RMS_FEW_UNITS)
#define RMS_KERNELS                                                                                \
    RMS_DTYPES(RMS_KERNEL_ANY)                                                                     \
    RMS_SUMS(RMS_KERNEL_SUM)                                                                       \
    RMS_SUMS(RMS_KERNEL_ONCE)

/* Waits for the lines `first` to first + N - 1 of a row, as far as there are such lines, from each
 * of the sources. slot(p) is the first line of this worker from the p-th source, which is
 * rank_of(p). All lines are loaded before one is looked at: else each would take the latency of
 * memory. */
template <int N, int SOURCES, typename SLOT, typename RANK, typename ROW>
static __device__ __forceinline__ bool
rms_await(const cuda_launch &launch, const operation &running, int sources, SLOT slot, RANK rank_of,
          const ROW &row, int first, order_line (&line)[N][SOURCES])
{
    uint64_t start_ns = 0;
    for (unsigned polls = 1;; polls++) {
        bool all = true;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int p = 0; p < SOURCES; p++)
                line[n][p] = order_load_line_if(row.has(first + n) && p < sources,
                                                slot(p) + row.offset(first + n));
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int p = 0; p < SOURCES; p++)
                all &= !line_is_empty(line[n][p]);
        if (all)
            return true;
        if (polls % ORDER_POLLS == 0) {
            int missing = 0;
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int p = 0; p < SOURCES; p++)
                    if (line_is_empty(line[n][p]))
                        missing = p;
            start_ns = operation_keep_waiting(launch, running.sequence, rank_of(missing), start_ns);
            if (start_ns == 0)
                return false;
        }
    }
}

/* The sums of a line, one word after the other: fewer values at once. */
template <typename D, int SUM_OF, int LEAVES>
static __device__ __forceinline__ unit<2> rms_reduce(unit<2> (&in)[LEAVES],
                                                     const cuda_launch &launch)
{
    unit<2> sums;
#pragma unroll
    for (int w = 0; w < 2; w++) {
        unit<1> words[LEAVES];
#pragma unroll
        for (int l = 0; l < LEAVES; l++) {
            order_opaque(in[l].word[w]);
            words[l].word[0] = in[l].word[w];
        }
        sums.word[w] = reduction<D, SUM_OF, 1>::reduce(words, launch).word[0];
        order_opaque(sums.word[w]);
    }
    return sums;
}

/* Sets row.x to the sums of the peers' lines and the input. `slots`: this worker's first line of
 * the row, in the region of the first source; sources are `stride` bytes apart. */
template <typename D, int SUM_OF, typename ROW>
static __device__ __forceinline__ void
rms_await_sums(const cuda_launch &launch, const operation &running, int size,
               const unsigned char *slots, unsigned stride, unsigned r, ROW &row)
{
    constexpr int LEAVES = SUM_OF ? SUM_OF : CUDA_RANKS, SOURCES = LEAVES - 1,
                  N = ROW::ALL == 1 || SOURCES * ROW::LINES > 4 ? 1
                      : SOURCES > 1                             ? 2
                                                                : ROW::AT_ONCE;
    const auto address_of = [&](int p) {
        return slots + slot_of<true>(launch.ranks[p + 1 < size ? p + 1 : 0], launch.rank) * stride;
    };
    /* Many addresses would not fit in registers, so they are computed at each poll. */
    const unsigned char *few[SOURCES > 2 ? 1 : SOURCES];
#pragma unroll
    for (int p = 0; p < SOURCES && SOURCES <= 2; p++)
        few[SOURCES > 2 ? 0 : p] = address_of(p);
    const auto slot = [&](int p) { return SOURCES > 2 ? address_of(p) : few[SOURCES > 2 ? 0 : p]; };
    const auto rank_of = [&](int p) { return launch.ranks[p + 1]; };
#pragma unroll
    for (int l = 0; l < ROW::ALL; l += N) {
        order_line line[N][SOURCES];
        unit<2> mine[N];
        if (!row.ok || !row.has(l))
            break;
        if (!ROW::FEW)
            row.template load<N>(launch.send, r, l, mine);
        row.ok = rms_await<N>(launch, running, size - 1, slot, rank_of, row, l, line);
#pragma unroll
        for (int n = 0; n < N; n++) {
            unit<2> in[LEAVES];
            if (ROW::FEW)
                in[0] = row.input[ROW::FEW ? l + n : 0];
            else
                in[0] = mine[n];
#pragma unroll
            for (int p = 0; p < SOURCES; p++)
                in[p + 1] = {line[n][p].low, line[n][p].high};
            if constexpr (SUM_OF == 2 && ROW::LINES == 1)
                row.x[l + n] = rms_add<D>(in[0], in[1]);
            else
                row.x[l + n] = rms_reduce<D, SUM_OF>(in, launch);
        }
    }
}

/* Sets row.x to the sums that rank `owner` has pushed. `slot`: this worker's first line of the row.
 */
template <typename D, typename ROW>
static __device__ __forceinline__ void rms_await_row(const cuda_launch &launch,
                                                     const operation &running, unsigned owner,
                                                     const unsigned char *slot, ROW &row)
{
    constexpr int N = ROW::AT_ONCE;
    const auto one = [&](int) { return slot; };
#pragma unroll
    for (int l = 0; l < ROW::ALL; l += N) {
        order_line line[N][1];
        if (!row.ok || !row.has(l))
            break;
        row.ok = rms_await<N>(
            launch, running, 1, one, [&](int) { return owner; }, row, l, line);
#pragma unroll
        for (int n = 0; n < N; n++)
            row.x[l + n] = {line[n][0].low, line[n][0].high};
    }
}

#endif
