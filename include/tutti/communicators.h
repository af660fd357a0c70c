/* SPDX-License-Identifier: MIT */
/* Communicators made of communicators. Part of tutti.h, whose conventions hold. */
#ifndef TUTTI_COMMUNICATORS_H
#define TUTTI_COMMUNICATORS_H

#include "tutti/tutti.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- make communicators of a communicator's ranks -------------------------------------------- */

/* The color of a rank that gets no communicator. */
#define TUTTI_NO_COLOR (-1)

/*
 * Splits a communicator: the ranks that pass one color form a communicator, in the order of their
 * keys, and of their ranks in comm where keys are equal. Collective over all ranks of comm, as an
 * operation of it: its time-out holds, and a rank that calls something else gives MISMATCH. The
 * ranks use what joins them already: no store, no socket, no file. Ranks of several hosts meet on
 * comm's store, which outlives the new communicator, and use comm's fabric.
 *
 * The new communicator does not depend on comm, which may be used, fail or be destroyed. It has its
 * own arenas, faults and operations, counted from 1. tutti_comm_shrink() and process groups work on
 * it. Sums have its own leaf order: the order of its ranks, unless options->leaf_order is set.
 *
 * If the call fails on one rank it fails on all, also those of another color, and the message names
 * a rank that failed for a reason of its own. comm still works unless the fault is its own
 * (TIMEOUT, PEER_DEAD, ABORTED, and MISMATCH of the calls).
 *
 * - [in] color: 0 or more; negative, such as TUTTI_NO_COLOR: the rank takes part, and gets NULL
 * - [in] options: of the new communicator. NULL, and each field that is 0, mean what comm has. The
 *   default name is "NAME/split-N.COLOR", where NAME is comm's and N counts the splits. What
 *   tutti_comm_create() compares is compared among the ranks of a color. device is comm's, or 0;
 *   defer is refused
 * - [out] sub: destroy it with tutti_comm_destroy()
 *
 * On CUDA the call takes no stream and waits for no operation (on several hosts: for all that comm
 * has enqueued); a rank that calls something else gives TIMEOUT. The new communicator is of comm's
 * devices.
 *
 * Returns INVALID (an argument or option is wrong, here or on another rank), DECLINED (CPU ranks of
 * a topology file of which some two are not linked; CUDA ranks that are processes and share a
 * device: create these communicators by tutti_comm_create()), CONCURRENT
 * (another call is under way, or a process group exists), TIMEOUT, PEER_DEAD, MISMATCH (a rank
 * called another operation, or ranks of one color have different options), ABORTED, NO_MEMORY,
 * SYSTEM, CUDA, VERSION (an unknown option).
 *
 * Example, a grid of ranks; examples/grid.c is a complete program:
 *
 *     tutti_comm_t *in_row, *in_column;
 *     int row = rank / columns, column = rank % columns;
 *
 *     if (tutti_comm_split(comm, row, column, NULL, &in_row) ||
 *         tutti_comm_split(comm, column, row, NULL, &in_column))
 *         errx(1, "%s", tutti_last_error());
 */
TUTTI_API enum tutti_status tutti_comm_split(tutti_comm_t *comm, int color, int key,
                                             const struct tutti_comm_options *options,
                                             tutti_comm_t **sub);
/* tutti_comm_split() with one color, in the order of ranks and with comm's leaf order. The name is
 * "NAME/dup-N" unless options->name is set. Returns what tutti_comm_split() does. */
TUTTI_API enum tutti_status
tutti_comm_dup(tutti_comm_t *comm, const struct tutti_comm_options *options, tutti_comm_t **dup);

/* ---- create a communicator without a store --------------------------------------------------- */

/* Names the ranks of one communicator that is to be made. Copy its bytes to all ranks by any means:
 * MPI_Bcast(), a pipe, a file that others cannot read. It contains a secret: a process that has the
 * id can take a rank. docs/security.md says more. */
struct tutti_unique_id {
    unsigned char bytes[128];
};

/*
 * Makes an id, for the ranks of one communicator. The process may be a rank or not. From its first
 * id until it ends it serves its ids by one thread that has all signals blocked: on a Unix socket
 * of this host, which needs no network interface, or, if TUTTI_ID_ADDRESS is set at the first id,
 * at the address or interface that it names, for ranks of other hosts too. The process must live
 * until all ranks have their communicator; if that is of several hosts, until all have destroyed
 * it. Children of fork() do not serve its ids, and make their own.
 *
 * - [out] id: all zero after a failure
 *
 * Returns INVALID (also if TUTTI_ID_ADDRESS is no such address), NO_MEMORY, SYSTEM.
 */
TUTTI_API enum tutti_status tutti_unique_id_create(struct tutti_unique_id *id);
/*
 * Creates a communicator as tutti_comm_create() does, without a store: the ranks that pass one id
 * meet. An id makes one communicator; if the call failed on all ranks they may call again with it.
 * tutti_comm_split() makes more communicators of the ranks, faster. tutti_comm_shrink() takes any
 * store, also with such a communicator. Without TUTTI_ID_ADDRESS the ranks and the process that
 * made the id share a host and a network namespace; ranks of several hosts need options->fabric.
 *
 * - [in] options: NULL means all defaults; defer is refused
 * - [out] comm: destroy it with tutti_comm_destroy()
 *
 * Returns what tutti_comm_create() does. At once: INVALID (these bytes are no id; this rank has had
 * its communicator), VERSION, DECLINED (the id is of another host, which serves it for
 * itself alone), PEER_DEAD or SYSTEM (the process that made the id has ended, or is not reached).
 *
 * Example, with MPI:
 *
 *     struct tutti_unique_id id;
 *     tutti_comm_t *comm;
 *
 *     if (rank == 0 && tutti_unique_id_create(&id))
 *         errx(1, "%s", tutti_last_error());
 *     MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
 *     if (tutti_comm_create_from_id(&id, rank, size, NULL, &comm))
 *         errx(1, "%s", tutti_last_error());
 */
TUTTI_API enum tutti_status tutti_comm_create_from_id(const struct tutti_unique_id *id, int rank,
                                                      int world_size,
                                                      const struct tutti_comm_options *options,
                                                      tutti_comm_t **comm);

#ifdef __cplusplus
}
#endif

#endif
