/* SPDX-License-Identifier: MIT */
#include "cuda/pipe/messages.h"

#include "base/order.h"
#include "cuda/kernels/arena.h"

#include <stdlib.h>

enum { PLACE_ALIGNMENT = 256, CHAINS = 2 * CUDA_RANKS };

static bool receives(const struct request *request)
{
    return request->collective == TUTTI_COLLECTIVE_RECV;
}

int cuda_message_chain(const struct request *request, int rank, int size)
{
    const int peer = request->peer - (request->peer > rank);
    return peer + (receives(request) ? size - 1 : 0);
}

/* An empty message has one part. */
static size_t parts_of(const struct request *request, size_t place_bytes)
{
    return request->bytes ? (request->bytes + place_bytes - 1) / place_bytes : 1;
}

static void batches_count(struct cuda_messages *messages, int rank, int size, size_t place_bytes)
{
    size_t next[CHAINS] = {0};
    for (int i = 0; i < messages->count; i++) {
        const struct request *request = &messages->requests[i];
        size_t *batch = &next[cuda_message_chain(request, rank, size)];
        for (size_t left = parts_of(request, place_bytes); left; left--)
            messages->begins[(*batch)++]++;
        messages->batches = *batch > messages->batches ? *batch : messages->batches;
    }
    for (uint64_t n = 1; n < messages->batches; n++)
        messages->begins[n] += messages->begins[n - 1];
}

/* Fills the batches from their ends; afterwards begins[n] is where batch n begins. */
static void parts_fill(struct cuda_messages *messages, int rank, int size, size_t place_bytes)
{
    size_t next[CHAINS] = {0};
    for (int i = 0; i < messages->count; i++) {
        const struct request *request = &messages->requests[i];
        const int chain = cuda_message_chain(request, rank, size);
        size_t first = 0;
        do {
            const size_t left = request->bytes - first;
            struct cuda_message_part *part = &messages->parts[--messages->begins[next[chain]++]];
            part->request = request;
            part->place = (size_t)chain * place_bytes;
            part->first = first;
            part->bytes = left < place_bytes ? left : place_bytes;
            first += part->bytes;
        } while (first < request->bytes);
    }
}

struct cuda_messages *cuda_messages_make(struct request *const *requests, int count, int rank,
                                         int size, size_t slot_bytes)
{
    const size_t place_bytes =
        slot_bytes / (2 * (size_t)(size - 1)) / PLACE_ALIGNMENT * PLACE_ALIGNMENT;
    size_t parts = 0;
    for (int i = 0; i < count; i++)
        parts += parts_of(requests[i], place_bytes);
    struct cuda_messages *messages =
        calloc(1, sizeof *messages + (size_t)count * sizeof(struct request) +
                      parts * sizeof(struct cuda_message_part) + (parts + 1) * sizeof(size_t));
    if (!messages)
        return NULL;
    messages->users = 2;
    messages->count = count;
    messages->parts = (struct cuda_message_part *)&messages->requests[count];
    messages->begins = (size_t *)&messages->parts[parts];
    for (int i = 0; i < count; i++)
        messages->requests[i] = *requests[i];
    batches_count(messages, rank, size, place_bytes);
    messages->begins[messages->batches] = parts;
    parts_fill(messages, rank, size, place_bytes);
    return messages;
}

void cuda_messages_release(struct cuda_messages *messages)
{
    if (messages && order_fetch_add_u32(&messages->users, (uint32_t)-1) == 1) /* E5 */
        free(messages);
}

const struct cuda_message_part *cuda_messages_batch(const struct cuda_messages *messages,
                                                    uint64_t batch,
                                                    const struct cuda_message_part **end)
{
    *end = messages->parts + messages->begins[batch + 1];
    return messages->parts + messages->begins[batch];
}
