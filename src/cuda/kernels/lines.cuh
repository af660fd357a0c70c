/* SPDX-License-Identifier: MIT */
/*
 * Full lines: 16 bytes of floats without a flag. A line of all ones, which is NaNs in every float
 * dtype, means "not here yet". An input unit with that value travels as other NaNs, with the same
 * result, since a NaN result is canonical.
 *
 * Lines lie packed from the start of one of three buffers. Use u fills buffer u mod 3 of each peer,
 * and empties the lines that use u - 1 has filled on this rank. A peer fills only an empty buffer
 * of this rank: the peer begins use u after it has received this rank's data of use u - 1. This
 * rank sent that data after the end of its use u - 2, which emptied the same buffer.
 */
#ifndef TUTTI_CUDA_LINES_CUH
#define TUTTI_CUDA_LINES_CUH

#include "cuda/kernels/operation.cuh"
#include "cuda/kernels/reduce.cuh"

static __device__ __forceinline__ bool line_is_empty(order_line line)
{
    return (line.low & line.high) == ~UINT64_C(0);
}

static __device__ __forceinline__ void line_empty(void *line)
{
    order_store_plain(line, {~UINT64_C(0), ~UINT64_C(0)});
}

/* The line that is pushed for a unit; never the empty line. */
static __device__ __forceinline__ order_line line_of(unit<2> u)
{
    const order_line line = {u.word[0], u.word[1]};
    return line_is_empty(line) ? order_line{line.low ^ UINT64_C(0x80000000), line.high} : line;
}

/* ---- byte lines ------------------------------------------------------------------------------ */

/*
 * Data of any bits. A line whose bits are those of an empty line travels as the *escape* of its
 * group. A group is the 32 consecutive lines of a warp. Only 33 lines are *special*: the empty one,
 * and escape n, which differs in its last bits. The source chooses for a group an escape that is
 * none of the group's other lines. It pushes those lines at once, then the escapes, and a flagged
 * line with the number of the escape, 0 for none. Without a special line in the group there is no
 * flagged line. A reader that finds a special line awaits the flagged line of its group; other
 * readers do not. docs/models/byte_lines.pml is the model.
 */
enum : uint64_t { BYTE_ESCAPES = 32 };

/* The number of the escape, 0 for the empty line; above BYTE_ESCAPES if the line is not special. */
static __device__ __forceinline__ uint64_t byte_special(order_line line)
{
    return line.low == ~UINT64_C(0) ? ~line.high : ~UINT64_C(0);
}

/* All threads of the warp. Returns the group's escape, 0 if it needs none. */
static __device__ __noinline__ uint64_t byte_escape(uint64_t special)
{
    uint64_t escape = 1;
    if (!__any_sync(~0u, special == 0))
        return 0;
    while (__any_sync(~0u, special == escape))
        escape++;
    return escape;
}

/* All threads of the warp push their lines, if they have one. `tell` is the place of the group's
 * flagged line; `tag` is added to the number. */
static __device__ __forceinline__ void byte_lines_push(bool has, void *to, order_line line,
                                                       void *tell, uint64_t tag, uint64_t flag)
{
    const uint64_t special = has ? byte_special(line) : ~UINT64_C(0);
    if (has && special != 0)
        order_store_line(to, line);
    if (__any_sync(~0u, special <= BYTE_ESCAPES)) {
        const uint64_t escape = byte_escape(special);
        if (special == 0)
            order_store_line(to, {~UINT64_C(0), ~escape});
        if (threadIdx.x % 32 == 0)
            order_store_line(tell, {escape | tag, flag});
    }
}

/* Awaits the flagged line of a special line's group. Returns the number of the group's escape, or
 * BYTE_FAILED. */
enum : unsigned { BYTE_FAILED = 63 };

static __device__ __noinline__ unsigned byte_escape_await(const cuda_launch &launch,
                                                          uint64_t sequence, const void *told,
                                                          int peer, uint64_t tag, uint64_t flag)
{
    order_line line;
    return operation_await_line(launch, sequence, told, peer, line,
                                [&](const order_line &l) {
                                    return l.high == flag && (l.low & ~UINT64_C(63)) == tag;
                                })
               ? line.low & 63
               : BYTE_FAILED;
}

/* Gives a line that has come from a peer the bits that it stands for. Returns false if that fails.
 * `told` is the place of its group's flagged line. */
static __device__ __forceinline__ bool byte_line_resolve(const cuda_launch &launch,
                                                         uint64_t sequence, const void *told,
                                                         int peer, uint64_t tag, uint64_t flag,
                                                         order_line &line)
{
    if (byte_special(line) > BYTE_ESCAPES)
        return true;
    const unsigned escape = byte_escape_await(launch, sequence, told, peer, tag, flag);
    if (escape == byte_special(line))
        line.high = ~UINT64_C(0);
    return escape != BYTE_FAILED;
}

/* Takes the next buffer; `buffers` is the word of the state (struct cuda_buffer_state) for these
 * lines. */
struct lines_use {
    unsigned buffer, last; /* this use's buffer, and the one to empty */
    unsigned dirty;        /* the number of lines to empty */
};

static __device__ __forceinline__ lines_use lines_take(uint64_t *buffers, unsigned lines)
{
    const unsigned last = *buffers & 0xffff, pipe = *buffers & 0xffff0000;
    const lines_use use = {last + 1 < CUDA_BUFFERS ? last + 1 : 0, last,
                           (unsigned)(*buffers >> 32)};
    *buffers = use.buffer | pipe | (uint64_t)lines << 32;
    return use;
}

