/* SPDX-License-Identifier: MIT */
/*
 * Copies between the memories of the ranks' processes, by the kernel. A rank finds a peer's process
 * by the number that the kernel told when the two connected; no rank writes that number itself.
 *
 * The set-up tries them with data: each rank reads a random value in the memory of every rank of
 * another process, writes its own value there, and reads that back. The ranks exchange how this
 * came out, so all have one answer and name the same reason.
 */
#include "base/deadline.h"
#include "base/error.h"
#include "base/point.h"
#include "ipc/channel.h"
#include "ipc/process_memory.h"
#include "ipc/random.h"
#include "peers/peers_internal.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

/* How long a process may take to end once its memory is gone. */
enum { ENDS_MS = 1000 };

/* ---- the trial ------------------------------------------------------------------------------- */

/* What the peers read and write; [r]: rank r writes there. */
struct target {
    uint64_t value;
    uint64_t written[NODE_RANKS];
};

struct offer {
    uint64_t value;
    uint64_t target; /* its address */
};

struct verdict {
    int32_t error; /* errno; 0: all copies succeeded */
    int32_t peer;
    int32_t scope; /* process_memory_scope() */
    int32_t unused;
};

static int copies_with(const struct peers *peers, int peer, const struct offer *theirs,
                       uint64_t value)
{
    const int64_t pid = channel_peer_pid(peers->ranks.channel, peer);
    const uint64_t slot =
        theirs->target + offsetof(struct target, written) + (uint64_t)peers->rank * sizeof value;
    uint64_t seen = 0, back = 0;
    int error = process_memory_read(pid, &seen, theirs->target, sizeof seen);
    if (!error && seen == theirs->value)
        error = process_memory_write(pid, slot, &value, sizeof value);
    else if (!error)
        return EILSEQ;
    if (!error)
        error = process_memory_read(pid, &back, slot, sizeof back);
    return error || back == value ? error : EILSEQ;
}

static struct verdict copies_try(const struct peers *peers, const struct offer *offers)
{
    struct verdict verdict = {.error = 0};
    const struct rank_set remote = peers->ranks.remote;
    for (int r = rank_set_next(remote, -1); r >= 0 && !verdict.error; r = rank_set_next(remote, r))
        verdict = (struct verdict){
            .error = copies_with(peers, r, &offers[r], offers[peers->rank].value), .peer = r};
    if (verdict.error)
        verdict.scope = process_memory_scope();
    return verdict;
}

/* All ranks write the same text. */
static void verdicts_read(struct peers *peers, const struct verdict *verdicts)
{
    struct peers_copies *copies = &peers->copies;
    copies->work = true;
    for (int r = 0; r < peers->size && copies->work; r++) {
        char why[sizeof copies->why - 64];
        if (!verdicts[r].error)
            continue;
        process_memory_why(verdicts[r].error, verdicts[r].scope, why, sizeof why);
        snprintf(copies->why, sizeof copies->why, "no (rank %d cannot copy rank %d's memory: %s)",
                 name_of(peers, r), name_of(peers, verdicts[r].peer), why);
        copies->work = false;
    }
}

static enum tutti_status ranks_try(struct peers *peers, int64_t timeout_ms)
{
    const int64_t deadline = deadline_after(timeout_ms);
    struct target target = {.value = 0};
    struct offer offers[NODE_RANKS], own = {.target = (uintptr_t)&target};
    struct verdict verdicts[NODE_RANKS], mine;
    const enum tutti_status random = random_fill(&target.value, sizeof target.value);
    own.value = target.value;
    enum tutti_status status =
        peers_gather(peers, &own, sizeof own, offers, deadline_timeout_ms(deadline));
    if (status != TUTTI_OK)
        return status;
    mine = copies_try(peers, offers);
    if (random != TUTTI_OK && !mine.error)
        mine.error = EAGAIN;
    status = peers_gather(peers, &mine, sizeof mine, verdicts, deadline_timeout_ms(deadline));
    if (status == TUTTI_OK)
        verdicts_read(peers, verdicts);
    return status;
}

