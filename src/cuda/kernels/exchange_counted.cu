/* SPDX-License-Identifier: MIT */
/*
 * V-forms that copy, whose counts and displacements are in memory: those of a group in one launch,
 * a message of each in every chain. The arguments have what does not change from replay to replay.
 * Each block reads the arrays behind the grid dependency, all of them at the same time, and checks
 * them before it stores anything. All blocks of a rank find the same. If a count is wrong, the
 * first of them writes the fault, and none sends, receives or copies.
 */
#include "cuda/kernels/counts.cuh"
#include "cuda/kernels/exchange_turns.cuh"

namespace
{

/* What a block has read: [call][operand][rank]. In the memory that its threads share. */
struct counted_table {
    cuda_transfer transfers[EXCHANGE_CALLS][2][CUDA_RANKS];
    cuda_own_block owns[EXCHANGE_CALLS];
};

/* A thread for each block of each operand of each call. */
constexpr unsigned CALL_THREADS = 2 * CUDA_RANKS;
static_assert((unsigned)EXCHANGE_CALLS * CALL_THREADS <= (unsigned)CUDA_THREADS,
              "a thread for each");

struct counted_messages {
    static constexpr bool COUNTED = true;
    const cuda_exchange &exchange;
    const int peer;
    const unsigned side; /* of the peer's block */
    counted_table &table;
    unsigned count; /* 0 until they are taken */

    __device__ __forceinline__ counted_messages(const cuda_exchange &e, int rank, bool sends)
        : exchange(e), peer(rank), side(sends ? EXCHANGE_SEND : EXCHANGE_RECV),
          table(order_block_shared<counted_table>()), count(0)
    {
    }

    __device__ __forceinline__ counts_block block_of(const cuda_counted_call &call, unsigned s,
                                                     int r) const
    {
        const bool is_one = s == EXCHANGE_SEND && call.sends_one;
        return counts_read(call.counts[s], is_one ? 0 : call.displacements[s],
                           is_one ? exchange.launch.rank : r, is_one, call.is_narrow);
    }

    /* Checks a block, and writes it to the table. */
    __device__ __forceinline__ bool block_take(unsigned k, unsigned s, int r)
    {
        const cuda_launch &launch = exchange.launch;
        const cuda_counted_call &call = exchange.counted[k];
        const counts_block its = block_of(call, s, r);
        const uint64_t at = call.operands[s] + its.start * call.width;
        counts_finding found = counts_check(its, call.most, call.extents[s]);
        if (s == EXCHANGE_RECV && (r == launch.rank || call.sends_one)) {
            const counts_block own = block_of(call, EXCHANGE_SEND, launch.rank);
            const uint64_t from = call.operands[EXCHANGE_SEND] + own.start * call.width;
            if (found.fault == COUNTS_GOOD && r == launch.rank && own.count != its.count)
                found = {COUNTS_OWN, own.count, its.count};
            else if (found.fault == COUNTS_GOOD && (r != launch.rank || at != from) &&
                     call.sends_one && at < from + own.count * call.width &&
                     from < at + its.count * call.width)
                found = {COUNTS_OVERLAP, own.count, its.count};
            if (r == launch.rank)
                table.owns[k] = {from, at, at == from ? 0 : its.count * call.width};
        }
        table.transfers[k][s][r] = {at, its.count * call.width, call.signature | its.count};
        if (found.fault != COUNTS_GOOD)
            counts_fail(launch, former_number(launch) + 1, call.signature, found,
                        s == EXCHANGE_RECV, r);
        return found.fault == COUNTS_GOOD;
    }

    __device__ __forceinline__ bool take()
    {
        const unsigned k = threadIdx.x / CALL_THREADS, s = threadIdx.x / CUDA_RANKS % 2;
        const int r = threadIdx.x % CUDA_RANKS;
        bool well = true;
        if (k < exchange.calls && r < exchange.launch.size)
            well = block_take(k, s, r);
        well = order_block_all(well);
        count = well ? exchange.calls : 0;
        return well;
    }

    __device__ __forceinline__ void taken()
    {
        count = exchange.calls;
    }
    __device__ __forceinline__ unsigned begin() const
    {
        return 0;
    }
    __device__ __forceinline__ unsigned end() const
    {
        return count;
    }
    __device__ __forceinline__ const cuda_transfer &operator[](unsigned t) const
    {
        return table.transfers[t][side][peer];
    }
    __device__ __forceinline__ unsigned owns() const
    {
        return count;
    }
    __device__ __forceinline__ const cuda_own_block &own(unsigned b) const
    {
        return table.owns[b];
    }
};

} // namespace

extern "C" __global__ void BOUNDS exchange_counted(const __grid_constant__ cuda_exchange launch)
{
    exchange_run(launch,
                 [&](int, int rank, bool sends) { return counted_messages(launch, rank, sends); });
}
