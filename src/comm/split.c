/* SPDX-License-Identifier: MIT */
/*
 * tutti_comm_split() and tutti_comm_dup(). The ranks exchange all data over the parent
 * communicator, on CUDA over that of its hosts, in rounds of one all-gather each:
 *   1. color, key and a random token. Now each rank knows the members of its communicator. The
 *      token of rank 0 of the new communicator is its nonce.
 *   2. the members' records, which they compare, and whether a rank has failed to prepare.
 *      Then the members pass the descriptors of their arenas over the links of the parent.
 *   3. whether a rank has failed to map what it got; twice if processes have several ranks.
 *   4. on CUDA: whether a rank has failed to prepare its device. Before this the new hosts have
 *      exchanged what the devices need, over the new arenas.
 * All ranks of the parent take part in all rounds. Each round also carries the status of each rank:
 * after a failure all ranks stop.
 */
#include "base/deadline.h"
#include "base/error.h"
#include "base/options.h"
#include "base/point.h"
#include "bootstrap/host.h"
#include "comm/comm.h"
#include "comm/options.h"
#include "cuda/runtime/group.h"
#include "ipc/random.h"
#include "store/status_agree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct choice_of_rank {
    int32_t color;
    int32_t key;
    uint8_t token[16];
};

/* A rank's part of a round; what follows it is the rank's value. */
struct split_row {
    struct status_report report;
    unsigned char value[sizeof(struct host_record)];
};

struct split {
    struct tutti_comm *parent;
    const char *call;
    bool is_dup;
    int color;
    int round;   /* rounds begun */
    bool failed; /* in a round, so that all ranks know */
    int size;    /* members of the new communicator; before they are known all ranks */
    int rank;    /* this rank's number among them */
    int ranks[TUTTI_MAX_RANKS]; /* their numbers in the parent */
    struct choice_of_rank choices[TUTTI_MAX_RANKS];
    unsigned char *rows; /* of all ranks of the parent */
};

static size_t value_bytes(const struct split *self)
{
    if (self->round > 1)
        return 0;
    return self->round ? sizeof(struct host_record) : sizeof(struct choice_of_rank);
}

/* Returns the first failure, but PEER_DEAD only if no rank has another failure.
 */
static enum tutti_status reports_read(const struct split *self, size_t row_bytes)
{
    struct status_report report, blamed = {.status = TUTTI_OK};
    for (int r = 0; r < self->parent->world_size; r++) {
        memcpy(&report, self->rows + (size_t)r * row_bytes, sizeof report);
        report.rank = r;
        if (report.status != TUTTI_OK &&
            (blamed.status == TUTTI_OK ||
             (blamed.status == TUTTI_ERR_PEER_DEAD && report.status != TUTTI_ERR_PEER_DEAD)))
            blamed = report;
    }
    return blamed.status == TUTTI_OK ? TUTTI_OK : status_report_error(&blamed, self->parent->rank);
}

