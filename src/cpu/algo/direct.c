/* SPDX-License-Identifier: MIT */
/*
 * Zero-copy, for operands that every rank can reach: symmetric memory, or threads of one process.
 * And copies from and to an address in another rank's process, by the kernel: of pair.c, and of an
 * all-gather or all-to-all, whose ranks read their peers' blocks.
 *
 * Each rank announces where its operands lie. In an all-reduce only rank r reads chunk r of all
 * send buffers and writes chunk r of all recv buffers, so in place is as safe as out of place. If
 * an operand has a block for each rank, a rank reads the others' send buffers and writes its own
 * recv. An announcement tells that the rank has entered, so its operands may be used. The flag at
 * the end tells that the rank has done its part, so the other ranks may leave.
 *
 * A rank that fails must also wait for this, because its caller may free the operands at once. A
 * rank that is about to use its peers' operands sets `touching`, then checks for faults. A rank
 * that fails records the fault, then waits until no rank is touching. Of two such ranks at least
 * one sees the other's word. Of ranks of other processes it waits for those that live and write
 * into its own process. A read from there cannot fault, and its reader finds the fault behind it.
 */
#include "base/point.h"
#include "cpu/algo/algo.h"
#include "cpu/transport/chunk.h"
#include "cpu/transport/copy.h"
#include "cpu/transport/team.h"

#include <sched.h>

enum { TEAM_BYTES = 32 * 1024 }; /* for fewer bytes, threads cost more than they save */

/* This rank's work: `count` elements from element `first` of a chunk or of a block. */
struct job {
    const struct cpu_group *group;
    const struct request *request;
    unsigned char *send[NODE_RANKS];
    unsigned char *recv[NODE_RANKS];
    size_t first, count;
};

/* Whether every rank's operands lie in the same allocation, whose addresses this puts into the
 * job. */
static bool operands_find(struct job *job)
{
    const struct cpu_group *group = job->group;
    const struct request *request = job->request;
    const struct layout_operands *own = &request->operands;
    for (int r = 0; r < group->peers.size; r++) {
        const struct layout_operands *operands = &small_message_of(group, r)->u.operands;
        if (operands->send_id != own->send_id || operands->recv_id != own->recv_id)
            return false;
        job->send[r] = operand_at(request->send_buffers, r, operands->send);
        job->recv[r] = operand_at(request->recv_buffers, r, operands->recv);
    }
    return true;
}

/* The block for this rank in the send buffer of `rank`. */
static const unsigned char *sent_to_me(const struct job *job, int rank)
{
    const struct request *request = job->request;
    return job->send[rank] +
           (request->send_all ? (size_t)job->group->peers.rank * request->bytes : 0);
}

static void blocks_copy(const struct job *job, size_t first, size_t count)
{
    const struct cpu_group *group = job->group;
    const size_t width = job->request->element_bytes, at = first * width;
    for (int i = 0; i < group->peers.size; i++) {
        const int r = (group->peers.rank + i) % group->peers.size;
        const unsigned char *from = sent_to_me(job, r) + at;
        unsigned char *to = request_received(job->request, r) + at;
        if (to != from)
            copy_near(group, to, from, count * width);
    }
}

static void elements_reduce(const struct job *job, size_t first, size_t count)
{
    const void *in[NODE_RANKS];
    unsigned char *out[NODE_RANKS];
    const struct cpu_group *group = job->group;
    const struct request *request = job->request;
    const size_t at = first * request->element_bytes;
    for (int leaf = 0; leaf < group->peers.size; leaf++) {
        int r = group->order[leaf];
        in[leaf] = sent_to_me(job, r) + at;
        if (!request->send_all)
            out[r] = job->recv[r] + at;
    }
    if (request->send_all)
        leaves_reduce(group, request, (unsigned char *)request->recv + at, count, in);
    else
        owner_reduce(group, request, in, out, count, false);
}

static void elements_run(const struct job *job, size_t first, size_t count)
{
    (job->request->reduce ? elements_reduce : blocks_copy)(job, first, count);
}

static void part_run(const void *context, int part)
{
    const struct job *job = context;
    size_t first;
    size_t share =
        chunk_elements(job->count, cpu_team_size(job->group->team), job->request->element_bytes);
    size_t count = chunk_of(job->count, share, part, &first);
    uint64_t environment = reduce_env_begin();
    elements_run(job, job->first + first, count);
    reduce_env_end(environment);
}

static void job_run(struct job *job)
{
    const struct cpu_group *group = job->group;
    const struct request *request = job->request;
    job->first = 0;
    job->count = request->count;
    if (!request->send_all && !request->recv_all)
        job->count =
            chunk_of(request->count,
                     chunk_elements(request->count, group->peers.size, request->element_bytes),
                     group->peers.rank, &job->first);
    if (group->team && job->count * request->element_bytes >= TEAM_BYTES)
        cpu_team_run(group->team, part_run, job);
    else
        elements_run(job, job->first, job->count);
}

/* A peer that has failed has left its operands, also if its fault is of a later operation: several
 * run in a group of calls. */
