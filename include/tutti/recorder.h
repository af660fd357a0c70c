/* SPDX-License-Identifier: MIT */
/*
 * The flight recorder: each communicator remembers its last 1024 operations, what it waits for and
 * why it failed. A dump of that is one file of JSON a rank and communicator, private to the user
 * (mode 0600); `tutti diagnose` makes a verdict of all ranks' dumps. The conventions are those of
 * tutti.h.
 *
 * A pattern says where dumps go: a directory that exists, in which the file is called
 * tutti-NAME-GENERATION-rRANK-pPID.json, or a path in which %r stands for the rank, %p for the
 * process, %n for the communicator's name, %g for its generation, %h for the host, %% for itself. A
 * file of that name is replaced, in one step; a symbolic link is, too, and not followed.
 */
#ifndef TUTTI_RECORDER_H
#define TUTTI_RECORDER_H

#include "tutti/tutti.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Dumps what this rank knows. From any thread, also while another one waits in the communicator;
 * not during a rendezvous of this rank by another thread. Local.
 * [in] pattern  NULL: TUTTI_DUMP's, which also makes a communicator dump by itself once it fails
 * Returns INVALID (a pattern that means nothing, or none), NO_MEMORY, SYSTEM (the file cannot be
 * written).
 */
TUTTI_API enum tutti_status tutti_comm_dump(tutti_comm_t *comm, const char *pattern);

/* Is told the path of a dump that was written; valid during the call. */
typedef void tutti_dump_fn(void *context, const char *path);
/*
 * Dumps all communicators of another process of this user, which may be running, stopped or stuck:
 * it takes no part. One that cannot be dumped does not keep the others from it: the error names its
 * descriptor in that process. `tutti dump` is this call.
 *
 * - [in] pattern: one that gives each communicator a path of its own: the second of one path is not
 *   dumped (INVALID)
 * - [in] fn: told of each dump; may be NULL
 * - [out] count: how many were written; 0 where the process has no communicator
 *
 * Returns INVALID (no such process, too), VERSION (the process runs another version of Tutti),
 * NO_MEMORY, SYSTEM (the kernel does not let this user look into that process; a file cannot be
 * written).
 */
TUTTI_API enum tutti_status tutti_dump_process(int pid, const char *pattern, tutti_dump_fn *fn,
                                               void *context, int *count);

#ifdef __cplusplus
}
#endif

#endif
