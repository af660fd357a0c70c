/* SPDX-License-Identifier: MIT */
/* The link of devices on several hosts: its memory, its watch, and the frame of each operation. */
#include "cuda/comm/fabric.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/order.h"
#include "base/wait.h"
#include "coll/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LOOK_MS = 200,  /* how often the watch looks for faults of other hosts */
    TELL_MS = 2000, /* in which a rank that fails or leaves has told so */
    TELL_NAP_NS = 10000000,
    LATE_MS = 200, /* of a copy of headers */
};

#define MS INT64_C(1000000) /* in ns */

size_t cuda_fabric_slot_bytes = 4 << 20;

/* ---- the watch ------------------------------------------------------------------------------- */

static struct tutti_fault fault_make(const struct cuda_group *group, enum tutti_status status,
                                     int peer)
{
    return (struct tutti_fault){
        .struct_size = sizeof(struct tutti_fault),
        .status = status,
        .rank = PEERS_ELSEWHERE + group->launch.rank,
        .peer = PEERS_ELSEWHERE + (peer < 0 ? group->hosts.elsewhere : peer),
        .sequence = group->fabric->page->sequence,
    };
}

/* The rank whose header the running operation has not got; -1: it has all, or none runs. */
static int late_rank(struct cuda_group *group)
{
    struct cuda_fabric *fabric = group->fabric;
    const struct cuda_driver *driver = group->driver;
    const struct cuda_fabric_words *words = fabric->words;
    const uint8_t *peers = (const uint8_t *)(fabric->theirs + CUDA_ANNOUNCE_HEADERS);
    const uint32_t all = fabric->page->headers, count = all < CUDA_ANNOUNCED ? all : CUDA_ANNOUNCED;
    struct cuda_visit visit;
    int late = -1;
    if (order_load_acquire_u32(&fabric->page->ended) == fabric->page->begun || /* Q2a */
        cuda_visit_begin(driver, group->resources->context, &visit) != TUTTI_OK)
        return -1;
    bool copied = driver->memcpy_async(cuda_address(peers), cuda_address(words->peers), count,
                                       fabric->stream) == CUDA_SUCCESS;
    for (uint32_t i = 0; i < count && copied; i++) /* words, since more may come meanwhile */
        copied = driver->memcpy_async(cuda_address(&fabric->theirs[i].signature),
                                      cuda_address(&words->theirs[i].signature), sizeof(uint64_t),
                                      fabric->stream) == CUDA_SUCCESS;
    if (cuda_stream_finish(driver, fabric->stream, fabric->event, group->device.ordinal,
                           deadline_after(LATE_MS)) == TUTTI_OK &&
        copied)
        for (uint32_t i = 0; i < count && late < 0; i++)
            if (peers[i] != CUDA_NO_PEER && !fabric->theirs[i].signature)
                late = peers[i];
    cuda_visit_end(driver, &visit);
    return late;
}

/* Whether the rank has destroyed its communicator, or is dead. */
static bool has_left(struct cuda_group *group, int rank)
{
    struct rank_set left, dead;
    peers_exited(group->peers, &left, &dead);
    left = rank_set_union(peers_named(group->peers, left), group->hosts.left(group->hosts.group));
    return rank_set_has(left, rank);
}

/* How long the running part of an operation has been running, in ns; 0: none runs. */
static int64_t part_runs(struct cuda_fabric *fabric)
{
    const uint32_t ended = order_load_acquire_u32(&fabric->page->ended); /* Q2a */
    const uint32_t begun = order_load_acquire_u32(&fabric->page->begun); /* Q1a */
    const uint32_t marks = order_load_relaxed_u32(&fabric->page->marks);
    const int64_t now = deadline_now();
    if (begun != ended && begun == fabric->begun && marks == fabric->marks)
        return now - fabric->since;
    fabric->begun = begun;
    fabric->marks = marks;
    fabric->since = now;
    return 0;
}

/* Whether a part of the running operation has not ended in its time, or waits for a rank that has
 * left. `looks`: it is time to look for these. */
static bool is_stuck(struct cuda_group *group, bool looks, struct tutti_fault *fault)
{
    struct cuda_fabric *fabric = group->fabric;
    const int64_t runs_ns = part_runs(fabric);
    const uint64_t timeout_ns = fabric->page->timeout_ns;
    const bool is_late =
        timeout_ns && timeout_ns != UINT64_MAX && runs_ns > 0 && (uint64_t)runs_ns >= timeout_ns;
    if (!is_late && !(looks && runs_ns >= LOOK_MS * MS))
        return false;
    const int late = late_rank(group);
    const bool is_gone = looks && late >= 0 && has_left(group, late);
    *fault = fault_make(group, is_gone ? TUTTI_ERR_PEER_DEAD : TUTTI_ERR_TIMEOUT, late);
    return is_gone || is_late;
}

