/* SPDX-License-Identifier: MIT */
/*
 * Process groups: asynchronous operations on tensors, with tags. The conventions are those of
 * tutti.h. docs/streams.md describes the order of operations and streams, docs/design.md the
 * implementation.
 */
#ifndef TUTTI_PG_H
#define TUTTI_PG_H

#include "tutti/tutti.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- asynchronous operations of a process group ---------------------------------------------- */

#define TUTTI_MAX_DIMS 16

/*
 * A dense tensor in memory of the host or of a device, with `dims` sizes and strides. Strides count
 * elements. Element (i, j, ...) is data[i * strides[0] + j * strides[1] + ...]. The tensor has no
 * holes and does not overlap itself; its dimensions may lie in memory in any order. The stride of a
 * dimension of size 1 is ignored; if a size is 0, all strides are ignored.
 */
struct tutti_tensor {
    size_t struct_size;
    void *data; /* may be NULL if the tensor has no elements */
    enum tutti_dtype dtype;
    enum tutti_device device;
    int dims; /* 0 to TUTTI_MAX_DIMS; 0: one element */
    const int64_t *sizes;
    const int64_t *strides; /* NULL: row-major, the last dimension is contiguous */
    int device_index;       /* of a CUDA tensor: the device's number in this process */
};

/*
 * A process group runs asynchronous operations of a communicator's ranks, in a thread of its own.
 * Operations of one tag run in the order of their submission. Operations of different tags run as
 * soon as all ranks have submitted them, whatever the order on each rank. So an operation that
 * waits for a rank delays only its own tag. A tag takes about 100 bytes of each rank from its first
 * use until the group is destroyed. The thread may run on the cores of the thread that creates the
 * group: if there are few, bind each rank to cores of its own.
 */
typedef struct tutti_pg tutti_pg_t;

#define TUTTI_MAX_TENSORS 64

struct tutti_pg_options {
    size_t struct_size;
    int64_t timeout_ms; /* of operations that name none; 0: the communicator's */
    /* The members: ranks of the communicator. The list is equal on all members. Its order, which is
     * free, gives the ranks' numbers in the group, from 0, and the order of sums. NULL: all ranks.
     * Read during the call. */
    const int *ranks;
    int rank_count; /* 0 with NULL */
    /* Where the members meet, if the call is collective; used during the call, by members on
     * several hosts until the group is destroyed. */
    tutti_store_t *store;
    /* Number of threads of this rank that reduce CUDA tensors above 64 KiB on the host, with the
     * group's own thread: 1 to 16. 0: half of the rank's cores, at most 8. Only where all ranks are
     * threads of one process and the tensors go through the host. May differ between ranks. */
    int threads;
    /* Of the kernels of a group of a CUDA communicator, as in struct tutti_comm_options; 0: the
     * communicator's. Ignored on CPU. */
    int max_blocks;
};

/*
 * Called once, by the group's thread or by a thread that waits for a work of the group, when the
 * operation has ended and before any thread finds the work done. So what the callback uses may be
 * freed once the work is done. The work is valid during the call, even if its handle was destroyed;
 * tutti_work_test() reports that it is not done. The callback may submit to the group. It must not
 * wait for a work of the group, must not make CUDA wait for a stream, and must not destroy the
 * group. Later operations wait until it returns.
 */
typedef void tutti_pg_callback(void *context, tutti_work_t *work, enum tutti_status status);

struct tutti_pg_call_options {
    size_t struct_size;
    uint32_t tag;
    int64_t timeout_ms;          /* 0: the group's */
    tutti_pg_callback *callback; /* may be NULL */
    void *context;               /* passed to the callback; must live until it has returned */
    /* CUDA tensors: the operation waits for the work that is on it now. */
    tutti_stream_t stream;
};

