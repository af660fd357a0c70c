/* SPDX-License-Identifier: MIT */
/*
 * The flight recorder. Each communicator records its last 1024 operations, the rank that it waits
 * for, and why it failed. A dump writes this record to a JSON file, one for each rank and
 * communicator, with mode 0600. `tutti diagnose` reads the dumps of all ranks and names the cause
 * of a failure. The conventions are those of tutti.h.
 *
 * A pattern names the file. It is an existing directory, in which the file is
 * tutti-NAME-GENERATION-rRANK-pPID.json; or a path, in which %r is the rank, %p the process id, %n
 * the communicator's name, %g its generation, %h the host, and %% a percent sign. An existing file
 * is replaced atomically. A symbolic link is also replaced, not followed.
 */
#ifndef TUTTI_RECORDER_H
#define TUTTI_RECORDER_H

#include "tutti/tutti.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Dumps this rank's record of a communicator. Local. Any thread may call it, also while another
 * thread waits in the communicator, but not during a rendezvous of this rank.
 * [in] pattern  NULL: the pattern in TUTTI_DUMP. If TUTTI_DUMP is set, a communicator that fails
 *               also dumps by itself
 * Returns INVALID (a wrong pattern, or none), NO_MEMORY, SYSTEM (the file cannot be written).
 */
TUTTI_API enum tutti_status tutti_comm_dump(tutti_comm_t *comm, const char *pattern);

/* Called with the path of each dump that was written. The path is valid during the call. */
typedef void tutti_dump_fn(void *context, const char *path);
/*
 * Dumps all communicators of another process of this user. That process may be running, stopped or
 * stuck; it need not cooperate. If one communicator cannot be dumped, the others still are, and the
 * error names its descriptor in that process. `tutti dump` makes this call.
 *
 * - [in] pattern: gives each communicator a path of its own. The second dump of one path is not
 *   written (INVALID)
 * - [in] fn: called for each dump; may be NULL
 * - [out] count: the number of dumps written; 0 if the process has no communicator
 *
 * Returns INVALID (also if there is no such process), VERSION (the process runs another version of
 * Tutti), NO_MEMORY, SYSTEM (the kernel does not let this user read that process; a file cannot be
 * written).
 */
TUTTI_API enum tutti_status tutti_dump_process(int pid, const char *pattern, tutti_dump_fn *fn,
                                               void *context, int *count);

#ifdef __cplusplus
}
#endif

#endif