/* Empties the last use's lines, all blocks together, while the peers' data is under way. */
static __device__ __forceinline__ void lines_empty(unsigned char *buffer, unsigned lines)
{
    for (unsigned at = worker_index(); at < lines; at += worker_count())
        line_empty(buffer + at * CUDA_LINE);
}

/* Waits for the lines of the wanted peers. x[p] is the p-th peer's, x[0] `mine`. */
template <bool PACKED, int LEAVES>
static __device__ __forceinline__ bool
lines_await(const cuda_launch &launch, const operation &running, const unsigned char *slots,
            uint64_t stride, int size, unsigned wanted, unit<2> mine, unit<2> (&x)[LEAVES])
{
    order_line line[LEAVES];
    if (!operation_await<PACKED>(launch, running, slots, stride, size, wanted, line,
                                 [](const order_line &l) { return !line_is_empty(l); }))
        return false;
    x[0] = mine;
#pragma unroll
    for (int p = 1; p < LEAVES; p++)
        x[p] = {line[p].low, line[p].high};
    return true;
}

/* ---- two-shot -------------------------------------------------------------------------------- */

enum : unsigned { CHUNKS_LOAD = 1u << 16, CHUNKS_STORE = 1u << 17 };

/* The chunks that have a unit i, bit p for the chunk of rank launch.ranks[p]: all, except at the
 * end. Also whether all can be loaded, or stored, at once. WHOLE: chunks are equal, of whole,
 * aligned units. */
template <int LEAVES, bool WHOLE = false, typename O>
static __device__ __forceinline__ unsigned chunks_of(const cuda_launch &launch, const O &user,
                                                     uint64_t chunk, int size, uint64_t i)
{
    if (WHOLE)
        return i < chunk ? ((1u << size) - 1) | CHUNKS_LOAD | CHUNKS_STORE : 0;
    const uint64_t units = user.units();
    unsigned chunks = 0;
    if (i < chunk && ((size - 1) * chunk + i + 1) * O::ELEMENTS <= user.count)
        return ((1u << size) - 1) | (user.whole_send ? CHUNKS_LOAD : 0) |
               (user.whole_recv ? CHUNKS_STORE : 0);
#pragma unroll
    for (int p = 0; p < LEAVES; p++)
        if (p < size && i < chunk && launch.ranks[p] * chunk + i < units)
            chunks |= 1u << p;
    return chunks;
}

/* Where unit i of the p-th chunk is in the operands. */
template <bool WHOLE>
static __device__ __forceinline__ uint64_t chunk_offset(const cuda_launch &launch, int p,
                                                        uint64_t chunk, uint64_t i)
{
    if (WHOLE) /* few bytes: 32 bits are faster */
        return (launch.ranks[p] * (unsigned)chunk + (unsigned)i) * CUDA_LINE;
    return (launch.ranks[p] * chunk + i) * CUDA_LINE;
}

/* Loads unit i of each chunk. */
template <bool WHOLE = false, int LEAVES, typename O>
static __device__ __forceinline__ void chunks_load(const cuda_launch &launch, const O &user,
                                                   uint64_t chunk, int size, unsigned chunks,
                                                   uint64_t i, unit<2> (&u)[LEAVES])
{
    if (WHOLE || chunks & CHUNKS_LOAD) {
#pragma unroll
        for (int p = 0; p < LEAVES; p++)
            if (WHOLE ? chunks != 0 : p < size)
                u[p] = user.load_at_once(chunk_offset<WHOLE>(launch, p, chunk, i));
    } else {
#pragma unroll
        for (int p = 0; p < LEAVES; p++)
            u[p] = chunks >> p & 1 ? user.load(launch.ranks[p] * chunk + i) : unit<2>{};
    }
}

/* Pushes the units of the other chunks to their owners: to(p) is the address at the p-th peer. */
template <int LEAVES, typename TO>
static __device__ __forceinline__ void chunks_push(TO to, unsigned chunks,
                                                   const unit<2> (&u)[LEAVES])
{
#pragma unroll
    for (int p = 1; p < LEAVES; p++)
        if (chunks >> p & 1)
            order_store_line(to(p), line_of(u[p]));
}

/* Writes unit i of the other chunks, once it has arrived. */
template <bool PACKED, int LEAVES, bool WHOLE = false, typename O>
static __device__ __forceinline__ bool
chunks_collect(const cuda_launch &launch, const operation &running, const O &user, uint64_t chunk,
               const unsigned char *slots, uint64_t stride, int size, unsigned chunks, uint64_t i)
{
    const unsigned wanted = (WHOLE ? ~0u : chunks) & all_peers(size);
    unit<2> x[LEAVES];
    if (!wanted)
        return true;
    if (!lines_await<PACKED>(launch, running, slots, stride, size, wanted, {0, 0}, x))
        return false;
    if (WHOLE || chunks & CHUNKS_STORE) {
#pragma unroll
        for (int p = 1; p < LEAVES; p++)
            if (p < size)
                user.store_at_once(chunk_offset<WHOLE>(launch, p, chunk, i), x[p]);
    } else {
#pragma unroll
        for (int p = 1; p < LEAVES; p++)
            if (wanted >> p & 1)
                user.store(launch.ranks[p] * chunk + i, x[p]);
    }
    return true;
}

#endif