/*
 * Create a process group of all ranks of the communicator, or of some. Starts a thread.
 *
 * *Without a list, on a CPU communicator:* the call is local. Each rank makes the call once in the
 * life of its communicator. The communicator then serves only the group: other calls on it return
 * CONCURRENT. Destroy it after the group.
 *
 * *With a list, even of all ranks, or on a CUDA communicator:* the call is collective among the
 * members. They meet on a store that all of them reach, such as the communicator's. The group uses
 * nothing of the communicator: the communicator remains usable, may have any number of such groups
 * at once, also of the same ranks, and may be destroyed before them. A rank makes one group at a
 * time; other threads get CONCURRENT. Members of several groups make them in the same order. The
 * group's time-out bounds the meeting; tutti_comm_abort() on the communicator ends it. Errors of
 * this call name ranks of the communicator. Errors of the group's operations, and struct
 * tutti_fault, name ranks of the group. A group of a CUDA communicator makes a second communicator,
 * of the devices, as large as the caller's, and takes 8 MiB more of the rank's device; if that
 * communicator cannot be made, the group's tensors go through the host.
 *
 * *On several hosts* all calls of this header are there. The group's thread uses the
 * communicator's fabric, mpi:, so MPI needs MPI_THREAD_MULTIPLE. The death of a rank ends the
 * group. A leader that does not answer does so after 5 s and the group's time-out.
 *
 * If a CUDA context is current, the resources for tensors of its device are made by this call.
 * Otherwise the first operation makes them, and may have to wait for kernels that run on the
 * device.
 *
 * - [in] comm: has met, and has not failed; not in strict mode
 * - [in] options: may be NULL without a list on a CPU communicator; copied
 * - [out] pg: destroy it with tutti_pg_destroy()
 *
 * Returns INVALID (the communicator has not met; the list is empty, repeats a rank, has a rank out
 * of range, or lacks the caller; no store), DECLINED (the communicator is in strict mode, or
 * only one thread may use its fabric, or that is nccl:), CONCURRENT (the communicator is in use, or
 * has had its group), MISMATCH (members wait for each other with different lists; both get it, and
 * the message names both), TIMEOUT (a member did not come), PEER_DEAD (a member has exited),
 * ABORTED, NO_MEMORY, SYSTEM, CUDA, VERSION (an unknown option). Or an error of the store, or the
 * fault with which the communicator has failed. An error that ends the meeting ends it on all
 * members that have come; they may call again.
 */
TUTTI_API enum tutti_status
tutti_pg_create(tutti_comm_t *comm, const struct tutti_pg_options *options, tutti_pg_t **pg);
/*
 * Destroy the group. Local and bounded; takes NULL. Operations that all ranks have submitted get
 * 0.1 s to end; an operation that is exchanging data gets 1 s more. All others end with ABORTED;
 * peers that wait for this rank get PEER_DEAD. On several hosts the last packets of other ranks get
 * 1 s, too. When the call returns, all works are done and all callbacks have returned. In the child
 * of a fork() it does nothing.
 */
