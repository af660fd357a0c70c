/* SPDX-License-Identifier: MIT */
/* Messages and v-forms by a kernel: cuda/kernels/exchange.h. */
#include "cuda/kernels/exchange.h"
#include "base/error.h"
#include "base/signature.h"
#include "coll/request.h"
#include "cuda/comm/group_internal.h"
#include "cuda/pipe/messages.h"

#include <stdlib.h>

/* The chains of a group of messages: order[] has the messages, chain by chain. */
struct chains {
    int count;                       /* of chains */
    int begins[EXCHANGE_CHAINS + 1]; /* in order[] */
    const struct request **order;
};

unsigned cuda_exchange_channels(const struct cuda_group *group)
{
    const int chains = 2 * (group->launch.size - 1);
    const struct cuda_choice *kernels = &group->plan.choices[CUDA_PLAN_ROWS];
    const int blocks = kernels[CUDA_EXCHANGE].blocks < kernels[CUDA_EXCHANGE_COUNTED].blocks
                           ? kernels[CUDA_EXCHANGE].blocks
                           : kernels[CUDA_EXCHANGE_COUNTED].blocks;
    const int most = blocks / chains;
    if (group->on_host || !group->rules->paths.all || blocks == 0)
        return 0;
    return most < 1 ? 1 : most < CUDA_CHANNELS ? (unsigned)most : CUDA_CHANNELS;
}

/* Sorts by chain; the messages of a chain keep their order. */
static void chains_sort(const struct cuda_group *group, struct request *const *requests, int count,
                        struct chains *chains)
{
    const int rank = group->launch.rank, size = group->launch.size;
    int next[EXCHANGE_CHAINS];
    chains->count = 2 * (size - 1);
    for (int c = 0; c <= chains->count; c++)
        chains->begins[c] = 0;
    for (int i = 0; i < count; i++)
        chains->begins[cuda_message_chain(requests[i], rank, size) + 1]++;
    for (int c = 0; c < chains->count; c++) {
        chains->begins[c + 1] += chains->begins[c];
        next[c] = chains->begins[c];
    }
    for (int i = 0; i < count; i++)
        chains->order[next[cuda_message_chain(requests[i], rank, size)]++] = requests[i];
}

/* Puts messages number `first` to `first + most - 1` of each chain into the launch, and lowers
 * *limit to the least of their limits of blocks. Returns the number of channels, 0 if there are
 * none. */
static unsigned transfers_fill(const struct chains *chains, int first, int most,
                               struct cuda_exchange *exchange, unsigned *limit)
{
    unsigned all = 0;
    uint16_t filled = 0;
    for (int c = 0; c < EXCHANGE_CHAINS; c++) {
        exchange->begins[c] = filled;
        exchange->channels[c] = 0;
        const int end = c < chains->count ? chains->begins[c + 1] : 0;
        const int begin = c < chains->count ? chains->begins[c] + first : 0;
        for (int i = begin; i < end && i < begin + most; i++) {
            const struct request *request = chains->order[i];
            const bool sends = request->collective == TUTTI_COLLECTIVE_SEND;
            const unsigned channels = exchange_channels(request->bytes, exchange->most);
            exchange->transfers[filled++] = (struct cuda_transfer){
                .address = sends ? (uintptr_t)request->send : (uintptr_t)request->recv,
                .bytes = request->bytes,
                .signature = request->signature,
            };
            if (channels > exchange->channels[c])
                exchange->channels[c] = (uint8_t)channels;
            if (request->choice.launch.blocks < *limit)
                *limit = request->choice.launch.blocks;
        }
        all += exchange->channels[c];
    }
    exchange->begins[EXCHANGE_CHAINS] = filled;
    return all;
}

/* Returns the number of blocks that serve so many channels. */
static unsigned blocks_fill(struct cuda_exchange *exchange, unsigned channels, unsigned limit)
{
    exchange->all = (uint8_t)channels;
    return channels < limit ? channels : limit;
}

