/* SPDX-License-Identifier: MIT */
/*
 * Messages: the sends and receives of a group of calls, in one launch. A block serves one channel
 * of one chain (exchange.h). Blocks of different chains do not wait for each other. So the messages
 * of a group progress together, in whatever order the peers have them.
 *
 * A channel is a stream of pieces from one rank to another. Its state is the number of pieces so
 * far, which both ends keep in their own arenas, and which goes on from launch to launch. Piece n
 * lies in slot n mod 3 of the channel in the receiver's arena, in byte lines (lines.cuh). The first
 * piece of a message has a header, a flagged line with the message's signature. An empty message is
 * a piece that has the header alone. Flags are numbers of pieces.
 *
 * A slot is free when it is written. The receiver empties the lines that it has read. Then comes a
 * barrier of its block, and one thread makes a fence and tells the sender how many pieces are
 * emptied: the credit (Y1). The sender fills piece n once the credit is n - 2 or more (Y1a). So no
 * message needs the operations of all ranks (operation.cuh), and takes no number.
 *
 * A rank that waits for a message, and finds that the peer has entered an operation of all ranks
 * which this rank has not entered, reports a mismatch: the launches of a rank run one after the
 * other, so the peer will not send before the operation ends.
 */
#include "cuda/kernels/exchange.h"

#include "cuda/kernels/lines.cuh"

namespace
{

constexpr int DEPTH = EXCHANGE_DEPTH;

/* The second lowest bit of the time that a wait keeps: the peer was seen in a later operation, so
 * the next look is the last. */
enum : uint64_t { WAIT_PEER_IS_AHEAD = 2 };

/* Looks at what may end a long wait for a message. As operation_keep_waiting(). */
__device__ __noinline__ uint64_t keep_waiting(const cuda_launch &launch, int peer,
                                              uint64_t signature, uint64_t start_ns)
{
    const uint64_t sequence = order_load_plain_u64(&launch.control->rows[0].sequence);
    const uint64_t time_ns = operation_keep_waiting(launch, 0, peer, start_ns);
    if (start_ns == 0 || time_ns == 0)
        return time_ns & ~WAIT_PEER_IS_AHEAD;
    for (int parity = 0; parity < 2; parity++) {
        const order_line header = order_load_line(&launch.own->headers[parity][peer]);
        if (header.low == 0 || (int32_t)((uint32_t)(header.high >> 32) - (uint32_t)sequence) <= 0)
            continue;
        order_fence(); /* what the peer sent before the operation is visible now */
        if (!(start_ns & WAIT_PEER_IS_AHEAD))
            return time_ns | WAIT_PEER_IS_AHEAD;
        operation_fail(launch, TUTTI_ERR_MISMATCH, peer, sequence + 1, {signature, 0}, header);
        return 0;
    }
    return time_ns;
}

/* One channel of a chain. */
struct channel {
    const cuda_exchange &exchange;
    const cuda_launch &launch;
    const int peer;
    const unsigned index;
    const unsigned thread, lane;
    uint64_t piece; /* the number of the next one */
    uint64_t credit;

    __device__ __forceinline__ channel(const cuda_exchange &e, int rank, unsigned number)
        : exchange(e), launch(e.launch), peer(rank), index(number), thread(threadIdx.x),
          lane(threadIdx.x % EXCHANGE_GROUP), piece(0), credit(0)
    {
    }

    /* The slot of the next piece from `source` in an owner's arena. */
    __device__ __forceinline__ unsigned char *slot_of(cuda_arena *arena, int source,
                                                      int owner) const
    {
        const unsigned slots =
            (place_of<true>(source, owner) * exchange.most + index) * CUDA_MESSAGE_SLOTS;
        return arena->messages + (slots + piece % CUDA_MESSAGE_SLOTS) * CUDA_SLOT_BYTES;
    }

    /* The thread's d-th unit of a piece. */
    __device__ __forceinline__ unsigned unit_of(int d) const
    {
        return d * CUDA_THREADS + thread;
    }

    /* The place of the flagged line of its group. */
    static __device__ __forceinline__ unsigned char *told_at(unsigned char *slot, unsigned unit)
    {
        return slot + EXCHANGE_TOLD + unit / EXCHANGE_GROUP * CUDA_LINE;
    }

    /* Polls as `poll` says, which returns true at the end. */
    template <typename POLL> __device__ __forceinline__ bool await(uint64_t signature, POLL poll)
    {
        uint64_t start_ns = 0;
        for (unsigned polls = 1; !poll(); polls++) {
            if (polls % ORDER_POLLS != 0)
                continue;
            start_ns = keep_waiting(launch, peer, signature, start_ns);
            if (start_ns == 0)
                return false;
        }
        return true;
    }

    /* Waits until the slot of the next piece is empty. */
    __device__ __forceinline__ bool credit_await(uint64_t signature)
    {
        const uint64_t needed = piece - CUDA_MESSAGE_SLOTS + 1;
        if (piece < CUDA_MESSAGE_SLOTS || credit >= needed)
            return true;
        return await(signature, [&] {
            credit = order_load_line(&launch.own->credits[peer][index]).low; /* Y1a pairs Y1 */
            return credit >= needed;
        });
    }

