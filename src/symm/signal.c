/* SPDX-License-Identifier: MIT */
/*
 * Signals. The owner's signal pad has one word for each channel and each rank that signals. The
 * signalling rank waits until the word is 0 and sets it to 1. The owner waits until the word is 1
 * and sets it to 0. So a word has one writer at a time, and a second signal waits until the owner
 * has taken the first.
 */
#include "base/error.h"
#include "base/options.h"
#include "base/order.h"
#include "base/wait.h"
#include "symm/symm.h"

/* ---- transitions of a word ------------------------------------------------------------------- */

/* A change of a signal's word, and the texts for its error messages. */
struct transition {
    const char *call;
    const char *peer_action; /* that this transition waits for */
    uint32_t from;
    uint32_t to;
};
static const struct transition PUT = {"tutti_symm_put_signal", "taken the previous signal", 0, 1};
static const struct transition TAKE = {"tutti_symm_wait_signal", "raised its signal", 1, 0};

/* The message says that the peer did not do peer_action, and ends with `advice`. */
static enum tutti_status wait_error(enum tutti_status status,
                                    const struct tutti_symmetric_group *group, const char *call,
                                    const char *peer_action, int peer, int channel,
                                    const char *advice)
{
    if (status == TUTTI_ERR_TIMEOUT)
        return error_set(
            status,
            "%s: rank %d of group \"%s\" has not %s on channel %d within the time-out: "
            "check whether that rank is late or stopped%s",
            call, peer, group->name, peer_action, channel, advice);
    return error_set(status,
                     "%s: rank %d of group \"%s\" ended or freed its buffer before it had %s on "
                     "channel %d%s",
                     call, peer, group->name, peer_action, channel, advice);
}

/* The waits of one call, one after the other. */
struct signal_wait {
    const struct symm_allocation *allocation;
    int channel;
    int64_t timeout_ms;
    int64_t deadline;                    /* of the call; 0 until a wait needs it */
    const struct transition *transition; /* of the wait under way, as are the next two */
    int peer;
    uint32_t *word;
};

/* Read the word first, relaxed: a failing exchange would take the cache line away from the peer
 * that is about to write it. */
static bool try_transition(void *context)
{
    const struct signal_wait *wait = context;
    const struct transition *transition = wait->transition;
    /* Y7: 0 to 1 releases the signalling rank's earlier writes. Y7a: 1 to 0 acquires them.
     * Y8: 1 to 0 releases the owner's reads. Y8a: the next 0 to 1 acquires them. */
    return order_load_relaxed_u32(wait->word) == transition->from &&
           order_compare_exchange_u32(wait->word, transition->from, transition->to);
}

/* Return true if the peer has freed its buffer or its process has ended. */
static bool peer_is_gone(void *context, enum wait_depth depth)
{
    const struct signal_wait *wait = context;
    const struct symm_allocation *allocation = wait->allocation;
    /* Y6a pairs Y6: what the peer wrote before the free is visible. */
    if (order_load_acquire_u32(&symm_tail(allocation, allocation->buffers[wait->peer])->left))
        return true;
    return depth != WAIT_MEMORY && !peers_alive(allocation->group->comm->peers, wait->peer);
}

static __attribute__((noinline)) enum tutti_status wait_slowly(struct signal_wait *wait)
{
    const struct tutti_symmetric_group *group = wait->allocation->group;
    const struct waiter waiter = {
        .poll = try_transition,
        .look = peer_is_gone,
        .context = wait,
        .deadline = &wait->deadline,
        .timeout_ms = wait->timeout_ms ? wait->timeout_ms : group->timeout_ms,
        .yields = WAIT_YIELDS,
        .nap_ns = WAIT_LONG_NAP_NS,
    };
    const enum wait_end end = waiter_run(&waiter);
    if (end == WAIT_DONE)
        return TUTTI_OK;
    return wait_error(end == WAIT_LATE ? TUTTI_ERR_TIMEOUT : TUTTI_ERR_PEER_DEAD, group,
                      wait->transition->call, wait->transition->peer_action, wait->peer,
                      wait->channel, "");
}

static enum tutti_status wait_transition(struct signal_wait *wait, int peer,
                                         const struct transition *transition)
{
    const struct tutti_symmetric_group *group = wait->allocation->group;
    const bool put = transition == &PUT;
    const int owner = put ? peer : group->rank, from = put ? group->rank : peer;
    wait->transition = transition;
    wait->peer = peer;
    wait->word = wait->allocation->pads[owner] +
                 (wait->channel * group->world_size + from) * SYMM_LINE_WORDS;
    return wait_spin(try_transition, wait, 0, peers_ranks(group->comm->peers)->polls)
               ? TUTTI_OK
               : wait_slowly(wait);
}

