/* SPDX-License-Identifier: MIT */
/*
 * What every kernel does around its algorithm: take the operation's number, announce it, keep the
 * state for the next one, wait with a deadline, fail once and for good.
 *
 * The first warp of every block is its control warp: it does all that while the other
 * warps, the workers, do the algorithm. A small operation is one hop of some 1500 cycles. Each
 * instruction of a worker before its stores or after its polls adds to it; those of the control
 * warp do not.
 *
 * - State: a row for each possible block. Block b reads row b and writes rows b, b + grid, b + 2
 *   grid..., so all rows agree after any grid, and no launch argument becomes stale in a replay.
 * - Header: block 0 pushes {signature, parameter, sequence} to each peer. A wait that lasts
 *   compares the peer's header; else the next operation compares it. Barriers and operations of no
 *   elements wait for headers.
 * - Waits look around after 1024 polls: failed, another header, the host's stop (over PCIe, one
 *   waiter every 20 us), a peer that is gone, the deadline. The first to fail writes the record for
 *   the host and sets all rows to failed, so that later launches and replays return at once.
 * - A kernel whose warps meet in barriers decides once a block whether it takes part
 *   (operation_take_together()); in the others each warp decides, and only polls.
 */
#ifndef TUTTI_CUDA_OPERATION_CUH
#define TUTTI_CUDA_OPERATION_CUH

#include "base/device_trace.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/order.cuh"
#include "tutti/tutti.h"

static_assert(CUDA_CONTROL_THREADS == 32, "one warp");
static_assert(sizeof(cuda_host) == DEVICE_TRACE_HOST_BYTES, "a device trace begins with it");

struct operation {
    uint64_t sequence;
    uint64_t flag;      /* in band: the sequence above 16 bits of hash of what the operation is */
    order_line words;   /* struct cuda_row */
    order_line buffers; /* the next operation's, once added to */
};

static __device__ __forceinline__ bool is_control_warp(void)
{
    return threadIdx.x < CUDA_CONTROL_THREADS;
}

/* What a kernel is compiled for: one block of the most threads a multiprocessor, so that up to 128
 * registers a thread keep all that it needs. BOUNDS_ANY is for the forms of any op of the kernels
 * in lines: with more registers the grids of their sums, which are limited by what fits of any
 * form, would be smaller. */
#define BOUNDS     __launch_bounds__(CUDA_THREADS, 1)
#define BOUNDS_ANY __maxnreg__(96)

/* Workers of the launch are numbered through. */
static __device__ __forceinline__ unsigned worker_index(void)
{
    return blockIdx.x * (blockDim.x - CUDA_CONTROL_THREADS) + threadIdx.x - CUDA_CONTROL_THREADS;
}

static __device__ __forceinline__ unsigned worker_count(void)
{
    return gridDim.x * (blockDim.x - CUDA_CONTROL_THREADS);
}

/* Passes the grid dependency: nothing was touched before, and `ready` is known. Asks for this
 * block's row, which operation_take() waits for, so that the input may be asked for between them.
 */
static __device__ __forceinline__ void operation_begin(const cuda_launch &launch, operation &op,
                                                       uint64_t ready = 0)
{
    const cuda_row *row = &launch.control->rows[blockIdx.x];
    order_grid_wait_after((uint64_t)row | ready);
    op.words = order_load_plain(row);
    op.buffers = order_load_plain(&row->buffers);
}

/* The recorder's part that is the device's. */
static __device__ __forceinline__ device_trace *operation_device_trace(const cuda_launch &launch)
{
    return (device_trace *)launch.host;
}

/* False if the communicator has failed. Workers have arrived then. */
static __device__ __forceinline__ bool operation_take(const cuda_launch &launch, operation &op)
{
    op.sequence = op.words.low + 1;
    op.flag = op.sequence << 16 | launch.tag;
    if (op.words.high == 0)
        return true;
    if (!is_control_warp())
        order_block_arrive(ORDER_ROW);
    return false;
}

/* The same in kernels whose threads wait for each other in barriers of the block. A barrier has no
 * deadline, and row.failed may be set between the reads of two warps: if each warp decided by what
 * it read, some would leave, and the others would wait for them for ever. So the block decides,
 * once. All its threads call this. If it is false all of them leave, the control warp too. */
