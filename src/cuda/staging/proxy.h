/* SPDX-License-Identifier: MIT */
/*
 * Staging by a host thread, for ranks whose processes share a device: kernels of several processes
 * take turns there of milliseconds, whoever waits for whom, so nothing may spin on it. The caller's
 * stream copies a piece of the input into pinned memory and says that it has come; the thread
 * reduces it among the hosts of all ranks, by the CPU back end, and says that it is done; the
 * stream, which waits for that word without keeping the device busy, copies the result back.
 *
 * A stream's wait for a word has no deadline. The thread is what ends it: whatever happens, it
 * writes a word that lets all waits pass, those of the future too. It ends only with the program or
 * with the communicator.
 */
#ifndef TUTTI_CUDA_PROXY_H
#define TUTTI_CUDA_PROXY_H

#include "coll/request.h"
#include "tutti/tutti.h"

#include <assert.h>
#include <stddef.h>

struct cuda_group;
struct cuda_proxy;

enum {
    CUDA_PROXY_OPERATIONS = 256, /* under way at once; a caller of more waits */
    CUDA_PROXY_SLOTS = 2,        /* pieces under way: one is copied while one is reduced */
    CUDA_PROXY_PIECE_BYTES = 1 << 20,
};

/* Pieces count from 1. The stream's comparison is cyclic, so that the word with which all waits
 * pass is the largest that is ahead of every count, not the largest that there is. */
#define CUDA_PROXY_RELEASED ((uint64_t)INT64_MAX)

/* Pinned: what a rank's stream and thread share. Each line has one writer. */
struct cuda_proxy_page {
    uint64_t come; /* the device: pieces whose input is in its slot: release E1 */
    unsigned char pad0[64 - 8];
    uint64_t done; /* the thread: pieces whose result is in its slot: release E2 */
    unsigned char pad1[4096 - 64 - 8];
    unsigned char slots[CUDA_PROXY_SLOTS][CUDA_PROXY_PIECE_BYTES]; /* [piece mod 2] */
};
static_assert(offsetof(struct cuda_proxy_page, done) == 64, "done");
static_assert(offsetof(struct cuda_proxy_page, slots) == 4096, "slots");

/* Within the context, of a group whose host group has met; starts the thread. Operations of up to
 * `one_shot_bytes` go in one hop. On failure the group keeps what there is, for cuda_proxy_close().
 * Returns DECLINED (the device lacks waits for a word), NO_MEMORY, CUDA, SYSTEM. */
enum tutti_status cuda_proxy_open(struct cuda_group *group, size_t one_shot_bytes);
/* Lets all streams pass; what was under way has failed (ABORTED), which is none of the peers'.
 * Waits for the thread, some 50 ms at most. Take NULL, and may be called again. */
void cuda_proxy_stop(struct cuda_proxy *proxy);
/* Frees what is not the keep's; after cuda_proxy_stop(), or in a child of fork(). */
void cuda_proxy_free(struct cuda_proxy *proxy);

/* The numbers of the last operation of all ranks that was enqueued (the caller's own), and of the
 * last one that ended well. */
uint64_t cuda_proxy_enqueued(const struct cuda_proxy *proxy);
uint64_t cuda_proxy_completed(const struct cuda_proxy *proxy);

/* What an all-reduce is called, and why, or INVALID. */
enum tutti_status cuda_proxy_algorithm(enum tutti_algo asked, enum tutti_algo *algo,
                                       const char **reason);
/* Puts an operation on the stream: an all-reduce, checked, or, of no elements, a barrier of the
 * subset (0: of all). Waits while CUDA_PROXY_OPERATIONS are under way. Returns INVALID (the
 * algorithm), DECLINED (a stream that is captured), CONCURRENT, CUDA, or the fault that stands:
 * TIMEOUT as well if none of those ended in time, CUDA if half of the operation was enqueued. */
enum tutti_status cuda_proxy_enqueue(struct cuda_group *group, uint64_t subset,
                                     const struct request *request, tutti_stream_t stream);

#endif
