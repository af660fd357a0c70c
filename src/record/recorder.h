/* SPDX-License-Identifier: MIT */
/*
 * The flight recorder of a communicator: its last 1024 operations, what it knows of its peers, and
 * why it failed, in one page (base/record.h).
 *
 * - Recording is a few stores into a line and a look at the processor's clock: no lock, no
 *   allocation, no system call. The clock costs 10 ns. So the end of an operation gets a time only
 *   if the operation waited slowly, was longer than a small message, or failed. The tool turns
 * ticks into nanoseconds with two readings of both clocks, one at the creation and one at the dump.
 * - The page is a sealed memfd whose descriptor stays open. `tutti dump` finds it in /proc/PID/fd
 *   and needs nothing of the process, which may be stopped or be stuck in the kernel. The kernel
 *   admits a process that may trace this one. Without a memfd the page comes from malloc(), and
 * only the process itself can dump it.
 * - During a long wait the rank writes every 20 ms: the rank it waits for, what the other ranks
 *   have announced, and which of them live (peers/survey.c).
 * - The first fault goes into the page, and with TUTTI_DUMP into a file before the failing call
 *   returns. A file is private, whole or absent, and never written through a link.
 */
#ifndef TUTTI_SRC_RECORDER_H
#define TUTTI_SRC_RECORDER_H

#include "base/record_write.h"
#include "ipc/segment.h"
#include "tutti/tutti.h"

struct recorder {
    struct record_page *page;
    uint64_t number;        /* of the last entry; written by the caller inside the communicator */
    struct segment segment; /* base is NULL if the page came from malloc() */
    int fd;                 /* of the segment; -1: other processes cannot find the page */
    char *pattern;          /* of TUTTI_DUMP; NULL: a failure writes no dump */
};

/*
 * Makes a recorder, writes what is constant, and reads TUTTI_DUMP. If there is no shared memory,
 * the recorder uses memory of malloc(), which other processes cannot read; the call does not fail
 * for that reason. Returns INVALID (TUTTI_DUMP), NO_MEMORY.
 */
enum tutti_status recorder_open(struct recorder *recorder, const char *name, int rank,
                                int world_size, int32_t device);
/* Takes a recorder that was not opened, too. */
void recorder_close(struct recorder *recorder);
/* Called in a child of fork(), which inherits the descriptor but not the page. */
void recorder_forget(struct recorder *recorder);
/* Writes a copy of the page to the file that the pattern names. Any thread may call it. Returns
 * INVALID (the pattern), NO_MEMORY, SYSTEM. */
enum tutti_status recorder_dump(const struct recorder *recorder, enum record_cause cause,
                                const char *pattern);

/* recorder_file.c: checks that each rank's dump gets a file of its own, in a directory that can be
 * written to. Returns INVALID. */
enum tutti_status recorder_pattern_check(const char *pattern, const struct record_page *page);
/* Writes a file with mode 0600, whole or not at all. A file or a symbolic link of that name is
 * replaced. Returns INVALID (something else has that name), SYSTEM. */
enum tutti_status recorder_save(const char *path, const void *bytes, size_t size);

static inline struct record_entry *recorder_start(struct recorder *recorder,
                                                  const struct recorder_operation *operation,
                                                  enum record_state state, uint64_t ticks)
{
    return record_start(recorder->page, ++recorder->number, operation, state, ticks);
}

/* Ends the entry of that number, if no later operation has replaced it. */
void recorder_end_later(struct recorder *recorder, uint64_t number, enum tutti_status status);

#endif
