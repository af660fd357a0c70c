/* SPDX-License-Identifier: MIT */
/*
 * Zero-copy all-reduce, for operands that every rank can reach: symmetric memory, or threads of one
 * process.
 *
 * Each rank announces where its operands lie. Rank r alone reads all send buffers and writes all
 * recv buffers in chunk r, so in place is as safe as out of place. An announcement tells that the
 * rank has entered, so its operands may be used. The flag at the end tells that the rank's chunk is
 * written, so the other ranks may leave.
 *
 * A rank that fails must not leave earlier either, because its caller may free the operands at
 * once. A rank that is about to use its peers' operands sets `touching`, then checks for faults. A
 * rank that fails records the fault, then waits until no rank is touching. Of two such ranks one
 * sees the other.
 */
#include "base/point.h"
#include "cpu/algo/all_reduce.h"
#include "cpu/transport/chunk.h"
#include "cpu/transport/owner.h"
#include "cpu/transport/team.h"
#include "cpu/transport/wait.h"

#include <sched.h>

enum { TEAM_BYTES = 32 * 1024 }; /* for fewer bytes, threads cost more than they save */

static unsigned char *address(void *const *buffers, int rank, uint64_t offset)
{
    unsigned char *base = buffers ? buffers[rank] : NULL;
    return base ? base + offset : (unsigned char *)(uintptr_t)offset;
}

/* Awaits all announcements. *all: every rank's operands lie in the same allocation. */
static enum tutti_status operands_gather(struct cpu_group *group, const struct request *request,
                                         unsigned char **send, unsigned char **recv, bool *all)
{
    uint32_t sequence = (uint32_t)group->op.sequence;
    *all = true;
    for (int r = 0; r < group->size; r++) {
        const struct layout_small_message *message =
            &group->arenas[r]->small_messages[sequence % LAYOUT_SMALL_MESSAGES];
        if (r != group->rank) {
            enum tutti_status status = wait_header(group, r, &message->header, sequence, request);
            if (status != TUTTI_OK)
                return status;
        }
        const struct layout_operands *operands = &message->u.operands;
        *all &= operands->send_id == request->operands.send_id &&
                operands->recv_id == request->operands.recv_id;
        if (*all) {
            send[r] = address(request->send_buffers, r, operands->send);
            recv[r] = address(request->recv_buffers, r, operands->recv);
        }
    }
    return TUTTI_OK;
}

/* The chunk that this rank reduces for all ranks. */
struct job {
    const struct cpu_group *group;
    const struct request *request;
    unsigned char *const *send;
    unsigned char *const *recv;
    size_t first, count; /* elements */
};

static void elements_reduce(const struct job *job, size_t first, size_t count)
{
    const void *in[TUTTI_MAX_RANKS];
    unsigned char *out[TUTTI_MAX_RANKS];
    size_t offset = first * job->request->element_bytes;
    for (int leaf = 0; leaf < job->group->size; leaf++) {
        int r = job->group->ranks.order[leaf];
        in[leaf] = job->send[r] + offset;
        out[r] = job->recv[r] + offset;
    }
    owner_reduce(job->group, job->request, in, out, count, false);
}

static void part_reduce(const void *context, int part)
{
    const struct job *job = context;
    size_t first;
    size_t share =
        chunk_elements(job->count, cpu_team_size(job->group->team), job->request->element_bytes);
    size_t count = chunk_of(job->count, share, part, &first);
    uint64_t environment = reduce_env_begin();
    elements_reduce(job, job->first + first, count);
    reduce_env_end(environment);
}

static void chunk_reduce(const struct cpu_group *group, const struct request *request,
                         unsigned char *const *send, unsigned char *const *recv)
{
    struct job job = {.group = group, .request = request, .send = send, .recv = recv};
    size_t width = request->element_bytes;
    size_t chunk = chunk_elements(request->count, group->size, width);
    job.count = chunk_of(request->count, chunk, group->rank, &job.first);
    if (group->team && job.count * width >= TEAM_BYTES)
        cpu_team_run(group->team, part_reduce, &job);
    else
        elements_reduce(&job, job.first, job.count);
}

/* Fails if some rank has failed, because its operands may be gone. */
static enum tutti_status touch_begin(struct cpu_group *group)
{
    struct tutti_fault fault;
    order_store_relaxed_u32(&group->own->touching, 1);
    order_fence();
    if (!cpu_group_check_peers(group, group->rank, false, &fault))
        return TUTTI_OK;
    order_store_release_u32(&group->own->touching, 0); /* T1 */
    return cpu_group_fail(group, &fault);
}

static void touch_end(struct cpu_group *group)
{
    order_store_release_u32(&group->own->touching, 0); /* T1 pairs A6 */
}

void direct_leave_failed(struct cpu_group *group)
{
    order_fence();
    for (int r = 0; r < group->size; r++)
        while (order_load_acquire_u32(&group->arenas[r]->touching)) /* A6 pairs T1 */
            sched_yield();
}

bool direct_is_touched(struct cpu_group *group)
{
    uint64_t left, dead;
    order_fence();
    cpu_group_exited_peers(group, &left, &dead);
    for (int r = 0; r < group->size; r++)
        if (!(dead >> r & 1) && order_load_acquire_u32(&group->arenas[r]->touching)) /* A6 */
            return true;
    return false;
}

enum tutti_status direct_all_reduce(struct cpu_group *group, const struct request *request,
                                    bool *done)
{
    unsigned char *send[TUTTI_MAX_RANKS], *recv[TUTTI_MAX_RANKS];
    enum tutti_status status = operands_gather(group, request, send, recv, done);
    if (status != TUTTI_OK || !*done)
        return status;

    POINT("direct.entered");
    status = touch_begin(group);
    if (status != TUTTI_OK)
        return status;
    chunk_reduce(group, request, send, recv);
    touch_end(group);
    POINT("direct.reduced");
    uint32_t step = ++group->op.step;
    size_t slot = step % LAYOUT_SLOTS;
    invalidate_flag(&group->own->in_flags[slot].header, step);
    invalidate_flag(&group->own->part_flags[slot].header, step);
    wait_publish(group, &group->own->out_flags[slot].header, step, request); /* Q1 */
    for (int r = 0; r < group->size; r++) {
        if (r == group->rank)
            continue;
        status = wait_header(group, r, &group->arenas[r]->out_flags[slot].header, step, request);
        if (status != TUTTI_OK)
            return status;
    }
    return TUTTI_OK;
}
