/* SPDX-License-Identifier: MIT */
/* The flight recorder. The conventions are those of tutti.h. */
#ifndef TUTTI_RECORDER_H
#define TUTTI_RECORDER_H

#include "tutti/tutti.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- write what a communicator has done to a file -------------------------------------------- */

/*
 * Dumps this rank's record of a communicator. Local; does not wait for peers. Any thread may call
 * it, also while another thread waits in the communicator, but not during a rendezvous of this
 * rank.
 *
 * Each communicator records its last 1024 operations, the rank that it waits for, the known state
 * of its peers, and why it failed; this costs a few stores an operation. A dump writes the record
 * to a binary file of 114 KiB, one for each rank and communicator, with mode 0600, completely or
 * not at all. `tutti diagnose` reads the dumps of all ranks and names the cause of a failure.
 * `tutti dump` makes JSON of one, and dumps the communicators of other processes.
 *
 * - [in] pattern: names the file. It is an existing directory, in which the file is
 *   tutti-NAME-GENERATION-rRANK-pPID.raw; or a path, in which %r is the rank, %p the process id, %n
 *   the communicator's name, %g its generation, %h the host, and %% a percent sign. Characters of a
 *   name other than letters, digits, _, - and . become _. Ranks that are threads of one process
 *   need %r. An existing file is replaced, and so is a symbolic link, which is not followed. NULL:
 *   the pattern in TUTTI_DUMP when the communicator was created, a directory or a path with %r or
 *   %p. If TUTTI_DUMP is set, a communicator that fails, or cannot meet, also dumps by itself;
 *   errors of that dump go to the log
 *
 * Returns INVALID (the pattern has an unknown letter after % or is too long; there is none; the
 * path is no regular file), NO_MEMORY, SYSTEM (the file cannot be written).
 */
TUTTI_API enum tutti_status tutti_comm_dump(tutti_comm_t *comm, const char *pattern);

#ifdef __cplusplus
}
#endif

#endif
