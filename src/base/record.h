/* SPDX-License-Identifier: MIT */
/*
 * Every byte of a flight recorder: what a communicator of one rank has done last, and what it waits
 * for. It lies in a sealed memfd of the rank's process, so that `tutti dump` can read it whatever
 * that process does, stopped ones included. The process alone writes it, and its device.
 * docs/layout.md explains it.
 */
#ifndef TUTTI_RECORD_H
#define TUTTI_RECORD_H

#include "base/device_trace.h"
#include "base/layout.h"

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define RECORD_MAGIC UINT64_C(0x74757474692d6672)
/* Of the memfd, as /proc shows it. */
#define RECORD_LABEL "tutti-recorder"

enum {
    RECORD_VERSION = 3,
    RECORD_ENTRIES = 1024,
    RECORD_NAME_BYTES = 64,
    RECORD_TEXT_BYTES = 16 * 1024,
};

/* X(name, value, text). How far an operation is: the caller is inside; on CUDA, the stream has it;
 * of a process group, its leader has heard of it; it ended well; it failed, and the communicator
 * with it, or the group's operation alone; nothing was done; the device has begun it, and may have
 * ended it. */
#define RECORD_STATE_MAP(X)                                                                        \
    X(RUNNING, 1, "running")                                                                       \
    X(ENQUEUED, 2, "enqueued")                                                                     \
    X(SUBMITTED, 3, "submitted")                                                                   \
    X(DONE, 4, "done")                                                                             \
    X(FAILED, 5, "failed")                                                                         \
    X(REFUSED, 6, "refused")                                                                       \
    X(BEGUN, 7, "begun")

/* X(name, value, text). What an entry is of: a call of all ranks, which has a sequence; one that
 * was captured in a CUDA graph, which has none; a barrier of a subset, whose sequence is that of
 * the call before; an operation of the process group, by its tag and the tag's sequence. */
#define RECORD_KIND_MAP(X)                                                                         \
    X(CALL, 0, "call")                                                                             \
    X(CAPTURED, 1, "captured")                                                                     \
    X(SUBSET, 2, "subset")                                                                         \
    X(GROUP, 3, "group")

/* X(name, value, text). What a rank knows of another one. */
#define RECORD_LIFE_MAP(X)                                                                         \
    X(UNKNOWN, 0, "unknown")                                                                       \
    X(ALIVE, 1, "alive")                                                                           \
    X(LEFT, 2, "left")                                                                             \
    X(DEAD, 3, "dead")

/* X(name, value, text). Where a communicator is in its own life. */
#define RECORD_PHASE_MAP(X)                                                                        \
    X(MEETING, 1, "meeting")                                                                       \
    X(MET, 2, "met")                                                                               \
    X(NOT_MET, 3, "not met")

#define RECORD_ENUM(name, value, text) RECORD_##name = value,
enum record_state { RECORD_STATE_MAP(RECORD_ENUM) };
enum record_kind { RECORD_KIND_MAP(RECORD_ENUM) };
enum record_life { RECORD_LIFE_MAP(RECORD_ENUM) };
enum record_phase { RECORD_PHASE_MAP(RECORD_ENUM) };
#undef RECORD_ENUM

/* One operation, in a line of its own. */
struct record_entry {
    uint64_t number; /* counts entries from 1; 0 while one is being replaced: release R2 */
    uint64_t sequence;
    uint64_t signature; /* signature.h */
    uint64_t detail;    /* parameter of the signature, bits 0-31; tag of a group, bits 32-63 */
    uint64_t started;   /* ticks */
    uint64_t ended;     /* ticks; 0 of one that has not, or that was quick */
    uint64_t outcome;   /* state, bits 0-7; status, 8-15; kind, 16-23: release R3 */
    uint64_t reserved;
};

struct record_peer {
    uint64_t entered; /* the last operation that it has announced; 0: none, or not known */
    uint32_t life;    /* enum record_life */
    uint32_t reserved;
};

struct record_page {
    /* Constant once `magic` is there. */
    uint64_t magic;
    uint32_t version; /* RECORD_VERSION */
    uint32_t library; /* TUTTI_VERSION */
    int32_t pid;
    int32_t rank;
    int32_t world_size;
    int32_t device; /* enum tutti_device */
    uint64_t ticks; /* both clocks at the creation, */
    int64_t monotonic_ns;
    int64_t realtime_ns; /* and the calendar's */
    unsigned char pad0[LAYOUT_LINE - 56];
    char name[RECORD_NAME_BYTES];
    char host[RECORD_NAME_BYTES];

    /* Of the meeting. */
    uint32_t phase;   /* enum record_phase: release R1 of what follows */
    int32_t declined; /* a status: why they have not met */
    int64_t generation;
    uint64_t table_hash; /* of CUDA's tuning table */
    uint64_t meeting;    /* no other communicator has it */
    unsigned char pad1[LAYOUT_LINE - 32];
    char text[RECORD_TEXT_BYTES]; /* tutti_comm_describe() */

    struct layout_fault fault; /* as in the arena */

    /* The last look around, while a wait lasts or for a dump. Relaxed: for reports. */
    uint64_t looked;        /* ticks */
    uint64_t awaited_since; /* ticks */
    uint32_t awaits;        /* 1 + the rank that is waited for, 0: none */
    uint32_t reserved;
    int64_t device_ahead_ns; /* the device's clock before CLOCK_MONOTONIC; 0: it writes no device
                                trace */
    unsigned char pad2[LAYOUT_LINE - 32];
    struct record_peer peers[LAYOUT_RANKS];

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
static_assert(offsetof(struct record_page, entries) == 17792, "entries");
static_assert(offsetof(struct record_page, device_trace) == 83328, "device_trace");

static inline uint64_t record_outcome(enum record_state state, int status, enum record_kind kind)
{
    return (uint64_t)state | (uint64_t)(uint8_t)status << 8 | (uint64_t)kind << 16;
}

#endif
