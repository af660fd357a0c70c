/* SPDX-License-Identifier: MIT */
/*
 * Process groups: asynchronous operations on tensors, with tags. The conventions are those of
 * tutti.h; docs/streams.md says what is ordered with what, docs/design.md how it is done.
 */
#ifndef TUTTI_PG_H
#define TUTTI_PG_H

#include "tutti/tutti.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- tensors --------------------------------------------------------------------------------- */

#define TUTTI_MAX_DIMS 16

/*
 * A dense tensor in memory of the host or of a device: `dims` extents and, in elements, strides.
 * Element (i, j,
 * ...) is data[i * strides[0] + j * strides[1] + ...]. Dense and not overlapping: the dimensions in
 * any order, without holes. Where an extent is 1 the stride does not matter, where one is 0 none
 * does.
 */
struct tutti_tensor {
    size_t struct_size; /* of this header */
    void *data;         /* may be NULL if there is no element */
    enum tutti_dtype dtype;
    enum tutti_device device;
    int dims; /* 0 to TUTTI_MAX_DIMS; 0 is one element */
    const int64_t *sizes;
    const int64_t *strides; /* NULL: the last dimension is the fastest */
    int device_index;       /* of a CUDA tensor: the device's number in this process */
};

/* ---- process group --------------------------------------------------------------------------- */

/*
 * Asynchronous operations of a communicator's ranks. Operations of one tag happen in the order in
 * which they were submitted; those of different tags as soon as all ranks have submitted them, in
 * whatever order each rank did.
 */
typedef struct tutti_pg tutti_pg_t;

#define TUTTI_MAX_TENSORS 64

struct tutti_pg_options {
    size_t struct_size;
    int64_t timeout_ms; /* of each operation; 0: the communicator's */
    /* The members, ranks of the communicator; equal on all of them, in any order, which is that of
     * their numbers in the group, from 0, and of its sums. NULL: all ranks. Read during the call.
     */
    const int *ranks;
    int rank_count;       /* 0 with NULL */
    tutti_store_t *store; /* on which the members meet, if they do; used during the call */
    /* Of each rank that share the reduction of large CUDA tensors by the hosts, the group's own
     * among them, up to 16; 0: up to 8, on half of the cores. Where there are several one more has
     * the copies done. Ranks may differ. */
    int threads;
};

/*
 * Called once, by the group's thread, when the operation has ended, and before anybody else finds
 * it done: so what the callback uses may go once the work is done. The work is valid during the
 * call, even if its handle was destroyed; tutti_work_test() says that it is not done. The callback
 * may submit to the group; it must neither wait for one of its works, nor have CUDA wait for a
 * stream, nor destroy the group, and keeps later operations waiting.
 */
typedef void tutti_pg_callback(void *context, tutti_work_t *work, enum tutti_status status);

struct tutti_pg_call_options {
    size_t struct_size;
    uint32_t tag;
    int64_t timeout_ms;          /* 0: the group's */
    tutti_pg_callback *callback; /* may be NULL */
    void *context;               /* borrowed until the callback has returned */
    tutti_stream_t stream;       /* of CUDA tensors: behind what is on it now; see below */
};