TUTTI_API void tutti_pg_destroy(tutti_pg_t *pg);
/*
 * Reduce the tensors of all ranks: first each rank's own, in list order, then across ranks. Every
 * tensor receives the result, element by element in memory order. The call returns at once; the
 * group's thread does the work, or a thread that waits for a work on the host. If the group's
 * thread naps and no thread waits, it begins, or goes on, at most 1 ms later. Until the work is
 * done the tensors must live, and nothing else may use them. Any thread may call.
 *
 * *Bits.* The result has the same bits on every rank. With one tensor a rank they are those of
 * tutti_all_reduce(). With several, each rank's own sum is also made in the accumulation type, as a
 * balanced tree in list order; the result is rounded once, at the end. An average is divided by the
 * number of ranks, not of tensors.
 *
 * *Checks.* Everything is checked before the operation gets its number in its tag; a refused call
 * gets none. Ranks may have different numbers of tensors. The dtype, op and layout (sizes, and
 * order in memory) must be equal on all ranks. Otherwise the operation ends with MISMATCH, which
 * names two ranks and what they have.
 *
 * *Status.* The work has its own status. Once it is done the status stays, whatever happens to the
 * group. tutti_work_wait_stream() and tutti_work_wait_host() with a negative time-out wait no
 * longer than the time-outs of the operation let it take.
 *
 * *Time-out.* It counts from the submission. If it passes before all ranks have submitted the
 * operation, the operation ends with TIMEOUT on all ranks, also on a rank that submits it later.
 * The error names a rank that had not submitted it; the tensors are unchanged, and the group goes
 * on. Of an operation that waits for 5 s or longer rank 0 logs the ranks that have not submitted
 * it. Two failures end the whole group: a rank that makes no progress inside an operation, for the
 * time-out of that operation; and a leader (rank 0) whose group thread does not answer for 5 s or,
 * if it is inside an operation, for 5 s and the group's time-out. All pending and later operations
 * then end with TIMEOUT. After a rank has destroyed its group or died, pending and later
 * collectives end with PEER_DEAD; messages between the other ranks go on, unless the rank died
 * while a collective waited. The tensors of operations that were exchanging data are then
 * undefined.
 *
 * *CUDA tensors.* In a group of a CUDA communicator the devices reduce one tensor on every rank, on
 * the rank's device, with the algorithms of tutti_all_reduce(). All others go through pinned host
 * memory; docs/streams.md has the table. The operation begins after the work that is on
 * options->stream at the call. TUTTI_STREAM_DEFAULT and TUTTI_STREAM_PER_THREAD are those of each
 * tensor's device; any other stream may be of any device. The host does not wait.
 * tutti_work_wait_stream() makes a stream wait for all results, and returns at once; there, too,
 * TUTTI_STREAM_DEFAULT is that of each tensor's device. The stream goes on however the operation
 * ends. The work is done once the results are on the devices. If the stream does not reach the
 * point of the call within the time-out, the operation ends with TIMEOUT on all ranks; its tensors
 * are unchanged. A copy or launch that fails, or lacks memory, ends the group. While a stream waits
 * for a work, avoid calls that make CUDA wait for all streams (cuMemFree, the first use of a
 * kernel), on all threads of the process, other ranks too: CUDA starts no copies meanwhile. If such
 * a call lasts for the time-out, the stream goes on without the result, and the work ends with
 * TIMEOUT. A stream that waits takes a hardware queue; a context has 8, or
 * CUDA_DEVICE_MAX_CONNECTIONS.
 *
 * - [in] tensors: 1 to TUTTI_MAX_TENSORS, of equal dtype, sizes and strides, disjoint; all on the
 *   CPU, or all on CUDA devices, at most 16 of them. All ranks use the same kind of device, else
 *   MISMATCH. The structs are copied. All kinds of CUDA memory except host memory
 * - [in] op: a created one may be destroyed after the call
 * - [in] options: NULL: tag 0, the group's time-out, no callback
 * - [out] work: destroy it with tutti_work_destroy(), done or not. May be NULL
 *
 * Returns INVALID (an empty list; tensors that differ, overlap or are not dense; an op that the
 * dtype lacks; memory that is not on the device that the tensor names, with both devices named;
 * after tutti_pg_destroy() began), DECLINED (no CUDA; the stream is being captured), NO_MEMORY,
 * CUDA, VERSION (an unknown option). Or the fault with which the group has ended: TIMEOUT,
 * PEER_DEAD, or ABORTED after tutti_comm_abort().
 *
 * Example:
 *
 *     int64_t sizes[] = {rows, columns};
 *     struct tutti_tensor tensor = {
 *         .struct_size = sizeof tensor, .data = x, .dtype = TUTTI_FLOAT32,
 *         .dims = 2, .sizes = sizes};
 *     struct tutti_pg_call_options options = {
 *         .struct_size = sizeof options, .tag = layer};
 *     tutti_pg_t *pg;
 *     tutti_work_t *work;
 *
 *     if (tutti_pg_create(comm, NULL, &pg) ||
 *         tutti_pg_all_reduce(pg, &tensor, 1, TUTTI_AVG, &options, &work))
 *         errx(1, "%s", tutti_last_error());
 *     // Other work here runs at the same time.
 *     if (tutti_work_wait_host(work, 0))
 *         errx(1, "%s", tutti_last_error());
 *     tutti_work_destroy(work);
 */