enum tutti_status peers_copies_open(struct peers *peers, enum tutti_direct direct,
                                    int64_t timeout_ms)
{
    struct peers_copies *copies = &peers->copies;
    enum tutti_status status = TUTTI_OK;
    copies->work = false;
    if (rank_set_count(peers->ranks.remote) == 0 && direct != TUTTI_DIRECT_OFF)
        snprintf(copies->why, sizeof copies->why, "not needed (no rank is in another process)");
    else if (direct == TUTTI_DIRECT_OFF)
        snprintf(copies->why, sizeof copies->why, "no (switched off)");
    else if (peers->ranks.sparse)
        snprintf(copies->why, sizeof copies->why, "no (some two ranks are not linked)");
    else {
        if (direct == TUTTI_DIRECT_ON)
            process_memory_allow();
        status = ranks_try(peers, timeout_ms);
    }
    if (status != TUTTI_OK || direct != TUTTI_DIRECT_ON || copies->work ||
        rank_set_empty(peers->ranks.remote))
        return status;
    return error_set(TUTTI_ERR_DECLINED,
                     "direct copies (options->direct, TUTTI_DIRECT) are on and do not work %s: "
                     "allow them, or set auto",
                     copies->why + strlen("no "));
}

const char *peers_copies_text(const struct peers *peers)
{
    return peers->copies.work ? "yes" : peers->copies.why;
}

bool peers_copies_reach(const struct peers *peers, const void *operand, size_t bytes, bool receives)
{
    return peers->copies.work &&
           process_memory_is_reachable((void *)(uintptr_t)operand, bytes, receives);
}

bool peers_copies_into(const struct peers *peers, int rank)
{
    const uint32_t writes = LAYOUT_WRITES + (uint32_t)peers->rank;
    return order_load_acquire_u32(&peers->arenas[rank]->touching) == writes && /* A6 pairs T1 */
           peers_alive(peers, rank);
}

/* An application may have left a call by longjmp(), and peers may go on with the operation. */
void peers_copies_close(const struct peers *peers)
{
    if (!peers->copies.work)
        return;
    order_fence(); /* between F2 and the loads: a rank that is about to write has the other one */
    for (int r = 0; r < peers->size; r++)
        while (rank_set_has(peers->ranks.remote, r) && peers_copies_into(peers, r))
            sched_yield();
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* A copy has ended. It counts only if the process still lives: until then its number has not
 * passed to another one. */
static enum tutti_status copy_judge(struct peers *peers, int peer, int error, const void *own,
                                    size_t bytes)
{
    const int64_t deadline = deadline_after(ENDS_MS);
    struct tutti_fault fault;
    if (!error && channel_peer_runs(peers->ranks.channel, peer))
        return TUTTI_OK;
    do
        if (peers_check(peers, peer, true, &fault))
            return peers_fail(peers, &fault);
    while (error == ESRCH && !deadline_passed(deadline) && sched_yield() == 0);
    if (!error)
        return TUTTI_OK;
    fault = (struct tutti_fault){.struct_size = sizeof fault,
                                 .status = TUTTI_ERR_SYSTEM,
                                 .rank = peers->rank,
                                 .peer = peer,
                                 .sequence = peers->sequence};
    if (error == EFAULT && !process_memory_is_mapped(own, bytes))
        fault.peer = peers->rank;
    fault.seen.count = (uint64_t)error;
    return peers_fail(peers, &fault);
}

enum tutti_status peers_copy_from(struct peers *peers, int peer, void *to, uint64_t from,
                                  size_t bytes)
{
    const int64_t pid = channel_peer_pid(peers->ranks.channel, peer);
    return copy_judge(peers, peer, process_memory_read(pid, to, from, bytes), to, bytes);
}

enum tutti_status peers_copy_to(struct peers *peers, int peer, uint64_t to, const void *from,
                                size_t bytes)
{
    const int64_t pid = channel_peer_pid(peers->ranks.channel, peer);
    int error = channel_peer_runs(peers->ranks.channel, peer) ? 0 : ESRCH;
    POINT("copies.writes");
    if (!error)
        error = process_memory_write(pid, to, from, bytes);
    return copy_judge(peers, peer, error, from, bytes);
}