/*
 * Makes a process group of the communicator's ranks, or of some. Starts a thread.
 *
 * *Without a list, on a CPU communicator:* local. Each rank does it once in the life of its
 * communicator, which from now on serves the group alone (others get CONCURRENT), and is destroyed
 * after it.
 *
 * *With a list, even of all ranks, or on a CUDA communicator:* collective among the members, who
 * meet on a store that all of them reach, such as that of the communicator. The group takes nothing
 * of the communicator: that goes on, may have any number of such groups at once, of the same ranks
 * too, and may be destroyed before them. A rank makes one at a time (CONCURRENT for other threads),
 * and members of several make them in the same order. The group's time-out bounds the meeting, and
 * tutti_comm_abort() of the communicator ends it. Errors of this call name the communicator's
 * ranks, those of the group's operations, and struct tutti_fault, the group's numbers. Of a CUDA
 * communicator the group has one more of the devices, as large as that, or, where that cannot be
 * had, goes through the host.
 *
 * If a CUDA context is current, what tensors of its device need is made now; else with their first
 * operation, which may then wait for kernels that run there.
 *
 * - [in] comm: has met, and has not failed; not in strict mode
 * - [in] options: may be NULL without a list on a CPU communicator; copied
 * - [out] pg: to be destroyed with tutti_pg_destroy()
 *
 * Returns INVALID (a list that is empty, has a rank twice, one out of range, or lacks the caller;
 * no store), DECLINED (a strict communicator), CONCURRENT (the communicator is in use, or has had
 * its group), MISMATCH (members that wait for each other with different lists: on both), TIMEOUT (a
 * member did not come), PEER_DEAD (one is gone), ABORTED, NO_MEMORY, SYSTEM, CUDA, VERSION (an
 * unknown option), what a store does, or the fault with which the communicator has failed. What
 * ends the meeting ends it on all members that have come; they may call again.
 */
TUTTI_API enum tutti_status
tutti_pg_create(tutti_comm_t *comm, const struct tutti_pg_options *options, tutti_pg_t **pg);
/*
 * Local and bounded, takes NULL. Operations that all ranks have submitted get 0.1 s to end; an
 * operation amid its data 1 s more. The others end with ABORTED; peers that wait for this rank get
 * PEER_DEAD. When it returns all works are done and all callbacks have returned. In the child of a
 * fork() it frees the copy of the handle.
 */
TUTTI_API void tutti_pg_destroy(tutti_pg_t *pg);
/*
 * Reduces the tensors of all ranks, each rank's own first, in list order, then across ranks; every
 * tensor receives the result, element by element in memory order. Returns at once: the group's
 * thread does it, at the latest 1 ms later if it naps and nobody waits for a work. Until the work
 * is done the tensors live, and nobody else touches them. From any thread.
 *
 * The same bits on every rank. With one tensor a rank they are those of tutti_all_reduce(). With
 * more the ranks' own sums, too, are made in the accumulation type, as balanced trees in list
 * order, and rounded once, at the very end. An average is divided by the number of ranks, not of
 * tensors.
 *
 * All is checked before the operation takes its place in its tag; what is refused has taken none.
 * Ranks may have different numbers of tensors; dtype, op and layout (sizes, and order in memory)
 * are equal on all, else the operation ends with MISMATCH, which names two ranks and what they
 * have.
 *
 * The work has a status of its own: once it is done it stays as it is, whatever becomes of the
 * group. tutti_work_wait() and tutti_work_result() with a negative time-out wait no longer than the
 * operation's own time-outs let it take.
 *
 * The time-out counts from now on. If it ends before all ranks have submitted the operation, that
 * ends with TIMEOUT on all ranks, on one that submits it later as well, which names one that had
 * not; tensors are as they were, and the group goes on. A rank that stops amid the data, or a
 * leader (rank 0) whose group's thread does not answer for 5 s, ends the group: TIMEOUT for all
 * that is under way or comes later, as does PEER_DEAD. Then tensors of operations whose data was on
 * its way are undefined.
 *
 * CUDA tensors go through pinned memory of the host; but in a group of a CUDA communicator what is
 * one tensor on every rank, on the rank's device, is reduced by the devices, with the algorithms of
 * tutti_all_reduce(): docs/streams.md has the table. The operation begins behind
 * what is on options->stream at the call; TUTTI_STREAM_DEFAULT and TUTTI_STREAM_PER_THREAD are
 * those of each tensor's device, any other stream may be of any device. The host waits nowhere:
 * tutti_work_wait() has the stream that it names wait for all results, at once, whatever becomes of
 * the operation; there, too, TUTTI_STREAM_DEFAULT is that of each of the tensors' devices. The work
 * is done once the results are on the devices. An operation whose stream does not come to it within
 * the time-out ends with TIMEOUT on all ranks, its tensors untouched. A copy that fails, or lacks
 * memory, ends the group. While a stream waits for a work nobody should call what has CUDA wait for
 * all streams (cuMemFree, the first use of a kernel): CUDA begins no copies then, and if that lasts
 * for the time-out the stream goes on without the result, and the work ends with TIMEOUT.
 *
 * - [in] tensors: 1 to TUTTI_MAX_TENSORS, of equal dtype, sizes and strides, disjoint, on the CPU
 *   all or on CUDA devices all, at most 16, and so on every rank, else MISMATCH; the structs are
 *   copied. All kinds of CUDA memory but the host's
 * - [in] op: a created one may be destroyed after the call
 * - [in] options: NULL is tag 0, the group's time-out, no callback
 * - [out] work: to be destroyed with tutti_work_destroy(), done or not. May be NULL
 *
 * Returns INVALID (an empty list, tensors that differ, overlap or are not dense, an op that the
 * dtype lacks, memory that is not where the tensor is said to be: both devices named; also after
 * tutti_pg_destroy() began), DECLINED (no CUDA; the stream is being captured), NO_MEMORY, CUDA,
 * VERSION (an unknown option), or the fault with which the group has ended.
 */
