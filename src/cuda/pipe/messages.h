/* SPDX-License-Identifier: MIT */
/*
 * Messages that run at the same time through slots of host memory. Those in one direction with one
 * peer form a chain, as in cpu/call_list.h. Each chain has a place in a slot, and its messages are
 * cut into parts of the size of a place. Batch n has part n of every chain. Both ends of a message
 * cut it alike, so its parts are in the same batch on both, and no batch waits for a later one of a
 * peer.
 */
#ifndef TUTTI_CUDA_MESSAGES_H
#define TUTTI_CUDA_MESSAGES_H

#include "coll/request.h"

/* The number of a message's chain, below 2 (size - 1): first those of the sends, by peer, without
 * the rank itself, then those of the receives. */
int cuda_message_chain(const struct request *request, int rank, int size);

struct cuda_message_part {
    const struct request *request; /* of the whole message */
    size_t place;                  /* its offset in the slot */
    size_t first, bytes;           /* of the message */
};

struct cuda_messages {
    uint64_t batches; /* at least one */
    uint32_t users;   /* that have not released them: E5 */
    int count;
    struct cuda_message_part *parts; /* by batch */
    size_t *begins;                  /* [n]: the first part of batch n; [batches]: the end */
    struct request requests[];
};

/* Copies the requests. The result has two users. NULL: no memory. */
struct cuda_messages *cuda_messages_make(struct request *const *requests, int count, int rank,
                                         int size, size_t slot_bytes);
/* The last user frees them. Takes NULL. */
void cuda_messages_release(struct cuda_messages *messages);
/* The parts of a batch, up to *end. */
const struct cuda_message_part *cuda_messages_batch(const struct cuda_messages *messages,
                                                    uint64_t batch,
                                                    const struct cuda_message_part **end);

#endif
