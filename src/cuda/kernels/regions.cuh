/* SPDX-License-Identifier: MIT */
/*
 * How the units of an operation of one hop travel: a REGION of the arena. Its constructor takes the
 * operation's part of the region:
 *
 *     WORDS, PACKED, BASE      words of a unit; operation_targets(); its place in an arena
 *     stride(units, size)      bytes between sources
 *     offset                   where the operation's lines begin
 *     line_of(running, unit)   the line of a unit; unit_of(line): back; has_come(running, line)
 *     empty(launch)            empties the lines of an earlier operation
 */
#ifndef TUTTI_CUDA_REGIONS_CUH
#define TUTTI_CUDA_REGIONS_CUH

#include "cuda/kernels/lines.cuh"

/*
 * Flags in band: a line has 8 bytes of data and the operation's flag. No line needs clearing. A
 * line is free when it is written: operation e writes half e mod 2, which e - 2 used last, and its
 * writer knows that every peer has left e - 2 (operation.cuh). A line is new if its flag is this
 * operation's: flags hold the sequence, which never comes again.
 */
struct flagged_region {
    static constexpr int WORDS = 1;
    static constexpr bool PACKED = false;
    static constexpr uint64_t BASE = offsetof(cuda_arena, flagged);
    static constexpr unsigned HALF = CUDA_FLAGGED_BYTES / CUDA_HALVES;
    const unsigned offset;

    __device__ __forceinline__ flagged_region(const operation &running, unsigned)
        : offset((running.sequence & 1) * HALF)
    {
    }
    static __device__ __forceinline__ unsigned stride(unsigned, int size)
    {
        return HALF / size / CUDA_LINE * CUDA_LINE;
    }
    static __device__ __forceinline__ order_line line_of(const operation &running, unit<1> u)
    {
        return {u.word[0], running.flag};
    }
    static __device__ __forceinline__ bool has_come(const operation &running,
                                                    const order_line &line)
    {
        return line.high == running.flag;
    }
    static __device__ __forceinline__ unit<1> unit_of(const order_line &line)
    {
        return {line.low};
    }
    static __device__ __forceinline__ void empty(const cuda_launch &)
    {
    }
    /* For blocks.cuh: pushes unit `at` of the block for the p-th peer, if this thread has one.
     * Gives a line that has come its bits; returns false if that fails. */
    __device__ __forceinline__ void push(const cuda_launch &, const operation &running, int,
                                         uint64_t, bool has, unsigned char *to, unit<1> u) const
    {
        if (has)
            order_store_line(to, line_of(running, u));
    }
    __device__ __forceinline__ bool resolve(const cuda_launch &, const operation &, int, uint64_t,
                                            order_line &) const
    {
        return true;
    }
};

/* Full lines of floats: lines.cuh. */
struct full_region {
    static constexpr int WORDS = 2;
    static constexpr bool PACKED = true;
    static constexpr uint64_t BASE = offsetof(cuda_arena, one_shot);
    const lines_use use;
    const unsigned offset;

    __device__ __forceinline__ full_region(operation &running, unsigned lines)
        : use(lines_take(&running.buffers.low, lines)), offset(use.buffer * CUDA_ONE_SHOT_BYTES)
    {
    }
    static __device__ __forceinline__ unsigned stride(unsigned units, int)
    {
        return units * CUDA_LINE;
    }
    static __device__ __forceinline__ order_line line_of(const operation &, unit<2> u)
    {
        return ::line_of(u);
    }
    static __device__ __forceinline__ bool has_come(const operation &, const order_line &line)
    {
        return !line_is_empty(line);
    }
    static __device__ __forceinline__ unit<2> unit_of(const order_line &line)
    {
        return {line.low, line.high};
    }
    __device__ __forceinline__ void empty(const cuda_launch &launch) const
    {
        lines_empty(launch.own->one_shot[use.last], use.dirty);
    }
    __device__ __forceinline__ void push(const cuda_launch &, const operation &running, int,
                                         uint64_t, bool has, unsigned char *to, unit<2> u) const
    {
        if (has)
            order_store_line(to, line_of(running, u));
    }
    __device__ __forceinline__ bool resolve(const cuda_launch &, const operation &, int, uint64_t,
                                            order_line &) const
    {
        return true;
    }
};

/* Byte lines in the same buffers: lines.cuh. The flagged lines of groups lie in the flagged region,
 * in the operation's half. */
struct byte_region : full_region {
    __device__ __forceinline__ byte_region(operation &running, unsigned lines)
        : full_region(running, lines)
    {
    }
    static __device__ __forceinline__ unsigned char *told_at(const cuda_launch &launch,
                                                             const operation &running,
                                                             cuda_arena *arena, int source,
                                                             uint64_t at)
    {
        return arena->flagged + (running.sequence & 1) * flagged_region::HALF +
               source * flagged_region::stride(0, launch.size) + at / CUDA_GROUP_LINES * CUDA_LINE;
    }
    __device__ __forceinline__ void push(const cuda_launch &launch, const operation &running, int p,
                                         uint64_t at, bool has, unsigned char *to, unit<2> u) const
    {
        byte_lines_push(has, to, {u.word[0], u.word[1]},
                        told_at(launch, running, launch.peers[p], launch.rank, at), 0,
                        running.flag);
    }
    __device__ __forceinline__ bool resolve(const cuda_launch &launch, const operation &running,
                                            int p, uint64_t at, order_line &line) const
    {
        return byte_line_resolve(launch, running.sequence,
                                 told_at(launch, running, launch.own, launch.ranks[p], at),
                                 launch.ranks[p], 0, running.flag, line);
    }
};

#endif
