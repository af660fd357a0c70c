/* SPDX-License-Identifier: MIT */
/*
 * Piece by piece (1 MiB) the caller puts onto the stream (pipe.h):
 *
 *     copy piece k + 1 in; write "k + 1 has come"; wait until k is done; copy piece k out
 *
 * So the stream copies while the thread runs the hosts' part. Piece k + 1 may use the slot of piece
 * k - 1, because the copy of k - 1 out is earlier on the stream. The operation is in the ring for
 * the thread before its other pieces are on the stream: the driver blocks a caller whose stream is
 * full, and the thread then makes room.
 *
 * - The stream and the thread wait for each other without a deadline. The threads of the ranks wait
 *   for each other with the operation's deadline. A caller waits for a place in the ring until its
 *   time-out; then the communicator fails.
 * - However the thread ends, its last write is `done` = 2^63 - 1. The driver's GEQ compares
 *   cyclically, so this word lets every wait pass, now and later. The fault is recorded first.
 * - In a v-form a rank may have fewer pieces than its peers. On one host the peers go on without
 *   it. Ranks on several hosts agree on the number first, where not all of them know all counts,
 *   and the thread runs empty pieces behind its own. The stream does not wait for those.
 * - A call of the driver that fails before the first piece is announced changes nothing. After that
 *   the communicator fails on all ranks.
 */
#include "cuda/pipe/proxy.h"

#include "base/error.h"
#include "base/order.h"
#include "base/wait.h"
#include "cpu/call_list.h"
#include "cpu/reduce/reduce.h"
#include "cuda/comm/group_internal.h"
#include "cuda/pipe/messages.h"
#include "cuda/pipe/pipe.h"

#include <stdlib.h>
#include <sys/prctl.h>

enum {
    IDLE_MS = 1000,     /* the sleep of a thread without an operation, unless it is woken */
    PATIENCE_MS = 1000, /* that a caller waits longer than the hosts */
    SMALL_BYTES =
        1024, /* up to here a copy is made to go to a copy engine; larger ones go there anyway */
    TIMER_SLACK_NS = 1000 /* how much longer a sleep may last; Linux has 50 us */
};

/* A collective, or messages that run at the same time. A batch of messages is a piece. Operands are
 * device memory. */
struct operation {
    struct request request; /* the collective; else the first message */
    struct cuda_cut cut;    /* of the collective */
    struct cuda_blocks blocks;
    struct cuda_messages *messages; /* NULL: a collective */
    struct cuda_slots slots;
    uint64_t pieces;
    uint64_t number; /* of a collective, or of the one before a message */
};

struct cuda_proxy {
    struct cuda_watcher watcher;
    struct cuda_group *group;
    int polls;                    /* until the thread naps */
    struct cuda_proxy_page *page; /* owned by struct cuda_resources */
    CUdeviceptr come, done;       /* the addresses of its words on the device */
    uint64_t pieces;    /* number of pieces on streams; written by the caller, as is `enqueued` */
    uint64_t enqueued;  /* number of operations of all ranks */
    uint64_t completed; /* of the last one that succeeded; written by the thread */
    uint64_t awaited;   /* the piece that the thread waits for; the thread alone uses this */
    bool sharp;         /* the timer slack is set; the thread alone uses this */

    struct cpu_states states; /* for messages; the thread alone uses them */

    uint64_t put;    /* number of operations put into the ring: release E3 pairs E3a */
    uint64_t taken;  /* ... that have ended: release E4 pairs E4a */
    uint32_t bell;   /* of the watcher */
    uint32_t asleep; /* 1 while the thread may sleep on the bell */
    struct operation ring[CUDA_PROXY_OPERATIONS];
};