/* struct comm_origin's exchange(). */
static enum tutti_status exchange(void *context, enum tutti_status mine, const void *value,
                                  void *values)
{
    struct split *self = context;
    struct tutti_comm *parent = self->parent;
    const struct status_report report = status_report_make(mine, parent->rank);
    const size_t bytes = value_bytes(self), row_bytes = sizeof report + bytes;
    unsigned char *own = self->rows + (size_t)parent->rank * row_bytes;
    const struct coll_args args = {
        .send = own, .recv = self->rows, .count = row_bytes, .dtype = TUTTI_UINT8};
    memset(own, 0, row_bytes);
    memcpy(own, &report, sizeof report);
    if (value)
        memcpy(own + sizeof report, value, bytes);
    self->round++;
    enum tutti_status status = parent->cuda ? cpu_group_gather(parent->host, own, row_bytes,
                                                               self->rows, parent->timeout_ms)
                                            : comm_run(parent, TUTTI_COLLECTIVE_SPLIT, &args,
                                                       parent->timeout_ms, TUTTI_STREAM_DEFAULT);
    if (status == TUTTI_OK)
        status = reports_read(self, row_bytes);
    self->failed = status != TUTTI_OK;
    for (int i = 0; i < self->size && values && !self->failed; i++)
        memcpy((char *)values + (size_t)i * bytes,
               self->rows + (size_t)self->ranks[i] * row_bytes + sizeof report, bytes);
    return status;
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
    if (parent->cuda && self->size < 2)
        return error_set(TUTTI_ERR_DECLINED,
                         "color %d has one rank alone, %d of communicator \"%s\": CUDA "
                         "communicators have 2 ranks or more: pass TUTTI_NO_COLOR there",
                         self->color, parent->rank, parent->name);
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

/* Checks only for an abort on this rank. After any other fault a member closes its channel, or the
 * next round shows the fault. */
static enum tutti_status abort_check(void *context)
{
    const struct tutti_comm *parent = context;
    return cpu_group_is_aborted(parent->host)
               ? error_set(TUTTI_ERR_ABORTED, "communicator \"%s\" was aborted while it was split",
                           parent->name)
               : TUTTI_OK;
}

static enum tutti_status sub_assemble(struct split *self, const struct tutti_comm_options *options,
                                      struct tutti_comm **sub)
{
    struct tutti_comm *parent = self->parent;
    const struct interrupt interrupt = {.ask = abort_check, .context = parent};
    struct comm_origin origin = {
        .parent = parent,
        .ranks = self->ranks,
        .generation = parent->splits,
        .exchange = exchange,
        .context = self,
        .interrupt = &interrupt,
        .deadline = deadline_after(parent->timeout_ms),
    };
    memcpy(origin.nonce, self->choices[self->ranks[0]].token, sizeof origin.nonce);
    enum tutti_status status = sub_make(self, options, sub);
    return status == TUTTI_OK ? comm_assemble_split(*sub, &origin) : status;
}

static enum tutti_status split_run(struct split *self, int key,
                                   const struct tutti_comm_options *options,
                                   struct tutti_comm **sub)
{
    struct tutti_comm *parent = self->parent;
    struct choice_of_rank own = {.color = self->color, .key = key};
    enum tutti_status status = random_fill(own.token, sizeof own.token);
    status = exchange(self, status, &own, self->choices);
    if (status != TUTTI_OK)
        return status;
    POINT("split.members");
    parent->splits++;
    members_find(self);
    if (self->size)
        status = sub_assemble(self, options, sub);
    const int rounds = 3 + parent->shared + (parent->cuda != NULL);
    while (self->round < rounds && !self->failed)
        status = exchange(self, status, NULL, NULL);
    POINT("split.done");
    return status;
}

/* ---- the calls ------------------------------------------------------------------------------- */

static enum tutti_status options_check_for(const struct tutti_comm *parent,
                                           const struct tutti_comm_options *options)
{
    if (parent->cuda && cuda_group_is_proxied(parent->cuda))
        return error_set(TUTTI_ERR_DECLINED,
                         "a host thread serves the ranks of communicator \"%s\", since processes "
                         "share a device: create one for each color by tutti_comm_create(), with "
                         "the color in its name",
                         parent->name);
    if (!parent->cuda && !parent->rules.paths.all)
        return error_set(TUTTI_ERR_DECLINED,
                         "some two ranks of communicator \"%s\" are not linked, as the topology "
                         "file has it: create one for each color by tutti_comm_create(), with the "
                         "color in its name",
                         parent->name);
    if (options->defer || (int32_t)options->device != parent->config.device)
        return error_set(TUTTI_ERR_INVALID,
                         "options->defer is %d, device %d: expected false and %d, the device of "
                         "communicator \"%s\"",
                         options->defer, (int)options->device, (int)parent->config.device,
                         parent->name);
    return comm_arguments_check(0, 1, options);
}

static enum tutti_status split_enter(struct split *self, int key,
                                     const struct tutti_comm_options *options,
                                     struct tutti_comm **sub)
{
    struct tutti_comm *parent = self->parent;
    self->rows = malloc((size_t)parent->world_size * sizeof(struct split_row));
    if (!self->rows)
        return error_errno("no memory for the rows of %d ranks", parent->world_size);
    enum tutti_status status = comm_enter_alone(parent, self->call);
    if (status == TUTTI_OK) {
        bool pushed = false;
        status = comm_check_finalized(parent, self->call);
        if (status == TUTTI_OK && parent->cuda)
            status = cuda_group_enter(parent->cuda, &pushed);
        if (status == TUTTI_OK)
            status = split_run(self, key, options, sub);
        if (parent->cuda)
            cuda_group_leave(parent->cuda, pushed);
        comm_leave_alone(parent);
    }
    free(self->rows);
    return status;
}

static enum tutti_status split(const char *call, bool is_dup, tutti_comm_t *comm, int color,
                               int key, const struct tutti_comm_options *given, tutti_comm_t **sub)
{
    struct tutti_comm_options options = {.struct_size = sizeof options};
    struct split self = {.parent = comm, .call = call, .is_dup = is_dup, .color = color};
    if (!sub)
        return error_set(TUTTI_ERR_INVALID, "%s: the place of the new communicator is NULL", call);
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
    self.size = comm->world_size;
    for (int r = 0; r < self.size; r++)
        self.ranks[r] = r;
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