/* ---- a device's memory ---------------------------------------------------------------------- */

/* Set the thread's last error to the fault. */
static enum tutti_status fault_report(const struct symm_allocation *allocation,
                                      const struct cuda_symm_fault *fault)
{
    const char *call = fault->call == CUDA_SYMM_PUT    ? PUT.call
                       : fault->call == CUDA_SYMM_WAIT ? TAKE.call
                                                       : "tutti_symm_barrier";
    return wait_error(fault->status, allocation->group, call,
                      fault->raised ? TAKE.peer_action : PUT.peer_action, fault->peer,
                      fault->channel,
                      ". This rank's buffer can no longer signal: free it on all ranks and "
                      "allocate a new one");
}

/* Enqueue a call on the stream. */
static enum tutti_status device_call(struct symm_allocation *allocation, enum cuda_symm_call call,
                                     int peer, int channel, int64_t timeout_ms,
                                     tutti_stream_t stream)
{
    struct cuda_symm_fault found;
    if (cuda_symm_failed(allocation->cuda, &found))
        return fault_report(allocation, &found);
    return cuda_symm_enqueue(allocation->cuda, call, peer, channel, timeout_ms, stream);
}

/* ---- calls ---------------------------------------------------------------------------------- */

/* Return the buffer's allocation. Return NULL and set the error message if the buffer, the channel
 * or the stream is wrong. */
static struct symm_allocation *check_call(const void *buffer, int channel, tutti_stream_t stream,
                                          const char *call)
{
    struct symm_allocation *allocation = symm_allocation_get_mapped(buffer, call);
    if (allocation && (channel < 0 || channel >= SYMM_CHANNELS)) {
        error_set(TUTTI_ERR_INVALID, "%s: channel %d: expected 0 to %d", call, channel,
                  SYMM_CHANNELS - 1);
        return NULL;
    }
    if (allocation && !allocation->cuda && stream != TUTTI_STREAM_DEFAULT) {
        error_set(TUTTI_ERR_INVALID,
                  "%s: stream %p: a buffer in host memory takes TUTTI_STREAM_DEFAULT only", call,
                  (const void *)stream);
        return NULL;
    }
    return allocation;
}

static enum tutti_status signal_call(const void *buffer, int peer, int channel, int64_t timeout_ms,
                                     tutti_stream_t stream, const struct transition *transition)
{
    struct symm_allocation *allocation = check_call(buffer, channel, stream, transition->call);
    if (!allocation)
        return TUTTI_ERR_INVALID;
    const struct tutti_symmetric_group *group = allocation->group;
    if (peer < 0 || peer >= group->world_size)
        return error_set(TUTTI_ERR_INVALID, "%s: peer %d: expected 0 to %d", transition->call, peer,
                         group->world_size - 1);
    if (allocation->cuda)
        return device_call(allocation, transition == &PUT ? CUDA_SYMM_PUT : CUDA_SYMM_WAIT, peer,
                           channel, timeout_ms, stream);
    struct signal_wait wait = {
        .allocation = allocation, .channel = channel, .timeout_ms = timeout_ms};
    return wait_transition(&wait, peer, transition);
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
        return device_call(allocation, CUDA_SYMM_BARRIER, 0, channel, timeout_ms, stream);
    const int rank = allocation->group->rank, size = allocation->group->world_size;
    struct signal_wait wait = {
        .allocation = allocation, .channel = channel, .timeout_ms = timeout_ms};
    enum tutti_status status = TUTTI_OK;
    /* Each rank starts with the rank after itself, so that not all write to one rank at once. */
    for (int i = 1; i < 2 * size && status == TUTTI_OK; i++)
        if (i != size)
            status = wait_transition(&wait, (rank + i) % size, i < size ? &PUT : &TAKE);
    return status == TUTTI_OK ? status : error_context(status, "tutti_symm_barrier");
}

enum tutti_status tutti_symm_status(void *buffer, struct tutti_fault *fault)
{
    static const char call[] = "tutti_symm_status";
    struct tutti_fault found = {.peer = -1};
    struct cuda_symm_fault device;
    const struct symm_allocation *allocation = symm_allocation_get(buffer, call);
    if (!allocation)
        return TUTTI_ERR_INVALID;
    if (options_check_out("tutti_symm_status: fault", "tutti_fault", fault, sizeof *fault))
        return TUTTI_ERR_INVALID;
    if (allocation->cuda && cuda_symm_failed(allocation->cuda, &device)) {
        found.status = fault_report(allocation, &device);
        found.peer = device.peer;
        found.expected.parameter = (uint32_t)device.channel;
    }
    found.rank = allocation->group->rank;
    if (fault)
        options_copy_out(fault, &found, sizeof found);
    return found.status;
}