/* Pieces have numbers: those of all operations count from 1. */
static uint64_t number_of(const struct operation *operation, uint64_t piece)
{
    return operation->slots.used + piece + 1;
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Returns true, and records the fault, if the communicator has failed or was aborted. */
static bool has_failed(const struct cuda_proxy *proxy)
{
    const struct cuda_group *group = proxy->group;
    struct tutti_fault fault;
    if (!peers_check(group->peers, -1, false, &fault))
        return false;
    peers_fail(group->peers, &fault);
    return true;
}

static bool piece_has_come(void *context)
{
    const struct cuda_proxy *proxy = context;
    return order_load_acquire_u64(&proxy->page->come) >= proxy->awaited; /* E1a pairs E1 */
}

static bool piece_is_lost(void *context, enum wait_depth depth)
{
    const struct cuda_proxy *proxy = context;
    (void)depth;
    return has_failed(proxy);
}

/* Waits until the stream has copied the piece in; false if the communicator fails first. There is
 * no deadline: earlier work on the stream may take long, and the waiting peers have deadlines. */
static bool piece_await(struct cuda_proxy *proxy, uint64_t number)
{
    const struct waiter waiter = {
        .poll = piece_has_come, .look = piece_is_lost, .context = proxy, .nap_ns = WAIT_NAP_NS};
    proxy->awaited = number;
    if (wait_spin(piece_has_come, proxy, 0, proxy->polls))
        return !has_failed(proxy);
    if (!proxy->sharp)
        proxy->sharp = prctl(PR_SET_TIMERSLACK, (unsigned long)TIMER_SLACK_NS, 0, 0, 0) == 0;
    return waiter_run(&waiter) == WAIT_DONE && !has_failed(proxy);
}

/* Chooses the hosts' algorithm for a part of the collective or message `whole`. */
static enum tutti_status part_choose(struct cuda_proxy *proxy, const struct request *whole,
                                     struct request *part)
{
    const enum tutti_algo algo = whole->choice.algo;
    const struct choice_call call = {
        .collective = part->collective,
        .bytes = coll_varies(part->collective) ? part->count * part->bytes : part->bytes,
        .dtype = part->dtype,
        .algo = algo == TUTTI_ALGO_HOST_STAGED ? TUTTI_ALGO_NONE : algo,
    };
    const struct backend_hosts *hosts = &proxy->group->hosts;
    const enum tutti_status status = hosts->backend->choose(hosts->group, &call, &part->choice);
    part->choice.zero_copy = false; /* no peer may use the slots */
    return status;
}

/* Whether the ranks have to agree on the number of pieces. */
static bool pieces_differ(const struct cuda_proxy *proxy, const struct request *request)
{
    return proxy->group->many_hosts && coll_varies(request->collective) &&
           !coll_has_common_counts(request->collective);
}

/* Sets the largest number of pieces of any rank. This takes the operation's number, and finds a
 * mismatch. */
static enum tutti_status pieces_agree(struct cuda_proxy *proxy, const struct request *whole,
                                      uint64_t *pieces)
{
    const struct backend_hosts *hosts = &proxy->group->hosts;
    struct request request = {
        .collective = TUTTI_COLLECTIVE_ALL_REDUCE,
        .dtype = TUTTI_UINT64,
        .op = OP_MAX,
        .send = pieces,
        .recv = pieces,
        .count = 1,
        .bytes = sizeof *pieces,
        .element_bytes = sizeof *pieces,
        .reduce = reduce_function(reduce_isa_best(), TUTTI_UINT64, OP_MAX),
        .timeout_ms = whole->timeout_ms,
        .timeout_source = whole->timeout_source,
        .signature = whole->signature,
        .parameter = whole->parameter,
    };
    const enum tutti_status status = part_choose(proxy, whole, &request);
    return status == TUTTI_OK
               ? request.choice.run->run(hosts->group, &request, TUTTI_STREAM_DEFAULT)
               : status;
}

/* Runs one piece of a collective among the hosts. `more`: not as the first part of it. */
static enum tutti_status collective_run(struct cuda_proxy *proxy, const struct operation *operation,
                                        uint64_t piece, bool more)
{
    const struct backend_hosts *hosts = &proxy->group->hosts;
    struct cuda_blocks part;
    struct request request;
    cuda_cut_request(&operation->cut, &operation->blocks, &operation->request, piece,
                     cuda_slot(&operation->slots, piece), &part, &request);
    if (request.scalar_in_memory)
        request.scalar =
            op_scalar_load(&proxy->page->scalars[operation - proxy->ring], request.dtype);
    if (request.collective == TUTTI_COLLECTIVE_BARRIER)
        return hosts->backend->barrier->run(hosts->group, &request, TUTTI_STREAM_DEFAULT);
    const enum tutti_status status = part_choose(proxy, &operation->request, &request);
    if (status != TUTTI_OK)
        return status;
    return more ? hosts->backend->run_more(hosts->group, &request)
                : request.choice.run->run(hosts->group, &request, TUTTI_STREAM_DEFAULT);
}

/* Runs a batch of messages. */
static enum tutti_status messages_run(struct cuda_proxy *proxy, const struct operation *operation,
                                      uint64_t batch)
{
    struct cpu_call calls[2 * CUDA_RANKS], *first = NULL;
    const struct cuda_group *group = proxy->group;
    const struct cuda_message_part *end, *part;
    enum tutti_status status = TUTTI_OK;
    int count = 0;
    for (part = cuda_messages_batch(operation->messages, batch, &end); part < end; part++) {
        struct cpu_call *call = &calls[count++];
        *call = (struct cpu_call){.group = group->hosts.group,
                                  .peers = group->beside ? group->beside : group->peers,
                                  .request = *part->request,
                                  .next = first};
        call->request.send = call->request.recv = cuda_slot(&operation->slots, batch) + part->place;
        call->request.bytes = part->bytes;
        call->request.count = part->bytes / part->request->element_bytes;
        status = part_choose(proxy, part->request, &call->request);
        if (status != TUTTI_OK)
            return status;
        first = call;
    }
    cpu_call_list_run(first, &proxy->states);
    for (int i = 0; i < count && status == TUTTI_OK; i++)
        status = calls[i].status;
    return status;
}

static bool operation_run(struct cuda_proxy *proxy, const struct operation *operation)
{
    const bool differ = !operation->messages && pieces_differ(proxy, &operation->request);
    uint64_t pieces = operation->pieces;
    for (uint64_t piece = 0; piece < pieces; piece++) {
        const uint64_t number = number_of(operation, piece);
        const bool is_own = piece < operation->pieces;
        enum tutti_status status = TUTTI_OK;
        if (is_own && !piece_await(proxy, number))
            return false;
        if (differ && piece == 0)
            status = pieces_agree(proxy, &operation->request, &pieces);
        if (status == TUTTI_OK)
            status = operation->messages ? messages_run(proxy, operation, piece)
                                         : collective_run(proxy, operation, piece, piece || differ);
        if (status != TUTTI_OK)
            return false;
        /* Relaxed: others read it after the stream or the thread has ended. */
        if (piece + 1 == pieces)
            order_store_relaxed_u64(&proxy->completed, operation->number);
        if (is_own) /* E2 pairs E2a, the stream's wait */
            order_store_release_u64(&proxy->page->done, number);
    }
    return true;
}

static bool has_operation(void *context)
{
    const struct cuda_proxy *proxy = context;
    return order_load_acquire_u64(&proxy->put) != proxy->taken; /* E3a pairs E3 */
}

/* Without an operation the thread polls, then sleeps. Returns how long: 0 if there is one now. */
static int64_t idle(struct cuda_proxy *proxy)
{
    if (wait_spin(has_operation, proxy, 0, proxy->polls))
        return 0;
    order_store_relaxed_u32(&proxy->asleep, 1);
    order_fence(); /* between our write and the read of the other side's word; pairs the other such
                      fence */
    return has_operation(proxy) ? 0 : IDLE_MS;
}

/* The hosts' fault becomes the communicator's. */
static void fault_pass(struct cuda_proxy *proxy, const struct operation *operation)
{
    const struct cuda_group *group = proxy->group;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    if (!group->beside || has_failed(proxy) || order_load_relaxed_u32(&group->quits) ||
        peers_status(group->beside, &fault) == TUTTI_OK)
        return;
    fault.sequence = operation->number;
    peers_fail(group->peers, &fault);
}

static int64_t look(void *context)
{
    struct cuda_proxy *proxy = context;
    order_store_relaxed_u32(&proxy->asleep, 0);
    if (!has_operation(proxy))
        return idle(proxy);
    struct operation *operation = &proxy->ring[proxy->taken % CUDA_PROXY_OPERATIONS];
    if (!operation_run(proxy, operation)) {
        fault_pass(proxy, operation);
        return -1;
    }
    cuda_messages_release(operation->messages);
    order_store_release_u64(&proxy->taken, proxy->taken + 1); /* E4 pairs E4a */
    return 0;
}

/* The progress function of the hosts' waits: ends them once the communicator has failed. */
static int comm_has_failed(void *context)
{
    return has_failed(context);
}

static void stop(void *context)
{
    const struct cuda_proxy *proxy = context;
    cuda_hosts_quit(proxy->group);
}

/* Fails the remaining operations. The word lets all streams pass, now and later. */
static void ended(void *context)
{
    struct cuda_proxy *proxy = context;
    if (has_operation(proxy))
        (void)has_failed(proxy);
    order_store_release_u64(&proxy->page->done, CUDA_PROXY_RELEASED); /* E2 pairs E2a */
}

/* ---- life ------------------------------------------------------------------------------------ */

static enum tutti_status page_create(struct cuda_group *group, struct cuda_proxy *proxy)
{
    CUdeviceptr address = 0;
    void *page;
    enum tutti_status status =
        cuda_page_alloc(group->driver, sizeof(struct cuda_proxy_page), &page, &address);
    proxy->page = group->resources->proxy_page = page;
    proxy->come = address + offsetof(struct cuda_proxy_page, come);
    proxy->done = address + offsetof(struct cuda_proxy_page, done);
    return status;
}

enum tutti_status cuda_proxy_open(struct cuda_group *group)
{
    struct cuda_proxy *proxy = calloc(1, sizeof *proxy);
    if (!proxy)
        return error_set(TUTTI_ERR_NO_MEMORY, "no memory for %zu bytes", sizeof *proxy);
    group->proxy = proxy;
    proxy->group = group;
    if (group->beside)
        peers_set_progress(group->beside, comm_has_failed, proxy);
    proxy->polls = peers_ranks(group->peers)->polls;
    proxy->watcher = (struct cuda_watcher){
        .look = look, .stop = stop, .ended = ended, .context = proxy, .bell = &proxy->bell};
    if (!group->device.waits)
        return error_set(TUTTI_ERR_DECLINED,
                         "the streams of device %d cannot wait for a word in memory, which staging "
                         "by a host thread needs, because %s%s",
                         group->device.ordinal, group->why,
                         group->many_hosts ? ""
                                           : ": give each rank a device of its own, or have the "
                                             "ranks be threads of one process");
    enum tutti_status status = page_create(group, proxy);
    return status == TUTTI_OK ? cuda_watcher_start(&proxy->watcher) : status;
}

void cuda_proxy_stop(struct cuda_proxy *proxy)
{
    if (proxy)
        cuda_watcher_stop(&proxy->watcher);
}

void cuda_proxy_free(struct cuda_proxy *proxy)
{
    if (!proxy)
        return;
    for (; proxy->taken != proxy->put; proxy->taken++)
        cuda_messages_release(proxy->ring[proxy->taken % CUDA_PROXY_OPERATIONS].messages);
    free(proxy->states.memory);
    free(proxy);
}

uint64_t cuda_proxy_enqueued(const struct cuda_proxy *proxy)
{
    return proxy->enqueued;
}

uint64_t cuda_proxy_completed(const struct cuda_proxy *proxy)
{
    return order_load_relaxed_u64(&proxy->completed);
}

/* ---- the caller ------------------------------------------------------------------------------ */

static bool has_ended_all(void *context)
{
    const struct cuda_proxy *proxy = context;
    return order_load_acquire_u64(&proxy->taken) == proxy->put || /* E4a pairs E4 */
           peers_have_failed(proxy->group->peers) || cuda_watchers_ended();
}

enum tutti_status cuda_proxy_drain(struct cuda_proxy *proxy, int64_t deadline)
{
    return wait_napping(has_ended_all, proxy, deadline, WAIT_NAP_NS) ? TUTTI_OK : TUTTI_ERR_TIMEOUT;
}

enum tutti_status cuda_proxy_algorithm(const struct cuda_group *group, enum tutti_algo asked,
                                       enum tutti_algo *algo, const char **reason)
{
    *algo = TUTTI_ALGO_HOST_STAGED;
    *reason = group->many_hosts ? "staged by a host thread: the ranks run on several hosts"
                                : "staged by a host thread: processes share a device";
    if (asked == TUTTI_ALGO_NONE || asked == TUTTI_ALGO_HOST_STAGED)
        return TUTTI_OK;
    *algo = asked;
    if (asked == TUTTI_ALGO_ONE_SHOT || asked == TUTTI_ALGO_TWO_SHOT)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID,
                     "algorithm %d (%s) does not serve a communicator that a host thread stages, "
                     "since %s: expected none, one_shot, two_shot or host_staged",
                     (int)asked, tutti_algo_name(asked), group->why);
}