struct reason {
    struct cuda_group *group;
    int gone; /* the rank for which the operation waits, if it has left; else -1 */
};

/* Asks for faults of other hosts, too. */
static bool reason_is_known(void *opaque)
{
    struct reason *reason = opaque;
    if (cuda_group_status(reason->group, NULL) != TUTTI_OK)
        return true;
    const int late = late_rank(reason->group);
    reason->gone = late >= 0 && has_left(reason->group, late) ? late : -1;
    return reason->gone >= 0;
}

/* The engine's error is the last error. Often a rank has failed or left, and has told so. */
static void engine_failed(struct cuda_group *group, enum tutti_status status)
{
    struct reason reason = {.group = group, .gone = -1};
    char text[512];
    snprintf(text, sizeof text, "%s", tutti_last_error());
    if (!wait_napping(reason_is_known, &reason, deadline_after(TELL_MS), TELL_NAP_NS))
        log_write(TUTTI_LOG_WARN, group->launch.rank, "%s", text);
    const struct tutti_fault fault =
        fault_make(group, reason.gone >= 0 ? TUTTI_ERR_PEER_DEAD : status, reason.gone);
    peers_fail(group->peers, &fault);
}

/* Looks for a fault. What it finds is then the peers'. */
static void fault_look(struct cuda_group *group)
{
    struct cuda_fabric *fabric = group->fabric;
    struct peers *peers = group->peers;
    struct tutti_fault fault;
    struct rank_set left, dead;
    const bool looks = deadline_now() - fabric->looked_at >= LOOK_MS * MS;
    bool done;
    if (looks)
        fabric->looked_at = deadline_now();
    if (cuda_fault_read(group, &fault) || is_stuck(group, looks, &fault)) {
        order_store_relaxed_u64(group->hosts.sequence, fault.sequence); /* faults name it */
        peers_fail(peers, &fault);
        return;
    }
    peers_exited(peers, &left, &dead);
    if (peers_check(peers, -1, false, &fault) ||
        (!rank_set_empty(dead) && peers_check(peers, rank_set_next(dead, -1), true, &fault))) {
        peers_fail(peers, &fault);
        return;
    }
    if (looks && cuda_group_status(group, NULL) != TUTTI_OK)
        return;
    const enum tutti_status status = fabric_test(fabric->link, NULL, &done);
    if (status != TUTTI_OK && !fabric_link_is_aborted(fabric->link))
        engine_failed(group, status);
}

static int64_t look(void *context)
{
    struct cuda_group *group = context;
    struct tutti_fault fault;
    bool done;
    if (!peers_have_failed(group->peers))
        fault_look(group);
    if (!peers_have_failed(group->peers))
        return CUDA_WATCH_MS;
    peers_status(group->peers, &fault);
    cuda_stop(group, fault.status, fault.peer);
    fabric_link_abort(group->fabric->link);
    (void)fabric_test(group->fabric->link, NULL, &done);
    return CUDA_WATCH_MS;
}

/* ---- life ------------------------------------------------------------------------------------ */

static enum tutti_status memory_create(struct cuda_group *group, int64_t deadline)
{
    struct cuda_fabric *fabric = group->fabric;
    const struct cuda_driver *driver = group->driver;
    struct cuda_memory *memory = &group->resources->arenas[group->launch.rank];
    const size_t pinned =
        sizeof *fabric->page + sizeof fabric->words->theirs + sizeof fabric->words->peers;
    CUdeviceptr address = 0;
    int fd = -1;
    enum tutti_status status = cuda_memory_create(
        driver, group->device.ordinal,
        sizeof *fabric->words + ((size_t)group->launch.size + 1) * fabric->slot_bytes, memory, &fd);
    fd_drop(&fd);
    if (status == TUTTI_OK)
        status = cuda_page_alloc(driver, pinned, &group->resources->fabric_page, &address);
    if (status == TUTTI_OK)
        status =
            CUDA_CALL(driver, memset_d8_async, memory->base, 0, sizeof *fabric->words, group->own);
    if (status == TUTTI_OK)
        status = cuda_own_finish(group, deadline);
    fabric->words = (struct cuda_fabric_words *)(uintptr_t)memory->base;
    fabric->slots = (unsigned char *)(uintptr_t)memory->base + sizeof *fabric->words;
    fabric->page = group->resources->fabric_page;
    if (fabric->page)
        fabric->theirs = (struct cuda_header *)(void *)(fabric->page + 1);
    group->launch.control = &fabric->words->control;
    return status;
}

