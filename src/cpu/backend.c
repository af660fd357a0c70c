/* SPDX-License-Identifier: MIT */
#include "coll/backend.h"

#include "base/error.h"
#include "cpu/algo/parts.h"

#include <string.h>

/* Ranks that are joined by links exchange data with their neighbours only. */
static enum tutti_status prepare(const struct backend_opening *opening,
                                 struct backend_arenas *arenas)
{
    arenas->bytes = cpu_group_arena_bytes(opening, opening->rules) + parts_arenas_bytes(opening);
    arenas->sparse = !opening->rules->paths.all;
    if (arenas->sparse)
        arenas->reach = opening->topology->linked[opening->rank];
    return TUTTI_OK;
}

static enum tutti_status open_group(const struct backend_opening *opening, void **group)
{
    struct cpu_group *opened;
    enum tutti_status status = cpu_group_open(opening, opening->rules, &opened);
    if (status == TUTTI_OK)
        status = cpu_group_open_direct(opened, opening);
    if (status == TUTTI_OK)
        status = parts_open(opening, cpu_group_arena_bytes(opening, opening->rules), opened);
    if (status != TUTTI_OK)
        return status;
    peers_settle(opening->peers);
    *group = opened;
    return TUTTI_OK;
}

static void close_group(void *group, struct tutti_fault *fault)
{
    (void)fault;
    parts_close(group);
}

static void forget_group(void *group)
{
    parts_close(group);
}

static enum tutti_status send_own(void *group, struct request *send, struct request *recv,
                                  tutti_stream_t stream)
{
    const enum tutti_status status = peers_status(group, NULL);
    (void)stream;
    if (status != TUTTI_OK)
        return status;
    request_started(send, peers_sequence(group), RECORD_SUBSET, RECORD_RUNNING);
    request_started(recv, peers_sequence(group), RECORD_SUBSET, RECORD_RUNNING);
    if (recv->bytes)
        memmove(recv->recv, send->send, recv->bytes);
    return TUTTI_OK;
}

static enum tutti_status check_split(const void *group, const char *name)
{
    if (!peers_ranks(group)->sparse)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_DECLINED,
                     "some two ranks of communicator \"%s\" are not linked, as the topology file "
                     "has it: create one for each color by tutti_comm_create(), with the color in "
                     "its name",
                     name);
}

static enum tutti_status finish(void *group, int64_t timeout_ms)
{
    (void)timeout_ms; /* a call returns when its operation has ended */
    return peers_status(group, NULL);
}

/* A struct cpu_group begins with its struct peers. */
const struct backend cpu_backend = {
    .name = "cpu",
    .title = "CPU",
    .most_ranks = NODE_RANKS,
    .create = cpu_group_create,
    .prepare = prepare,
    .open = open_group,
    .choose = cpu_choose,
    .barrier = &cpu_meeting,
    .run_more = cpu_run_more,
    .send_own = send_own,
    .sequence = peers_sequence,
    .status = peers_status,
    .check_split = check_split,
    .finish = finish,
    .close = close_group,
    .forget = forget_group,
};