/* An operation on its way to a stream. The context is current. */
struct passage {
    struct cuda_group *group;
    struct operation *operation;
    CUstream stream;
    bool published;   /* the thread has the operation */
    uint64_t awaited; /* the number of the piece whose result comes next */
};

/* Rows in memory, `pitch` bytes from one to the next. */
struct rows {
    CUdeviceptr first;
    size_t pitch;
};

/* Copies `count` rows of `bytes` between the device's memory and the slot. */
static enum tutti_status rows_copy(const struct passage *passage, bool out, struct rows device,
                                   struct rows slot, size_t bytes, size_t count)
{
    const struct rows to = out ? device : slot, from = out ? slot : device;
    const CUDA_MEMCPY2D copy = {
        .srcMemoryType = CU_MEMORYTYPE_UNIFIED,
        .srcDevice = from.first,
        .srcPitch = from.pitch,
        .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
        .dstDevice = to.first,
        .dstPitch = to.pitch,
        .WidthInBytes = bytes,
        .Height = count,
    };
    return CUDA_CALL(passage->group->driver, memcpy_2d_async, &copy, passage->stream);
}

/*
 * Copies a block between the device's memory and the slot. The driver does a small flat copy to the
 * device on the device's multiprocessors, which processes use in turn: 8 bytes among 8 processes on
 * one H200 took 1.16 ms an operation. A copy of several rows goes to a copy engine, which processes
 * share: 0.10 ms. The fewest rows are the fastest. A single byte cannot be cut into rows.
 */
