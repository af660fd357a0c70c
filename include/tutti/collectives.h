/* SPDX-License-Identifier: MIT */
/* The collectives. Part of tutti.h, whose conventions hold. */
#ifndef TUTTI_COLLECTIVES_H
#define TUTTI_COLLECTIVES_H

#include "tutti/tutti.h"

#ifdef __cplusplus
extern "C" {
#endif

enum tutti_call_flags {
    /* Copy, also where the operands are symmetric memory. The flag of any rank applies to all; with
     * a root and in messages, to the data that go from this rank or to it. */
    TUTTI_CALL_NO_ZERO_COPY = 1,
};

struct tutti_call_options {
    size_t struct_size;
    enum tutti_algo algo;    /* NONE: the communicator's choice. Equal on all ranks */
    int64_t timeout_ms;      /* of the operation, from its first wait; 0: the communicator's */
    uint32_t flags;          /* enum tutti_call_flags */
    uint64_t storage_offset; /* elements before send in its storage; used in strict mode only */
};

/*
 * Sets recv[i] on every rank to op over all ranks' send[i], for count elements. The result has the
 * same bits on all ranks, and for each algorithm except RING. count may be 0. Any address that is
 * aligned for the dtype will do; nothing is registered. send == recv is in place; any other overlap
 * is refused. During the call no thread writes to send or touches recv. Blocks until recv is
 * written and send may be reused. One caller at a time per communicator. All ranks make their calls
 * in the same order. dtype, op, count and algorithm are equal on all ranks, else all get MISMATCH.
 * options may be NULL.
 *
 * On CUDA the call returns after the operation is enqueued; the stream blocks instead. send and
 * recv are memory of the communicator's device (also memory that the capture allocates), managed
 * memory or pinned memory of the host, and stay valid until the stream has passed the operation;
 * other pointers are INVALID. The call may be captured in a graph, except where processes share a
 * device (DECLINED). Threads that share a device return after all of them have called. A later
 * fault (TIMEOUT, PEER_DEAD, ABORTED, or MISMATCH, at the latest in the next operation) ends all
 * waits on all ranks without a CUDA error. recv is then undefined, and all later calls return it.
 *
 * On CUDA, while a rank's operation is unfinished, ranks that are threads of the same process and
 * have not made their call must not call what waits for all streams, such as cudaFree() or the
 * first use of a kernel: docs/streams.md has the list. The operation would wait for its time-out.
 *
 * Returns INVALID (also for an algorithm that the links do not allow), VERSION (an unknown option),
 * DECLINED (see above; or strict mode has no algorithm), CONCURRENT or CUDA: the call has done
 * nothing. Or TIMEOUT, PEER_DEAD, MISMATCH, ABORTED, and CUDA if the launch failed or the context
 * is broken: recv is undefined and the communicator has failed on all ranks. A rank that needs
 * nothing more of the failed ranks returns OK with the right recv, even if it came too late for
 * them; its next call in which all ranks take part returns their fault.
 */
TUTTI_API enum tutti_status tutti_all_reduce(const void *send, void *recv, size_t count,
                                             enum tutti_dtype dtype, tutti_op_t op,
                                             tutti_comm_t *comm, tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_all_reduce_with(const void *send, void *recv, size_t count,
                                                  enum tutti_dtype dtype, tutti_op_t op,
                                                  tutti_comm_t *comm, tutti_stream_t stream,
                                                  const struct tutti_call_options *options);
/*
 * Gathers one block from each rank: sets recv[r * count + i] on every rank to send[i] of rank r,
 * for count elements and every rank r. recv has room for world_size * count elements. In place,
 * send is recv + rank * count; any other overlap is refused. The conditions, and the statuses, are
 * those of tutti_all_reduce(); the algorithm cannot be forced (INVALID). On CUDA it returns
 * DECLINED, as do CPU ranks of a topology file of which some two are not linked.
 */
TUTTI_API enum tutti_status tutti_all_gather(const void *send, void *recv, size_t count,
                                             enum tutti_dtype dtype, tutti_comm_t *comm,
                                             tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_all_gather_with(const void *send, void *recv, size_t count,
                                                  enum tutti_dtype dtype, tutti_comm_t *comm,
                                                  tutti_stream_t stream,
                                                  const struct tutti_call_options *options);
/*
 * Reduces one block for each rank: sets recv[i] on rank r to op over all ranks' send[r * count +
 * i], for count elements. send has world_size * count elements. The result has the bits of the
 * all-reduce of the same elements. In place, recv is send + rank * count; any other overlap is
 * refused. The conditions, and the statuses, are those of tutti_all_gather().
 */
TUTTI_API enum tutti_status tutti_reduce_scatter(const void *send, void *recv, size_t count,
                                                 enum tutti_dtype dtype, tutti_op_t op,
                                                 tutti_comm_t *comm, tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_reduce_scatter_with(const void *send, void *recv, size_t count,
                                                      enum tutti_dtype dtype, tutti_op_t op,
                                                      tutti_comm_t *comm, tutti_stream_t stream,
                                                      const struct tutti_call_options *options);
/*
 * Sends one block to each rank: sets recv[r * count + i] on rank p to send[p * count + i] of rank
 * r, for count elements and all ranks p and r. send and recv have world_size * count elements each.
 * In place, send is recv; any other overlap is refused. The conditions, and the statuses, are those
 * of tutti_all_gather().
 */
TUTTI_API enum tutti_status tutti_all_to_all(const void *send, void *recv, size_t count,
                                             enum tutti_dtype dtype, tutti_comm_t *comm,
                                             tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_all_to_all_with(const void *send, void *recv, size_t count,
                                                  enum tutti_dtype dtype, tutti_comm_t *comm,
                                                  tutti_stream_t stream,
                                                  const struct tutti_call_options *options);
/*
 * Collectives with a root, and messages. `root` and `peer` are ranks. The conditions, and the
 * statuses, are those of tutti_all_gather(). An operand that a rank does not have is ignored there
 * and may be NULL. A rank returns once its own part is done. So the root of a broadcast or a
 * scatter may return before the others have called, and so may the other ranks of a reduction or a
 * gather.
 *
 * All ranks call the same collective with the same root, else MISMATCH. A rank whose call waits for
 * no other rank cannot see this at once: its call returns OK. It gets MISMATCH from its next call
 * that receives data of a rank that has called something else, and at the latest from its next
 * call in which all ranks take part (tutti_all_reduce(), tutti_barrier(), ...). The fault is the
 * first call that differs, as far as the ranks still know it: each remembers its last eight.
 *
 * Broadcast: sets recv[i] on every rank to the root's send[i], for count elements. send: the
 * root's. In place, send is recv at the root; any other overlap is refused.
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
/*
 * tutti_send() sends a message of count elements to rank peer, where tutti_recv() takes it with the
 * sender's rank as its peer. Messages between two ranks arrive in the order in which they were
 * sent. Other ranks take no part. tutti_send() returns once send may be reused: a short message
 * waits for no rank, a longer one for its receiver. count and dtype are equal in both calls, else
 * MISMATCH on both ranks, at the latest in the next call. A message to oneself is INVALID outside a
 * group.
 */
TUTTI_API enum tutti_status tutti_send(const void *send, size_t count, enum tutti_dtype dtype,
                                       int peer, tutti_comm_t *comm, tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_send_with(const void *send, size_t count, enum tutti_dtype dtype,
                                            int peer, tutti_comm_t *comm, tutti_stream_t stream,
                                            const struct tutti_call_options *options);
TUTTI_API enum tutti_status tutti_recv(void *recv, size_t count, enum tutti_dtype dtype, int peer,
                                       tutti_comm_t *comm, tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_recv_with(void *recv, size_t count, enum tutti_dtype dtype,
                                            int peer, tutti_comm_t *comm, tutti_stream_t stream,
                                            const struct tutti_call_options *options);
/*
 * The v-forms: blocks of different lengths, at any place. counts[r] and displacements[r] are the
 * length of the block of rank r, and where it begins, in elements from the operand that stands
 * before them. Each has world_size entries. displacements may be NULL: each block then begins where
 * the one before it ends. A block may be empty; its displacement is then ignored, and so is an
 * operand of which all blocks are empty. Blocks of send may overlap, those of recv may not. A
 * block has the same length on the rank that sends it and on the rank that receives it, else
 * MISMATCH with both lengths. The arrays are not changed, and stay valid until the call returns.
 * The conditions, and the statuses, are those of tutti_all_gather(), of the last two those of
 * tutti_gather(). INVALID also if what a rank sends to itself has another length than what it
 * expects from itself.
 *
 * All-gather: copies the block send of each rank r, of count elements there, to block r of recv on
 * every rank. All ranks pass the same counts, else MISMATCH. In place, send is the own block of
 * recv.
 */
TUTTI_API enum tutti_status tutti_all_gather_v(const void *send, size_t count, void *recv,
                                               const size_t *counts, const size_t *displacements,
                                               enum tutti_dtype dtype, tutti_comm_t *comm,
                                               tutti_stream_t stream);
TUTTI_API enum tutti_status
tutti_all_gather_v_with(const void *send, size_t count, void *recv, const size_t *counts,
                        const size_t *displacements, enum tutti_dtype dtype, tutti_comm_t *comm,
                        tutti_stream_t stream, const struct tutti_call_options *options);
/*
 * Reduce-scatter: sets recv on rank r to op over block r of all ranks' send, counts[r] elements,
 * with the bits of the all-reduce. All ranks pass the same counts, else MISMATCH. In place, recv is
 * the own block of send.
 */
TUTTI_API enum tutti_status tutti_reduce_scatter_v(const void *send, const size_t *counts,
                                                   const size_t *displacements, void *recv,
                                                   enum tutti_dtype dtype, tutti_op_t op,
                                                   tutti_comm_t *comm, tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_reduce_scatter_v_with(const void *send, const size_t *counts,
                                                        const size_t *displacements, void *recv,
                                                        enum tutti_dtype dtype, tutti_op_t op,
                                                        tutti_comm_t *comm, tutti_stream_t stream,
                                                        const struct tutti_call_options *options);
/* All-to-all: copies block p of send on rank r to block r of recv on rank p, for all ranks p and r.
 * From its first to its last block, send does not overlap recv. */
TUTTI_API enum tutti_status
tutti_all_to_all_v(const void *send, const size_t *send_counts, const size_t *send_displacements,
                   void *recv, const size_t *recv_counts, const size_t *recv_displacements,
                   enum tutti_dtype dtype, tutti_comm_t *comm, tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_all_to_all_v_with(
    const void *send, const size_t *send_counts, const size_t *send_displacements, void *recv,
    const size_t *recv_counts, const size_t *recv_displacements, enum tutti_dtype dtype,
    tutti_comm_t *comm, tutti_stream_t stream, const struct tutti_call_options *options);
/* Gather: copies the block send of each rank r, of count elements there, to block r of the root's
 * recv. recv, counts and displacements: the root's. In place, send is the own block of recv there.
 */
TUTTI_API enum tutti_status tutti_gather_v(const void *send, size_t count, void *recv,
                                           const size_t *counts, const size_t *displacements,
                                           enum tutti_dtype dtype, int root, tutti_comm_t *comm,
                                           tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_gather_v_with(const void *send, size_t count, void *recv,
                                                const size_t *counts, const size_t *displacements,
                                                enum tutti_dtype dtype, int root,
                                                tutti_comm_t *comm, tutti_stream_t stream,
                                                const struct tutti_call_options *options);
/* Scatter: copies block r of the root's send to recv on each rank r, count elements there. send,
 * counts and displacements: the root's. In place, recv is the own block of send there. */
TUTTI_API enum tutti_status tutti_scatter_v(const void *send, const size_t *counts,
                                            const size_t *displacements, void *recv, size_t count,
                                            enum tutti_dtype dtype, int root, tutti_comm_t *comm,
                                            tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_scatter_v_with(const void *send, const size_t *counts,
                                                 const size_t *displacements, void *recv,
                                                 size_t count, enum tutti_dtype dtype, int root,
                                                 tutti_comm_t *comm, tutti_stream_t stream,
                                                 const struct tutti_call_options *options);
/*
 * Sends send_count elements to rank `to` and receives recv_count elements from rank `from`, at the
 * same time; both may be the caller. As tutti_send() and tutti_recv() in a group.
 */
TUTTI_API enum tutti_status tutti_send_recv(const void *send, size_t send_count, int to, void *recv,
                                            size_t recv_count, int from, enum tutti_dtype dtype,
                                            tutti_comm_t *comm, tutti_stream_t stream);
/*
 * A group of calls, which run at the same time. Between the two functions this thread's calls of
 * the functions of this header, on CPU communicators, are checked and kept: they return OK at once.
 * tutti_group_end() runs them and returns when all have ended. So a rank may send to and receive
 * from any number of peers without deadlock, and one thread may call several communicators, also
 * several ranks of one. Until then no other thread may call these communicators, and the operands
 * of different calls must not overlap, except for operands that are only read; arrays of counts and
 * displacements stay as they are.
 *
 * Of one communicator, collectives run in the order of the calls, and so do messages to one peer,
 * and messages from one peer. In a group a rank may send messages to itself; it receives as many.
 *
 * Groups nest: the last tutti_group_end() runs the calls. Calls on a CUDA communicator are enqueued
 * at once, as always. A thread that ends drops its calls.
 *
 * tutti_group_start() returns NO_MEMORY, SYSTEM. tutti_group_end() returns INVALID (there was no
 * start), the status of the first call that was refused (then no call was run), or the status of
 * the first call that failed.
 */
TUTTI_API enum tutti_status tutti_group_start(void);
TUTTI_API enum tutti_status tutti_group_end(void);
/*
 * Returns after every rank of the subset has called it. What a rank wrote before is visible to the
 * others after. ranks == NULL and count == 0 mean all ranks. The subset contains the caller and
 * names no rank twice, else INVALID. Other ranks take no part. One caller at a time per
 * communicator. Only the time-out of options, which may be NULL, has an effect. On CUDA the stream
 * waits instead. Returns what tutti_all_reduce() does; DECLINED only for a capture.
 */
TUTTI_API enum tutti_status tutti_barrier(tutti_comm_t *comm, const int *ranks, int count,
                                          tutti_stream_t stream);
TUTTI_API enum tutti_status tutti_barrier_with(tutti_comm_t *comm, const int *ranks, int count,
                                               tutti_stream_t stream,
                                               const struct tutti_call_options *options);
/*
 * Sets *algo to the algorithm that tutti_all_reduce_with() would use, on CUDA to the transport
 * (except in strict mode), and *reason, which may be NULL, to a static sentence. A forced algorithm
 * comes first. In strict mode a fixed rule follows: float32 and bfloat16 only; storage offset and
 * count are multiples of 4 bytes; fully connected ranks use one-shot up to 256 KiB and two-shot up
 * to 10 MiB; ranks of a hybrid cube mesh use that up to 256 KiB; the buffer size limits all. All
 * else gives NONE. Without strict mode the result is never NONE. Local; after the rendezvous.
 * Returns INVALID, VERSION.
 */
TUTTI_API enum tutti_status tutti_comm_algorithm(tutti_comm_t *comm, size_t count,
                                                 enum tutti_dtype dtype, tutti_op_t op,
                                                 const struct tutti_call_options *options,
                                                 enum tutti_algo *algo, const char **reason);

#ifdef __cplusplus
}
#endif

#endif
