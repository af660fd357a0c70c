/* SPDX-License-Identifier: MIT */
/*
 * What every kernel does around its algorithm: take the operation's number, announce it, keep the
 * state for the next operation, wait with a deadline, fail once and for ever.
 *
 * The first warp of every block is its control warp. It does this work while the other warps, the
 * workers, run the algorithm. A small operation is one hop of some 1500 cycles. Each instruction of
 * a worker before its stores or after its polls adds to this time; instructions of the control warp
 * do not.
 *
 * - State: a row for each possible block. Block b reads row b and writes rows b, b + grid, b + 2
 *   grid..., so all rows agree after any grid, and no launch argument becomes stale in a replay.
 * - Header: block 0 pushes {signature, parameter, sequence} to each peer. A long wait compares
 *   the peer's header; otherwise the next operation compares it. Barriers, and operations of no
 *   elements, wait for headers.
 * - After every ORDER_POLLS polls a wait checks: failed, another header, the host's stop (over
 * PCIe, one waiter every 20 us), a peer that is gone, the deadline. The first to fail writes the
 * record for the host and sets all rows to failed, so that later launches and replays return at
 * once.
 * - A kernel whose warps meet in barriers decides once a block whether the block takes part
 *   (operation_take_together()). In other kernels each warp decides for itself, and only polls.
 */
#ifndef TUTTI_CUDA_OPERATION_CUH
#define TUTTI_CUDA_OPERATION_CUH

#include "base/device_trace.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/order.cuh"
#include "tutti/tutti.h"

static_assert(CUDA_CONTROL_THREADS == 32, "one warp");
static_assert(sizeof(cuda_host) == DEVICE_TRACE_HOST_BYTES, "a device trace begins with it");

/*
 * Columns. In kernels whose ranks exchange data in pairs of blocks, what one block serves is a
 * column. The number of columns is equal on all ranks: no rank's limit of blocks counts. Block b of
 * a rank serves columns b, b + grid, ...: mostly one. How it takes them in turn, each file says.
 */
struct operation {
    uint64_t sequence;
    uint64_t flag;      /* in band: the sequence above 16 bits of hash of what the operation is */
    order_line words;   /* struct cuda_row */
    order_line buffers; /* becomes the next operation's state */
    unsigned column;    /* the one that is served, in kernels with tiles */
};

/* The workers of all columns. */
static __device__ __forceinline__ unsigned column_workers(const cuda_launch &launch)
{
    return launch.columns * (blockDim.x - CUDA_CONTROL_THREADS);
}

/* The number of this thread's worker in a column, throughout the columns. */
static __device__ __forceinline__ unsigned column_worker(unsigned column)
{
    return column * (blockDim.x - CUDA_CONTROL_THREADS) + threadIdx.x - CUDA_CONTROL_THREADS;
}

static __device__ __forceinline__ bool is_control_warp(void)
{
    return threadIdx.x < CUDA_CONTROL_THREADS;
}

/* Bounds for the compiler: one block of the most threads a multiprocessor, so that a thread may
 * have up to 128 registers. BOUNDS_ANY is for the any-op forms of the kernels in lines. The form
 * that needs most registers limits the grids of all forms, so more registers there would make the
 * grids of sums smaller. */
#define BOUNDS     __launch_bounds__(CUDA_THREADS, 1)
#define BOUNDS_ANY __maxnreg__(96)

/* A kernel that calls a function with the launch. The function comes last: its name may have
 * commas. */
#define KERNEL_DEFINE(bounds, name, ...)                                                           \
    extern "C" __global__ void bounds name(const __grid_constant__ cuda_launch launch)             \
    {                                                                                              \
        __VA_ARGS__(launch);                                                                       \
    }

/* Workers are numbered throughout the launch. */
static __device__ __forceinline__ unsigned worker_index(void)
{
    return blockIdx.x * (blockDim.x - CUDA_CONTROL_THREADS) + threadIdx.x - CUDA_CONTROL_THREADS;
}

static __device__ __forceinline__ unsigned worker_count(void)
{
    return gridDim.x * (blockDim.x - CUDA_CONTROL_THREADS);
}

/* Passes the grid dependency: nothing was touched before, and `ready` is known. Loads this block's
 * row. operation_take() waits for the row, so that the input can be loaded between the two. */
static __device__ __forceinline__ void operation_begin(const cuda_launch &launch,
                                                       operation &running, uint64_t ready = 0)
{
    const cuda_row *row = &launch.control->rows[blockIdx.x];
    order_grid_wait_after((uint64_t)row | ready);
    running.words = order_load_plain(row);
    running.buffers = order_load_plain(&row->buffers);
}

/* The device's part of the recorder. */
static __device__ __forceinline__ device_trace *operation_device_trace(const cuda_launch &launch)
{
    return (device_trace *)launch.host;
}

