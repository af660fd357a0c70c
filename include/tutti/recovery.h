/* SPDX-License-Identifier: MIT */
/*
 * Going on without ranks that are gone. The conventions are those of tutti.h; docs/design.md says
 * how it is done.
 */
#ifndef TUTTI_RECOVERY_H
#define TUTTI_RECOVERY_H

#include "tutti/tutti.h"

#ifdef __cplusplus
extern "C" {
#endif

struct tutti_shrink_options {
    size_t struct_size;
    /* Ranks of the old communicator that are to be left out, besides those that are gone (whose
     * process has ended, or that have destroyed the communicator). Not the caller. Read during the
     * call. */
    const int *exclude; /* may be NULL */
    int exclude_count;
    int64_t timeout_ms; /* of the whole call; 0: the old communicator's */
};

/* What came of it. Numbers of operations are those of struct tutti_fault. */
struct tutti_shrink_result {
    size_t struct_size;
    int rank; /* the caller's in the new communicator; -1 without one, as are the next two */
    int world_size;
    int new_ranks[TUTTI_MAX_RANKS]; /* [old rank]; -1: left out */
    /* The last operation of the old communicator that all ranks of the new one have completed, and
     * the last that any of them has: one more at most, on CPU. If they differ, repeat what lies
     * between. 0 is none. On CUDA replays count; where a barrier of a subset was ended, the
     * operation before it may count as not completed. */
    uint64_t completed_by_all;
    uint64_t completed_by_any;
    int rounds;      /* 1, and one more each time that ranks died on the way; 0: none began */
    uint64_t absent; /* of TIMEOUT: bit r is old rank r, which did not call; else 0 */
};

/*
 * Makes a new communicator of the ranks that are left of one that has failed, was aborted, or is
 * well. Collective over them: each calls it for itself, none being inside the old communicator. It
 * need not know who else is gone, nor name the same ranks: whom one rank excludes, or finds gone,
 * is left out by all. The others are awaited; one that dies meanwhile is left out as well, in a new
 * round.
 *
 * The new communicator has the old one's name, device, options and time-out, a generation of its
 * own, and the ranks in their old order, without holes; so has a leaf order that was given. The
 * links are looked at anew; a matrix from TUTTI_TOPOLOGY_FILE loses rows and columns. A forced
 * algorithm that the links no longer allow gives way to the measured choice. Operations count from
 * 1 again.
 *
 * Once it is there the old one is over, if it was not before, on every rank: its operations return
 * ABORTED, also those of a rank that was left out and lives. It is still to be destroyed. On CUDA
 * the old one's operations under way get 0.1 s to end, then their waits do; its graphs may be
 * launched, and do nothing. Works of the old one stay what they are. A process group is destroyed
 * first. Symmetric memory has groups of its own, which know nothing of communicators: that of a
 * group which has lost a rank is of use as ordinary memory.
 *
 * If no new communicator came of it, on any rank, the ranks may call again, on the same store.
 * tutti_comm_abort() of the old communicator ends the call, on all ranks.
 *
 * - [in] comm: has met. One call at a time
 * - [in] store: another handle to what the old one met on, or any other that all have in common;
 *   it must have outlived the ranks that are gone. Borrowed during the call
 * - [in] options: may be NULL
 * - [out] shrunk: to be destroyed with tutti_comm_destroy()
 * - [out] result: may be NULL; struct_size is the caller's. Filled also after a failure
 *
 * Returns INVALID (the communicator has an heir already, too), DECLINED (the others go on without
 * this rank; on CUDA: one rank is left, also what tutti_comm_create() declines), TIMEOUT (names who
 * did not come), PEER_DEAD, ABORTED, CONCURRENT (an operation is under way, or a process group
 * lives), MISMATCH, NO_MEMORY, SYSTEM (the store is gone, too), CUDA, VERSION (an unknown option),
 * or what a caller's own store returns.
 */
TUTTI_API enum tutti_status tutti_comm_shrink(tutti_comm_t *comm, tutti_store_t *store,
                                              const struct tutti_shrink_options *options,
                                              tutti_comm_t **shrunk,
                                              struct tutti_shrink_result *result);

#ifdef __cplusplus
}
#endif

#endif