enum tutti_status cuda_fabric_open(struct cuda_group *group, const uint8_t *order, int64_t deadline)
{
    struct cuda_fabric *fabric = calloc(1, sizeof *fabric);
    if (!fabric)
        return error_errno("a fabric of devices");
    group->fabric = fabric;
    fabric->link = group->hosts.link;
    memcpy(fabric->order, order, (size_t)group->launch.size);
    fabric->slot_bytes = cuda_fabric_slot_bytes;
    fabric->watcher = (struct cuda_watcher){.look = look, .context = group, .bell = &fabric->bell};
    enum tutti_status status = cuda_own_create(group->driver, &fabric->stream, &fabric->event);
    if (status == TUTTI_OK)
        status = cuda_kernels_load_fabric(group->driver, group->launch.size, &group->kernels);
    return status == TUTTI_OK ? memory_create(group, deadline) : status;
}

/* One byte to and from each peer: the first use of an engine connects. */
static enum tutti_status peers_connect(struct cuda_group *group)
{
    struct fabric_transfer list[2 * CUDA_RANKS];
    struct cuda_fabric *fabric = group->fabric;
    int count = 0;
    for (int r = 0; r < group->launch.size; r++) {
        if (r == group->launch.rank)
            continue;
        list[count++] = (struct fabric_transfer){
            .peer = r, .is_send = true, .buffer = &fabric->words->own[r], .bytes = 1};
        list[count++] =
            (struct fabric_transfer){.peer = r, .buffer = &fabric->words->theirs[r], .bytes = 1};
    }
    return fabric_enqueue(fabric->link, list, count, (tutti_stream_t)group->own);
}

enum tutti_status cuda_fabric_begin(struct cuda_group *group, int64_t deadline)
{
    char why[512];
    enum tutti_status status = peers_connect(group);
    if (status == TUTTI_OK)
        status = cuda_own_finish(group, deadline);
    if (status == TUTTI_OK)
        return cuda_watcher_start(&group->fabric->watcher);
    /* The transfers use memory that is freed next. */
    snprintf(why, sizeof why, "%s", tutti_last_error());
    cuda_fabric_stop(group);
    (void)cuda_own_finish(group, deadline_after(TELL_MS));
    return error_set(status, "%s", why);
}

void cuda_fabric_stop(struct cuda_group *group)
{
    bool done;
    if (!group->fabric)
        return;
    fabric_link_abort(group->fabric->link);
    (void)fabric_test(group->fabric->link, NULL, &done);
}

void cuda_fabric_close(struct cuda_group *group, bool lives)
{
    struct cuda_fabric *fabric = group->fabric;
    if (!fabric)
        return;
    cuda_watcher_stop(&fabric->watcher);
    fabric->link->held = lives && !cuda_resources_let_go(group->resources);
    if (fabric->link->held)
        log_write(
            TUTTI_LOG_INFO, group->launch.rank,
            "graphs with operations of the communicator live on, so what the fabric has for it "
            "is not freed: destroy graphs before");
    if (lives && fabric->stream)
        group->driver->stream_destroy(fabric->stream);
    if (lives && fabric->event)
        group->driver->event_destroy(fabric->event);
    free(fabric);
    group->fabric = NULL;
}

uint64_t cuda_fabric_completed(const struct cuda_fabric *fabric)
{
    (void)order_load_acquire_u32(&fabric->page->ended); /* Q2a */
    return fabric->page->completed;
}

/* ---- the frame of an operation --------------------------------------------------------------- */

static enum tutti_status announce(struct cuda_group *group, CUstream stream,
                                  struct cuda_announce *args, enum cuda_announce_step step)
{
    args->step = (uint8_t)step;
    return cuda_launch_block(group->driver, group->kernels.announce, CUDA_ANNOUNCED, args, stream);
}

static struct cuda_announce announce_make(const struct cuda_group *group)
{
    return (struct cuda_announce){
        .launch = group->launch, .words = group->fabric->words, .page = group->fabric->page};
}

enum tutti_status cuda_fabric_mark(struct cuda_group *group, CUstream stream)
{
    struct cuda_announce args = announce_make(group);
    return announce(group, stream, &args, CUDA_ANNOUNCE_MARK);
}

