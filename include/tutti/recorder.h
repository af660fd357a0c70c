/* SPDX-License-Identifier: MIT */
/*
 * The flight recorder. Each communicator records its last 1024 operations, the rank that it waits
 * for, and why it failed. A dump writes this record to a binary file, one for each rank and
 * communicator, with mode 0600. `tutti diagnose` reads the dumps of all ranks and names the cause
 * of a failure. `tutti dump FILE` makes JSON of one. The conventions are those of tutti.h.
 *
 * A pattern names the file. It is an existing directory, in which the file is
 * tutti-NAME-GENERATION-rRANK-pPID.raw; or a path, in which %r is the rank, %p the process id, %n
 * the communicator's name, %g its generation, %h the host, and %% a percent sign. TUTTI_DUMP must
 * be a directory or contain %r or %p. An existing file is replaced atomically. A symbolic link is
 * also replaced, not followed.
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

#ifdef __cplusplus
}
#endif

#endif
