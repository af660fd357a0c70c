/* SPDX-License-Identifier: MIT */
/* The collectives. Part of tutti.h, whose conventions hold. */
#ifndef TUTTI_COLLECTIVES_H
#define TUTTI_COLLECTIVES_H

#include "tutti/tutti.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- reduce the elements of all ranks -------------------------------------------------------- */

enum tutti_call_flags {
    /* Copy, also where the operands are symmetric memory or the kernel may read them (direct in
     * struct tutti_comm_options). The flag of any rank applies to all; with a root and in messages,
     * to the data that go from this rank or to it. */
    TUTTI_CALL_NO_ZERO_COPY = 1,
    /* On CUDA: move the blocks by the devices' copy engines, so that multiprocessors stay free for
     * compute. For tutti_all_gather(), tutti_all_to_all(), tutti_broadcast(), tutti_gather() and
     * tutti_scatter(), which say at tutti_all_gather() what the operands must be. Equal on all
     * ranks. Where it cannot hold the call is refused; a kernel never takes its place. */
    TUTTI_CALL_COPY_ENGINE = 2,
    /* For tutti_all_to_all_v(), tutti_all_gather_v() and tutti_reduce_scatter_v(): counts and
     * displacements are read when the operation runs. On CUDA they lie in memory of the device, and
     * the host does not wait for them: "Counts on the device", below. Equal on all ranks. */
    TUTTI_CALL_DEVICE_COUNTS = 4,
    /* With TUTTI_CALL_DEVICE_COUNTS: all arrays of counts and displacements of this call have
     * entries of int32_t. Their addresses are passed as const size_t *. Each rank chooses for
     * itself. */
    TUTTI_CALL_INT32_COUNTS = 8,
    /* On CUDA: a kernel writes the blocks straight into the peers' recv, which is symmetric memory.
     * For the calls of TUTTI_CALL_COPY_ENGINE, under the same conditions, and without it. */
    TUTTI_CALL_SYMMETRIC = 16,
};

/* Zero is the default of each field. */
struct tutti_call_options {
    size_t struct_size;
    /* TUTTI_ALGO_NONE: the communicator's choice. Equal on all ranks. Other collectives than the
     * all-reduce take TUTTI_ALGO_NONE only. */
    enum tutti_algo algo;
    /* Limit of the operation, from its first wait; 0: the communicator's. Each rank has its own.
     * The message of TIMEOUT names the option or variable that set the limit. */
    int64_t timeout_ms;
    uint32_t flags;          /* of enum tutti_call_flags */
    uint64_t storage_offset; /* elements before send in its storage; used in strict mode only */
    /* On CUDA the most thread blocks of the operation's kernel, in a captured graph too. It only
     * lowers max_blocks of the communicator; 0: that one alone. Ignored on CPU. Each rank may have
     * its own, for any call. Of calls of a group that run in one launch the least limit holds. */
    int max_blocks;
    /* With TUTTI_CALL_DEVICE_COUNTS, else 0. The most elements of a block, 1 or more, equal on all
     * ranks. */
    size_t max_count;
    /* With TUTTI_CALL_DEVICE_COUNTS, else 0: the elements of each operand, from its address on. No
     * block ends behind them. 0: max_count, or world_size times that if the operand has a block for
     * each rank. Each rank has its own. */
    size_t send_extent, recv_extent;
};