static __device__ __forceinline__ bool operation_take_together(const cuda_launch &launch,
                                                               operation &op)
{
    op.sequence = op.words.low + 1;
    op.flag = op.sequence << 16 | launch.tag;
    return order_block_all(op.words.high == 0);
}

/* ---- failure --------------------------------------------------------------------------------- */

/* All waits end, and all launches from now on. */
static __device__ __forceinline__ void operation_stop(cuda_control *control)
{
    order_store_u32(&control->failed, 1);
    for (int i = 0; i < CUDA_BLOCKS; i++)
        order_store_plain_u64(&control->rows[i].failed, 1);
}

/* The first to fail tells the host; all stop. */
static __device__ __noinline__ void operation_fail(const cuda_launch &launch, tutti_status status,
                                                   int peer, uint64_t sequence, order_line expected,
                                                   order_line seen)
{
    cuda_host *host = launch.host;
    cuda_control *control = launch.control;
    if (atomicCAS(&control->claimed, 0, 1) == 0) {
        host->status = status;
        host->peer = peer;
        host->sequence = sequence;
        host->signatures[0] = expected.low;
        host->signatures[1] = seen.low;
        host->parameters[0] = (uint32_t)expected.high;
        host->parameters[1] = (uint32_t)seen.high;
        order_store_release_u32(&host->failed, 1); /* K4 pairs K4a */
    }
    operation_stop(control);
}

/* Whether a peer's header says that it does something else than we do in this operation. An empty
 * one says nothing. */
static __device__ __forceinline__ bool header_differs(order_line header, uint64_t sequence,
                                                      order_line ours)
{
    if (header.low == 0)
        return false;
    const int32_t ahead = (int32_t)((uint32_t)(header.high >> 32) - (uint32_t)sequence);
    return ahead > 0 ||
           (ahead == 0 && (header.low != ours.low || (uint32_t)header.high != (uint32_t)ours.high));
}

/* What waiters remember from one look to the next, in the lowest bit of the time: that the peer is
 * gone, so that one more look at the word itself is the last. */
enum : uint64_t { WAIT_LAST_LOOK = 1 };

/* Whose lateness a wait for a peer has met: another rank's, if that has not even entered the
 * operation and the peer has, for the peer may wait for it, too. */
static __device__ __forceinline__ int operation_late(const cuda_launch &launch, uint64_t sequence,
                                                     int peer)
{
    int late = peer;
    for (int rank = 0; rank < launch.size && sequence; rank++) {
        const order_line header = order_load_line(&launch.own->headers[sequence & 1][rank]);
        if (rank == launch.rank || (uint32_t)(header.high >> 32) == (uint32_t)sequence)
            continue;
        if (rank == peer)
            return peer;
        late = rank;
    }
    return late;
}

/*
 * A wait for a peer has lasted: looks at everything that may end it. Sequence is 0 where none was
 * announced. Returns what is to be handed in the next time (0 at first), or 0 when it is over
 * without what it waited for. By value: what is taken by reference would live in memory.
 */
static __device__ __noinline__ uint64_t operation_keep_waiting(const cuda_launch &launch,
                                                               uint64_t sequence, int peer,
                                                               uint64_t start_ns)
{
    cuda_control *control = launch.control;
    const uint64_t now = order_time_ns() | WAIT_LAST_LOOK;
    const order_line ours = {launch.signature, launch.parameter};
    if (order_load_u32(&control->failed))
        return 0;
    const order_line header = order_load_line(&launch.own->headers[sequence & 1][peer]);
    if (sequence && header_differs(header, sequence, ours)) {
        operation_fail(launch, TUTTI_ERR_MISMATCH, peer, sequence, ours, header);
        return 0;
    }
    if (start_ns == 0)
        return now & ~WAIT_LAST_LOOK;
    /* One waiter of all looks over PCIe, every 20 us. */
    const uint64_t look = order_load_u64(&control->look_ns);
    if (now > look &&
        atomicCAS((unsigned long long *)&control->look_ns, look, now + 20000) == look) {
        if (order_load_u32(&launch.host->stop)) { /* K3d; the host knows why */
            operation_stop(control);
            return 0;
        }
        order_store_u32(&control->gone, order_load_u32(&launch.host->gone));
        order_store_line(&operation_device_trace(launch)->wait,
                         {now, sequence << 8 | (uint64_t)peer});
    }
    if (start_ns & WAIT_LAST_LOOK) {
        operation_fail(launch, TUTTI_ERR_PEER_DEAD, peer, sequence, ours, {0, 0});
        return 0;
    }
    if (order_load_u32(&control->gone) >> peer & 1)
        return start_ns | WAIT_LAST_LOOK;
    const uint64_t limit_ns =
        launch.timeout_ns ? launch.timeout_ns : order_load_u64(&launch.host->timeout_ns);
    if (limit_ns && now - start_ns > limit_ns) {
        operation_fail(launch, TUTTI_ERR_TIMEOUT, operation_late(launch, sequence, peer), sequence,
                       ours, {0, 0});
        return 0;
    }
    return start_ns;
}

