/* SPDX-License-Identifier: MIT */
/*
 * tutti_comm_split() and tutti_comm_dup(). The ranks exchange all data over the parent
 * communicator, on CUDA over that of its hosts, in rounds of one agreement each:
 *   1. color, key and a random token. Now each rank knows the members of its communicator. The
 *      token of rank 0 of the new communicator is its nonce.
 *   2. the members' records, which they compare, and whether a rank has failed to prepare.
 *      Then the members pass the descriptors of their arenas over the links of the parent.
 *   3. whether a rank has failed to map what it got; twice if processes have several ranks.
 *   4. on CUDA: whether a rank has failed to prepare its device. Before this the new hosts have
 *      exchanged what the devices need, over the new arenas.
 * All ranks of the parent take part in all rounds. After a failure of any rank all ranks stop.
 *
 * If the parent's ranks run on several hosts, the members meet on the parent's store behind round
 * 1, as for a new communicator. Their second round tells whether a rank has failed. On CUDA the
 * parent's operations end first: its thread and this call would use one fabric.
 */
#include "base/deadline.h"
#include "base/error.h"
#include "base/options.h"
#include "base/point.h"
#include "bootstrap/host.h"
#include "bootstrap/meet.h"
#include "comm/comm.h"
#include "comm/hierarchy.h"
#include "comm/options.h"
#include "ipc/random.h"
#include "store/status_agree.h"
#include "store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct choice_of_rank {
    int32_t color;
    int32_t key;
    uint8_t token[16];
};

struct split {
    struct tutti_comm *parent;
    const char *call;
    bool is_dup;
    int color;
    struct gather gather;   /* of all ranks of the parent */
    int rounds;             /* that have begun */
    int size;               /* members of the new communicator */
    int rank;               /* this rank's number among them */
    int ranks[WORLD_RANKS]; /* their numbers in the parent */
    struct choice_of_rank choices[WORLD_RANKS];
};

/* struct gather's run(). The time-out is the parent's. */
static enum tutti_status parent_gather(void *context, const void *own, size_t bytes, void *all,
                                       int64_t timeout_ms)
{
    struct split *self = context;
    struct tutti_comm *parent = self->parent;
    const struct coll_args args = {.send = own, .recv = all, .count = bytes, .dtype = TUTTI_UINT8};
    (void)timeout_ms;
    self->rounds++;
    if (parent->backend->enqueues && parent->hosts.group)
        return hierarchy_values_gather(parent->hosts.group, own, bytes, all, parent->timeout_ms);
    return parent->backend->enqueues
               ? peers_gather(parent->peers, own, bytes, all, parent->timeout_ms)
               : comm_run(parent, TUTTI_COLLECTIVE_SPLIT, &args, parent->timeout_ms,
                          TUTTI_STREAM_DEFAULT);
}

/* The ranks of this rank's color, by key and rank. */
static void members_find(struct split *self)
{
    self->size = 0;
    for (int r = 0; r < self->parent->world_size && self->color >= 0; r++) {
        if (self->choices[r].color != self->color)
            continue;
        int i = self->size++;
        for (; i > 0 && self->choices[self->ranks[i - 1]].key > self->choices[r].key; i--)
            self->ranks[i] = self->ranks[i - 1];
        self->ranks[i] = r;
    }
    for (int i = 0; i < self->size; i++)
        if (self->ranks[i] == self->parent->rank)
            self->rank = i;
}

static enum tutti_status sub_make(const struct split *self,
                                  const struct tutti_comm_options *options, struct tutti_comm **sub)
{
    const struct tutti_comm *parent = self->parent;
    char name[2 * COMM_NAME_BYTES];
    if (options->name)
        snprintf(name, sizeof name, "%s", options->name);
    else if (self->is_dup)
        snprintf(name, sizeof name, "%s/dup-%u", parent->name, parent->splits);
    else
        snprintf(name, sizeof name, "%s/split-%u.%d", parent->name, parent->splits, self->color);
    enum tutti_status status = comm_derive(parent, self->ranks, self->size, self->rank, name, sub);
    if (status != TUTTI_OK)
        return status;
    (*sub)->progress = parent->progress;
    (*sub)->progress_context = parent->progress_context;
    status = comm_options_apply(options, *sub);
    if (self->is_dup && !options->leaf_order) {
        memcpy((*sub)->config.leaf_order, parent->config.leaf_order,
               sizeof parent->config.leaf_order);
        (*sub)->config.leaf_order_given = true;
    }
    return status;
}

/* Looks for nothing but an abort on this rank. A member with another fault closes its channel,
 * which ends the other members' waits, or reports the fault in the next round. */
static enum tutti_status abort_check(void *context)
{
    const struct tutti_comm *parent = context;
    return peers_are_aborted(parent->peers)
               ? error_set(TUTTI_ERR_ABORTED, "communicator \"%s\" was aborted while it was split",
                           parent->name)
               : TUTTI_OK;
}

static enum tutti_status sub_assemble(struct split *self, const struct tutti_comm_options *options,
                                      struct tutti_comm **sub)
{
    struct tutti_comm *parent = self->parent;
    const struct interrupt interrupt = {.ask = abort_check, .context = parent};
    struct meeting agreed = {.generation = parent->splits};
    const struct comm_assembly how = {
        .agreed = &agreed,
        .parent = parent,
        .gather = &self->gather,
        .interrupt = &interrupt,
        .deadline = deadline_after(parent->timeout_ms),
    };
    memcpy(agreed.nonce, self->choices[self->ranks[0]].token, sizeof agreed.nonce);
    enum tutti_status status = sub_make(self, options, sub);
    return status == TUTTI_OK ? comm_assemble(*sub, &how) : status;
}