/*
 * Sets recv[i] on every rank to op over all ranks' send[i], for count elements. The result has the
 * same bits on all ranks, and for each algorithm except TUTTI_ALGO_RING: see "Numerics" at
 * tutti_op_t. Blocks until recv is written and send may be reused.
 *
 * All ranks of comm make their calls in the same order, with equal dtype, op, count and algorithm,
 * else all get MISMATCH. A call with count 0 is an operation like any other: send and recv are
 * ignored, and the ranks wait for each other. One caller at a time per communicator: a second one
 * gets CONCURRENT, with no other effect. options may be NULL.
 *
 * *Memory.* Any address that is aligned for the dtype will do; nothing is registered. send == recv
 * is in place; any other overlap is refused. Each rank chooses this for itself. During the call no
 * thread writes to send or touches recv, and where ranks are threads, the operands of the others do
 * not overlap recv. Two-shot, and one-shot beyond 4 KiB (8 KiB where ranks share cores), read and
 * write the operands without a copy if all ranks can access them: in symmetric memory
 * (tutti_symm_alloc()), or where the ranks are threads of one process. The bits are the same. If
 * such an operation fails on one rank, the others may use its send and recv until they have
 * returned, too: do not free them before.
 *
 * *CUDA.* The call returns after the operation is enqueued; the stream blocks instead:
 * tutti_stream_t has the order of streams and captures. send and recv are memory of the
 * communicator's device (also memory that the capture allocates), managed memory, or pinned memory
 * of the host (cuMemHostAlloc(), cudaMallocHost(), or registered), which is slower. They stay valid
 * until the stream has passed the operation. Other pointers are INVALID, and the message says what
 * to do. A later fault (TIMEOUT, PEER_DEAD, ABORTED, or MISMATCH, at the latest in the next
 * operation) ends all waits on all ranks without a CUDA error. recv is then undefined, and
 * tutti_comm_status() and all later calls return the fault.
 *
 * *Shared devices.* Where processes share a device, a host thread of each rank reduces; the stream
 * copies to the host and back. Such a call cannot be captured (DECLINED; the capture is unchanged).
 * Up to 256 operations may be under way; a further call waits for one to end, and fails the
 * communicator if none does within its time-out. Threads that share a device return after all of
 * them have called; a wait beyond the time-out fails the communicator. For their graphs set
 * CUDA_DEVICE_MAX_CONNECTIONS to 32, and capture an operation on all ranks of a device or on none.
 *
 * *One rank on CUDA.* A premultiplied sum, or a reduction of floats or bool, is one kernel, any
 * other collective one copy. Both may be captured. A replay does not count; it runs also after the
 * end of the communicator.
 *
 * *Threads.* On CUDA, while a rank's operation is unfinished, ranks that are threads of the same
 * process and have not made their call must not call what waits for all streams, such as cudaFree()
 * or the first use of a kernel: docs/streams.md has the list. The operation would wait for its
 * time-out.
 *
 * *Cost.* The call allocates no memory and takes no lock. On CPU it makes no system call while no
 * rank waits longer than about 30 us and ranks do not outnumber cores.
 *
 * Returns INVALID (an argument is wrong: the dtype lacks the op; an operand is NULL, misaligned or
 * overlaps the other in part; the links do not allow the algorithm. Or the communicator has not
 * met), VERSION (the options have a field that this library does not know), DECLINED (strict mode
 * has no algorithm; or the stream is being captured, and a host thread reduces), CONCURRENT
 * (another thread is inside the communicator, or a process group uses it; on CUDA also: the streams
 * of two calls cannot be ordered), CUDA (a call of the driver failed; if that was the launch, or
 * the context is broken, the communicator has failed on all ranks at once; a process with a broken
 * context must be restarted), TIMEOUT (a peer did not arrive in time), PEER_DEAD (a peer that this
 * operation needs has ended or has destroyed its communicator), MISMATCH (a peer called another
 * collective, or passed another dtype, op, count, algorithm or scalar; the message names both
 * sides), ABORTED (a rank called tutti_comm_abort()).
 *
 * After one of the first five the call has done nothing, and the communicator still works (for CUDA
 * see above). The other ranks may be waiting: call again with correct arguments, or abort. After
 * one of the last four the communicator has failed on all ranks, and recv is undefined: see
 * tutti_comm_status() and tutti_comm_shrink().
 *
 * A rank that needs nothing more of the failed ranks returns OK with the right recv, even if it
 * came too late for them. In one-shot and the barrier all that it needs is what the others wrote
 * before they gave up; in two-shot it needs more, and gets TIMEOUT. Its next call in which all
 * ranks take part returns their fault, and tutti_comm_status() before that.
 *
 * Example:
 *
 *     float x[4] = {1, 2, 3, 4};
 *     struct tutti_call_options options = {
 *         .struct_size = sizeof options,
 *         .timeout_ms = 1000,
 *     };
 *
 *     if (tutti_all_reduce_with(x, x, 4, TUTTI_FLOAT32, TUTTI_AVG, comm,
 *                               TUTTI_STREAM_DEFAULT, &options))
 *         errx(1, "%s", tutti_last_error());
 */
