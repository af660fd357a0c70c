/* SPDX-License-Identifier: MIT */
/*
 * The operations of ranks on several hosts whose fabric moves memory of the device. All of an
 * operation is on the caller's stream: headers of all ranks, kernels that compare them, transfers,
 * kernels that combine what has come. So it may be captured.
 *
 * A fabric only moves bytes. Sums: each rank gets its share of all ranks' inputs, combines it in
 * the canonical tree, and sends the result to the others. The kernels wait for nothing; the
 * transfers wait for peers, without a time-out. So a thread watches: it ends the link at a fault,
 * at an abort, or when a part of an operation has not ended in its time.
 */
#ifndef TUTTI_CUDA_FABRIC_H
#define TUTTI_CUDA_FABRIC_H

#include "cuda/comm/group_internal.h"
#include "cuda/kernels/combine_launch.h"
#include "fabric/fabric.h"

/* Up to here each rank combines all of an all-reduce; of a longer one its share. */
enum { CUDA_FABRIC_ONE_HOP_BYTES = 64 << 10 };

struct cuda_fabric {
    struct fabric_link *link;        /* borrowed */
    struct cuda_fabric_words *words; /* this one and the next: on the device */
    unsigned char *slots;            /* [CUDA_RANKS + 1], of slot_bytes */
    size_t slot_bytes;
    struct cuda_fabric_page *page;
    uint8_t order[CUDA_RANKS]; /* [leaf] is a rank */
    uint64_t enqueued;         /* operations of all ranks, but for those in graphs */

    struct cuda_watcher watcher;
    uint32_t bell;
    /* Used by the watch alone: */
    CUstream stream; /* of its copies */
    CUevent event;
    struct cuda_header *theirs; /* pinned */
    uint32_t begun, marks;      /* as it has seen them last, at: */
    int64_t since, looked_at;
};

/* Bytes of a slot: a piece of a sum has as many of each rank. Tests lower it, on all ranks. */
extern size_t cuda_fabric_slot_bytes;

/* The headers of an operation. */
struct cuda_headers {
    int count;
    uint32_t parameter;
    bool numbered;
    uint8_t *peers;
    uint64_t *own, *expected; /* signatures; 0: none is sent, or comes */
};

/* What an operation puts on the stream behind its headers. Returns CUDA, and what enqueue() of the
 * fabric does. */
typedef enum tutti_status cuda_fabric_body(struct cuda_group *group, void *context,
                                           tutti_stream_t stream);

/* fabric.c: local, then collective; in the context. Return CUDA, NO_MEMORY, SYSTEM, TIMEOUT. */
enum tutti_status cuda_fabric_open(struct cuda_group *group, const uint8_t *order,
                                   int64_t deadline);
enum tutti_status cuda_fabric_begin(struct cuda_group *group, int64_t deadline);
/* Ends what waits on the link. */
void cuda_fabric_stop(struct cuda_group *group);
/* Ends the watch. Takes a group without a fabric. */
void cuda_fabric_close(struct cuda_group *group, bool lives);
/* The last operation of all ranks that has ended. */
uint64_t cuda_fabric_completed(const struct cuda_fabric *fabric);
/* Enqueues an operation. `timeout_ns`: 0: the communicator's */
enum tutti_status cuda_fabric_enqueue(struct cuda_group *group, const struct cuda_headers *headers,
                                      uint64_t timeout_ns, cuda_fabric_body *body, void *context,
                                      tutti_stream_t stream);
/* Part of a body: the end of a part, which has the time-out for itself. */
enum tutti_status cuda_fabric_mark(struct cuda_group *group, CUstream stream);
/* fabric_run.c: enqueues a collective; messages that run at the same time. The operands are
 * checked. Return the fault, NO_MEMORY, CUDA. */
enum tutti_status cuda_fabric_collective(struct cuda_group *group, struct request *request,
                                         tutti_stream_t stream);
enum tutti_status cuda_fabric_send_recv(struct cuda_group *group, struct request *const *requests,
                                        int count, tutti_stream_t stream);

#endif