TUTTI_API enum tutti_status tutti_pg_all_reduce(tutti_pg_t *pg, const struct tutti_tensor *tensors,
                                                int count, tutti_op_t op,
                                                const struct tutti_pg_call_options *options,
                                                tutti_work_t **work);

/* ---- other collectives of a process group ---------------------------------------------------- */

/*
 * What tutti_pg_all_reduce() says of tags, checks, status, time-outs and failures holds. So does
 * what tutti_all_gather() and tutti_broadcast() say of what moves and of bits.
 *
 * *Operands.* `send` has the tensors that a rank sends, `recv` those that receive. In an operand of
 * one block per rank (recv of all-gather and gather, send of reduce-scatter and scatter, both of
 * all-to-all), a block for each rank is flat or a list:
 *
 * - flat: part r of one tensor, which has world_size times the elements of a block. All tensors of
 *   the pair are then row-major; their sizes are free
 * - a list: tensor r of world_size tensors, in rank order. They have the sizes and strides of the
 *   block; in an all-to-all they are row-major, of any length each.
 *
 * In any other operand the block is one tensor. On one rank an operand may be flat, on another a
 * list, except in an all-to-all. An operand that a rank does not have is ignored: send of a
 * broadcast or scatter on all ranks but the root, recv of a reduce or gather.
 *
 * *Pairs.* A call moves N pairs of operands, one after the other, as one operation: N tensors in an
 * operand of one block, N tensors or N lists in one of a block per rank. Pairs may differ in size,
 * not in dtype. An all-to-all has one pair.
 *
 * *In place.* This rank's block of send and of recv may be the same memory; in an all-to-all each
 * block of send that of recv. No other memory of recv overlaps anything.
 *
 * *Checks.* The dtype, the op, the root, the number of pairs and the layout of the blocks are equal
 * on all ranks. Otherwise the operation ends with MISMATCH, and the group goes on. Of an all-to-all
 * of lists, this includes the length of each block on both of its ranks.
 *
 * *CUDA tensors* have streams as in tutti_pg_all_reduce(). If all lie on the devices of a CUDA
 * communicator's ranks, the devices run the operation as that communicator would; blocks of a list
 * that do not lie side by side are copied on the device. Otherwise they go through pinned host
 * memory.
 *
 * - [in] send, send_count, recv, recv_count: at most TUTTI_MAX_TENSORS each, or a list of one for
 *   each rank; all on the CPU or all on CUDA devices. The structs, sizes and strides are copied
 * - [in] root: a rank of the group
 *
 * Returns what tutti_pg_all_reduce() does; DECLINED if a topology file leaves two ranks without a
 * link.
 */
TUTTI_API enum tutti_status tutti_pg_all_gather(tutti_pg_t *pg, const struct tutti_tensor *send,
                                                int send_count, const struct tutti_tensor *recv,
                                                int recv_count,
                                                const struct tutti_pg_call_options *options,
                                                tutti_work_t **work);
TUTTI_API enum tutti_status tutti_pg_reduce_scatter(tutti_pg_t *pg, const struct tutti_tensor *send,
                                                    int send_count, const struct tutti_tensor *recv,
                                                    int recv_count, tutti_op_t op,
                                                    const struct tutti_pg_call_options *options,
                                                    tutti_work_t **work);
TUTTI_API enum tutti_status tutti_pg_all_to_all(tutti_pg_t *pg, const struct tutti_tensor *send,
                                                int send_count, const struct tutti_tensor *recv,
                                                int recv_count,
                                                const struct tutti_pg_call_options *options,
                                                tutti_work_t **work);
TUTTI_API enum tutti_status tutti_pg_broadcast(tutti_pg_t *pg, const struct tutti_tensor *send,
                                               int send_count, const struct tutti_tensor *recv,
                                               int recv_count, int root,
                                               const struct tutti_pg_call_options *options,
                                               tutti_work_t **work);
