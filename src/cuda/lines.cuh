/* SPDX-License-Identifier: MIT */
/*
 * Full lines: 16 bytes of floats without a flag. A line of all ones, which is NaNs in every float
 * dtype, means "not here yet"; a unit of the caller's that happens to be that travels as other
 * NaNs, with the same result, since a NaN result is canonical.
 *
 * Lines lie packed from the start of one of three buffers, which take turns. Use u fills one, and
 * empties what use u - 1 filled of its own. A peer that writes here in use u has data of ours of
 * use u - 1, so we had ended use u - 2, in which this buffer was emptied.
 */
#ifndef TUTTI_CUDA_LINES_CUH
#define TUTTI_CUDA_LINES_CUH

#include "cuda/operation.cuh"
#include "cuda/reduce.cuh"

static __device__ __forceinline__ bool line_is_empty(order_line line)
{
    return (line.low & line.high) == ~UINT64_C(0);
}

static __device__ __forceinline__ void line_empty(void *line)
{
    order_store_plain(line, {~UINT64_C(0), ~UINT64_C(0)});
}

/* What is pushed of a unit: never an empty line. */
static __device__ __forceinline__ order_line line_of(unit<2> u)
{
    const order_line line = {u.word[0], u.word[1]};
    return line_is_empty(line) ? order_line{line.low ^ UINT64_C(0x80000000), line.high} : line;
}

/* Takes the next buffer; `uses` is the word of the state (struct cuda_uses) for these lines. */
struct lines_use {
    unsigned buffer, last; /* this use's buffer, and the one to empty */
    unsigned dirty;        /* so many lines of it */
};

static __device__ __forceinline__ lines_use lines_take(uint64_t *uses, unsigned lines)
{
    const unsigned last = (unsigned)*uses;
    const lines_use use = {last + 1 < CUDA_BUFFERS ? last + 1 : 0, last, (unsigned)(*uses >> 32)};
    *uses = use.buffer | (uint64_t)lines << 32;
    return use;
}

/* Empties the last use's lines, all blocks together: hidden in the wait for the peers. */
static __device__ __forceinline__ void lines_empty(unsigned char *buffer, unsigned lines)
{
    for (unsigned at = worker_index(); at < lines; at += worker_count())
        line_empty(buffer + at * CUDA_LINE);
}

/* Polls until the line of every peer has come: `slots` is the own arena's line of source 0, sources
 * are `stride` bytes apart. Leaves in the communicator's order; the own one is `mine`. */
template <int LEAVES>
static __device__ __forceinline__ bool lines_wait(const cuda_launch &launch, const operation &op,
                                                  const unsigned char *slots, unsigned stride,
                                                  int size, unit<2> mine, unit<2> (&leaf)[LEAVES])
{
    uint64_t start_ns = 0;
    for (unsigned polls = 1;; polls++) {
        order_line line[LEAVES];
        int missing = -1;
#pragma unroll
        for (int l = 0; l < LEAVES; l++)
            line[l] = order_load_line_if(l < size && launch.order[l] != launch.rank,
                                         slots + (unsigned)launch.order[l] * stride);
#pragma unroll
        for (int l = 0; l < LEAVES; l++) {
            const bool own = l >= size || launch.order[l] == launch.rank;
            leaf[l] = own ? mine : unit<2>{line[l].low, line[l].high};
            if (!own && line_is_empty(line[l]))
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

/* Two-shot: unit i of every chunk, [0] the own one, [p] the p-th peer's; all loads before the first
 * use. */
template <int LEAVES, typename O, typename INDEX>
static __device__ __forceinline__ void lines_load(const cuda_launch &launch, const O &user,
                                                  INDEX units, INDEX chunk, int size, INDEX i,
                                                  unit<2> (&u)[LEAVES])
{
#pragma unroll
    for (int p = 0; p < LEAVES; p++) {
        const INDEX at = peer_at(launch, p) * chunk + i;
        u[p] = p < size && i < chunk && at < units ? user.load(at) : unit<2>{};
    }
}

/* Pipelined: pushes unit i of the others' chunks to their owners. */
template <int LEAVES>
static __device__ __forceinline__ void
lines_push(const cuda_launch &launch, uint64_t units, uint64_t chunk, int size, uint64_t i,
           const unit<2> (&u)[LEAVES], unsigned parity, unsigned slot)
{
#pragma unroll
    for (int p = 1; p < LEAVES; p++)
        if (p < size && i < chunk && peer_at(launch, p) * chunk + i < units)
            order_store_line(launch.peers[p]->pipes[parity][0] + slot, line_of(u[p]));
}

/* Two-shot: waits for the results of unit i of the others' chunks, and writes each as it comes.
 * EMPTY: empties the lines at once. */
template <int LEAVES, bool EMPTY, typename O, typename INDEX>
static __device__ __forceinline__ bool
lines_collect(const cuda_launch &launch, const operation &op, const O &user, INDEX units,
              INDEX chunk, int size, INDEX i, unsigned char *slots, unsigned stride)
{
    uint64_t start_ns = 0;
    unsigned left = 0;
#pragma unroll
    for (int p = 1; p < LEAVES; p++)
        if (p < size && i < chunk && peer_at(launch, p) * chunk + i < units)
            left |= 1u << p;
    for (unsigned polls = 1; left; polls++) {
        int missing = 0;
        order_line line[LEAVES];
#pragma unroll
        for (int p = 1; p < LEAVES; p++)
            line[p] = order_load_line_if(left >> p & 1, slots + peer_at(launch, p) * stride);
#pragma unroll
        for (int p = 1; p < LEAVES; p++) {
            if (!(left >> p & 1))
                continue;
            missing = peer_at(launch, p);
            if (line_is_empty(line[p]))
                continue;
            user.store(missing * chunk + i, {line[p].low, line[p].high});
            if (EMPTY)
                line_empty(slots + missing * stride);
            left &= ~(1u << p);
        }
        if (left && polls % 1024 == 0) {
            start_ns = operation_keep_waiting(launch, op.sequence, missing, start_ns);
            if (start_ns == 0)
                return false;
        }
    }
    return true;
}

#endif
