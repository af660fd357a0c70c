/* SPDX-License-Identifier: MIT */
/*
 * Sleeping without a lost wake-up and without a fence on the waker's side.
 *
 * The sleeper adds itself to `sleepers`, then reads the word again; the waker writes the word, then
 * reads `sleepers`. Both are store-then-load, so one side at least needs a full fence. The waker is
 * on the hot path and the sleeper is not: the sleeper's membarrier() runs a fence on every core of
 * every registered process, the waker's too. Where the kernel lacks it, the slices are short
 * instead.
 */
#include "cpu/wait.h"

#include "deadline.h"
#include "signature.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SLICE_MS = 50, SHORT_SLICE_MS = 1, LOOK_EVERY = 64, LOOK_NS = 20000000 };

static long futex(uint32_t *word, int operation, uint32_t value, const struct timespec *timeout)
{
    return syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

void wait_ring(struct cpu_group *group)
{
    order_fetch_add_u32(&group->own->bell, 1); /* W1 pairs A5 */
    futex(&group->own->bell, FUTEX_WAKE, INT_MAX, NULL);
}

void wait_ring_all(struct cpu_group *group)
{
    for (int r = 0; r < group->size; r++)
        futex(&group->arenas[r]->bell, FUTEX_WAKE, INT_MAX, NULL);
}

bool wait_prepare(void)
{
    return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
}

static struct tutti_fault fault_of(const struct cpu_group *group, enum tutti_status status,
                                   int peer, const struct request *request)
{
    return (struct tutti_fault){
        .struct_size = sizeof(struct tutti_fault),
        .status = status,
        .rank = group->rank,
        .peer = peer,
        .sequence = group->sequence,
        .expected = signature_unpack(request->signature, request->parameter),
    };
}

enum tutti_status wait_mismatch(struct cpu_group *group, int peer,
                                const struct layout_header *header, const struct request *request)
{
    struct tutti_fault fault = fault_of(group, TUTTI_ERR_MISMATCH, peer, request);
    fault.seen = signature_unpack(header->signature, header->parameter);
    return cpu_group_fail(group, &fault);
}

/* A peer that means another operation says so in its mail and never writes the word that we wait
 * for. */
static bool means_another(struct cpu_group *group, int peer, const struct request *request,
                          struct tutti_fault *fault)
{
    uint32_t sequence = (uint32_t)group->sequence;
    const struct layout_header *header =
        &group->arenas[peer]->mails[sequence % LAYOUT_MAILS].header;
    if (!group->mailed || order_load_acquire_u32(&header->turn) != sequence)
        return false;
    if (header->signature == request->signature && header->parameter == request->parameter)
        return false;
    *fault = fault_of(group, TUTTI_ERR_MISMATCH, peer, request);
    fault->seen = signature_unpack(header->signature, header->parameter);
    return true;
}

/* One look at everything but the word. */
static bool trouble(struct cpu_group *group, int peer, const struct request *request,
                    int64_t deadline, bool life, struct tutti_fault *fault)
{
    if (means_another(group, peer, request, fault) || cpu_group_look(group, peer, life, fault))
        return true;
    if (!deadline_passed(deadline))
        return false;
    *fault = fault_of(group, TUTTI_ERR_TIMEOUT, peer, request);
    return true;
}

/* Sleeps until the peer's bell rings, or for a slice. */
static void sleep_slice(struct cpu_group *group, int peer, const uint32_t *word, uint32_t value,
                        int64_t left_ms)
{
    struct layout_arena *arena = group->arenas[peer];
    int64_t slice = group->membarrier ? SLICE_MS : SHORT_SLICE_MS;
    if (left_ms >= 0 && left_ms < slice)
        slice = left_ms;
    struct timespec timeout = {.tv_sec = 0, .tv_nsec = (long)slice * 1000000};

    uint32_t bell = order_load_acquire_u32(&arena->bell); /* A5 pairs W1 */
    order_fetch_add_u32(&arena->sleepers, 1);
    if (group->membarrier)
        syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
    if (order_load_acquire_u32(word) != value && !order_load_relaxed_u32(&group->aborted))
        futex(&arena->bell, FUTEX_WAIT, bell, &timeout);
    order_fetch_add_u32(&arena->sleepers, (uint32_t)-1);
}

enum tutti_status wait_slowly(struct cpu_group *group, int peer, const uint32_t *word,
                              uint32_t value, const struct request *request)
{
    /* The time-out is the operation's: it counts from its first wait that is no short one. */
    if (!group->deadline)
        group->deadline = deadline_after(request->timeout_ms);
    int64_t deadline = group->deadline, looked = deadline_now();
    for (int turn = 0;; turn++) {
        if (order_load_acquire_u32(word) == value)
            return TUTTI_OK;

        /* Where others want the core too a yield may take milliseconds: the clock counts, not
         * the turns. */
        bool sleeps = turn >= group->yields;
        int64_t now = deadline_now();
        bool life = sleeps || now - looked > LOOK_NS;
        struct tutti_fault fault;
        if (life)
            looked = now;
        if ((life || turn % LOOK_EVERY == LOOK_EVERY - 1) &&
            trouble(group, peer, request, deadline, life, &fault)) {
            /* A peer that wrote the word and then left, or died, has done its part. */
            if (order_load_acquire_u32(word) == value)
                return TUTTI_OK;
            return cpu_group_fail(group, &fault);
        }
        if (sleeps)
            sleep_slice(group, peer, word, value, deadline_left_ms(deadline));
        else
            sched_yield();
    }
}