/* Returns false if the communicator has failed; then the workers have arrived at the barrier. */
static __device__ __forceinline__ bool operation_take(const cuda_launch &launch, operation &running)
{
    running.sequence = running.words.low + 1;
    running.flag = running.sequence << 16 | launch.tag;
    if (running.words.high == 0)
        return true;
    if (!is_control_warp())
        order_block_arrive(ORDER_ROW);
    return false;
}

/* The same for kernels whose threads wait for each other in barriers of the block. A barrier has no
 * deadline, and row.failed may be set between the reads of two warps. If each warp decided for
 * itself, some would leave and the others would wait for ever. So the block decides once. All its
 * threads call this. If it returns false all of them leave, the control warp too. */
static __device__ __forceinline__ bool operation_take_together(const cuda_launch &launch,
                                                               operation &running)
{
    running.sequence = running.words.low + 1;
    running.flag = running.sequence << 16 | launch.tag;
    return order_block_all(running.words.high == 0);
}

/* ---- failure --------------------------------------------------------------------------------- */

/* Ends all waits, and all later launches at once. */
static __device__ __forceinline__ void operation_stop(cuda_control *control)
{
    order_store_u32(&control->failed, 1);
    for (int i = 0; i < CUDA_BLOCKS; i++)
        order_store_plain_u64(&control->rows[i].failed, 1);
}

/* Ends all waits. The first thread that fails tells the host. */
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

/* Returns true if a peer's header says that the peer does another operation than we do. An empty
 * header says nothing. */
static __device__ __forceinline__ bool header_differs(order_line header, uint64_t sequence,
                                                      order_line ours)
{
    if (header.low == 0)
        return false;
    const int32_t ahead = (int32_t)((uint32_t)(header.high >> 32) - (uint32_t)sequence);
    return ahead > 0 ||
           (ahead == 0 && (header.low != ours.low || (uint32_t)header.high != (uint32_t)ours.high));
}

/* The lowest bit of the time that a wait keeps between two checks: the peer is gone, so the next
 * poll of the line is the last. */
enum : uint64_t { WAIT_LAST_LOOK = 1 };

/* The rank that is late when this rank waits for a peer. If the peer has entered the operation, it
 * may wait, too: then the late rank is one that has not entered the operation. */
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
 * Looks at everything that may end a long wait for a peer. `sequence` is 0 if none was announced.
 * Returns the value for the next call (0 at first), or 0 if the wait has failed. Arguments are
 * passed by value: references would force them into memory.
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
    /* One waiting thread of the device reads over PCIe, every 20 us. */
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

/* The slot of a source in an owner's region. Packed regions have no slot for the owner itself. */
template <bool PACKED>
static __device__ __forceinline__ unsigned slot_of(unsigned source, unsigned owner)
{
    return PACKED && source > owner ? source - 1 : source;
}

/* The address to which a worker pushes: its line at `at` of this source, in a region of the p-th
 * peer's arena. Sources are `stride` bytes apart. `ready` is computed from the
 * addresses: operation_begin(). */
template <bool PACKED, int LEAVES>
static __device__ __forceinline__ void
operation_targets(const cuda_launch &launch, int size, uint64_t region, uint64_t stride,
                  uint64_t at, unsigned char *(&targets)[LEAVES], uint64_t &ready)
{
    targets[0] = nullptr;
#pragma unroll
    for (int p = 1; p < LEAVES; p++) {
        targets[p] = (unsigned char *)launch.peers[p < size ? p : 0] + region +
                     slot_of<PACKED>(launch.rank, launch.ranks[p]) * stride + at;
        ready |= (uint64_t)order_ready(targets[p]);
    }
}

/* Stores one line for each peer. */
template <int LEAVES>
static __device__ __forceinline__ void operation_push(unsigned char *const (&targets)[LEAVES],
                                                      int size, uint64_t offset, order_line line)
{
#pragma unroll
    for (int p = 1; p < LEAVES; p++)
        if (p < size)
            order_store_line(targets[p] + offset, line);
}

/* Polls until the lines of the wanted peers have come, as `has_come` says. `slots` is the line of
 * the first source; sources are `stride` bytes apart. The loop has only loads and compares: each
 * further cycle delays every line. With few peers all addresses are computed before the loop, and a
 * peer that is not wanted has the line of one that is. Many addresses would not fit in registers,
 * so they are computed at each poll. */
template <bool PACKED, int LEAVES, typename HAS_COME>
static __device__ __forceinline__ bool
operation_await(const cuda_launch &launch, const operation &running, const unsigned char *slots,
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
            slots + slot_of<PACKED>(launch.ranks[wanted >> p & 1 ? p : any], launch.rank) * stride;
        order_ready(slot[p]);
    }
    for (unsigned polls = 1;; polls++) {
        bool all = true;
#pragma unroll
        for (int p = 1; p < LEAVES; p++) {
            if (MANY)
                slot[p] = slots + (uint64_t)slot_of<PACKED>(launch.ranks[p], launch.rank) *
                                      (uint32_t)stride;
            line[p] = order_load_line_if(MANY ? wanted >> p & 1 : p < size, slot[p]);
        }
#pragma unroll
        for (int p = 1; p < LEAVES; p++)
            all &= !(MANY ? wanted >> p & 1 : p < size) || has_come(line[p]);
        if (all)
            return true;
        if (polls % ORDER_POLLS == 0) {
            int missing = launch.ranks[any];
#pragma unroll
            for (int p = 1; p < LEAVES; p++)
                if (wanted >> p & 1 && !has_come(line[p]))
                    missing = launch.ranks[p];
            start_ns = operation_keep_waiting(launch, running.sequence, missing, start_ns);
            if (start_ns == 0)
                return false;
        }
    }
}