static enum tutti_status block_copy(const struct passage *passage, bool out, CUdeviceptr device,
                                    CUdeviceptr slot, size_t bytes)
{
    size_t rows = 2;
    if (!bytes)
        return TUTTI_OK;
    if (!out || bytes > SMALL_BYTES || bytes == 1)
        return CUDA_CALL(passage->group->driver, memcpy_async, out ? device : slot,
                         out ? slot : device, bytes, passage->stream);
    while (bytes % rows)
        rows++;
    return rows_copy(passage, true, (struct rows){device, bytes / rows},
                     (struct rows){slot, bytes / rows}, bytes / rows, rows);
}

/* Copies a batch of messages that the rank sends, or receives. */
static enum tutti_status batch_copy(const struct passage *passage, bool out, uint64_t batch)
{
    const struct operation *operation = passage->operation;
    const CUdeviceptr slot = cuda_address(cuda_slot(&operation->slots, batch));
    const struct cuda_message_part *end, *part;
    enum tutti_status status = TUTTI_OK;
    part = cuda_messages_batch(operation->messages, batch, &end);
    for (; part < end && status == TUTTI_OK; part++) {
        const struct request *request = part->request;
        if ((request->collective == TUTTI_COLLECTIVE_RECV) == out)
            status = block_copy(passage, out,
                                cuda_address(out ? request->recv : request->send) + part->first,
                                slot + part->place, part->bytes);
    }
    return status;
}

