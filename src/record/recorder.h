/* SPDX-License-Identifier: MIT */
/*
 * The flight recorder of a communicator: its last 1024 operations, what it knows of its peers, and
 * why it failed, in one page (record.h).
 *
 * - Recording is a few stores into a line and a look at the processor's clock: no lock, no
 *   allocation, no system call. The clock costs 10 ns. So the end of an operation gets a time only
 *   if the operation waited slowly, was longer than a mail, or failed. A dump turns ticks into
 *   nanoseconds with two readings of both clocks, one at the creation and one at the dump.
 * - The page is a sealed memfd whose descriptor stays open. `tutti dump` finds it in /proc/PID/fd
 *   and needs nothing of the process, which may be stopped or be stuck in the kernel. The kernel
 *   admits whoever may trace the process. Without a memfd the page comes from malloc(), and only
 *   the process itself can dump it.
 * - A wait that lasts writes every 20 ms for whom it waits, what the other ranks have announced,
 *   and which of them live (cpu/transport/survey.c).
 * - The first fault goes into the page, and with TUTTI_DUMP into a file before the failing call
 *   returns. A file is private, whole or absent, and never written through a link.
 */
#ifndef TUTTI_SRC_RECORDER_H
#define TUTTI_SRC_RECORDER_H

#include "base/order.h"
#include "base/record.h"
#include "base/ticks.h"
#include "ipc/segment.h"
#include "tutti/tutti.h"

struct tutti_comm;

struct recorder {
    struct record_page *page;
    uint64_t number;        /* of the last entry; the caller's who is inside the communicator */
    struct segment segment; /* base is NULL where the page came from malloc() */
    int fd;                 /* by which others find it; -1: they cannot */
    char *pattern;          /* of TUTTI_DUMP; NULL: nothing is dumped on a failure */
};

/* What is known of an operation from its start. */
struct recorder_operation {
    uint64_t sequence;
    uint64_t signature; /* signature.h */
    uint32_t parameter;
    uint32_t tag;
    enum record_kind kind;
};

/*
 * Makes comm->recorder and says what is constant; reads TUTTI_DUMP. Where shared memory is not to
 * be had it takes the caller's own, which nobody else sees: that alone makes no communicator fail.
 * Returns INVALID (of TUTTI_DUMP), NO_MEMORY.
 */
enum tutti_status recorder_open(struct tutti_comm *comm);
/* Takes one that was not opened. */
void recorder_close(struct tutti_comm *comm);
/* In a child of fork(), which has the descriptor alone. */
void recorder_forget(struct recorder *recorder);
/* Writes what the communicator is by now: after it has met, or has not. */
void recorder_describe(struct tutti_comm *comm);
/* Dumps if TUTTI_DUMP says so; what goes wrong is logged. The argument is the communicator, which
 * has failed. */
void recorder_failed(void *comm);

/* ---- recording: by the one caller at a time ----------------------------------------------------
 */

/* A reader that sees a field of this operation in the former one's place sees that the number is
 * another one, too. */
static inline struct record_entry *recorder_start(struct recorder *recorder,
                                                  const struct recorder_operation *operation,
                                                  enum record_state state, uint64_t ticks)
{
    uint64_t number = ++recorder->number;
    struct record_entry *entry = &recorder->page->entries[number % RECORD_ENTRIES];
    order_store_relaxed_u64(&entry->number, 0);
    order_store_release_u64(&entry->sequence, operation->sequence); /* R2 pairs R2a, all these */
    order_store_release_u64(&entry->signature, operation->signature);
    order_store_release_u64(&entry->detail, operation->parameter | (uint64_t)operation->tag << 32);
    order_store_release_u64(&entry->started, ticks); /* R2 */
    order_store_release_u64(&entry->ended, 0);
    order_store_release_u64(&entry->outcome, record_outcome(state, TUTTI_OK, operation->kind));
    order_store_release_u64(&entry->number, number);
    return entry;
}

static inline void recorder_end(struct record_entry *entry, enum record_state state,
                                enum tutti_status status, enum record_kind kind, uint64_t ticks)
{
    order_store_relaxed_u64(&entry->ended, ticks);
    /* R3 pairs R3a: the end's time */
    order_store_release_u64(&entry->outcome, record_outcome(state, (int)status, kind));
}

/* The end of an entry that others may have followed: of that number, if it is still there. */
void recorder_end_later(struct recorder *recorder, uint64_t number, enum tutti_status status);

#endif