/* Polls one line of a peer until it has come, as `has_come` says. `sequence` is the operation's, 0
 * if none was announced. */
template <typename HAS_COME>
static __device__ __forceinline__ bool
operation_await_line(const cuda_launch &launch, uint64_t sequence, const void *from, int peer,
                     order_line &line, HAS_COME has_come)
{
    uint64_t start_ns = 0;
    for (unsigned polls = 1;; polls++) {
        line = order_load_line(from);
        if (has_come(line))
            return true;
        if (polls % ORDER_POLLS == 0) {
            start_ns = operation_keep_waiting(launch, sequence, peer, start_ns);
            if (start_ns == 0)
                return false;
        }
    }
}

/* Waits until the peer has entered the same operation. */
static __device__ __forceinline__ bool operation_await_header(const cuda_launch &launch,
                                                              const operation &running, int peer)
{
    order_line line;
    return operation_await_line(
        launch, running.sequence, &launch.own->headers[running.sequence & 1][peer], peer, line,
        [&](const order_line &header) {
            return header.low == launch.signature &&
                   header.high == (launch.parameter | running.sequence << 32);
        });
}

/* ---- the control warp ------------------------------------------------------------------------ */

/* Sends the operation's header to every peer and keeps it for the next operation. Only barriers
 * wait for headers: data from a peer proves that the peer has entered. */
static __device__ __forceinline__ void operation_announce(const cuda_launch &launch,
                                                          const operation &running)
{
    const int peer = threadIdx.x;
    const unsigned parity = running.sequence & 1;
    const order_line header = {launch.signature, launch.parameter | running.sequence << 32};
    if (peer == launch.rank)
        order_store_plain(&launch.control->former[parity], header);
    else if (peer < launch.size)
        order_store_line(&launch.arenas[peer]->headers[parity][launch.rank], header);
}

/* Marks in the recorder that the operation has begun. Its end is not marked: one more store of a
 * worker behind its others costs 2 to 7 percent of a small operation. The start of the next
 * operation shows the end. */
static __device__ __forceinline__ void operation_mark(const cuda_launch &launch,
                                                      const operation &running)
{
    order_line *mark =
        (order_line *)&operation_device_trace(launch)->marks[running.sequence % DEVICE_TRACE_MARKS];
    const order_line what = {launch.signature, launch.parameter | running.sequence << 32};
    const order_line when = {order_time_ns(), running.sequence};
    if (threadIdx.x < 2)
        order_store_plain(mark + threadIdx.x, threadIdx.x ? when : what);
}

/* Compares the peers' headers of the last operation. Nothing waits for a header: one that the
 * peer's data has overtaken is not compared. A peer that is ahead has compared our header before it
 * went on. */
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

/* Writes the state for the next operation, for any grid. */
static __device__ __forceinline__ void operation_advance(const cuda_launch &launch,
                                                         const operation &running)
{
    for (unsigned r = blockIdx.x + threadIdx.x * gridDim.x; r < CUDA_BLOCKS;
         r += CUDA_CONTROL_THREADS * gridDim.x) {
        cuda_row *row = &launch.control->rows[r];
        order_store_plain_u64(&row->sequence, running.sequence);
        order_store_plain(&row->buffers, running.buffers);
    }
}

/* All the work of the control warp. The workers arrive at the block's barrier when they have read
 * their row. The trigger lets the next launch come to the multiprocessors; that launch still waits
 * for our end. */
static __device__ __forceinline__ void operation_control(const cuda_launch &launch,
                                                         const operation &running)
{
    order_grid_trigger();
    if (blockIdx.x == 0) {
        operation_announce(launch, running);
        if (launch.marked)
            operation_mark(launch, running);
    }
    order_block_sync(ORDER_ROW);
    operation_advance(launch, running);
    if (blockIdx.x == 0)
        operation_compare_former(launch, running.sequence);
}

/* The start of a kernel with tiles. Does the work of the control warp. Returns true to the workers,
 * unless the communicator has failed. */
static __device__ __forceinline__ bool operation_begin_tiles(const cuda_launch &launch,
                                                             operation &running)
{
    operation_begin(launch, running);
    if (!operation_take_together(launch, running))
        return false;
    if (is_control_warp())
        operation_control(launch, running);
    else
        order_block_arrive(ORDER_ROW);
    return !is_control_warp();
}

#endif