/* ---- lines of peers -------------------------------------------------------------------------- */

/* All peers, bit p for the p-th (launch.h). */
static __device__ __forceinline__ unsigned all_peers(int size)
{
    return (1u << size) - 2;
}

/* Which place in an owner's region its source has. Packed ones have none for the owner itself. */
template <bool PACKED>
static __device__ __forceinline__ unsigned place_of(unsigned source, unsigned owner)
{
    return PACKED && source > owner ? source - 1 : source;
}

/* Where a worker pushes: its line at `at` of this source, in a region of the p-th peer's arena.
 * Sources are `stride` bytes apart. `ready` is made of them: operation_begin(). */
template <bool PACKED, int LEAVES>
static __device__ __forceinline__ void
operation_targets(const cuda_launch &launch, int size, uint64_t region, uint64_t stride,
                  uint64_t at, unsigned char *(&targets)[LEAVES], uint64_t &ready)
{
    targets[0] = nullptr;
#pragma unroll
    for (int p = 1; p < LEAVES; p++) {
        targets[p] = (unsigned char *)launch.peers[p < size ? p : 0] + region +
                     place_of<PACKED>(launch.rank, launch.ranks[p]) * stride + at;
        ready |= (uint64_t)order_ready(targets[p]);
    }
}

/* Polls until the lines of the wanted peers have come, which `has_come` tells from one that has
 * not. `slots` is the line of the first source, sources are `stride` bytes apart. Nothing but loads
 * and comparing in the loop: what it takes beyond a load's latency delays every line. So of few
 * peers all addresses are there before the loop, and a peer that is not wanted has the line of one
 * that is. Many addresses would not stay in registers: those are computed at each poll. */
template <bool PACKED, int LEAVES, typename HAS_COME>
static __device__ __forceinline__ bool
operation_await(const cuda_launch &launch, const operation &op, const unsigned char *slots,
                uint64_t stride, int size, unsigned wanted, order_line (&line)[LEAVES],
                HAS_COME has_come)
{
    constexpr bool MANY = LEAVES > 4;
    const unsigned char *slot[LEAVES];
    const int any = __ffs(wanted) - 1;
    uint64_t start_ns = 0;
#pragma unroll
    for (int p = 1; p < LEAVES && !MANY; p++) {
        slot[p] =
            slots + place_of<PACKED>(launch.ranks[wanted >> p & 1 ? p : any], launch.rank) * stride;
        order_ready(slot[p]);
    }
    for (unsigned polls = 1;; polls++) {
        bool all = true;
#pragma unroll
        for (int p = 1; p < LEAVES; p++) {
            if (MANY)
                slot[p] = slots + (uint64_t)place_of<PACKED>(launch.ranks[p], launch.rank) *
                                      (uint32_t)stride;
            line[p] = order_load_line_if(MANY ? wanted >> p & 1 : p < size, slot[p]);
        }
#pragma unroll
        for (int p = 1; p < LEAVES; p++)
            all &= !(MANY ? wanted >> p & 1 : p < size) || has_come(line[p]);
        if (all)
            return true;
        if (polls % 1024 == 0) {
            int missing = launch.ranks[any];
#pragma unroll
            for (int p = 1; p < LEAVES; p++)
                if (wanted >> p & 1 && !has_come(line[p]))
                    missing = launch.ranks[p];
            start_ns = operation_keep_waiting(launch, op.sequence, missing, start_ns);
            if (start_ns == 0)
                return false;
        }
    }
}