/* Copies the blocks of a piece of an operand to or from the slot. Those of equal length are rows of
 * one copy. */
static enum tutti_status blocks_copy(const struct passage *passage, bool out, uint64_t piece)
{
    const struct operation *operation = passage->operation;
    const struct cuda_cut *cut = &operation->cut;
    const enum cuda_operand operand = out ? CUDA_RECV : CUDA_SEND;
    const size_t stride = cuda_cut_stride(cut, piece), width = cut->width;
    const CUdeviceptr device =
        cuda_address(out ? operation->request.recv : operation->request.send) +
        piece * cut->piece * width;
    const CUdeviceptr slot = cuda_address(cuda_slot(&operation->slots, piece));
    const size_t *counts = operation->blocks.counts[operand];
    const int blocks = operation->blocks.blocks[operand];
    enum tutti_status status = TUTTI_OK;
    if (cuda_cut_is_rows(cut, blocks, piece))
        return rows_copy(passage, out, (struct rows){device, cut->own * width},
                         (struct rows){slot + cuda_cut_place(cut, operand, 0, piece), stride},
                         stride, (size_t)blocks);
    for (int b = 0; b < blocks && status == TUTTI_OK; b++)
        status = block_copy(passage, out, device + operation->blocks.starts[operand][b] * width,
                            slot + cuda_cut_place(cut, operand, b, piece),
                            cuda_cut_count(cut, counts[b], piece) * width);
    return status;
}