TUTTI_API enum tutti_status tutti_pg_reduce(tutti_pg_t *pg, const struct tutti_tensor *send,
                                            int send_count, const struct tutti_tensor *recv,
                                            int recv_count, tutti_op_t op, int root,
                                            const struct tutti_pg_call_options *options,
                                            tutti_work_t **work);
TUTTI_API enum tutti_status tutti_pg_gather(tutti_pg_t *pg, const struct tutti_tensor *send,
                                            int send_count, const struct tutti_tensor *recv,
                                            int recv_count, int root,
                                            const struct tutti_pg_call_options *options,
                                            tutti_work_t **work);
TUTTI_API enum tutti_status tutti_pg_scatter(tutti_pg_t *pg, const struct tutti_tensor *send,
                                             int send_count, const struct tutti_tensor *recv,
                                             int recv_count, int root,
                                             const struct tutti_pg_call_options *options,
                                             tutti_work_t **work);
/* The work is done once all ranks have called this. It has no tensors, and options->stream is
 * TUTTI_STREAM_DEFAULT. Returns what tutti_pg_all_reduce() does. */
TUTTI_API enum tutti_status
tutti_pg_barrier(tutti_pg_t *pg, const struct tutti_pg_call_options *options, tutti_work_t **work);

/* ---- messages of a process group ------------------------------------------------------------- */

/* As the peer of a receive: any rank. */
#define TUTTI_ANY_SOURCE (-1)

/*
 * Send a tensor to a rank of the group, also to the caller; receive one. A send and a receive match
 * if the tags are equal, and the sender is the receive's peer or that is TUTTI_ANY_SOURCE. Messages
 * of one sender, receiver and tag are received in the order of their submission; all others in any
 * order. No other rank takes part. Messages move while collectives of the group wait for a rank,
 * and have tags and numbers of their own. What tutti_pg_all_reduce() says of operands, works and
 * failures holds.
 *
 * The work of a send is done when the tensor may be reused. A rank keeps at least 16 messages of at
 * most 1024 bytes from each rank that no receive has matched. The send of such a message is done at
 * once; any other send waits for its receive. So two ranks may wait for a short send, but not for a
 * long one, before they receive; submit both first.
 *
 * The elements move in the order in memory. The dtype and the number of elements are equal on both
 * ranks; otherwise the receive ends with MISMATCH, and so does a send that has waited for it. The
 * group goes on.
 *
 * *Time-out.* If it passes before the operation has been matched, the operation ends with TIMEOUT.
 * A send whose receive has matched meanwhile may end so, too. Both ends have their own time-outs.
 * Once data move, the group ends if a rank makes no progress for the time-out.
 *
 * *Exit.* A message whose peer has destroyed its group or died ends with PEER_DEAD; a receive from
 * TUTTI_ANY_SOURCE does so once no other rank is left. A message whose send was done is received
 * all the same.
 *
 * *CUDA tensors* go through pinned host memory, with streams as in tutti_pg_all_reduce(). One end
 * may be on the CPU. If the stream does not reach the point of the call within the time-out, that
 * work alone ends with TIMEOUT. A copy that fails, or lacks memory, ends the work with its status,
 * and the group goes on.
 *
 * - [in] tensor: copied
 * - [in] peer: a rank of the group
 *
 * Returns what tutti_pg_all_reduce() does; DECLINED also if a topology file leaves two ranks
 * without a link.
 *
 * Example, a rank that serves the others, whoever sends first; examples/workers.c is a complete
 * program:
 *
 *     if (tutti_pg_recv(pg, &request, TUTTI_ANY_SOURCE, NULL, &work) ||
 *         tutti_work_wait_host(work, 0))
 *         errx(1, "%s", tutti_last_error());
 *     int from = tutti_work_source(work);
 *     tutti_work_destroy(work);
 *     if (tutti_pg_send(pg, &answer, from, NULL, &work) ||
 *         tutti_work_wait_host(work, 0))
 *         errx(1, "%s", tutti_last_error());
 *     tutti_work_destroy(work);
 */