/* All launches of a step with headers: one at least. */
static enum tutti_status headers_step(struct cuda_group *group, CUstream stream,
                                      const struct cuda_headers *headers, uint64_t timeout_ns,
                                      enum cuda_announce_step step)
{
    struct cuda_announce args = announce_make(group);
    enum tutti_status status = TUTTI_OK;
    args.timeout_ns = timeout_ns;
    args.parameter = headers->parameter;
    args.numbered = headers->numbered;
    args.all = (uint16_t)headers->count;
    for (int at = 0; status == TUTTI_OK && (at == 0 || at < headers->count); at += args.count) {
        const int left = headers->count - at;
        args.at = (uint16_t)at;
        args.count = (uint16_t)(left < CUDA_ANNOUNCED ? left : CUDA_ANNOUNCED);
        for (int i = 0; i < args.count; i++) {
            args.peers[i] = headers->peers[at + i];
            args.own[i] = headers->own[at + i];
            args.expected[i] = headers->expected[at + i];
        }
        status = announce(group, stream, &args, step);
        if (!args.count)
            break;
    }
    return status;
}

static enum tutti_status headers_transfer(struct cuda_group *group,
                                          const struct cuda_headers *headers, tutti_stream_t stream)
{
    struct cuda_fabric_words *words = group->fabric->words;
    struct fabric_transfer few[2 * CUDA_RANKS], *list = few;
    int count = 0;
    if (headers->count > CUDA_RANKS)
        list = malloc(2 * (size_t)headers->count * sizeof *list);
    if (!list)
        return error_errno("%d headers", headers->count);
    for (int i = 0; i < headers->count; i++) {
        if (headers->own[i])
            list[count++] = (struct fabric_transfer){.peer = headers->peers[i],
                                                     .is_send = true,
                                                     .buffer = &words->own[i],
                                                     .bytes = sizeof words->own[i]};
        if (headers->expected[i])
            list[count++] = (struct fabric_transfer){.peer = headers->peers[i],
                                                     .buffer = &words->theirs[i],
                                                     .bytes = sizeof words->theirs[i]};
    }
    const enum tutti_status status =
        count ? fabric_enqueue(group->fabric->link, list, count, stream) : TUTTI_OK;
    if (list != few)
        free(list);
    return status;
}

static enum tutti_status steps_enqueue(struct cuda_group *group, const struct cuda_headers *headers,
                                       uint64_t timeout_ns, cuda_fabric_body *body, void *context,
                                       tutti_stream_t stream)
{
    const CUstream on = cuda_stream_of(stream);
    struct cuda_announce end = announce_make(group);
    enum tutti_status status = headers_step(group, on, headers, timeout_ns, CUDA_ANNOUNCE_BEGIN);
    if (status == TUTTI_OK)
        status = headers_transfer(group, headers, stream);
    if (status == TUTTI_OK)
        status = headers_step(group, on, headers, 0, CUDA_ANNOUNCE_CHECK);
    if (status == TUTTI_OK && body)
        status = body(group, context, stream);
    return status == TUTTI_OK ? announce(group, on, &end, CUDA_ANNOUNCE_END) : status;
}

static bool has_failed(void *group)
{
    return cuda_group_has_failed(group);
}

/* A part of the operation may be on the stream, and the peers wait for the rest. Of the engine's
 * errors the watch finds the reason. */
static enum tutti_status half_enqueued(struct cuda_group *group, enum tutti_status status)
{
    char text[512];
    snprintf(text, sizeof text, "%s", tutti_last_error());
    if (status != TUTTI_ERR_CUDA && status != TUTTI_ERR_NO_MEMORY &&
        wait_napping(has_failed, group, deadline_after(2 * TELL_MS), TELL_NAP_NS))
        return cuda_group_status(group, NULL);
    error_set(status, "%s", text);
    return cuda_launch_failed(group, status, group->fabric->enqueued);
}

enum tutti_status cuda_fabric_enqueue(struct cuda_group *group, const struct cuda_headers *headers,
                                      uint64_t timeout_ns, cuda_fabric_body *body, void *context,
                                      tutti_stream_t stream)
{
    const CUstream on = cuda_stream_of(stream);
    CUgraph graph = NULL;
    uint64_t id = 0;
    bool pushed;
    enum tutti_status status = cuda_enter(group, &pushed);
    if (status != TUTTI_OK)
        return status;
    status = cuda_capture_of(group->driver, on, &id, &graph);
    if (status == TUTTI_OK)
        status = id ? cuda_captured_order(group, on, id, graph) : cuda_eager_order(group, on);
    if (status == TUTTI_OK) {
        if (!id && headers->numbered)
            order_store_relaxed_u64(group->hosts.sequence, ++group->fabric->enqueued);
        status = steps_enqueue(group, headers, timeout_ns, body, context, stream);
        const enum tutti_status noted =
            id ? TUTTI_OK : cuda_eager_note(group, on); /* also after a failure */
        if (status == TUTTI_OK)
            status = id ? cuda_captured_note(group, on) : noted;
        if (status != TUTTI_OK)
            status = half_enqueued(group, status);
    }
    cuda_leave(group, pushed);
    return status;
}
