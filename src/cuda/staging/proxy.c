/* SPDX-License-Identifier: MIT */
/*
 * Piece by piece (1 MiB) the caller puts onto the stream:
 *
 *     copy piece k + 1 in; write "k + 1 has come"; wait until k is done; copy piece k out
 *
 * So the stream copies while the thread reduces. Piece k + 1 may use the slot of piece k - 1,
 * because the copy of k - 1 out is earlier on the stream. The operation is in the ring for the
 * thread before its other pieces are on the stream: the driver blocks a caller whose stream is
 * full, and the thread then makes room.
 *
 * - The stream and the thread wait for each other without a deadline. The threads of the ranks wait
 *   for each other with the operation's deadline. A caller waits for a place in the ring until its
 *   time-out; then the communicator fails.
 * - However the thread ends, its last write is `done` = 2^63 - 1. The driver's GEQ compares
 *   cyclically, so this word lets every wait pass, now and later. The fault is recorded first.
 * - A call of the driver that fails before the first piece is announced changes nothing. After that
 *   the communicator fails on all ranks.
 */
#include "cuda/staging/proxy.h"

#include "base/error.h"
#include "base/order.h"
#include "base/signature.h"
#include "base/wait.h"
#include "cuda/runtime/group_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>

enum {
    IDLE_MS = 1000, /* the sleep of a thread without an operation, unless it is woken */
    SMALL_BYTES =
        1024, /* up to here a copy is made to go to a copy engine; larger ones go there anyway */
    TIMER_SLACK_NS = 1000 /* how much longer a sleep may last; Linux has 50 us */
};

struct operation {
    struct request request; /* send and recv are device memory */
    uint64_t pieces;
    uint64_t first; /* the number of pieces before the first of this operation */
};

struct cuda_proxy {
    struct cuda_watcher watcher;
    struct cpu_group *host;
    int rank;
    int polls;                    /* until the thread naps */
    struct cuda_proxy_page *page; /* owned by struct cuda_resources */
    CUdeviceptr come, done;       /* the addresses of its words on the device */
    uint64_t pieces;    /* number of pieces on streams; written by the caller, as is `enqueued` */
    uint64_t enqueued;  /* number of operations of all ranks */
    uint64_t completed; /* ... that succeeded; written by the thread */
    uint64_t awaited;   /* the piece that the thread waits for; the thread alone uses this */
    bool sharp;         /* the timer slack is set; the thread alone uses this */

    uint64_t put;    /* number of operations put into the ring: release E3 pairs E3a */
    uint64_t taken;  /* ... that have ended: release E4 pairs E4a */
    uint32_t bell;   /* of the watcher */
    uint32_t asleep; /* 1 while the thread may sleep on the bell */
    struct operation ring[CUDA_PROXY_OPERATIONS];
};

static uint64_t pieces_of(const struct request *request)
{
    size_t pieces = (request->bytes + CUDA_PROXY_PIECE_BYTES - 1) / CUDA_PROXY_PIECE_BYTES;
    return pieces ? pieces : 1; /* a barrier is a piece without bytes */
}

