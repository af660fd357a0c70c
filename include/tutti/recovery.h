/* SPDX-License-Identifier: MIT */
/* Recovery. The conventions are those of tutti.h; docs/design.md says how it works. */
#ifndef TUTTI_RECOVERY_H
#define TUTTI_RECOVERY_H

#include "tutti/tutti.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- continue without ranks that have ended -------------------------------------------------- */

struct tutti_shrink_options {
    size_t struct_size;
    /* Ranks of the old communicator to leave out, not the caller. Ranks whose process has ended, or
     * that have destroyed the communicator, are left out anyway. Borrowed during the call. */
    const int *exclude; /* may be NULL */
    int exclude_count;
    int64_t timeout_ms; /* of the whole call; 0: the old communicator's time-out */
};

enum tutti_shrink_rank {
    TUTTI_SHRINK_LEFT_OUT = -1, /* also if there is no new communicator */
    TUTTI_SHRINK_ABSENT = -2,   /* after TIMEOUT: the rank did not call */
};

/* The result. Operations are numbered as in struct tutti_fault. */
struct tutti_shrink_result {
    size_t struct_size;
    int rank;       /* the caller's in the new communicator; -1: there is none */
    int world_size; /* of the new communicator; -1: there is none */
    /* The last operation of the old communicator that all ranks of the new one have completed; 0 is
     * none. If completed_by_any differs, repeat the operations in between. On CPU this is at most
     * one. On CUDA launches of graphs count. There, if a subset barrier was ended, the operation
     * before it may count as not completed. */
    uint64_t completed_by_all;
    uint64_t completed_by_any; /* the last operation that any of them has completed */
    int rounds; /* 1, and one more each time that ranks died during the call; 0: none began */
    /* The caller sets capacity, at least the old world size, and new_ranks, an array of that many
     * elements, or NULL and 0. The call sets new_ranks[old rank] to the new rank or to a value of
     * enum tutti_shrink_rank. */
    int capacity;
    int *new_ranks;
};

/*
 * Creates a new communicator of the remaining ranks of one that has failed, was aborted, or still
 * works. Collective over the remaining ranks: each calls it, and none is in another call on the old
 * communicator. A rank need not know which other ranks have ended, and the ranks need not exclude
 * the same ones. A rank that any caller excludes, or finds ended, is left out. The call waits for
 * all others. A rank that dies during the call is left out in a new round. If a rank does not call,
 * all get TIMEOUT, and new_ranks names it: call again, and exclude it if need be.
 *
 * The new communicator has the old one's name, device, options and time-out, and its own
 * generation. Its ranks are in the old order, numbered without gaps; so is a leaf order that was
 * given. The links are determined again; a matrix from TUTTI_TOPOLOGY_FILE loses the rows and
 * columns of ranks that are left out. If the links no longer allow a forced algorithm, the measured
 * choice is used. Operations count from 1 again.
 *
 * After success the old communicator no longer works on any rank: its operations return ABORTED,
 * also on a live rank that was left out. It must still be destroyed. On CUDA its operations under
 * way get 0.1 s to end, then their waits are ended; its graphs may be launched and do nothing.
 * Works of the old communicator keep their status. Its process group must be destroyed first.
 * Groups of symmetric memory do not depend on communicators; the memory of a group that has lost a
 * rank still serves as ordinary memory.
 *
 * If the call fails on all ranks, the ranks may call again, on the same store. tutti_comm_abort()
 * of the old communicator ends the call on all ranks.
 *
 * - [in] comm: has met. One call at a time
 * - [in] store: another handle to the store of the old communicator, or to any other store that all
 *   remaining ranks can reach. Its server must still live: one that rank 0 served has ended with
 *   it, so use "file:PATH", or a store that another process serves, such as torchrun's agent.
 *   Borrowed during the call, by ranks on several hosts until the new communicator is destroyed.
 *   These learn of the death of a host's last rank by the old communicator's store, if that is a
 *   tcp store of Tutti's; with any other one, exclude such a rank
 * - [in] options: may be NULL
 * - [out] shrunk: destroy it with tutti_comm_destroy()
 * - [in,out] result: may be NULL. Filled also after a failure
 *
 * Returns INVALID (an argument is wrong; the communicator has not met, was finalized or was already
 * shrunk), DECLINED (the others continue without this rank; on CUDA also what tutti_comm_create()
 * declines), TIMEOUT (ranks did not call or stopped, or the store did not answer; the message names
 * the ranks. On CUDA also: an operation of the old communicator does not end), PEER_DEAD, ABORTED
 * (a rank aborted the old communicator; the message names it), CONCURRENT
 * (an operation is under way, or a process group exists), MISMATCH, NO_MEMORY, SYSTEM (also if the
 * store's server has ended), CUDA, VERSION (an unknown option). A caller's own store may return
 * other statuses.
 *
 * Example: go on without a rank that ended; examples/survive.c is a complete program, started with
 * `tutti run` --wait:
 *
 *     struct tutti_shrink_result result = {.struct_size = sizeof result};
 *     tutti_comm_t *shrunk;
 *
 *     if (tutti_all_reduce(x, y, count, TUTTI_FLOAT32, TUTTI_SUM, comm, stream)) {
 *         if (tutti_comm_shrink(comm, store, NULL, &shrunk, &result))
 *             errx(1, "%s", tutti_last_error());
 *         tutti_comm_destroy(comm);
 *         comm = shrunk;
 *         // x is unchanged: repeat from operation result.completed_by_all + 1
 *     }
 */
TUTTI_API enum tutti_status tutti_comm_shrink(tutti_comm_t *comm, tutti_store_t *store,
                                              const struct tutti_shrink_options *options,
                                              tutti_comm_t **shrunk,
                                              struct tutti_shrink_result *result);

#ifdef __cplusplus
}
#endif

#endif