TUTTI_API enum tutti_status tutti_pg_send(tutti_pg_t *pg, const struct tutti_tensor *tensor,
                                          int peer, const struct tutti_pg_call_options *options,
                                          tutti_work_t **work);
TUTTI_API enum tutti_status tutti_pg_recv(tutti_pg_t *pg, const struct tutti_tensor *tensor,
                                          int peer, const struct tutti_pg_call_options *options,
                                          tutti_work_t **work);
/* The sender of what a receive that is done, or whose callback runs, has received. -1 if it ended
 * unmatched, and for any other work. */
TUTTI_API int tutti_work_source(const tutti_work_t *work);

/* ---- sums of sparse tensors ------------------------------------------------------------------ */

/*
 * A tensor of sparse_dim + dense_dim dimensions in coordinate form (COO). It has nnz entries. An
 * entry has an index, one number per sparse dimension, and a row of `dense sizes` elements. Entry i
 * has the index indices[i], indices[nnz + i], indices[2 * nnz + i]..., and its row is row i of
 * `values`. Entries may come in any order. The value at an index is the sum of its entries, zero
 * without an entry. A tensor is coalesced if the indices ascend strictly in lexicographic order.
 *
 * There are at most TUTTI_MAX_DIMS dimensions. Without sparse dimensions there is one index, the
 * empty one; without dense dimensions a row is one element. Sizes may be 0; otherwise the product
 * of the sparse sizes is below 2^63.
 */
struct tutti_sparse_tensor {
    size_t struct_size;
    enum tutti_dtype dtype;
    enum tutti_device device;
    int sparse_dim;
    int dense_dim;
    const int64_t *sizes;   /* of the sparse dimensions, then of the dense ones */
    size_t nnz;             /* number of entries; may be 0 */
    const int64_t *indices; /* sparse_dim x nnz; may be NULL if that is 0 */
    const void *values;     /* nnz rows; may be NULL if they have no elements */
    int device_index;       /* of a CUDA tensor: the device's number in this process */
};

/*
 * Sum the sparse tensors of all ranks: first each rank's own, then across ranks. All inputs give
 * one result, in memory of the work: tutti_work_sparse_result(). Ranks may have any number of
 * tensors and of entries, also none. The dtype, the numbers of sparse and of dense dimensions, and
 * the sizes must be equal on all ranks. Otherwise the operation ends with MISMATCH, which names two
 * ranks and what they have; the group goes on.
 *
 * The call checks the indices of CPU tensors, in one pass of 0.5 ns an index; the group's thread
 * does the rest. Until the work is done, indices and values must live, and nothing may write to
 * them; the library only reads them. Tags, order, time-outs and failures are those of
 * tutti_pg_all_reduce(). If a rank lacks memory, the operation ends on all ranks with that rank's
 * status; if it lacks memory for the result only, the operation ends on that rank alone.
 *
 * *Bits.* The result has the same bits on every rank. A rank's own rows of one index are added one
 * by one, inputs in list order, then entries in order of appearance, in the accumulation type, and
 * rounded once; a single row is kept as it is. Across ranks the rows are added by the tree of
 * tutti_all_reduce(), without the ranks that lack the index, and rounded once. So the result is
 * that of a dense sum of the coalesced tensors, with one exception: -0 stays -0 if the ranks that
 * have the entry have only -0. A sum that is zero remains an entry.
 *
 * *Memory.* Until it is destroyed the group keeps memory for the largest sums so far: two segments
 * of 1.25 times this rank's entries, which all ranks map; 32 bytes per entry of all ranks; and up
 * to four results.
 *
 * *CUDA tensors* go through pinned host memory, which the group keeps. Their entries are copied to
 * the host after the work that is on options->stream at the call, and only then are the indices
 * read. So an index outside the sizes is not refused by the call: it ends the operation with
 * INVALID on all ranks, with the rank named. A copy that fails or lacks memory ends it in the same
 * way, with its status. The group goes on. The result is in memory of the first tensor's device.
 * The work owns it; the group reuses it once the work is destroyed, so streams that read it must
 * have done so by then. It is freed with the group. The work is done once the result is on the
 * device; streams wait for it as in tutti_pg_all_reduce().
 *
 * - [in] tensors: 1 to TUTTI_MAX_TENSORS, of equal dtype and sizes; they may share memory. All on
 *   the CPU, or all on CUDA devices, at most 16 of them. All ranks use the same kind of device,
 *   else MISMATCH. The structs and sizes are copied
 * - [in] options, work: as for tutti_pg_all_reduce()
 *
 * Returns what tutti_pg_all_reduce() does. INVALID also names an index of a CPU tensor that is
 * outside the sizes.
 */