static size_t piece_bytes(const struct request *request, uint64_t piece)
{
    size_t left = request->bytes - piece * CUDA_PROXY_PIECE_BYTES;
    return left < CUDA_PROXY_PIECE_BYTES ? left : CUDA_PROXY_PIECE_BYTES;
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Returns true, and records the fault, if the communicator has failed or was aborted. */
static bool has_failed(const struct cuda_proxy *proxy)
{
    struct tutti_fault fault;
    if (!cpu_group_check_peers(proxy->host, proxy->rank, false, &fault))
        return false;
    cpu_group_fail(proxy->host, &fault);
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

/* Reduces one piece among the hosts. */
static enum tutti_status piece_run(struct cuda_proxy *proxy, const struct operation *operation,
                                   uint64_t piece)
{
    struct cpu_group *host = proxy->host;
    struct request request = operation->request;
    if (request.count == 0) /* all-reduces of no elements, too */
        return cpu_barrier(host, &request, TUTTI_STREAM_DEFAULT);
    request.bytes = piece_bytes(&operation->request, piece);
    request.count = request.bytes / request.element_bytes;
    request.recv = proxy->page->slots[(operation->first + piece) % CUDA_PROXY_SLOTS];
    request.send = request.recv;
    const enum tutti_algo algo = request.choice.algo;
    const struct choice_call call = {
        .collective = request.collective,
        .bytes = request.bytes,
        .dtype = request.dtype,
        .algo = algo == TUTTI_ALGO_HOST_STAGED ? TUTTI_ALGO_NONE : algo,
    };
    cpu_choose(host, &call, &request.choice);
    request.choice.zero_copy = false; /* no peer may use the slots */
    if (piece == 0)
        return request.choice.run->run(host, &request, TUTTI_STREAM_DEFAULT);
    return cpu_all_reduce_more(host, &request);
}

static bool operation_run(struct cuda_proxy *proxy, const struct operation *operation)
{
    const uint64_t pieces = operation->pieces;
    for (uint64_t piece = 0; piece < pieces; piece++) {
        uint64_t number = operation->first + piece + 1;
        if (!piece_await(proxy, number) || piece_run(proxy, operation, piece) != TUTTI_OK)
            return false;
        /* Relaxed: others read it after the stream or the thread has ended. */
        if (piece + 1 == pieces)
            order_store_relaxed_u64(&proxy->completed, cpu_group_sequence(proxy->host));
        order_store_release_u64(&proxy->page->done, number); /* E2 pairs E2a, the stream's wait */
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

static int64_t look(void *context)
{
    struct cuda_proxy *proxy = context;
    order_store_relaxed_u32(&proxy->asleep, 0);
    if (!has_operation(proxy))
        return idle(proxy);
    if (!operation_run(proxy, &proxy->ring[proxy->taken % CUDA_PROXY_OPERATIONS]))
        return -1;
    order_store_release_u64(&proxy->taken, proxy->taken + 1); /* E4 pairs E4a */
    return 0;
}

static void stop(void *context)
{
    struct cuda_proxy *proxy = context;
    cpu_group_quit(proxy->host);
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
    proxy->host = group->host;
    proxy->rank = group->launch.rank;
    proxy->polls = cpu_group_ranks(group->host)->polls;
    proxy->watcher = (struct cuda_watcher){
        .look = look, .stop = stop, .ended = ended, .context = proxy, .bell = &proxy->bell};
    if (!group->device.waits)
        return error_set(TUTTI_ERR_DECLINED,
                         "processes share device %d, whose streams cannot wait for a word in "
                         "memory, which staging by a host thread needs: give each rank a device of "
                         "its own, or have the ranks be threads of one process",
                         group->device.ordinal);
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

enum tutti_status cuda_proxy_algorithm(enum tutti_algo asked, enum tutti_algo *algo,
                                       const char **reason)
{
    *algo = TUTTI_ALGO_HOST_STAGED;
    *reason = "staged by a host thread: processes share a device";
    if (asked == TUTTI_ALGO_NONE || asked == TUTTI_ALGO_HOST_STAGED)
        return TUTTI_OK;
    *algo = asked;
    if (asked == TUTTI_ALGO_ONE_SHOT || asked == TUTTI_ALGO_TWO_SHOT)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID,
                     "algorithm %d (%s) does not serve a communicator that a host thread stages, "
                     "since processes share a device: expected none, one_shot, two_shot or "
                     "host_staged",
                     (int)asked, tutti_algo_name(asked));
}

/* The address of a piece's slot. */
static CUdeviceptr slot_of(const struct cuda_proxy *proxy, uint64_t number)
{
    return cuda_address(proxy->page->slots[number % CUDA_PROXY_SLOTS]);
}

/* Makes the stream copy a piece in and write that the piece has come. */
static enum tutti_status piece_in(struct cuda_group *group, const struct operation *operation,
                                  uint64_t piece, CUstream stream)
{
    const struct cuda_driver *driver = group->driver;
    const struct cuda_proxy *proxy = group->proxy;
    const uint64_t at = operation->first + piece;
    const size_t bytes = piece_bytes(&operation->request, piece);
    const CUdeviceptr from = cuda_address(operation->request.send) + piece * CUDA_PROXY_PIECE_BYTES;
    enum tutti_status status = TUTTI_OK;
    if (bytes)
        status = CUDA_CALL(driver, memcpy_async, slot_of(proxy, at), from, bytes, stream);
    /* E1 pairs E1a: by default the write comes behind a fence for the whole system. */
    return status == TUTTI_OK ? CUDA_CALL(driver, stream_write_64, stream, proxy->come, at + 1,
                                          CU_STREAM_WRITE_VALUE_DEFAULT)
                              : status;
}

/*
 * Copies into the device's memory. The driver does a small flat copy on the device's
 * multiprocessors, which processes use in turn: 8 bytes among 8 processes on one H200 took 1.16
 * ms an operation. A copy of several rows goes to a copy engine, which processes share: 0.10 ms.
 * The fewest rows are the fastest. A single byte cannot be cut into rows.
 */
static enum tutti_status copy_out(const struct cuda_driver *driver, CUdeviceptr to,
                                  CUdeviceptr from, size_t bytes, CUstream stream)
{
    size_t rows = 2;
    if (bytes > SMALL_BYTES || bytes == 1)
        return CUDA_CALL(driver, memcpy_async, to, from, bytes, stream);
    while (bytes % rows)
        rows++;
    const CUDA_MEMCPY2D copy = {
        .srcMemoryType = CU_MEMORYTYPE_UNIFIED,
        .srcDevice = from,
        .srcPitch = bytes / rows,
        .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
        .dstDevice = to,
        .dstPitch = bytes / rows,
        .WidthInBytes = bytes / rows,
        .Height = rows,
    };
    return CUDA_CALL(driver, memcpy_2d_async, &copy, stream);
}

/* Makes the stream wait for a piece's result and copy it out. */
static enum tutti_status piece_out(struct cuda_group *group, const struct operation *operation,
                                   uint64_t piece, CUstream stream)
{
    const struct cuda_proxy *proxy = group->proxy;
    const uint64_t at = operation->first + piece;
    const size_t bytes = piece_bytes(&operation->request, piece);
    const CUdeviceptr to = cuda_address(operation->request.recv) + piece * CUDA_PROXY_PIECE_BYTES;
    enum tutti_status status = CUDA_CALL(group->driver, stream_wait_64, stream, proxy->done, at + 1,
                                         CU_STREAM_WAIT_VALUE_GEQ); /* E2a */
    return status == TUTTI_OK && bytes
               ? copy_out(group->driver, to, slot_of(proxy, at), bytes, stream)
               : status;
}

/* Fails the communicator: the peers have begun an operation that this rank cannot run. */
static enum tutti_status fail(struct cuda_group *group, enum tutti_status status, const char *what)
{
    return cuda_group_fail(group, status, cpu_group_sequence(group->host), what);
}

static bool has_room(void *context)
{
    const struct cuda_group *group = context;
    return group->proxy->put - order_load_acquire_u64(&group->proxy->taken) < /* E4a pairs E4 */
           CUDA_PROXY_OPERATIONS;
}

/* Returns true if the communicator has failed or the thread has ended, which frees no entry. */
static bool room_is_lost(void *context, enum wait_depth depth)
{
    struct cuda_group *group = context;
    (void)depth;
    return cuda_group_check(group) != TUTTI_OK || cuda_watchers_ended();
}

/* Waits for a free entry of the ring. */
static enum tutti_status room_await(struct cuda_group *group, int64_t timeout_ms)
{
    int64_t deadline = 0;
    const struct waiter waiter = {.poll = has_room,
                                  .look = room_is_lost,
                                  .context = group,
                                  .deadline = &deadline,
                                  .timeout_ms = timeout_ms,
                                  .nap_ns = WAIT_NAP_NS};
    const enum wait_end end = has_room(group) ? WAIT_DONE : waiter_run(&waiter);
    if (end == WAIT_DONE)
        return TUTTI_OK;
    if (end == WAIT_LATE)
        return fail(group,
                    error_set(TUTTI_ERR_TIMEOUT,
                              "%d operations are under way, and none of them ended in time",
                              CUDA_PROXY_OPERATIONS),
                    "let the stream go on");
    enum tutti_status status = cuda_group_check(group);
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

static enum tutti_status enqueue(struct cuda_group *group, struct operation *operation,
                                 CUstream stream)
{
    enum tutti_status status = cuda_uncaptured_check(
        group->driver, stream,
        "a host thread stages this communicator's operations, since processes share a device: a "
        "replay would not reach it. Capture on a communicator whose ranks have a device each, or "
        "share devices as threads of one process");
    if (status == TUTTI_OK)
        status = room_await(group, operation->request.timeout_ms);
    if (status == TUTTI_OK)
        status = cuda_eager_order(group, stream);
    if (status != TUTTI_OK)
        return status;
    operation->first = group->proxy->pieces;
    status = piece_in(group, operation, 0, stream);
    bool published = status == TUTTI_OK;
    if (published)
        publish(group->proxy, operation);
    else
        status = cuda_launch_failed(group, status, group->proxy->enqueued + 1);
    const uint64_t pieces = operation->pieces;
    for (uint64_t piece = 0; piece < pieces && status == TUTTI_OK; piece++) {
        if (piece + 1 < pieces)
            status = piece_in(group, operation, piece + 1, stream);
        if (status == TUTTI_OK)
            status = piece_out(group, operation, piece, stream);
    }
    /* Also after an error: the work on the stream uses our memory. */
    enum tutti_status noted = cuda_eager_note(group, stream);
    status = status == TUTTI_OK ? noted : status;
    return status == TUTTI_OK || !published
               ? status
               : fail(group, status,
                      "half of the operation is enqueued, so the communicator is lost");
}

enum tutti_status cuda_proxy_enqueue(struct cuda_group *group, const struct request *request,
                                     tutti_stream_t stream)
{
    struct operation operation = {.request = *request, .pieces = pieces_of(request)};
    bool pushed;
    operation.request.page = NULL; /* the caller records it, not the thread */
    if (request->collective != TUTTI_COLLECTIVE_BARRIER)
        operation.request.signature = signature_set_algo(request->signature, request->choice.algo);
    enum tutti_status status = cuda_enter(group, &pushed);
    if (status != TUTTI_OK)
        return status;
    status = enqueue(group, &operation, cuda_stream_of(stream));
    cuda_leave(group, pushed);
    return status;
}