TUTTI_API enum tutti_status tutti_all_reduce(const void *send, void *recv, size_t count,
                                             enum tutti_dtype dtype, tutti_op_t op,
                                             tutti_comm_t *comm, tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_all_reduce_with(const void *send, void *recv, size_t count,
                                                  enum tutti_dtype dtype, tutti_op_t op,
                                                  tutti_comm_t *comm, tutti_stream_t stream,
                                                  const struct tutti_call_options *options);
/*
 * Sets *algo to the algorithm that tutti_all_reduce_with() would use, and *reason, which may be
 * NULL, to a static sentence. Where CUDA's tuning table or the caller decides, the sentence begins
 * with the kernel: "kernel one_shot_ll: ". Local; any thread may call it after the rendezvous.
 *
 * *Strict mode.* Unless an algorithm is forced, a fixed rule chooses: float32 and bfloat16 only;
 * storage offset and count are multiples of 4 bytes; fully connected ranks use one-shot up to 256
 * KiB and two-shot up to 10 MiB; ranks of a hybrid cube mesh use that up to 256 KiB; the buffer
 * size limits all. All else gives TUTTI_ALGO_NONE, and the all-reduce returns DECLINED, so that the
 * caller can fall back. If all ranks passed the same arguments, none has begun anything then.
 * Without strict mode the result is never TUTTI_ALGO_NONE.
 *
 * Returns INVALID, VERSION.
 */
TUTTI_API enum tutti_status tutti_comm_algorithm(tutti_comm_t *comm, size_t count,
                                                 enum tutti_dtype dtype, tutti_op_t op,
                                                 const struct tutti_call_options *options,
                                                 enum tutti_algo *algo, const char **reason);

/* ---- gather blocks of all ranks; reduce and scatter blocks; exchange blocks ------------------ */

/*
 * The conditions of these calls, and their statuses, are those of tutti_all_reduce(), with one
 * count, dtype and op on all ranks; a difference is MISMATCH even if as many bytes would move. The
 * algorithm cannot be forced (INVALID). CPU ranks of a topology file (TUTTI_TOPOLOGY_FILE) of which
 * some two are not linked get DECLINED. Some ranks may call in place, others not.
 *
 * Among several ranks on CUDA all collectives and messages run by kernels where every device
 * reaches every other one. Where devices do not, and (messages, v-forms that copy) where ranks that
 * are threads share a device, they go through the hosts, as an all-reduce does where processes
 * share a device: the stream copies pieces to the host, a thread of each rank runs the
 * collective there, and the stream copies the result back. The bits are those of CPU ranks in any
 * case. A call through the hosts cannot be captured (DECLINED), and needs a device whose streams
 * can wait for a word in memory (else DECLINED). Where ranks that are threads share a device, it
 * returns once the hosts have done their part. The call has read counts and displacements when it
 * returns.
 *
 * Above 4 KiB (8 KiB if ranks share cores) a rank reads the others' send without a copy if it is
 * symmetric memory on all ranks, or if the ranks are threads of one process, or if direct in struct
 * tutti_comm_options is on. An all-to-all that is in place on any rank is copied. Return what
 * tutti_all_reduce() does.
 *
 * *Symmetric recv on CUDA.* With TUTTI_CALL_SYMMETRIC or TUTTI_CALL_COPY_ENGINE each rank writes
 * its blocks straight into the other ranks' recv. All ranks pass recv, in a gather too. It lies at
 * the same offset of one allocation of tutti_symm_alloc() on the device, after its rendezvous, of a
 * group with the ranks of the communicator in the same order. send is any memory of the device.
 * The ranks wait for each other before the blocks are written, and behind them.
 *
 * With TUTTI_CALL_SYMMETRIC a kernel writes, of at most 32 blocks of threads, so that most
 * multiprocessors stay free for compute. It has one hop more than without the flag, and so is for
 * blocks of about 1 MiB and more.
 *
 * With TUTTI_CALL_COPY_ENGINE the device's copy engines write, so that all multiprocessors stay
 * free but for one warp before the copies and one behind them. What stays on a device, the own
 * block out of place and all blocks among ranks that share the device, its driver may copy by
 * multiprocessors. For blocks of about 4 MiB and more; smaller ones are allowed, but a kernel is
 * faster. The blocks of a broadcast or scatter leave from the root alone. A communicator makes up
 * to 3 streams at its first such call. Copies cannot be taken back: they also run after a fault,
 * and in a graph that is launched after the communicator's end. Then they write to recv of ranks
 * that have not made the call, so after a fault recv is undefined on these, too.
 *
 * Both flags are refused with INVALID (recv is not such memory; another collective; an all-to-all
 * in place; a CPU communicator; both) and with DECLINED (some two devices do not reach each other,
 * or processes share one). Ranks whose offsets differ, or of which only some set the flag, get
 * MISMATCH.
 */

/*
 * Sets recv[r * count + i] on every rank to send[i] of rank r, for count elements and every rank r.
 * recv has room for world_size * count elements. In place, send is recv + rank * count; any other
 * overlap is refused.
 *
 * Example:
 *
 *     float block[4], all[4 * RANKS];
 *
 *     if (tutti_all_gather(block, all, 4, TUTTI_FLOAT32, comm,
 *                          TUTTI_STREAM_DEFAULT) ||
 *         tutti_reduce_scatter(all, block, 4, TUTTI_FLOAT32, TUTTI_SUM, comm,
 *                              TUTTI_STREAM_DEFAULT))
 *         errx(1, "%s", tutti_last_error());
 */
TUTTI_API enum tutti_status tutti_all_gather(const void *send, void *recv, size_t count,
                                             enum tutti_dtype dtype, tutti_comm_t *comm,
                                             tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_all_gather_with(const void *send, void *recv, size_t count,
                                                  enum tutti_dtype dtype, tutti_comm_t *comm,
                                                  tutti_stream_t stream,
                                                  const struct tutti_call_options *options);
/* Sets recv[i] on rank r to op over all ranks' send[r * count + i], for count elements. send has
 * world_size * count elements. The result has the bits of the all-reduce of the same elements. In
 * place, recv is send + rank * count; any other overlap is refused. */
TUTTI_API enum tutti_status tutti_reduce_scatter(const void *send, void *recv, size_t count,
                                                 enum tutti_dtype dtype, tutti_op_t op,
                                                 tutti_comm_t *comm, tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_reduce_scatter_with(const void *send, void *recv, size_t count,
                                                      enum tutti_dtype dtype, tutti_op_t op,
                                                      tutti_comm_t *comm, tutti_stream_t stream,
                                                      const struct tutti_call_options *options);
/* Sets recv[r * count + i] on rank p to send[p * count + i] of rank r, for count elements and all
 * ranks p and r. send and recv have world_size * count elements each. In place, send is recv; any
 * other overlap is refused. */
TUTTI_API enum tutti_status tutti_all_to_all(const void *send, void *recv, size_t count,
                                             enum tutti_dtype dtype, tutti_comm_t *comm,
                                             tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_all_to_all_with(const void *send, void *recv, size_t count,
                                                  enum tutti_dtype dtype, tutti_comm_t *comm,
                                                  tutti_stream_t stream,
                                                  const struct tutti_call_options *options);

/* ---- collectives with a root ----------------------------------------------------------------- */

/*
 * One rank, the root, sends data to all ranks or receives data from all ranks. The conditions are
 * those of tutti_all_gather(). An operand that a rank does not have is ignored there and may be
 * NULL. Only the root may call in place; any other overlap is refused. A rank returns once its own
 * part is done. So the root of a broadcast or a scatter of a few short blocks may return before the
 * others have called, and so may the other ranks of a reduction or a gather.
 *
 * All ranks call the same collective with the same root, else MISMATCH. A rank whose call waits for
 * no other rank cannot see this at once: its call returns OK. It gets MISMATCH from its next call
 * that receives data of a rank that has called something else, and at the latest from its next call
 * in which all ranks take part (tutti_all_reduce(), tutti_barrier(), ...). The fault is the first
 * call that differs, as far as the ranks still know it: each remembers its last eight.
 *
 * From 8 KiB on (32 KiB if ranks share cores) a block of a broadcast, gather or scatter moves from
 * operand to operand if both lie in one symmetric allocation, or all ranks are threads of one
 * process. Of a gather or scatter among more than 8 ranks so does any block from 64 KiB on, by the
 * kernel (direct in struct tutti_comm_options). The sender then waits for the receiver. An operand
 * that is unmapped before the call has returned is SYSTEM. Return what tutti_all_reduce() does.
 */

/*
 * Sets recv[i] on every rank to the root's send[i], for count elements. send: the root's. In place,
 * send is recv at the root.
 *
 * Example:
 *
 *     float weights[1000], loss, sum;
 *
 *     if (tutti_broadcast(weights, weights, 1000, TUTTI_FLOAT32, 0, comm,
 *                         TUTTI_STREAM_DEFAULT) ||
 *         tutti_reduce(&loss, &sum, 1, TUTTI_FLOAT32, TUTTI_SUM, 0, comm,
 *                      TUTTI_STREAM_DEFAULT))
 *         errx(1, "%s", tutti_last_error());
 */
TUTTI_API enum tutti_status tutti_broadcast(const void *send, void *recv, size_t count,
                                            enum tutti_dtype dtype, int root, tutti_comm_t *comm,
                                            tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_broadcast_with(const void *send, void *recv, size_t count,
                                                 enum tutti_dtype dtype, int root,
                                                 tutti_comm_t *comm, tutti_stream_t stream,
                                                 const struct tutti_call_options *options);
/* Sets recv[i] on the root to op over all ranks' send[i], for count elements: with the bits of the
 * all-reduce. recv: the root's. In place, recv is send at the root. */
TUTTI_API enum tutti_status tutti_reduce(const void *send, void *recv, size_t count,
                                         enum tutti_dtype dtype, tutti_op_t op, int root,
                                         tutti_comm_t *comm, tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_reduce_with(const void *send, void *recv, size_t count,
                                              enum tutti_dtype dtype, tutti_op_t op, int root,
                                              tutti_comm_t *comm, tutti_stream_t stream,
                                              const struct tutti_call_options *options);
/* Sets recv[r * count + i] on the root to send[i] of rank r, for count elements and every rank r.
 * recv: the root's, world_size * count elements. In place, send is recv + root * count there. */
TUTTI_API enum tutti_status tutti_gather(const void *send, void *recv, size_t count,
                                         enum tutti_dtype dtype, int root, tutti_comm_t *comm,
                                         tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_gather_with(const void *send, void *recv, size_t count,
                                              enum tutti_dtype dtype, int root, tutti_comm_t *comm,
                                              tutti_stream_t stream,
                                              const struct tutti_call_options *options);
/* Sets recv[i] on rank r to the root's send[r * count + i], for count elements and every rank r.
 * send: the root's, world_size * count elements. In place, recv is send + root * count there. */
TUTTI_API enum tutti_status tutti_scatter(const void *send, void *recv, size_t count,
                                          enum tutti_dtype dtype, int root, tutti_comm_t *comm,
                                          tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_scatter_with(const void *send, void *recv, size_t count,
                                               enum tutti_dtype dtype, int root, tutti_comm_t *comm,
                                               tutti_stream_t stream,
                                               const struct tutti_call_options *options);

/* ---- collectives with blocks of different lengths -------------------------------------------- */

/*
 * The v-forms of tutti_all_gather() and tutti_gather(), whose conditions hold: blocks of different
 * lengths, at any offset. An operand with a block for each rank is followed by two arrays of
 * world_size entries: block r has counts[r] elements, and begins displacements[r] elements after
 * the beginning of the operand. displacements may be NULL: each block then begins where the one
 * before it ends. A block may be empty; its displacement is then ignored, and so is an operand of
 * which all blocks are empty. Blocks of send may overlap, those of recv may not; nothing is written
 * between them. The arrays are not changed, and stay valid until the call returns.
 *
 * A block has the same length on the rank that sends it and on the rank that receives it, else
 * MISMATCH with both lengths. Displacements may differ. An empty block is sent as an empty message:
 * a rank of an all-gather, a reduce-scatter or an all-to-all waits for every other rank. On CUDA
 * a gather and a scatter do, too. A captured call keeps its counts and displacements. Return
 * what tutti_all_reduce() does. INVALID also if what a rank sends to itself has another length than
 * what it expects from itself.
 *
 * *Counts on the device.* With TUTTI_CALL_DEVICE_COUNTS in the options the arrays are read when the
 * operation runs, so a mixture of experts runs in one graph: kernels before the call write the
 * counts, a replay reads those of the moment, and no host waits. tutti_all_to_all_v(),
 * tutti_all_gather_v() and tutti_reduce_scatter_v() have this form. An all-gather ignores `count`:
 * its own block has counts[rank] elements.
 *
 * - On CUDA the arrays are memory of the device, or other memory that operands may be. Their
 *   entries are of 64 bits, so a tensor of int64 will do; with TUTTI_CALL_INT32_COUNTS all are of
 *   32 bits. They are aligned to their entries, stay valid, and are not written, until the stream
 *   has passed the operation. A graph keeps their addresses, and max_count and the extents, and not
 *   their contents
 * - max_count sets the grid: its blocks wait on multiprocessors also if the counts are small. The
 *   time depends on the counts. send and recv have as many elements as the extents say. The
 *   extents of an all-to-all do not overlap; the other two may be in place
 * - The kernel checks all counts and displacements of its rank before it stores anything, and
 *   touches nothing outside of the extents. If a count is negative or more than max_count, a
 *   block that is not empty ends behind its extent, the own block has two lengths, or the operand
 *   with one block lies in part in a block of the other, the communicator fails with INVALID on all
 *   ranks: the fault names the rank, the block and both numbers. That blocks of recv do not overlap
 *   is not checked; their contents are then undefined
 * - Two ranks that disagree about the length of a block get MISMATCH, as with counts on the host.
 *   Ranks that disagree about max_count or the flag do, too, at the latest in the next operation
 * - Calls of tutti_all_to_all_v() and tutti_all_gather_v() with this flag that follow each other in
 *   a group (tutti_group_start()), on one stream, are one operation and one launch for each 8 of
 *   them, and progress together, such as values, their scales and ids. So all ranks make them in a
 *   group, in the same order, else MISMATCH
 * - DECLINED where no kernel serves the call: through the hosts, and for one rank on CUDA
 * - A CPU communicator reads the arrays in memory of the host, during the call or, in a group,
 *   when the call is made. INVALID then has no effect on other calls
 */

/*
 * Copies the block send of each rank r, of count elements there, to block r of recv on every rank.
 * All ranks pass the same counts, else MISMATCH with their hashes. In place, send is the own block
 * of recv.
 */
TUTTI_API enum tutti_status tutti_all_gather_v(const void *send, size_t count, void *recv,
                                               const size_t *counts, const size_t *displacements,
                                               enum tutti_dtype dtype, tutti_comm_t *comm,
                                               tutti_stream_t stream);
TUTTI_API enum tutti_status
tutti_all_gather_v_with(const void *send, size_t count, void *recv, const size_t *counts,
                        const size_t *displacements, enum tutti_dtype dtype, tutti_comm_t *comm,
                        tutti_stream_t stream, const struct tutti_call_options *options);
/* Sets recv on rank r to op over block r of all ranks' send, counts[r] elements, with the bits of
 * the all-reduce. All ranks pass the same counts, else MISMATCH with their hashes. In place, recv
 * is the own block of send. */
TUTTI_API enum tutti_status tutti_reduce_scatter_v(const void *send, const size_t *counts,
                                                   const size_t *displacements, void *recv,
                                                   enum tutti_dtype dtype, tutti_op_t op,
                                                   tutti_comm_t *comm, tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_reduce_scatter_v_with(const void *send, const size_t *counts,
                                                        const size_t *displacements, void *recv,
                                                        enum tutti_dtype dtype, tutti_op_t op,
                                                        tutti_comm_t *comm, tutti_stream_t stream,
                                                        const struct tutti_call_options *options);
/*
 * Copies block p of send on rank r to block r of recv on rank p, for all ranks p and r. From its
 * first to its last block, send does not overlap recv.
 *
 * Example: each rank sends its counts to the others, then the data; examples/experts.c is a
 * complete program:
 *
 *     if (tutti_all_to_all(send_counts, recv_counts, 1, TUTTI_UINT64, comm,
 *                          TUTTI_STREAM_DEFAULT) ||
 *         tutti_all_to_all_v(send, send_counts, NULL, recv, recv_counts, NULL,
 *                            TUTTI_FLOAT32, comm, TUTTI_STREAM_DEFAULT))
 *         errx(1, "%s", tutti_last_error());
 */
TUTTI_API enum tutti_status
tutti_all_to_all_v(const void *send, const size_t *send_counts, const size_t *send_displacements,
                   void *recv, const size_t *recv_counts, const size_t *recv_displacements,
                   enum tutti_dtype dtype, tutti_comm_t *comm, tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_all_to_all_v_with(
    const void *send, const size_t *send_counts, const size_t *send_displacements, void *recv,
    const size_t *recv_counts, const size_t *recv_displacements, enum tutti_dtype dtype,
    tutti_comm_t *comm, tutti_stream_t stream, const struct tutti_call_options *options);
/* Copies the block send of each rank r, of count elements there, to block r of the root's recv.
 * recv, counts and displacements: the root's. In place, send is the own block of recv there. */
TUTTI_API enum tutti_status tutti_gather_v(const void *send, size_t count, void *recv,
                                           const size_t *counts, const size_t *displacements,
                                           enum tutti_dtype dtype, int root, tutti_comm_t *comm,
                                           tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_gather_v_with(const void *send, size_t count, void *recv,
                                                const size_t *counts, const size_t *displacements,
                                                enum tutti_dtype dtype, int root,
                                                tutti_comm_t *comm, tutti_stream_t stream,
                                                const struct tutti_call_options *options);
/* Copies block r of the root's send to recv on each rank r, count elements there. send, counts and
 * displacements: the root's. In place, recv is the own block of send there. */
TUTTI_API enum tutti_status tutti_scatter_v(const void *send, const size_t *counts,
                                            const size_t *displacements, void *recv, size_t count,
                                            enum tutti_dtype dtype, int root, tutti_comm_t *comm,
                                            tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_scatter_v_with(const void *send, const size_t *counts,
                                                 const size_t *displacements, void *recv,
                                                 size_t count, enum tutti_dtype dtype, int root,
                                                 tutti_comm_t *comm, tutti_stream_t stream,
                                                 const struct tutti_call_options *options);

/* ---- messages from one rank to another ------------------------------------------------------- */

/*
 * The conditions are those of tutti_all_gather(). Messages between two ranks arrive in the order in
 * which they were sent. Other ranks take no part. count and dtype are equal in both calls, else
 * MISMATCH on both ranks, at the latest in the next call. Outside a group of calls
 * (tutti_group_start()) a message to oneself is INVALID. Return what tutti_all_reduce() does.
 */

/*
 * Sends count elements to rank peer. Blocks until send may be reused: a short message waits for no
 * rank while fewer than 4 are unread, a longer one for its receiver, and so does one from 8 KiB on
 * that moves without a copy (tutti_broadcast()). If two ranks both first send a long message to
 * each other, they wait until the time-out: call tutti_send_recv(), or make the calls in a group.
 *
 * Example, a pipeline:
 *
 *     if (rank > 0 && tutti_recv(block, count, TUTTI_FLOAT32, rank - 1, comm,
 *                                TUTTI_STREAM_DEFAULT))
 *         errx(1, "%s", tutti_last_error());
 *     work(block, count);
 *     if (rank < last && tutti_send(block, count, TUTTI_FLOAT32, rank + 1, comm,
 *                                   TUTTI_STREAM_DEFAULT))
 *         errx(1, "%s", tutti_last_error());
 */
TUTTI_API enum tutti_status tutti_send(const void *send, size_t count, enum tutti_dtype dtype,
                                       int peer, tutti_comm_t *comm, tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_send_with(const void *send, size_t count, enum tutti_dtype dtype,
                                            int peer, tutti_comm_t *comm, tutti_stream_t stream,
                                            const struct tutti_call_options *options);
/* Receives count elements that rank peer sends to this rank. */
TUTTI_API enum tutti_status tutti_recv(void *recv, size_t count, enum tutti_dtype dtype, int peer,
                                       tutti_comm_t *comm, tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_recv_with(void *recv, size_t count, enum tutti_dtype dtype,
                                            int peer, tutti_comm_t *comm, tutti_stream_t stream,
                                            const struct tutti_call_options *options);
/*
 * Sends send_count elements to rank `to` and receives recv_count elements from rank `from`, at the
 * same time; both may be the caller. As tutti_send() and tutti_recv() in a group.
 */
TUTTI_API enum tutti_status tutti_send_recv(const void *send, size_t send_count, int to, void *recv,
                                            size_t recv_count, int from, enum tutti_dtype dtype,
                                            tutti_comm_t *comm, tutti_stream_t stream);

/* ---- run several calls at the same time ------------------------------------------------------ */

/*
 * Between the two functions this thread's calls of collectives, barriers and messages on CPU
 * communicators are checked and kept: they return OK at once, or the error for which they are
 * refused. tutti_group_end() runs them at the same time and returns when all have ended. So
 *
 * - a rank may send to and receive from any number of peers, in any order, without deadlock
 * - one thread may call several communicators, also several ranks of one
 * - a rank may send messages to itself, if it receives as many
 *
 * Of one communicator, collectives run in the order of the calls, and so do messages to one peer,
 * and messages from one peer. Until the end no other thread may call these communicators
 * (CONCURRENT). The operands stay valid, and those of different calls do not overlap, except for
 * operands that are only read; arrays of counts and displacements stay as they are.
 *
 * Groups nest: the last tutti_group_end() runs the calls. On CUDA communicators it enqueues them,
 * in an order that does not depend on that of the calls: by communicator; of each the collectives
 * in their order, then its messages, which run at the same time and are all on one stream (else
 * INVALID). So ranks that make their calls in a group do not wait for each other in a circle. A
 * thread that ends drops its calls. A failure ends the calls of that communicator; the others end
 * as usual.
 *
 * Return NO_MEMORY, SYSTEM. tutti_group_end() returns INVALID if there was no start, the status of
 * the first call that was refused (then no call was run), or the status of the first call that
 * failed.
 *
 * Example, an exchange with both neighbours:
 *
 *     tutti_group_start();
 *     for (int i = 0; i < 2; i++) {
 *         tutti_send(edge[i], count, TUTTI_FLOAT32, neighbour[i], comm, stream);
 *         tutti_recv(halo[i], count, TUTTI_FLOAT32, neighbour[i], comm, stream);
 *     }
 *     if (tutti_group_end())
 *         errx(1, "%s", tutti_last_error());
 */
TUTTI_API enum tutti_status tutti_group_start(void);
TUTTI_API enum tutti_status tutti_group_end(void);

/* ---- wait until all ranks, or all ranks of a subset, have arrived ---------------------------- */

/*
 * Waits until every rank of the subset has called it. What a rank wrote before is visible to the
 * others after. The subset is `count` different ranks in any order, the caller among them, read
 * during the call; NULL and 0 mean all ranks, as naming all of them does. One caller at a time per
 * communicator. Only the time-out of options, which may be NULL, has an effect. On CUDA the stream
 * waits instead.
 *
 * A barrier of all ranks is an operation like any other, in the same order on all ranks. In one of
 * a subset the other ranks take no part, and may be in any other operation; disjoint subsets do not
 * wait for each other. Any two ranks call the barriers that contain both of them in the same order.
 * If one rank calls a barrier of a subset while another rank of it is in an operation of all ranks,
 * neither can go on: all get MISMATCH, on CUDA maybe TIMEOUT.
 *
 * Returns what tutti_all_reduce() does: INVALID for a subset that lacks the caller, names a rank
 * twice or a rank that does not exist, DECLINED only for a capture, MISMATCH also if a rank named
 * another subset.
 */
TUTTI_API enum tutti_status tutti_barrier(tutti_comm_t *comm, const int *ranks, int count,
                                          tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_barrier_with(tutti_comm_t *comm, const int *ranks, int count,
                                               tutti_stream_t stream,
                                               const struct tutti_call_options *options);

#ifdef __cplusplus
}
#endif

#endif