/* Polls one line of a peer until it has come, which `has_come` tells. */
template <typename HAS_COME>
static __device__ __forceinline__ bool
operation_await_line(const cuda_launch &launch, const operation &op, const void *from, int peer,
                     order_line &line, HAS_COME has_come)
{
    uint64_t start_ns = 0;
    for (unsigned polls = 1;; polls++) {
        line = order_load_line(from);
        if (has_come(line))
            return true;
        if (polls % 1024 == 0) {
            start_ns = operation_keep_waiting(launch, op.sequence, peer, start_ns);
            if (start_ns == 0)
                return false;
        }
    }
}

/* ---- the control warp
 * ------------------------------------------------------------------------------- */

/* Tells every peer what the operation is, and keeps it for the next one. Not waited for (but by
 * barriers): data that comes from a peer proves that it has entered. */
static __device__ __forceinline__ void operation_announce(const cuda_launch &launch,
                                                          const operation &op)
{
    const int peer = threadIdx.x;
    const unsigned parity = op.sequence & 1;
    const order_line header = {launch.signature, launch.parameter | op.sequence << 32};
    if (peer == launch.rank)
        order_store_plain(&launch.control->former[parity], header);
    else if (peer < launch.size)
        order_store_line(&launch.arenas[peer]->headers[parity][launch.rank], header);
}

/* Has the recorder know that the operation has begun. Nothing of the sort at its end: a worker's
 * one store more behind its others costs 2 to 7 percent of a small operation. What has ended is
 * known by what begins behind it. */
static __device__ __forceinline__ void operation_mark(const cuda_launch &launch,
                                                      const operation &op)
{
    order_line *mark =
        (order_line *)&operation_device_trace(launch)->marks[op.sequence % DEVICE_TRACE_MARKS];
    const order_line what = {launch.signature, launch.parameter | op.sequence << 32};
    const order_line when = {order_time_ns(), op.sequence};
    if (threadIdx.x < 2)
        order_store_plain(mark + threadIdx.x, threadIdx.x ? when : what);
}

/* What the peers said of the operation before. Nobody waits for that: a header which its peer's
 * data has overtaken is not compared. A peer that is ahead has compared with ours before it went
 * on. */
static __device__ __forceinline__ void operation_compare_former(const cuda_launch &launch,
                                                                uint64_t sequence)
{
    const int peer = threadIdx.x;
    if (peer >= launch.size || peer == launch.rank || sequence == 1)
        return;
    const unsigned parity = (sequence - 1) & 1;
    const order_line ours = order_load_plain(&launch.control->former[parity]);
    const order_line header = order_load_line(&launch.own->headers[parity][peer]);
    if ((uint32_t)(header.high >> 32) == (uint32_t)(sequence - 1) &&
        header_differs(header, sequence - 1, ours))
        operation_fail(launch, TUTTI_ERR_MISMATCH, peer, sequence - 1, ours, header);
}

/* The state of the next operation, for any grid that it may have. */
static __device__ __forceinline__ void operation_advance(const cuda_launch &launch,
                                                         const operation &op)
{
    for (unsigned r = blockIdx.x + threadIdx.x * gridDim.x; r < CUDA_BLOCKS;
         r += CUDA_CONTROL_THREADS * gridDim.x) {
        cuda_row *row = &launch.control->rows[r];
        order_store_plain_u64(&row->sequence, op.sequence);
        order_store_plain(&row->buffers, op.buffers);
    }
}

/* The control warp's whole work; workers arrive at the block's barrier once they have read their
 * row. The trigger lets the next launch be brought to the cores: it waits for our end all the same.
 */
static __device__ __forceinline__ void operation_control(const cuda_launch &launch,
                                                         const operation &op)
{
    order_grid_trigger();
    if (blockIdx.x == 0) {
        operation_announce(launch, op);
        if (launch.marked)
            operation_mark(launch, op);
    }
    order_block_sync(ORDER_ROW);
    operation_advance(launch, op);
    if (blockIdx.x == 0)
        operation_compare_former(launch, op.sequence);
}

#endif