/* Copies the scalar of the operation that publish() will put into the ring. */
static enum tutti_status scalar_copy(const struct passage *passage)
{
    const struct cuda_proxy *proxy = passage->group->proxy;
    const struct request *request = &passage->operation->request;
    return CUDA_CALL(passage->group->driver, memcpy_async,
                     cuda_address(&proxy->page->scalars[proxy->put % CUDA_PROXY_OPERATIONS]),
                     cuda_address(request->scalar.memory), request->element_bytes, passage->stream);
}

static enum tutti_status piece_copy(const struct passage *passage, bool out, uint64_t piece)
{
    return (passage->operation->messages ? batch_copy : blocks_copy)(passage, out, piece);
}

/* Fails the communicator: the peers have begun an operation that this rank cannot run. */
static enum tutti_status fail(struct cuda_group *group, enum tutti_status status, const char *what)
{
    return cuda_group_fail(group, status, peers_sequence(group->peers), what);
}

/* A free entry of the ring. */
static bool has_room(void *context)
{
    const struct cuda_proxy *proxy = ((const struct passage *)context)->group->proxy;
    return proxy->put - order_load_acquire_u64(&proxy->taken) < /* E4a pairs E4 */
           CUDA_PROXY_OPERATIONS;
}

static bool is_done(void *context)
{
    const struct passage *passage = context;
    return order_load_acquire_u64(&passage->group->proxy->page->done) >= passage->awaited; /* E2a */
}

/* Returns true if the communicator has failed or the thread has ended. */
static bool is_lost(void *context, enum wait_depth depth)
{
    const struct passage *passage = context;
    (void)depth;
    return cuda_group_check(passage->group) != TUTTI_OK || cuda_watchers_ended();
}