TUTTI_API enum tutti_status tutti_pg_all_reduce(tutti_pg_t *pg, const struct tutti_tensor *tensors,
                                                int count, tutti_op_t op,
                                                const struct tutti_pg_call_options *options,
                                                tutti_work_t **work);

/* ---- sparse tensors -------------------------------------------------------------------------- */

/*
 * A tensor of sparse_dim + dense_dim dimensions in coordinate form (COO): nnz entries, each an
 * index, one number a sparse dimension, and a row, `dense sizes` elements. Entry i has the index
 * indices[i], indices[nnz + i], indices[2 * nnz + i]... and the row at values + i rows. Entries
 * come in any order, and several of one index count as their sum; what has none is zero.
 * *Coalesced*: the indices ascend, lexicographically, each above the one before.
 *
 * Any number of dimensions: without sparse ones there is one index, the empty one, without dense
 * ones a row is one element. Sizes may be 0.
 */
struct tutti_sparse_tensor {
    size_t struct_size; /* of this header */
    enum tutti_dtype dtype;
    enum tutti_device device;
    int sparse_dim;
    int dense_dim;
    const int64_t *sizes;   /* of the sparse dimensions, then of the dense ones */
    size_t nnz;             /* from 0 */
    const int64_t *indices; /* sparse_dim x nnz; may be NULL if there is none */
    const void *values;     /* nnz rows; may be NULL if there is no element */
    int device_index;       /* of a CUDA tensor: the device's number in this process */
};

/*
 * The sum of the sparse tensors of all ranks: of each rank's own first, then across ranks. It is
 * one tensor for all inputs, in memory of the work's: tutti_work_sparse_result(). Ranks may have
 * any numbers of tensors and of entries, none too; dtype, numbers of sparse and of dense
 * dimensions, and sizes are equal on all, else the operation ends with MISMATCH, which names two
 * ranks and what they have, and the group goes on.
 *
 * Returns at once but, of CPU tensors, for one pass over the indices, which are checked here (0.5
 * ns each); the group's thread does the rest. Until the work is done indices and values live, and
 * nobody writes to them; they are not written to. Tags, order, time-outs and failures are those of
 * tutti_pg_all_reduce(); where a rank lacks memory all ranks' operation ends with its status, but
 * for the result itself, for want of which it ends on that rank alone.
 *
 * The same bits on every rank. A rank's own rows of one index are added one by one, inputs in list
 * order, then entries in order of appearance, in the accumulation type, and rounded once; a row
 * that is alone stays as it is. Across ranks it is the tree of tutti_all_reduce() without the ranks
 * that lack the index, rounded once. So it is what a dense sum of the coalesced tensors gives, but
 * that -0 stays -0 where the ranks that have the entry have nothing else. Sums that come out as
 * zero remain entries.
 *
 * Until it ends the group keeps memory of the largest sums so far: two segments of 1.25 times this
 * rank's entries, which all ranks map, 32 bytes an entry of all ranks, and up to four results.
 *
 * CUDA tensors go through pinned memory of the host, which the group keeps: behind what is on
 * options->stream at the call their entries are copied there, and only then are the indices read.
 * So an index outside the sizes is no refusal, but ends the operation with INVALID, on all ranks,
 * by name, as does a copy that fails or lacks memory with its status; the group goes on. The result
 * is memory of the first tensor's device, which the work owns, and which is used again by the group
 * once the work is destroyed: by then streams that read it have passed it. It is freed with the
 * group: there is as much as works have held at a time. The work is done once
 * the result is on the device, and streams wait for it as in tutti_pg_all_reduce().
 *
 * - [in] tensors: 1 to TUTTI_MAX_TENSORS, of equal dtype and sizes; they may share memory. On the
 *   CPU all or on CUDA devices all, at most 16, and so on every rank, else MISMATCH. The structs
 *   and sizes are copied
 * - [in] options, [out] work: as for tutti_pg_all_reduce()
 *
 * Returns what tutti_pg_all_reduce() does; INVALID is also an index outside the sizes of CPU
 * tensors, by name.
 */
