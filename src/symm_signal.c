/* SPDX-License-Identifier: MIT */
/*
 * Signals: one word in the taker's pad for each channel and raiser. The raiser turns it from 0 to
 * 1, the taker from 1 to 0, each after waiting until it can; so a word has one writer at a time,
 * and a second signal waits for the first to be taken.
 */
#include "deadline.h"
#include "error.h"
#include "ipc/channel.h"
#include "order.h"
#include "symm_internal.h"

#include <inttypes.h>
#include <sched.h>
#include <string.h>
#include <time.h>

/* ---- waiting -------------------------------------------------------------------------------- */

static const int64_t LOOK_NS = 5000000;    /* between two looks at the peer's life and the clock */
static const int64_t YIELD_NS = 1000000;   /* how long a waiter yields before it sleeps */
static const int64_t FIRST_NAP_NS = 20000; /* the naps double up to ... */
static const int64_t LONGEST_NAP_NS = 1000000;

/* A waiter's state; all 0 but `polls` is the start. */
struct patience {
    int polls; /* left to spin */
    int64_t start;
    int64_t next_look;
    int64_t nap;
};

/* Passes some time: polls, then yields, then sleeps. True when it is time to look around. */
static bool be_patient(struct patience *patience)
{
    if (patience->polls > 0) {
        patience->polls--;
        order_pause();
        return false;
    }
    int64_t now = deadline_now();
    if (!patience->start) {
        patience->start = now;
        patience->next_look = now;
        patience->nap = FIRST_NAP_NS;
    } else if (now - patience->start < YIELD_NS) {
        sched_yield();
    } else {
        nanosleep(&(struct timespec){.tv_nsec = (long)patience->nap}, NULL);
        patience->nap = patience->nap * 2 < LONGEST_NAP_NS ? patience->nap * 2 : LONGEST_NAP_NS;
    }
    if (now < patience->next_look)
        return false;
    patience->next_look = now + LOOK_NS;
    return true;
}

/* Whether the peer can still do its part. */
static bool peer_lives(const struct symm_allocation *allocation, int peer)
{
    const struct tutti_symm_group *group = allocation->group;
    /* Y6a: what the peer wrote before it left is visible. */
    if (order_load_acquire_u32(&symm_tail(allocation, allocation->buffers[peer])->left))
        return false;
    return !(group->remote >> peer & 1) || channel_peer_alive(group->channel, peer);
}

/* ---- words ---------------------------------------------------------------------------------- */

/* What a call waits for, and how to say so. */
struct turn {
    const char *call;
    const char *what; /* the peer has not done */
    uint32_t from;
    uint32_t to;
};
static const struct turn PUT = {"tutti_symm_put_signal", "taken the previous signal", 0, 1};
static const struct turn TAKE = {"tutti_symm_wait_signal", "raised its signal", 1, 0};

/* Relaxed first: an exchange that fails takes the line from the peer that is about to write it. */
static bool try_turn(uint32_t *word, const struct turn *turn)
{
    /* Y7: raising releases the earlier writes, Y7a: taking acquires them; and back: Y8 taking
     * releases what the taker has read, Y8a raising again acquires that. */
    return order_load_relaxed_u32(word) == turn->from &&
           order_compare_exchange_u32(word, turn->from, turn->to);
}

static enum tutti_status take_turn(const struct symm_allocation *allocation, int peer, int channel,
                                   const struct turn *turn, int64_t deadline)
{
    const struct tutti_symm_group *group = allocation->group;
    bool put = turn == &PUT;
    int owner = put ? peer : group->rank, raiser = put ? group->rank : peer;
    uint32_t *word =
        allocation->pads[owner] + (channel * group->world_size + raiser) * SYMM_LINE_WORDS;
    struct patience patience = {.polls = group->spin};
    while (!try_turn(word, turn)) {
        if (!be_patient(&patience))
            continue;
        bool alive = peer_lives(allocation, peer);
        if (alive && !deadline_passed(deadline))
            continue;
        if (try_turn(word, turn)) /* its last act */
            return TUTTI_OK;
        if (!alive)
            return error_set(TUTTI_ERR_PEER_DEAD,
                             "%s: rank %d of group \"%s\" has ended or freed its buffer, and has "
                             "not %s on channel %d",
                             turn->call, peer, group->name, turn->what, channel);
        return error_set(TUTTI_ERR_TIMEOUT,
                         "%s: rank %d of group \"%s\" has not %s on channel %d in time: is it late "
                         "or stopped?",
                         turn->call, peer, group->name, turn->what, channel);
    }
    return TUTTI_OK;
}