/* `late`: the message of a wait that is too long, which fails the communicator. */
static enum tutti_status caller_await(struct passage *passage, bool (*poll)(void *context),
                                      int64_t timeout_ms, const char *late)
{
    int64_t deadline = 0;
    const struct waiter waiter = {.poll = poll,
                                  .look = is_lost,
                                  .context = passage,
                                  .deadline = &deadline,
                                  .timeout_ms = timeout_ms,
                                  .nap_ns = WAIT_NAP_NS};
    const enum wait_end end = poll(passage) ? WAIT_DONE : waiter_run(&waiter);
    if (end == WAIT_DONE)
        return TUTTI_OK;
    if (end == WAIT_LATE)
        return fail(passage->group, error_set(TUTTI_ERR_TIMEOUT, "%s", late),
                    "let the stream go on");
    enum tutti_status status = cuda_group_check(passage->group);
    return status == TUTTI_OK ? error_set(TUTTI_ERR_ABORTED, "the program is about to exit")
                              : status;
}

static void publish(struct cuda_proxy *proxy, const struct operation *operation)
{
    proxy->ring[proxy->put % CUDA_PROXY_OPERATIONS] = *operation;
    proxy->pieces += operation->pieces;
    proxy->enqueued += rank_set_empty(operation->request.subset);
    order_store_release_u64(&proxy->put, proxy->put + 1); /* E3 pairs E3a */
    order_fence(); /* between our write and the read of the other side's word; pairs the other such
                      fence */
    if (order_load_relaxed_u32(&proxy->asleep))
        cuda_watcher_ring(&proxy->watcher);
}

/* Makes the stream copy a piece in and write that the piece has come. */
static enum tutti_status piece_in(void *context, uint64_t piece)
{
    struct passage *passage = context;
    struct cuda_proxy *proxy = passage->group->proxy;
    enum tutti_status status = piece_copy(passage, false, piece);
    if (status == TUTTI_OK && passage->operation->request.scalar_in_memory && piece == 0)
        status = scalar_copy(passage);
    /* E1 pairs E1a: by default the write comes behind a fence for the whole system. */
    if (status == TUTTI_OK)
        status = CUDA_CALL(passage->group->driver, stream_write_64, passage->stream, proxy->come,
                           number_of(passage->operation, piece), CU_STREAM_WRITE_VALUE_DEFAULT);
    if (status == TUTTI_OK && !passage->published) {
        publish(proxy, passage->operation);
        passage->published = true;
    }
    return status;
}

/* Makes the stream wait for a piece's result. Threads that share a device share its hardware
 * queues. A stream that waits there could hold up the copies of the rank for which it waits, so the
 * caller waits instead. The hosts have the operation's time-out, and name the rank that is late;
 * this wait is longer. */
static enum tutti_status piece_run(void *context, uint64_t piece)
{
    struct passage *passage = context;
    const int64_t timeout_ms = passage->operation->request.timeout_ms;
    const bool ends = timeout_ms >= 0 && timeout_ms < INT64_MAX / 2 - PATIENCE_MS;
    enum tutti_status status = TUTTI_OK;
    passage->awaited = number_of(passage->operation, piece);
    if (passage->group->shares_queues)
        status = caller_await(passage, is_done, ends ? 2 * timeout_ms + PATIENCE_MS : -1,
                              "the stream did not copy the input of an operation in time");
    return status == TUTTI_OK ? CUDA_CALL(passage->group->driver, stream_wait_64, passage->stream,
                                          passage->group->proxy->done, passage->awaited,
                                          CU_STREAM_WAIT_VALUE_GEQ) /* E2a */
                              : status;
}

static enum tutti_status piece_out(void *context, uint64_t piece)
{
    return piece_copy(context, true, piece);
}