/* Of a parent on several hosts: the members may run on one or on several. */
static enum tutti_status sub_meet(struct split *self, const struct tutti_comm_options *options,
                                  struct tutti_comm **sub)
{
    struct tutti_comm *parent = self->parent;
    struct tutti_store store;
    enum tutti_status status = sub_make(self, options, sub);
    if (status == TUTTI_OK)
        status = hierarchy_split_store(parent, self->color, &store);
    if (status != TUTTI_OK)
        return status;
    (*sub)->store = &store;
    (*sub)->split_from = parent;
    status = tutti_comm_rendezvous(*sub);
    (*sub)->split_from = NULL;
    free(store.prefix);
    return status;
}

static enum tutti_status split_run(struct split *self, int key,
                                   const struct tutti_comm_options *options,
                                   struct tutti_comm **sub)
{
    struct tutti_comm *parent = self->parent;
    struct choice_of_rank own = {.color = self->color, .key = key};
    enum tutti_status status = TUTTI_OK;
    if (parent->backend->enqueues && parent->hosts.group)
        status = parent->backend->finish(parent->group, parent->timeout_ms);
    if (status != TUTTI_OK)
        return status;
    status = random_fill(own.token, sizeof own.token);
    status = gather_agree(&self->gather, status, &own, sizeof own, 0);
    if (status != TUTTI_OK)
        return status;
    for (int r = 0; r < parent->world_size; r++)
        gather_value(&self->gather, r, &self->choices[r], sizeof own);
    POINT("split.members");
    parent->splits++;
    members_find(self);
    self->gather.members = self->ranks;
    const bool many_hosts = parent->hosts.group;
    if (self->size)
        status = (many_hosts ? sub_meet : sub_assemble)(self, options, sub);
    const int rounds = many_hosts ? 2 : 3 + parent->shared + parent->backend->enqueues;
    while (self->rounds < rounds && !self->gather.failed)
        status = status_agree(&self->gather, status, 0);
    POINT("split.done");
    return status;
}

/* ---- the calls ------------------------------------------------------------------------------- */

static enum tutti_status options_check_for(const struct tutti_comm *parent,
                                           const struct tutti_comm_options *options)
{
    if (parent->backend->check_split) {
        const enum tutti_status status = parent->backend->check_split(parent->group, parent->name);
        if (status != TUTTI_OK)
            return status;
    }
    if (options->defer || (int32_t)options->device != parent->config.device)
        return error_set(TUTTI_ERR_INVALID,
                         "options->defer is %d, device %d: expected false and %d, the device of "
                         "communicator \"%s\"",
                         options->defer, (int)options->device, (int)parent->config.device,
                         parent->name);
    if (options->fabric)
        return error_set(TUTTI_ERR_INVALID,
                         "options->fabric: the new communicator has the parent's: expected NULL");
    return comm_arguments_check(0, 1, options);
}

static enum tutti_status split_enter(struct split *self, int key,
                                     const struct tutti_comm_options *options,
                                     struct tutti_comm **sub)
{
    struct tutti_comm *parent = self->parent;
    self->gather.rows = malloc((size_t)parent->world_size *
                               (sizeof(struct status_report) + sizeof(struct host_record)));
    if (!self->gather.rows)
        return error_errno("no memory for the rows of %d ranks", parent->world_size);
    enum tutti_status status = comm_enter_alone(parent, self->call);
    if (status == TUTTI_OK) {
        bool pushed = false;
        status = comm_check_finalized(parent, self->call);
        if (status == TUTTI_OK)
            status = backend_enter(parent->backend, parent->group, &pushed);
        if (status == TUTTI_OK)
            status = split_run(self, key, options, sub);
        backend_leave(parent->backend, parent->group, pushed);
        comm_leave_alone(parent);
    }
    free(self->gather.rows);
    return status;
}

static enum tutti_status split(const char *call, bool is_dup, tutti_comm_t *comm, int color,
                               int key, const struct tutti_comm_options *given, tutti_comm_t **sub)
{
    struct tutti_comm_options options = {.struct_size = sizeof options};
    struct split self = {.parent = comm, .call = call, .is_dup = is_dup, .color = color};
    if (!sub)
        return error_set(TUTTI_ERR_INVALID, "%s: the pointer to the new communicator is NULL",
                         call);
    *sub = NULL;
    enum tutti_status status = comm_check_met(comm, call, COMM_MEET_FIRST);
    if (status == TUTTI_OK && given)
        status = options_copy(call, "tutti_comm_options", given, &options, sizeof options);
    if (status != TUTTI_OK)
        return status;
    if (options.device == TUTTI_DEVICE_CPU) /* 0: comm's */
        options.device = (enum tutti_device)comm->config.device;
    status = options_check_for(comm, &options);
    if (status != TUTTI_OK)
        return error_context(status, "%s", call);
    self.gather = (struct gather){.run = parent_gather,
                                  .context = &self,
                                  .rank = comm->rank,
                                  .size = comm->world_size,
                                  .least_bytes = sizeof(struct host_record)};
    status = split_enter(&self, key, &options, sub);
    if (status != TUTTI_OK) {
        tutti_comm_destroy(*sub);
        *sub = NULL;
    }
    return status;
}

enum tutti_status tutti_comm_split(tutti_comm_t *comm, int color, int key,
                                   const struct tutti_comm_options *options, tutti_comm_t **sub)
{
    return split("tutti_comm_split", false, comm, color, key, options, sub);
}

enum tutti_status tutti_comm_dup(tutti_comm_t *comm, const struct tutti_comm_options *options,
                                 tutti_comm_t **dup)
{
    return split("tutti_comm_dup", true, comm, 0, 0, options, dup);
}