TUTTI_API enum tutti_status
tutti_pg_all_reduce_sparse(tutti_pg_t *pg, const struct tutti_sparse_tensor *tensors, int count,
                           const struct tutti_pg_call_options *options, tutti_work_t **work);
/*
 * Sets *tensor to the coalesced result of a work that succeeded; also during its callback. The
 * caller sets tensor->struct_size. The arrays belong to the work and are valid until it is
 * destroyed. Any number of threads or streams may read them. To keep the result, keep the work or
 * copy the arrays. `sizes` is always in host memory.
 *
 * Returns INVALID (the work is no sparse sum, or is not done). Or the status with which it ended.
 */
TUTTI_API enum tutti_status tutti_work_sparse_result(tutti_work_t *work,
                                                     struct tutti_sparse_tensor *tensor);
/* The inputs of a sparse sum, in list order, with copies of their sizes; valid until the work is
 * destroyed. Each struct lies struct_size bytes after the one before; the size is the library's.
 * Any other work has none. Returns INVALID. */
TUTTI_API enum tutti_status tutti_work_sparse_tensors(const tutti_work_t *work,
                                                      const struct tutti_sparse_tensor **tensors,
                                                      int *count);

/* ---- what a process group's work says of itself ---------------------------------------------- */

/* Fills *fault, which may be NULL; the caller sets struct_size. There `peer` is the rank that
 * failed or disagrees, `rank` the one that noticed, `sequence` the number of the operation in its
 * tag. tutti_last_error() has the text. Does not wait. Returns OK before the work is done, or if it
 * succeeded; otherwise its status, also during its callback: INVALID, TIMEOUT, PEER_DEAD, MISMATCH,
 * ABORTED; for a sparse sum also NO_MEMORY, SYSTEM, TUTTI_ERR_CUDA. */
TUTTI_API enum tutti_status tutti_work_fault(tutti_work_t *work, struct tutti_fault *fault);
/* The work's title, valid until it is destroyed: "all_reduce of 2 x 12 float32, sum", "broadcast of
 * 2 x 12 float32, root 0" (pairs, and elements of the first one's block), "all_to_all of lists of
 * float32", "all_reduce_sparse of 100 x 64 float32, sum" (entries, and elements of a row),
 * "barrier", or "point". For NULL this function and those below return NULL or 0. */
TUTTI_API const char *tutti_work_title(const tutti_work_t *work);
/* The collective: all-reduce also for a sparse sum; 0 for a point. */
TUTTI_API enum tutti_collective tutti_work_collective(const tutti_work_t *work);
/* The tag, and the number of the operation in its tag, from 1; of a message, among all of this
 * rank. Both are 0 for a point. */
TUTTI_API uint32_t tutti_work_tag(const tutti_work_t *work);
TUTTI_API uint64_t tutti_work_sequence(const tutti_work_t *work);
/* The work's dense tensors, in list order, first those of send, then those of recv, with copies of
 * their sizes and strides; valid until the work is destroyed. Each struct lies struct_size bytes
 * after the one before; the size is the library's. A point or a sparse sum has none. Returns
 * INVALID. */
TUTTI_API enum tutti_status tutti_work_tensors(const tutti_work_t *work,
                                               const struct tutti_tensor **tensors, int *count);

#ifdef __cplusplus
}
#endif

#endif