enum tutti_status cuda_proxy_enter(struct cuda_group *group, tutti_stream_t stream, bool *pushed)
{
    enum tutti_status status = cuda_enter(group, pushed);
    if (status != TUTTI_OK)
        return status;
    status = cuda_uncaptured_check(
        group->driver, cuda_stream_of(stream),
        group->many_hosts
            ? "a host thread stages this communicator's operations, since the ranks run on several "
              "hosts: a replay would not reach it. Make the call before the capture begins, or "
              "after it"
        : group->proxied
            ? "a host thread stages this communicator's operations, since processes share a "
              "device: a replay would not reach it. Capture on a communicator whose ranks have a "
              "device each, or share devices as threads of one process"
            : "this operation has no kernel, so a host thread stages it: a replay would not reach "
              "it. Make the call before the capture begins, or after it");
    if (status != TUTTI_OK)
        cuda_leave(group, *pushed);
    return status;
}

static enum tutti_status enqueue(struct cuda_group *group, struct operation *operation,
                                 CUstream stream)
{
    struct cuda_proxy *proxy = group->proxy;
    struct passage passage = {.group = group, .operation = operation, .stream = stream};
    operation->request.page = NULL; /* the caller records it, not the thread */
    static_assert(CUDA_PROXY_OPERATIONS == 256, "as the text says");
    enum tutti_status status =
        caller_await(&passage, has_room, operation->request.timeout_ms,
                     "256 operations are under way, and none of them ended in time");
    if (status == TUTTI_OK)
        status = cuda_eager_order(group, stream);
    if (status != TUTTI_OK)
        return status;
    operation->number = group->proxied ? proxy->enqueued + rank_set_empty(operation->request.subset)
                                       : peers_sequence(group->peers);
    operation->slots = (struct cuda_slots){proxy->page->slots[0], CUDA_PROXY_PIECE_BYTES,
                                           CUDA_PROXY_SLOTS, proxy->pieces};
    status = cuda_pipe_run(&(struct cuda_pipe){
        .pieces = operation->pieces,
        .slots = CUDA_PROXY_SLOTS,
        .context = &passage,
        .in = piece_in,
        .run = piece_run,
        .out = piece_out,
    });
    if (!passage.published)
        status = cuda_launch_failed(group, status, operation->number);
    /* Also after an error: the work on the stream uses our memory. */
    enum tutti_status noted = cuda_eager_note(group, stream);
    status = status == TUTTI_OK ? noted : status;
    return status == TUTTI_OK || !passage.published
               ? status
               : fail(group, status,
                      "half of the operation is enqueued, so the communicator is lost");
}

enum tutti_status cuda_proxy_enqueue(struct cuda_group *group, const struct request *request,
                                     tutti_stream_t stream)
{
    struct operation operation = {.request = *request};
    cuda_cut_make(request, group->launch.rank, group->launch.size, CUDA_PROXY_PIECE_BYTES,
                  &operation.cut, &operation.blocks);
    operation.pieces = operation.cut.pieces;
    return enqueue(group, &operation, cuda_stream_of(stream));
}

enum tutti_status cuda_proxy_send_recv(struct cuda_group *group, struct request *const *requests,
                                       int count, tutti_stream_t stream)
{
    struct operation operation = {.request = *requests[0]};
    operation.messages = cuda_messages_make(requests, count, group->launch.rank, group->launch.size,
                                            CUDA_PROXY_PIECE_BYTES);
    if (!operation.messages)
        return error_set(TUTTI_ERR_NO_MEMORY, "no memory for %d messages", count);
    for (int i = 0; i < count; i++)
        operation.messages->requests[i].page = NULL;
    operation.pieces = operation.messages->batches;
    const uint64_t put = group->proxy->put;
    const enum tutti_status status = enqueue(group, &operation, cuda_stream_of(stream));
    cuda_messages_release(operation.messages);
    if (group->proxy->put == put) /* the thread does not have them */
        cuda_messages_release(operation.messages);
    return status;
}
