/* SPDX-License-Identifier: MIT */
/*
 * Every byte of a flight recorder: the last operations of one rank's communicator, and the rank for
 * which it waits. The library and the program `tutti` share this header.
 *
 * The page lies in a sealed memfd of the rank's process. `tutti dump` finds the memfd in /proc and
 * reads it, also while that process is stopped. Only the process and its device write the page. A
 * dump file of the library is a copy of the page (record_keep_stable()). docs/layout.md explains
 * the fields.
 */
#ifndef TUTTI_RECORD_H
#define TUTTI_RECORD_H

#include "base/device_trace.h"
#include "base/layout.h"
#include "base/rank_set.h"

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define RECORD_MAGIC UINT64_C(0x74757474692d6672)
/* The memfd's name in /proc. */
#define RECORD_LABEL "tutti-recorder"

enum {
    RECORD_VERSION = 6,
    RECORD_ENTRIES = 1024,
    RECORD_NAME_BYTES = 64,
    RECORD_TEXT_BYTES = 16 * 1024,
};

/* X(name, value, text). The state of an operation.
 * - running: the caller is inside the call
 * - enqueued: on a CUDA stream
 * - submitted: the leader of the process group knows of it
 * - failed: the communicator failed too, unless it is an operation of a process group
 * - refused: the call did nothing
 * - begun: the device has begun it, and may have ended it */
#define RECORD_STATE_MAP(X)                                                                        \
    X(RUNNING, 1, "running")                                                                       \
    X(ENQUEUED, 2, "enqueued")                                                                     \
    X(SUBMITTED, 3, "submitted")                                                                   \
    X(DONE, 4, "done")                                                                             \
    X(FAILED, 5, "failed")                                                                         \
    X(REFUSED, 6, "refused")                                                                       \
    X(BEGUN, 7, "begun")

/* X(name, value, text). The kind of an entry.
 * - call: of all ranks; it has a sequence
 * - captured: in a CUDA graph; it has no sequence
 * - subset: a barrier of some ranks; its sequence is that of the previous call
 * - group: of a process group; it has a tag and the tag's sequence
 * - message: a send or receive of a process group; it has a tag, a peer, and a sequence among this
 *   rank's */
#define RECORD_KIND_MAP(X)                                                                         \
    X(CALL, 0, "call")                                                                             \
    X(CAPTURED, 1, "captured")                                                                     \
    X(SUBSET, 2, "subset")                                                                         \
    X(GROUP, 3, "group")                                                                           \
    X(MESSAGE, 4, "message")

/* X(name, value, text). What a rank knows of a peer. */
#define RECORD_LIFE_MAP(X)                                                                         \
    X(UNKNOWN, 0, "unknown")                                                                       \
    X(ALIVE, 1, "alive")                                                                           \
    X(LEFT, 2, "left")                                                                             \
    X(DEAD, 3, "dead")

/* X(name, value, text). The phase of a communicator. */
#define RECORD_PHASE_MAP(X)                                                                        \
    X(MEETING, 1, "meeting")                                                                       \
    X(MET, 2, "met")                                                                               \
    X(NOT_MET, 3, "not met")

/* X(name, value, text). The cause of a dump: the communicator failed, tutti_comm_dump() was called,
 * or another process read the page. */
#define RECORD_CAUSE_MAP(X)                                                                        \
    X(CAUSE_FAILURE, 1, "failure")                                                                 \
    X(CAUSE_CALL, 2, "call")                                                                       \
    X(CAUSE_OUTSIDE, 3, "outside")

#define RECORD_ENUM(name, value, text) RECORD_##name = value,
enum record_state { RECORD_STATE_MAP(RECORD_ENUM) };
enum record_kind { RECORD_KIND_MAP(RECORD_ENUM) };
enum record_life { RECORD_LIFE_MAP(RECORD_ENUM) };
enum record_phase { RECORD_PHASE_MAP(RECORD_ENUM) };
enum record_cause { RECORD_CAUSE_MAP(RECORD_ENUM) };
#undef RECORD_ENUM

/* One operation, in one cache line. */
struct record_entry {
    uint64_t number; /* counts entries from 1; 0 while the entry is being replaced: release R2 */
    uint64_t sequence;
    uint64_t signature; /* signature.h */
    uint64_t detail;    /* parameter of the signature, or of a message 1 + its peer (0: any rank),
                         * bits 0-31; tag, bits 32-63 */
    uint64_t started;   /* ticks */
    uint64_t ended;     /* ticks; 0: it has not ended, or it was quick */
    uint64_t outcome;   /* state, bits 0-7; status, 8-15; kind, 16-23: release R3 */
    uint64_t reserved;
};