/* ---- calls ---------------------------------------------------------------------------------- */

/* NULL, with a message, if the buffer, the channel or the stream is wrong. */
static struct symm_allocation *check_call(const void *buffer, int channel, tutti_stream_t stream,
                                          const char *call)
{
    struct symm_allocation *allocation = symm_allocation_met(buffer, call);
    if (allocation && (channel < 0 || channel >= SYMM_CHANNELS)) {
        error_set(TUTTI_ERR_INVALID, "%s: channel %d: expected 0 to %d", call, channel,
                  SYMM_CHANNELS - 1);
        return NULL;
    }
    if (allocation && !allocation->cuda && stream != TUTTI_STREAM_DEFAULT) {
        error_set(TUTTI_ERR_INVALID,
                  "%s: stream %p: a buffer of host memory takes TUTTI_STREAM_DEFAULT only", call,
                  (const void *)stream);
        return NULL;
    }
    return allocation;
}

static enum tutti_status signal_call(const void *buffer, int peer, int channel, int64_t timeout_ms,
                                     tutti_stream_t stream, const struct turn *turn)
{
    struct symm_allocation *allocation = check_call(buffer, channel, stream, turn->call);
    if (!allocation)
        return TUTTI_ERR_INVALID;
    const struct tutti_symm_group *group = allocation->group;
    if (peer < 0 || peer >= group->world_size)
        return error_set(TUTTI_ERR_INVALID, "%s: peer %d: expected 0 to %d", turn->call, peer,
                         group->world_size - 1);
    if (allocation->cuda)
        return symm_device_call(allocation, turn == &PUT ? CUDA_SYMM_PUT : CUDA_SYMM_WAIT, peer,
                                channel, timeout_ms, stream);
    return take_turn(allocation, peer, channel, turn,
                     deadline_after(timeout_ms ? timeout_ms : group->timeout_ms));
}

enum tutti_status tutti_symm_put_signal(void *buffer, int peer, int channel, int64_t timeout_ms,
                                        tutti_stream_t stream)
{
    return signal_call(buffer, peer, channel, timeout_ms, stream, &PUT);
}

enum tutti_status tutti_symm_wait_signal(void *buffer, int peer, int channel, int64_t timeout_ms,
                                         tutti_stream_t stream)
{
    return signal_call(buffer, peer, channel, timeout_ms, stream, &TAKE);
}

enum tutti_status tutti_symm_barrier(void *buffer, int channel, int64_t timeout_ms,
                                     tutti_stream_t stream)
{
    struct symm_allocation *allocation = check_call(buffer, channel, stream, "tutti_symm_barrier");
    if (!allocation)
        return TUTTI_ERR_INVALID;
    if (allocation->cuda)
        return symm_device_call(allocation, CUDA_SYMM_BARRIER, 0, channel, timeout_ms, stream);
    const struct tutti_symm_group *group = allocation->group;
    int64_t deadline = deadline_after(timeout_ms ? timeout_ms : group->timeout_ms);
    enum tutti_status status = TUTTI_OK;
    /* Each rank begins with its next one, so that they do not all write to the same. */
    for (int i = 1; i < group->world_size && status == TUTTI_OK; i++)
        status =
            take_turn(allocation, (group->rank + i) % group->world_size, channel, &PUT, deadline);
    for (int i = 1; i < group->world_size && status == TUTTI_OK; i++)
        status =
            take_turn(allocation, (group->rank + i) % group->world_size, channel, &TAKE, deadline);
    return status == TUTTI_OK ? status : error_context(status, "tutti_symm_barrier");
}

enum tutti_status tutti_symm_status(void *buffer, struct tutti_fault *fault)
{
    static const char call[] = "tutti_symm_status";
    struct tutti_fault found = {.peer = -1};
    const struct symm_allocation *allocation = symm_allocation_get(buffer, call);
    if (!allocation)
        return TUTTI_ERR_INVALID;
    if (fault && fault->struct_size < sizeof fault->struct_size)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: fault->struct_size is %zu: set it to sizeof(struct tutti_fault), %zu",
                         call, fault->struct_size, sizeof *fault);
    if (allocation->cuda)
        found.status = symm_device_status(allocation, &found);
    if (!fault)
        return found.status;
    size_t size = fault->struct_size;
    found.struct_size = size;
    found.rank = allocation->group->rank;
    memset(fault, 0, size);
    memcpy(fault, &found, size < sizeof found ? size : sizeof found);
    return found.status;
}