/* Each launch has the next messages of every chain. A message has the same number in its chain on
 * both ranks, so no launch waits for a later one of a peer. */
static enum tutti_status launch_all(struct cuda_group *group, const struct chains *chains,
                                    tutti_stream_t stream)
{
    const struct request *any = chains->order[0];
    const int most = EXCHANGE_TRANSFERS / chains->count;
    struct cuda_exchange exchange = {.launch = group->launch,
                                     .most = (uint8_t)group->channels,
                                     .room = (uint8_t)group->channels};
    struct cuda_task task = {
        .function = group->kernels.functions[CUDA_EXCHANGE][0][CUDA_ANY],
        .threads = CUDA_THREADS,
        .launch = &exchange.launch,
        .request = any,
    };
    enum tutti_status status = TUTTI_OK;
    exchange.launch.signature = any->signature;
    exchange.launch.parameter = any->parameter;
    if (any->timeout_ms != group->default_timeout_ms)
        exchange.launch.timeout_ns = cuda_timeout_ns(any->timeout_ms);
    for (int first = 0; status == TUTTI_OK; first += most) {
        unsigned limit = CUDA_BLOCKS;
        const unsigned channels = transfers_fill(chains, first, most, &exchange, &limit);
        if (!channels)
            break;
        task.blocks = blocks_fill(&exchange, channels, limit);
        status = cuda_enqueue(group, stream, &task);
    }
    return status;
}

enum tutti_status cuda_exchange_enqueue(struct cuda_group *group, struct request *const *requests,
                                        int count, tutti_stream_t stream)
{
    const struct request *few[EXCHANGE_TRANSFERS];
    struct chains chains = {.order = few};
    if (count > EXCHANGE_TRANSFERS) {
        chains.order = malloc((size_t)count * sizeof *chains.order);
        if (!chains.order)
            return error_set(TUTTI_ERR_NO_MEMORY, "no memory for %d messages of a group", count);
    }
    chains_sort(group, requests, count, &chains);
    const enum tutti_status status = launch_all(group, &chains, stream);
    if (chains.order != few)
        free(chains.order);
    return status;
}

/* ---- collectives ----------------------------------------------------------------------------- */

/* The blocks of an operand by the rank that they go to, or come from. What does not travel is an
 * empty block. */
static void blocks_read(const struct request *request, bool is_send, int rank, int size,
                        struct cuda_transfer *blocks)
{
    const struct coll *coll = &coll_rows[request->collective];
    const struct coll_blocks *given = is_send ? &request->send_blocks : &request->recv_blocks;
    const uintptr_t operand = is_send ? (uintptr_t)request->send : (uintptr_t)request->recv;
    const bool has = coll_has(is_send ? coll->send : coll->recv, rank, request->peer);
    const bool many = has && (is_send ? coll->send_all : coll->recv_all);
    size_t next = 0;
    for (int r = 0; r < size; r++) {
        const bool moves = has && coll_has(is_send ? coll->recv : coll->send, r, request->peer);
        const size_t start = many ? coll_block_start(given, r, &next) : 0;
        const size_t count = !moves ? 0 : many ? coll_block_count(given, r) : request->count;
        blocks[r] = (struct cuda_transfer){
            .address = operand + start * request->bytes,
            .bytes = count * request->bytes,
            .signature = signature_set_count(request->signature, count),
        };
    }
}

/* Puts a transfer into each chain. Returns the number of channels. Those that send also copy the
 * own block, and are as many as that needs. */