    __device__ __forceinline__ bool send_piece(const cuda_transfer &transfer,
                                               const operands<dtype_u8, 2> &user, uint64_t first,
                                               uint64_t units, bool begins)
    {
        unit<2> u[DEPTH];
#pragma unroll
        for (int d = 0; d < DEPTH; d++)
            u[d] = unit_of(d) < units ? user.load(user.template spot_of<false>(first + unit_of(d)))
                                      : unit<2>{};
        /* The threads of a warp push together, or none does. */
        if (!__all_sync(~0u, credit_await(transfer.signature)))
            return false;
        unsigned char *const slot = slot_of(launch.arenas[peer], launch.rank, peer);
        if (begins && thread == 0)
            order_store_line(slot + EXCHANGE_HEADER, {transfer.signature, piece + 1});
#pragma unroll
        for (int d = 0; d < DEPTH; d++)
            if (unit_of(d) - lane < units)
                byte_lines_push(unit_of(d) < units, slot + unit_of(d) * CUDA_LINE,
                                {u[d].word[0], u[d].word[1]}, told_at(slot, unit_of(d)), 0,
                                piece + 1);
        return true;
    }

    /* The first thread waits for a message's header. */
    __device__ __forceinline__ bool header_await(const cuda_transfer &transfer,
                                                 const unsigned char *slot)
    {
        order_line header;
        if (!await(transfer.signature, [&] {
                header = order_load_line(slot + EXCHANGE_HEADER);
                return header.high == piece + 1;
            }))
            return false;
        if (header.low != transfer.signature)
            operation_fail(launch, TUTTI_ERR_MISMATCH, peer, 0, {transfer.signature, 0},
                           {header.low, 0});
        return header.low == transfer.signature;
    }

    /* Waits for the thread's lines of a piece, and gives them the bits that they stand for. */
    __device__ __forceinline__ bool lines_take(const cuda_transfer &transfer, unsigned char *slot,
                                               uint64_t units, order_line (&line)[DEPTH])
    {
        bool well = await(transfer.signature, [&] {
            bool all = true;
#pragma unroll
            for (int d = 0; d < DEPTH; d++)
                line[d] = order_load_line_if(unit_of(d) < units, slot + unit_of(d) * CUDA_LINE);
#pragma unroll
            for (int d = 0; d < DEPTH; d++)
                all &= !(unit_of(d) < units && line_is_empty(line[d]));
            return all;
        });
#pragma unroll
        for (int d = 0; d < DEPTH; d++)
            if (well && unit_of(d) < units)
                well = byte_line_resolve(launch, 0, told_at(slot, unit_of(d)), peer, 0, piece + 1,
                                         line[d]);
        return well;
    }

    __device__ __forceinline__ bool recv_piece(const cuda_transfer &transfer,
                                               const operands<dtype_u8, 2> &user, uint64_t first,
                                               uint64_t units, bool begins)
    {
        unsigned char *const slot = slot_of(launch.own, peer, launch.rank);
        order_line line[DEPTH];
        bool well = !(begins && thread == 0) || header_await(transfer, slot);
        well = well && lines_take(transfer, slot, units, line);
#pragma unroll
        for (int d = 0; d < DEPTH; d++)
            if (well && unit_of(d) < units) {
                line_empty(slot + unit_of(d) * CUDA_LINE);
                user.store(user.template spot_of<false>(first + unit_of(d)),
                           {line[d].low, line[d].high});
            }
        if (!order_block_all(well))
            return false;
        if (thread == 0) {
            order_fence(); /* Y1 pairs Y1a */
            order_store_line(&launch.arenas[peer]->credits[launch.rank][index], {piece + 1, 0});
        }
        return true;
    }

    /* The channel's part of a message. */
    template <bool SENDS> __device__ __forceinline__ bool part(const cuda_transfer &transfer)
    {
        const unsigned channels = exchange_channels(transfer.bytes, exchange.most);
        const uint64_t whole = exchange_units(transfer.bytes);
        const uint64_t share = exchange_part(transfer.bytes, channels), begin = index * share;
        if (index >= channels || (index > 0 && begin >= whole))
            return true;
        const uint64_t units = whole - begin < share ? whole - begin : share;
        const operands<dtype_u8, 2> user((const void *)transfer.address, (void *)transfer.address,
                                         transfer.bytes);
        uint64_t at = 0;
        do {
            const uint64_t left = units - at;
            if (!(SENDS ? send_piece(transfer, user, begin + at, left, at == 0)
                        : recv_piece(transfer, user, begin + at, left, at == 0)))
                return false;
            piece++;
            at += EXCHANGE_PIECE;
        } while (at < units);
        return true;
    }

    template <bool SENDS> __device__ __forceinline__ void run(int chain)
    {
        uint64_t *const count = &launch.own->pieces[SENDS ? 0 : 1][peer][index];
        const bool failed = order_load_u32(&launch.control->failed);
        piece = order_load_plain_u64(count);
        if (!order_block_all(!failed))
            return;
        for (unsigned t = exchange.begins[chain]; t < exchange.begins[chain + 1]; t++)
            if (!part<SENDS>(exchange.transfers[t]))
                return;
        if (thread == 0)
            order_store_plain_u64(count, piece);
    }
};

} // namespace

extern "C" __global__ void BOUNDS exchange(const __grid_constant__ cuda_exchange launch)
{
    unsigned index = blockIdx.x;
    int chain = 0;
    order_grid_wait();
    order_grid_trigger();
    for (; index >= launch.channels[chain]; chain++)
        index -= launch.channels[chain];
    const int others = launch.launch.size - 1;
    const bool sends = chain < others;
    const int peer = sends ? chain : chain - others;
    channel its(launch, peer + (peer >= launch.launch.rank), index);
    if (sends)
        its.run<true>(chain);
    else
        its.run<false>(chain);
}