static enum tutti_status faults_check(struct cpu_group *group, struct rank_set peers)
{
    struct tutti_fault fault;
    for (int r = rank_set_next(peers, -1); r >= 0; r = rank_set_next(peers, r)) {
        const bool failed = order_load_acquire_u32(&group->peers.arenas[r]->fault.set); /* A1: F1 */
        if (peers_check(&group->peers, failed ? group->peers.rank : r, false, &fault)) {
            order_store_release_u32(&group->peers.own->touching, 0); /* T1 pairs A6 */
            return peers_fail(&group->peers, &fault);
        }
    }
    return TUTTI_OK;
}

static enum tutti_status touch(struct cpu_group *group, uint32_t how, struct rank_set peers)
{
    order_store_relaxed_u32(&group->peers.own->touching, how);
    order_fence();
    return faults_check(group, peers);
}

enum tutti_status direct_touch_begin(struct cpu_group *group, struct rank_set peers)
{
    return touch(group, LAYOUT_INSIDE, peers);
}

enum tutti_status direct_touch_end(struct cpu_group *group, struct rank_set peers)
{
    order_fence(); /* the operands were read before the faults */
    const enum tutti_status status = faults_check(group, peers);
    order_store_release_u32(&group->peers.own->touching, 0); /* T1 pairs A6 */
    return status;
}

enum tutti_status direct_read(struct cpu_group *group, int rank, void *to, uint64_t from,
                              size_t bytes)
{
    const bool is_remote = rank_set_has(group->peers.ranks.remote, rank);
    enum tutti_status status =
        is_remote ? TUTTI_OK : touch(group, LAYOUT_INSIDE, rank_set_of(rank));
    if (status == TUTTI_OK && is_remote)
        status = peers_copy_from(&group->peers, rank, to, from, bytes);
    else if (status == TUTTI_OK)
        copy_near(group, to, (const void *)(uintptr_t)from, bytes);
    POINT("direct.read");
    return status == TUTTI_OK ? direct_touch_end(group, rank_set_of(rank)) : status;
}

enum tutti_status direct_write(struct cpu_group *group, int rank, uint64_t to, const void *from,
                               size_t bytes)
{
    const bool is_remote = rank_set_has(group->peers.ranks.remote, rank);
    enum tutti_status status =
        touch(group, is_remote ? LAYOUT_WRITES + (uint32_t)rank : LAYOUT_INSIDE, rank_set_of(rank));
    if (status != TUTTI_OK)
        return status;
    if (is_remote)
        status = peers_copy_to(&group->peers, rank, to, from, bytes);
    else
        copy_near(group, (void *)(uintptr_t)to, from, bytes);
    POINT("direct.written");
    const enum tutti_status ended = direct_touch_end(group, rank_set_of(rank));
    return status == TUTTI_OK ? ended : status;
}

/* Whether a rank may still write into this rank's operands, or read them in its address space. */
static bool is_touched_by(const struct cpu_group *group, int rank)
{
    const struct peers *peers = &group->peers;
    if (rank_set_has(peers->ranks.remote, rank))
        return peers_copies_into(peers, rank);
    return order_load_acquire_u32(&peers->arenas[rank]->touching) ==
           LAYOUT_INSIDE; /* A6 pairs T1 */
}

void direct_leave_failed(void *opaque, const struct request *request, void *state)
{
    const struct cpu_group *group = opaque;
    (void)state;
    order_fence(); /* the fault is visible before the caller writes to its operands again */
    if (!request->choice.zero_copy ||
        (request->operands.send_id != LAYOUT_THIS_PROCESS && !is_direct_call(request)))
        return;
    for (int r = 0; r < group->peers.size; r++)
        while (is_touched_by(group, r))
            sched_yield();
}

/* Reads the peers' blocks by their addresses. The peers leave once this rank has told its end. */
static enum tutti_status blocks_read(struct cpu_group *group, const struct job *job)
{
    const struct request *request = job->request;
    enum tutti_status status = TUTTI_OK;
    for (int i = 0; i < group->peers.size && status == TUTTI_OK; i++) {
        const int r = (group->peers.rank + i) % group->peers.size;
        const unsigned char *from = sent_to_me(job, r);
        unsigned char *to = request_received(request, r);
        if (r != group->peers.rank)
            status = direct_read(group, r, to, (uintptr_t)from, request->bytes);
        else if (to != from)
            copy_near(group, to, from, request->bytes);
    }
    return status;
}

enum tutti_status direct_run(struct cpu_group *group, const struct request *request, bool *done)
{
    struct job job; /* not initialised: its arrays are long */
    job.group = group;
    job.request = request;
    *done = operands_find(&job);
    if (!*done)
        return TUTTI_OK;
    POINT("direct.entered");
    if (request->operands.send_id == LAYOUT_ADDRESS)
        return blocks_read(group, &job);
    enum tutti_status status = direct_touch_begin(group, rank_set_of(group->peers.rank));
    if (status != TUTTI_OK)
        return status;
    job_run(&job);
    status = direct_touch_end(group, rank_set_of(group->peers.rank));
    POINT("direct.reduced");
    return status;
}