TUTTI_API enum tutti_status
tutti_pg_all_reduce_sparse(tutti_pg_t *pg, const struct tutti_sparse_tensor *tensors, int count,
                           const struct tutti_pg_call_options *options, tutti_work_t **work);
/*
 * The result, coalesced, of a work that ended well; during its callback, too. What it points to
 * belongs to the work, is valid until the destroy, and may be read by any number of threads, or
 * streams: who wants to keep it keeps the work, or copies it. `sizes` is the host's in any case.
 *
 * - [out] tensor: struct_size is the caller's
 *
 * Returns INVALID (the work is no sparse sum, or not done), or the status with which it ended.
 */
TUTTI_API enum tutti_status tutti_work_sparse_result(tutti_work_t *work,
                                                     struct tutti_sparse_tensor *tensor);
/* The inputs of a sparse sum, in list order, with copies of their sizes, valid until the destroy;
 * none of any other work. Returns INVALID. */
TUTTI_API enum tutti_status tutti_work_sparse_tensors(const tutti_work_t *work,
                                                      const struct tutti_sparse_tensor **tensors,
                                                      int *count);

/* ---- what a work says of itself -------------------------------------------------------------- */

/* OK while the work is not done, or if it ended well; else its status, with the ranks in *fault
 * (may be NULL; struct_size is the caller's): `peer` is the one that failed, or disagrees, `rank`
 * the one that noticed, `sequence` of a group's operation counts within its tag. The sentence is
 * tutti_last_error(). Does not wait. Returns INVALID, TIMEOUT, PEER_DEAD, MISMATCH, ABORTED; of a
 * sparse sum NO_MEMORY, SYSTEM, CUDA, too. */
TUTTI_API enum tutti_status tutti_work_fault(tutti_work_t *work, struct tutti_fault *fault);
/* Valid until the destroy: what the work is, "all_reduce of 2 x 12 float32, sum",
 * "all_reduce_sparse of 100 x 64 float32, sum" (entries, and elements of a row), or "point". NULL
 * for NULL, here and below. */
TUTTI_API const char *tutti_work_title(const tutti_work_t *work);
/* Which operation it is, of a sparse sum all-reduce as well; 0 for a point. */
TUTTI_API enum tutti_collective tutti_work_collective(const tutti_work_t *work);
/* The tag, and the operation's number among those of the tag, from 1; 0 for a point, both. */
TUTTI_API uint32_t tutti_work_tag(const tutti_work_t *work);
TUTTI_API uint64_t tutti_work_sequence(const tutti_work_t *work);
/* The work's dense tensors, in list order, with copies of their sizes and strides, valid until the
 * destroy; none for a point or a sparse sum. Returns INVALID. */
TUTTI_API enum tutti_status tutti_work_tensors(const tutti_work_t *work,
                                               const struct tutti_tensor **tensors, int *count);

#ifdef __cplusplus
}
#endif

#endif