static unsigned chains_fill(const struct request *request, struct cuda_exchange *exchange)
{
    const int rank = exchange->launch.rank, size = exchange->launch.size, others = size - 1;
    struct cuda_transfer sent[CUDA_RANKS], received[CUDA_RANKS];
    unsigned all = 0, copiers = 0;
    blocks_read(request, true, rank, size, sent);
    blocks_read(request, false, rank, size, received);
    if (sent[rank].address != received[rank].address)
        exchange->own = (struct cuda_own_block){sent[rank].address, received[rank].address,
                                                received[rank].bytes};
    if (exchange->own.bytes)
        copiers = exchange_channels(exchange->own.bytes / (unsigned)others, exchange->most);
    for (int c = 0; c <= EXCHANGE_CHAINS; c++)
        exchange->begins[c] = (uint16_t)(c < 2 * others ? c : 2 * others);
    for (int c = 0; c < 2 * others; c++) {
        const int peer = c % others + (c % others >= rank);
        exchange->transfers[c] = c < others ? sent[peer] : received[peer];
        const unsigned channels = exchange_channels(exchange->transfers[c].bytes, exchange->most);
        exchange->channels[c] = (uint8_t)(c < others && channels < copiers ? copiers : channels);
        all += exchange->channels[c];
    }
    return all;
}

enum tutti_status cuda_exchange_collective(struct cuda_group *group, const struct request *request,
                                           const struct cuda_launch *launch, tutti_stream_t stream)
{
    struct cuda_exchange exchange = {
        .launch = *launch,
        .most = (uint8_t)group->channels,
        .room = (uint8_t)group->channels,
        .numbered = 1,
    };
    const unsigned channels = chains_fill(request, &exchange);
    const struct cuda_task task = {
        .function = group->kernels.functions[CUDA_EXCHANGE][0][CUDA_ANY],
        .blocks = blocks_fill(&exchange, channels, request->choice.launch.blocks),
        .threads = CUDA_THREADS,
        .launch = &exchange.launch,
        .request = request,
    };
    return cuda_enqueue(group, stream, &task);
}

/* ---- collectives whose counts are on the device ---------------------------------------------- */

static struct cuda_counted_call counted_call(const struct request *request)
{
    const struct coll *coll = &coll_rows[request->collective];
    const struct coll_blocks *recv = &request->recv_blocks,
                             *send = coll->send_all ? &request->send_blocks : recv;
    return (struct cuda_counted_call){
        .operands = {(uintptr_t)request->send, (uintptr_t)request->recv},
        .counts = {(uintptr_t)send->counts, (uintptr_t)recv->counts},
        .displacements = {(uintptr_t)send->displacements, (uintptr_t)recv->displacements},
        .extents = {request->limits.send_extent, request->limits.recv_extent},
        .most = request->limits.most,
        .signature = signature_set_count(request->signature, 0),
        .width = (uint32_t)request->bytes,
        .sends_one = !coll->send_all,
        .is_narrow = recv->is_narrow,
    };
}

enum tutti_status cuda_exchange_counted(struct cuda_group *group, struct request *const *requests,
                                        int count, const struct cuda_launch *launch,
                                        tutti_stream_t stream)
{
    const unsigned chains = 2 * (unsigned)(launch->size - 1);
    struct cuda_exchange exchange = {
        .launch = *launch,
        .most = (uint8_t)group->channels,
        .room = (uint8_t)group->channels,
        .numbered = 1,
        .calls = (uint8_t)count,
    };
    unsigned channels = 1, limit = CUDA_BLOCKS;
    for (int i = 0; i < count; i++) {
        const unsigned blocks = requests[i]->choice.launch.blocks;
        const unsigned its =
            exchange_channels(requests[i]->limits.most * requests[i]->bytes, exchange.most);
        exchange.counted[i] = counted_call(requests[i]);
        channels = its > channels ? its : channels;
        limit = blocks < limit ? blocks : limit;
    }
    for (unsigned c = 0; c < chains; c++)
        exchange.channels[c] = (uint8_t)channels;
    const struct cuda_task task = {
        .function = group->kernels.functions[CUDA_EXCHANGE_COUNTED][0][CUDA_ANY],
        .blocks = blocks_fill(&exchange, chains * channels, limit),
        .threads = CUDA_THREADS,
        .launch = &exchange.launch,
        .request = requests[0],
    };
    return cuda_enqueue(group, stream, &task);
}
