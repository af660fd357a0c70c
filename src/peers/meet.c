/* SPDX-License-Identifier: MIT */
/*
 * Barriers of a subset of the ranks, and a gather made of them, for ranks whose hosts run no other
 * operations. A gather moves its data in pieces through the bodies of the two small messages, in
 * turn. The ranks meet before the first piece, since a body may hold data of an operation that a
 * peer still reads, and behind each piece. A rank that fills a body for piece k + 2 has met all
 * others behind piece k + 1, so they have read piece k.
 */
#include "peers/wait.h"

#include "base/signature.h"

#include <string.h>

static enum tutti_status meet(struct peers *peers, const struct request *request)
{
    const struct rank_set others = rank_set_minus(request->subset, rank_set_of(peers->rank));
    enum tutti_status status = TUTTI_OK;
    for (int r = rank_set_next(others, -1); r >= 0; r = rank_set_next(others, r))
        meeting_enter(peers, r, request->parameter);
    bell_ring_if_heard(peers);
    for (int r = rank_set_next(others, -1); r >= 0; r = rank_set_next(others, r)) {
        const struct layout_meeting *theirs = meeting_of(peers, r);
        status = wait_for(peers, r, &theirs->count, peers->meetings[r], request);
        if (status != TUTTI_OK)
            return status;
        if (theirs->subset != request->parameter) {
            struct tutti_fault fault = wait_fault(peers, TUTTI_ERR_MISMATCH, r, request);
            fault.seen = fault.expected;
            fault.seen.parameter = theirs->subset;
            return peers_fail(peers, &fault);
        }
    }
    return TUTTI_OK;
}

enum tutti_status peers_meet(struct peers *peers, const struct request *request)
{
    const enum tutti_status status = lane_begin(peers, LANE_SUBSET);
    return status == TUTTI_OK ? meet(peers, request) : status;
}

static enum tutti_status gather(struct peers *peers, const struct request *request,
                                const unsigned char *own, unsigned char *all)
{
    const size_t bytes = request->count;
    const bool is_open = order_load_relaxed_u32(&peers->faults.open);
    enum tutti_status (*const meeting)(struct peers *, const struct request *) =
        is_open ? peers_meet : meet;
    enum tutti_status status = meeting(peers, request);
    size_t first = 0;
    for (uint32_t piece = 0; first < bytes && status == TUTTI_OK; piece++) {
        const size_t left = bytes - first;
        const size_t length = left < LAYOUT_BODY_BYTES ? left : LAYOUT_BODY_BYTES;
        const uint32_t place = piece % LAYOUT_SMALL_MESSAGES;
        memcpy(peers->own->small_messages[place].body, own + first, length);
        status = meeting(peers, request);
        for (int r = 0; r < peers->size && status == TUTTI_OK; r++)
            memcpy(all + (size_t)r * bytes + first, peers->arenas[r]->small_messages[place].body,
                   length);
        first += length;
    }
    return status == TUTTI_OK ? meeting(peers, request) : status;
}

enum tutti_status peers_gather(void *opaque, const void *own, size_t bytes, void *all,
                               int64_t timeout_ms)
{
    struct peers *peers = opaque;
    const uint64_t sequence = peers->sequence;
    struct request request = {
        .count = bytes,
        .timeout_ms = timeout_ms,
        .timeout_source = TIMEOUT_OF_COMM,
        .signature = signature_pack(TUTTI_COLLECTIVE_SPLIT, TUTTI_UINT8, (enum op_kind)0,
                                    TUTTI_ALGO_ONE_SHOT, bytes),
    };
    request_set_subset(&request, rank_set_all(peers->size));
    order_store_relaxed_u64(&peers->before, sequence);
    if (order_load_relaxed_u32(&peers->faults.open)) /* else no operation has begun */
        order_store_relaxed_u64(&peers->sequence, GATHER_SEQUENCE);
    const enum tutti_status status = gather(peers, &request, own, all);
    order_store_relaxed_u64(&peers->sequence, sequence);
    return status;
}
