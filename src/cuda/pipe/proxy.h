/* SPDX-License-Identifier: MIT */
/*
 * Staging by a host thread: for operations without a kernel, and for all operations of processes
 * that share a device, and of ranks on several hosts. The device runs kernels of several processes
 * one after the other, some milliseconds each, even if one kernel waits for another. So no kernel
 * may wait there.
 *
 * The caller's stream copies a piece of the input into pinned memory and writes a word. The thread
 * runs the collective on the piece among the hosts of all ranks, with the CPU back end, or with
 * comm/hierarchy.h if these are several machines, and writes a word. The stream waits for that
 * word, without using the device, and copies the result back.
 *
 * A stream's wait for a word has no deadline; the thread ends each wait, and at its own end all
 * later ones. The thread ends with the program, which does not wait for it, or with the
 * communicator. A captured stream is declined, since a replay would not reach the thread.
 */
#ifndef TUTTI_CUDA_PROXY_H
#define TUTTI_CUDA_PROXY_H

#include "tutti/tutti.h"

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct request;
struct cuda_group;
struct cuda_proxy;

enum {
    CUDA_PROXY_OPERATIONS = 256, /* operations under way; a caller of more waits */
    CUDA_PROXY_SLOTS = 2,        /* pieces under way: one is copied while one is reduced */
    CUDA_PROXY_PIECE_BYTES = 1 << 20,
};

/* Pieces are numbered from 1. The stream compares cyclically. So the word that lets all waits pass
 * is not the largest number, but the largest that is ahead of every piece. */
#define CUDA_PROXY_RELEASED ((uint64_t)INT64_MAX)

/* Pinned memory that a rank's stream and thread share. Each line has one writer. */
struct cuda_proxy_page {
    uint64_t
        come; /* written by the device: number of pieces whose input is in its slot: release E1 */
    unsigned char pad0[64 - 8];
    uint64_t
        done; /* written by the thread: number of pieces whose result is in its slot: release E2 */
    unsigned char pad1[64 - 8];
    /* [operation mod 256]: the scalar of a premultiplied sum; written by the device before the
     * operation's first piece has come */
    uint64_t scalars[CUDA_PROXY_OPERATIONS];
    unsigned char pad2[4096 - 128 - 8 * CUDA_PROXY_OPERATIONS];
    unsigned char slots[CUDA_PROXY_SLOTS][CUDA_PROXY_PIECE_BYTES]; /* [piece mod 2] */
};
static_assert(offsetof(struct cuda_proxy_page, done) == 64, "done");
static_assert(offsetof(struct cuda_proxy_page, slots) == 4096, "slots");

/* In the context, after the host group has met. Starts the thread. After a failure
 * cuda_proxy_free() frees what was made. Returns DECLINED (the device's streams cannot wait for a
 * word), NO_MEMORY, CUDA, SYSTEM. */
enum tutti_status cuda_proxy_open(struct cuda_group *group);
/* Lets all streams go on. Operations under way fail with ABORTED on this rank alone. Waits for the
 * thread, at most some 50 ms. Takes NULL. May be called again. */
void cuda_proxy_stop(struct cuda_proxy *proxy);
/* Frees what struct cuda_resources does not own. After cuda_proxy_stop(), or in a child of fork().
 * Takes NULL. */
void cuda_proxy_free(struct cuda_proxy *proxy);

/* Waits until the thread has ended all operations; also returns if it has ended after a failure.
 * For the caller of operations, once the streams have ended. Returns TIMEOUT. */
enum tutti_status cuda_proxy_drain(struct cuda_proxy *proxy, int64_t deadline);

/* The number of the last operation of all ranks that was enqueued, and of the last one that
 * succeeded, once the streams have ended. For the caller of operations only. */
uint64_t cuda_proxy_enqueued(const struct cuda_proxy *proxy);
uint64_t cuda_proxy_completed(const struct cuda_proxy *proxy);

/* The algorithm to report for an all-reduce, and the reason. Returns INVALID. */
enum tutti_status cuda_proxy_algorithm(const struct cuda_group *group, enum tutti_algo asked,
                                       enum tutti_algo *algo, const char **reason);
/* Enters the context for an operation, until cuda_leave(). Returns DECLINED (the stream is being
 * captured), CUDA. */
enum tutti_status cuda_proxy_enter(struct cuda_group *group, tutti_stream_t stream, bool *pushed);
/* Puts an operation on the stream: a collective whose operands are checked, or a barrier, which has
 * no elements. After cuda_proxy_enter(). Waits while CUDA_PROXY_OPERATIONS are under way. Returns
 * CONCURRENT, CUDA, or the fault of the communicator: also TIMEOUT if no operation ended in time,
 * CUDA if only a part of the operation was enqueued. */
enum tutti_status cuda_proxy_enqueue(struct cuda_group *group, const struct request *request,
                                     tutti_stream_t stream);
/* The same for messages, which run at the same time; also NO_MEMORY. */
enum tutti_status cuda_proxy_send_recv(struct cuda_group *group, struct request *const *requests,
                                       int count, tutti_stream_t stream);

#endif