/* `entered` of a peer of which that is not known. */
#define RECORD_UNKNOWN UINT64_MAX

struct record_peer {
    uint64_t entered; /* the last operation that the peer announced; 0: none */
    uint32_t life;    /* enum record_life */
    uint32_t reserved;
};

struct record_page {
    /* Constant. `magic` is written last. */
    uint64_t magic;
    uint32_t version; /* RECORD_VERSION */
    uint32_t library; /* TUTTI_VERSION */
    int32_t pid;
    int32_t rank;
    int32_t world_size;
    int32_t device; /* enum tutti_device */
    uint64_t ticks; /* the three clocks at the creation */
    int64_t monotonic_ns;
    int64_t realtime_ns;
    unsigned char pad0[LAYOUT_LINE - 56];
    char name[RECORD_NAME_BYTES];
    char host[RECORD_NAME_BYTES];

    /* The result of the meeting. */
    uint32_t phase;   /* enum record_phase: release R1 of what follows, up to `text` */
    int32_t declined; /* the status with which the meeting failed */
    int64_t generation;
    uint64_t table_hash; /* of CUDA's tuning table */
    uint64_t meeting;    /* a number that no other communicator has */

    /* Of a copy: its time by the three clocks, and its cause. 0 in the page itself. */
    uint64_t taken_ticks;
    int64_t taken_ns;
    int64_t taken_realtime_ns;
    uint32_t cause; /* enum record_cause */
    uint32_t reserved0;

    char text[RECORD_TEXT_BYTES]; /* tutti_comm_describe() */

    struct layout_fault fault; /* as in the arena */

    /* The last check of the peers, during a long wait or for a dump. Relaxed: for reports. */
    uint64_t looked;        /* ticks */
    uint64_t awaited_since; /* ticks */
    uint32_t awaits;        /* 1 + the awaited rank; 0: none */
    uint32_t reserved;
    int64_t device_ahead_ns; /* the device's clock minus CLOCK_MONOTONIC; 0: no device trace */
    unsigned char pad2[LAYOUT_LINE - 32];
    struct record_peer peers[WORLD_RANKS];

    struct record_entry entries[RECORD_ENTRIES]; /* [number mod RECORD_ENTRIES] */
    struct device_trace device_trace;
};

static_assert(sizeof(struct record_entry) == LAYOUT_LINE, "entry");
static_assert(offsetof(struct record_page, name) == 64, "name");
static_assert(offsetof(struct record_page, phase) == 192, "phase");
static_assert(offsetof(struct record_page, text) == 256, "text");
static_assert(offsetof(struct record_page, fault) == 16640, "fault");
static_assert(offsetof(struct record_page, looked) == 16704, "look");
static_assert(offsetof(struct record_page, peers) == 16768, "peers");
static_assert(offsetof(struct record_page, entries) == 16768 + 16 * WORLD_RANKS, "entries");
static_assert(offsetof(struct record_page, device_trace) == 82304 + 16 * WORLD_RANKS,
              "device_trace");

static inline uint64_t record_outcome(enum record_state state, int status, enum record_kind kind)
{
    return (uint64_t)state | (uint64_t)(uint8_t)status << 8 | (uint64_t)kind << 16;
}

/*
 * Drops from `copy` all data that the process may have been writing. `earlier` is a copy of the
 * same page that was complete before `copy` was begun. An entry or a mark that is equal in both was
 * not being written: a writer sets the entry's number to 0 first, and a mark's two lines both hold
 * the sequence. The flags are those of `earlier`, so that the data that they release is complete in
 * `copy`.
 */
static inline void record_keep_stable(struct record_page *copy, const struct record_page *earlier)
{
    struct device_trace_mark *marks = copy->device_trace.marks;
    copy->phase = earlier->phase;
    copy->fault.set = earlier->fault.set;
    for (size_t i = 0; i < RECORD_ENTRIES; i++)
        if (memcmp(&copy->entries[i], &earlier->entries[i], sizeof *copy->entries) != 0)
            copy->entries[i].number = 0;
    for (size_t i = 0; i < DEVICE_TRACE_MARKS; i++)
        if (memcmp(&marks[i], &earlier->device_trace.marks[i], sizeof *marks) != 0)
            marks[i].sequence = 0;
}

#endif
