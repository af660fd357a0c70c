/* SPDX-License-Identifier: MIT */
/* The operations of devices on several hosts, as transfers and kernels: fabric.h. */
#include "cuda/comm/fabric.h"

#include "base/error.h"
#include "base/signature.h"
#include "coll/request.h"
#include "cuda/pipe/messages.h"

#include <stdlib.h>

enum {
    MOVE_BYTES = 64 << 20, /* of a part of a transfer */
    UNIT = CUDA_LINE,
    CHAIN_MOST = CUDA_ANNOUNCE_HEADERS / (2 * (CUDA_RANKS - 1)), /* messages of a launch */
};

/* The transfers of one part. */
struct list {
    int count;
    struct fabric_transfer transfers[2 * CUDA_RANKS];
};

static void list_add(struct list *list, int peer, bool is_send, const void *buffer, size_t bytes)
{
    if (bytes)
        list->transfers[list->count++] = (struct fabric_transfer){
            .peer = peer, .is_send = is_send, .buffer = (void *)(uintptr_t)buffer, .bytes = bytes};
}

static enum tutti_status list_enqueue(struct cuda_group *group, struct list *list,
                                      tutti_stream_t stream)
{
    const int count = list->count;
    list->count = 0;
    return count ? fabric_enqueue(group->fabric->link, list->transfers, count, stream) : TUTTI_OK;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* A part of an operation that reduces: rank r combines counts[r] elements, which begin at firsts[r]
 * of all ranks' inputs. */
struct part {
    size_t firsts[CUDA_RANKS], counts[CUDA_RANKS];
};

static unsigned char *slot(const struct cuda_group *group, int rank)
{
    return group->fabric->slots + (size_t)rank * group->fabric->slot_bytes;
}

static const unsigned char *input(const struct request *request, size_t first)
{
    return (const unsigned char *)request->send + first * request->element_bytes;
}

/* Combines this rank's share, whose other ranks' inputs are in their slots. */
static enum tutti_status combine(struct cuda_group *group, const struct request *request,
                                 const struct part *part, unsigned char *to, tutti_stream_t stream)
{
    enum { BLOCKS_OF_MULTIPROCESSOR = 4 };
    const int rank = group->launch.rank, size = group->launch.size;
    const size_t count = part->counts[rank];
    struct cuda_combine args = {.launch = group->launch};
    const bool is_sum =
        request->op == OP_SUM && group->kernels.functions[CUDA_COMBINE][request->dtype][CUDA_SUM];
    const size_t units = (count * request->element_bytes + UNIT - 1) / UNIT;
    const size_t blocks = (units + CUDA_COMBINE_THREADS - 1) / CUDA_COMBINE_THREADS;
    void *parameters[] = {&args};
    if (!count)
        return TUTTI_OK;
    args.launch.recv = to;
    args.launch.count = count;
    args.launch.op = (int32_t)request->op + request->scalar_in_memory;
    args.launch.scalar = request->scalar;
    args.launch.leaf = 0;
    for (int leaf = 0; leaf < size; leaf++) {
        const int r = group->fabric->order[leaf];
        args.from[leaf] = r == rank ? input(request, part->firsts[rank]) : slot(group, r);
    }
    const CUlaunchConfig config = {
        .gridDimX = (unsigned)least(blocks, (size_t)group->device.multiprocessors *
                                                BLOCKS_OF_MULTIPROCESSOR),
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = CUDA_COMBINE_THREADS,
        .blockDimY = 1,
        .blockDimZ = 1,
        .hStream = cuda_stream_of(stream),
    };
    return CUDA_CALL(
        group->driver, launch, &config,
        group->kernels.functions[CUDA_COMBINE][request->dtype][is_sum ? CUDA_SUM : CUDA_ANY],
        parameters, NULL);
}

/* Exchanges a part's inputs, and combines this rank's share into `to`. */
static enum tutti_status part_combine(struct cuda_group *group, const struct request *request,
                                      const struct part *part, unsigned char *to,
                                      tutti_stream_t stream)
{
    const int rank = group->launch.rank;
    const size_t width = request->element_bytes;
    struct list list = {.count = 0};
    for (int r = 0; r < group->launch.size; r++) {
        if (r == rank)
            continue;
        list_add(&list, r, true, input(request, part->firsts[r]), part->counts[r] * width);
        list_add(&list, r, false, slot(group, r), part->counts[rank] * width);
    }
    const enum tutti_status status = list_enqueue(group, &list, stream);
    return status == TUTTI_OK ? combine(group, request, part, to, stream) : status;
}

/* Cuts `count` elements from `first` on into shares of whole units. */
static void shares_cut(const struct cuda_group *group, const struct request *request, size_t first,
                       size_t count, struct part *part)
{
    const size_t size = (size_t)group->launch.size, unit = UNIT / request->element_bytes;
    const size_t share = ((count + size - 1) / size + unit - 1) / unit * unit;
    for (size_t r = 0; r < size; r++) {
        part->firsts[r] = first + least(r * share, count);
        part->counts[r] = least(share, count - least(r * share, count));
    }
}

/* The rank that has no other place for its results, since it is not the root. */
static unsigned char *result_place(const struct cuda_group *group, const struct request *request,
                                   size_t first)
{
    const bool is_reduce = request->collective == TUTTI_COLLECTIVE_REDUCE;
    return is_reduce && request->peer != group->launch.rank
               ? slot(group, group->launch.size)
               : (unsigned char *)request->recv + first * request->element_bytes;
}

/* Each rank combines its share and sends it to all, or to the root. */
static enum tutti_status part_two_hops(struct cuda_group *group, const struct request *request,
                                       const struct part *part, tutti_stream_t stream)
{
    const int rank = group->launch.rank;
    const bool is_reduce = request->collective == TUTTI_COLLECTIVE_REDUCE;
    const size_t width = request->element_bytes;
    unsigned char *own = result_place(group, request, part->firsts[rank]);
    struct list list = {.count = 0};
    const enum tutti_status status = part_combine(group, request, part, own, stream);
    if (status != TUTTI_OK)
        return status;
    for (int r = 0; r < group->launch.size; r++) {
        if (r == rank)
            continue;
        if (!is_reduce || r == request->peer)
            list_add(&list, r, true, own, part->counts[rank] * width);
        if (!is_reduce || rank == request->peer)
            list_add(&list, r, false, (unsigned char *)request->recv + part->firsts[r] * width,
                     part->counts[r] * width);
    }
    return list_enqueue(group, &list, stream);
}

/* All-reduce and reduce. */
static enum tutti_status sum(struct cuda_group *group, const struct request *request,
                             tutti_stream_t stream)
{
    const bool one_hop = request->collective == TUTTI_COLLECTIVE_ALL_REDUCE &&
                         request->choice.algo == TUTTI_ALGO_ONE_SHOT;
    const size_t width = request->element_bytes, slots = group->fabric->slot_bytes / width;
    const size_t most = one_hop ? slots : slots * (size_t)group->launch.size;
    enum tutti_status status = TUTTI_OK;
    for (size_t at = 0; at < request->count && status == TUTTI_OK; at += most) {
        const size_t count = least(most, request->count - at);
        struct part part;
        if (at)
            status = cuda_fabric_mark(group, cuda_stream_of(stream));
        if (status != TUTTI_OK)
            return status;
        shares_cut(group, request, at, count, &part);
        for (int r = 0; r < group->launch.size && one_hop; r++) {
            part.firsts[r] = at;
            part.counts[r] = count;
        }
        status = one_hop ? part_combine(group, request, &part,
                                        (unsigned char *)request->recv + at * width, stream)
                         : part_two_hops(group, request, &part, stream);
    }
    return status;
}

/* Reduce-scatter and its v-form, by pieces of each block. */
static enum tutti_status sum_scatter(struct cuda_group *group, const struct request *request,
                                     tutti_stream_t stream)
{
    const bool varies = coll_rows[request->collective].varies;
    const size_t width = request->element_bytes, most = group->fabric->slot_bytes / width;
    const size_t components = varies ? request->bytes / width : 1;
    const int size = group->launch.size;
    size_t firsts[CUDA_RANKS], counts[CUDA_RANKS], next = 0, longest = 0;
    enum tutti_status status = TUTTI_OK;
    for (int r = 0; r < size; r++) {
        firsts[r] = varies ? coll_block_start(&request->send_blocks, r, &next) * components
                           : (size_t)r * request->count;
        counts[r] =
            varies ? coll_block_count(&request->send_blocks, r) * components : request->count;
        longest = counts[r] > longest ? counts[r] : longest;
    }
    for (size_t at = 0; at < longest && status == TUTTI_OK; at += most) {
        struct part part;
        if (at)
            status = cuda_fabric_mark(group, cuda_stream_of(stream));
        for (int r = 0; r < size; r++) {
            part.firsts[r] = firsts[r] + at;
            part.counts[r] = at < counts[r] ? least(most, counts[r] - at) : 0;
        }
        if (status == TUTTI_OK)
            status = part_combine(group, request, &part,
                                  (unsigned char *)request->recv + at * width, stream);
    }
    return status;
}

/* ---- moves ----------------------------------------------------------------------------------- */

struct block {
    unsigned char *at;
    size_t bytes;
    uint64_t signature; /* 0: nothing goes from one of the two ranks to the other */
};

/* The blocks of an operand by the rank that they go to, or come from. */
static void blocks_read(const struct cuda_group *group, const struct request *request, bool is_send,
                        struct block *blocks)
{
    const struct coll *coll = &coll_rows[request->collective];
    const struct coll_blocks *given = is_send ? &request->send_blocks : &request->recv_blocks;
    unsigned char *operand = is_send ? (unsigned char *)(uintptr_t)request->send : request->recv;
    const int rank = group->launch.rank;
    const bool has = coll_has(is_send ? coll->send : coll->recv, rank, request->peer);
    const bool many = is_send ? coll->send_all : coll->recv_all;
    size_t next = 0;
    for (int r = 0; r < group->launch.size; r++) {
        const bool moves = has && coll_has(is_send ? coll->recv : coll->send, r, request->peer);
        const bool listed = coll->varies && many && has;
        const size_t start = listed  ? coll_block_start(given, r, &next) * request->bytes
                             : !many ? 0
                                     : (size_t)r * request->bytes;
        const size_t count = !coll->varies ? request->count
                             : listed      ? coll_block_count(given, r)
                                           : request->count;
        blocks[r] = (struct block){.signature = request->signature};
        if (coll->varies)
            blocks[r].signature = signature_set_count(request->signature, moves ? count : 0);
        if (moves && request->bytes)
            blocks[r] = (struct block){operand + start,
                                       coll->varies ? count * request->bytes : request->bytes,
                                       blocks[r].signature};
    }
}

struct moves {
    const struct request *request;
    struct block sent[CUDA_RANKS], received[CUDA_RANKS];
};

/* Adds the part of the blocks from `at` on, of at most `most` bytes each. Received ones come into
 * the slots if `in_slots`. Returns true if there is more. */
static bool moves_add(const struct cuda_group *group, const struct moves *moves, size_t at,
                      size_t most, bool in_slots, struct list *list)
{
    bool more = false;
    for (int r = 0; r < group->launch.size; r++) {
        if (r == group->launch.rank)
            continue;
        for (int i = 0; i < 2; i++) {
            const struct block *block = i ? &moves->received[r] : &moves->sent[r];
            if (at >= block->bytes)
                continue;
            list_add(list, r, i == 0, i && in_slots ? slot(group, r) : block->at + at,
                     least(most, block->bytes - at));
            more |= block->bytes - at > most;
        }
    }
    return more;
}

/* Copies what has come from the slots to its place. */
static enum tutti_status slots_empty(struct cuda_group *group, const struct moves *moves, size_t at,
                                     size_t most, CUstream stream)
{
    enum tutti_status status = TUTTI_OK;
    for (int r = 0; r < group->launch.size && status == TUTTI_OK; r++) {
        const struct block *block = &moves->received[r];
        if (r != group->launch.rank && at < block->bytes)
            status =
                CUDA_CALL(group->driver, memcpy_async, cuda_address(block->at + at),
                          cuda_address(slot(group, r)), least(most, block->bytes - at), stream);
    }
    return status;
}

/* In place, a block from a rank has the place of that to it: what comes waits in a slot. */
static enum tutti_status move(struct cuda_group *group, const struct moves *moves,
                              tutti_stream_t stream)
{
    const CUstream on = cuda_stream_of(stream);
    const struct block *from = &moves->sent[group->launch.rank],
                       *to = &moves->received[group->launch.rank];
    const bool is_all_to_all = moves->request->collective == TUTTI_COLLECTIVE_ALL_TO_ALL;
    const bool in_slots = is_all_to_all && moves->request->send == moves->request->recv;
    const size_t most = is_all_to_all ? group->fabric->slot_bytes : MOVE_BYTES; /* on all ranks */
    struct list list = {.count = 0};
    enum tutti_status status = TUTTI_OK;
    bool more = true;
    if (from->bytes && to->bytes && from->at != to->at)
        status = CUDA_CALL(group->driver, memcpy_async, cuda_address(to->at),
                           cuda_address(from->at), to->bytes, on);
    for (size_t at = 0; more && status == TUTTI_OK; at += most) {
        if (at)
            status = cuda_fabric_mark(group, on);
        more = moves_add(group, moves, at, most, in_slots, &list);
        if (status == TUTTI_OK)
            status = list_enqueue(group, &list, stream);
        if (status == TUTTI_OK && in_slots)
            status = slots_empty(group, moves, at, most, on);
    }
    return status;
}

/* ---- collectives ----------------------------------------------------------------------------- */

static enum tutti_status body(struct cuda_group *group, void *context, tutti_stream_t stream)
{
    const struct moves *moves = context;
    const struct request *request = moves->request;
    const struct coll *coll = &coll_rows[request->collective];
    if (request->collective == TUTTI_COLLECTIVE_BARRIER)
        return TUTTI_OK;
    return !coll->reduces   ? move(group, moves, stream)
           : coll->send_all ? sum_scatter(group, request, stream)
                            : sum(group, request, stream);
}

/* Headers go between all ranks, or all of the subset. */
enum tutti_status cuda_fabric_collective(struct cuda_group *group, struct request *request,
                                         tutti_stream_t stream)
{
    const bool reduces = coll_rows[request->collective].reduces;
    const bool is_barrier = request->collective == TUTTI_COLLECTIVE_BARRIER;
    const uint64_t timeout_ns =
        request->timeout_ms == group->default_timeout_ms ? 0 : cuda_timeout_ns(request->timeout_ms);
    uint8_t peers[CUDA_RANKS];
    uint64_t own[CUDA_RANKS], expected[CUDA_RANKS];
    struct moves moves = {.request = request};
    const struct cuda_headers headers = {.count = group->launch.size,
                                         .parameter = request->parameter,
                                         .numbered = rank_set_empty(request->subset),
                                         .peers = peers,
                                         .own = own,
                                         .expected = expected};
    if (!is_barrier)
        request->signature = signature_set_algo(request->signature, request->choice.algo);
    if (!reduces && !is_barrier) {
        blocks_read(group, request, true, moves.sent);
        blocks_read(group, request, false, moves.received);
    }
    for (int r = 0; r < group->launch.size; r++) {
        const bool moves_blocks = !reduces && !is_barrier;
        const bool is_peer = r != group->launch.rank &&
                             (rank_set_empty(request->subset) || rank_set_has(request->subset, r));
        peers[r] = (uint8_t)r;
        own[r] = !is_peer ? 0 : moves_blocks ? moves.sent[r].signature : request->signature;
        expected[r] = !is_peer       ? 0
                      : moves_blocks ? moves.received[r].signature
                                     : request->signature;
    }
    return cuda_fabric_enqueue(group, &headers, timeout_ns, body, &moves, stream);
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Messages that run at the same time. */
struct messages {
    struct request **requests;
    int count;
    struct fabric_transfer *transfers;
};

static enum tutti_status messages_body(struct cuda_group *group, void *context,
                                       tutti_stream_t stream)
{
    const struct messages *messages = context;
    int count = 0;
    for (int i = 0; i < messages->count; i++) {
        const struct request *request = messages->requests[i];
        const bool sends = request->collective == TUTTI_COLLECTIVE_SEND;
        if (request->bytes)
            messages->transfers[count++] = (struct fabric_transfer){
                .peer = request->peer,
                .is_send = sends,
                .buffer = sends ? (void *)(uintptr_t)request->send : request->recv,
                .bytes = request->bytes};
    }
    return count ? fabric_enqueue(group->fabric->link, messages->transfers, count, stream)
                 : TUTTI_OK;
}

/* The next messages of each chain, up to CHAIN_MOST. A message has the same number in its chain on
 * both ranks. */
static void chains_take(const struct cuda_group *group, struct request *const *requests, int count,
                        int first, struct messages *messages)
{
    int seen[2 * CUDA_RANKS] = {0};
    messages->count = 0;
    for (int i = 0; i < count; i++) {
        const int number =
            seen[cuda_message_chain(requests[i], group->launch.rank, group->launch.size)]++;
        if (number >= first && number < first + CHAIN_MOST)
            messages->requests[messages->count++] = requests[i];
    }
}

static enum tutti_status messages_enqueue(struct cuda_group *group, struct messages *messages,
                                          uint64_t *signatures, uint8_t *peers,
                                          tutti_stream_t stream)
{
    const struct request *any = messages->requests[0];
    const struct cuda_headers headers = {.count = messages->count,
                                         .peers = peers,
                                         .own = signatures,
                                         .expected = signatures + messages->count};
    for (int i = 0; i < messages->count; i++) {
        const struct request *request = messages->requests[i];
        const bool sends = request->collective == TUTTI_COLLECTIVE_SEND;
        peers[i] = (uint8_t)request->peer;
        headers.own[i] = sends ? request->signature : 0;
        headers.expected[i] = sends ? 0 : request->signature;
    }
    return cuda_fabric_enqueue(
        group, &headers,
        any->timeout_ms == group->default_timeout_ms ? 0 : cuda_timeout_ns(any->timeout_ms),
        messages_body, messages, stream);
}

enum tutti_status cuda_fabric_send_recv(struct cuda_group *group, struct request *const *requests,
                                        int count, tutti_stream_t stream)
{
    const size_t each = sizeof(struct request *) + sizeof(struct fabric_transfer) +
                        2 * sizeof(uint64_t) + sizeof(uint8_t);
    struct messages messages = {.transfers = malloc((size_t)count * each)};
    enum tutti_status status = TUTTI_OK;
    if (!messages.transfers)
        return error_errno("%d messages", count);
    messages.requests = (struct request **)(messages.transfers + count);
    uint64_t *signatures = (uint64_t *)(messages.requests + count);
    for (int first = 0; status == TUTTI_OK; first += CHAIN_MOST) {
        chains_take(group, requests, count, first, &messages);
        if (!messages.count)
            break;
        status = messages_enqueue(group, &messages, signatures, (uint8_t *)(signatures + 2 * count),
                                  stream);
    }
    free(messages.transfers);
    return status;
}
