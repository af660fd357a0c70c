/* SPDX-License-Identifier: MIT */
#include "comm/comm_setup.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/wait.h"
#include "bootstrap/host.h"
#include "bootstrap/meet_internal.h"
#include "ipc/channel.h"
#include "store/status_agree.h"
#include "store/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEY_BYTES = COMM_NAME_BYTES + 48,
    /* A process that ends closes its connections first; a rank that gives up writes its error
     * before it closes them. Both may be slow on a busy machine. */
    REPORT_MS = 1000,
    CHECK_NS = 5000000,
    STORE_EXIT_MS = 250,
    LOOK_NS = 200000000, /* how often a rank that waits looks for a dead rank in the store */
};

static enum tutti_status check_abort(void *context)
{
    const struct comm_setup *self = context;
    const struct tutti_comm *parent = self->comm->split_from;
    return peers_are_aborted(self->comm->peers) || (parent && peers_are_aborted(parent->peers))
               ? error_set(TUTTI_ERR_ABORTED, "aborted while the ranks met")
               : TUTTI_OK;
}

/* A view with a short deadline, since the store may not answer; and a key of this meeting. */
static struct tutti_store view_of(const struct comm_setup *self, const char *what,
                                  char key[KEY_BYTES])
{
    snprintf(key, KEY_BYTES, "tutti/%s/%" PRId64 "/%s", self->comm->name, self->comm->generation,
             what);
    return store_bounded(self->comm->store, deadline_after(STORE_GRACE_MS), NULL);
}

/* Return OK if no rank has reported an error. */
static enum tutti_status check_reports(const struct comm_setup *self)
{
    struct status_report report;
    char key[KEY_BYTES];
    bool there = false;
    if (!self->comm->generation)
        return TUTTI_OK;
    struct tutti_store view = view_of(self, "why", key);
    if (store_look_up(&view, key, &report, sizeof report, &there) != TUTTI_OK || !there ||
        report.status == TUTTI_OK)
        return TUTTI_OK;
    const int bytes = (int)sizeof report.text - 1;
    if (report.status == TUTTI_ERR_ABORTED)
        return error_set(TUTTI_ERR_PEER_DEAD,
                         "rank %d ended, or gave up, while the ranks met (%.*s): look at its log, "
                         "then restart the group",
                         report.rank, bytes, report.text);
    const enum tutti_status status = error_told(report.status);
    if (status == TUTTI_ERR_TIMEOUT || status == TUTTI_ERR_PEER_DEAD ||
        status == TUTTI_ERR_MISMATCH || status == TUTTI_ERR_VERSION) /* all ranks share the cause */
        return error_set(status, "%.*s (noticed by rank %d)", bytes, report.text, report.rank);
    return error_set(status, "rank %d could not take part: %.*s: look at its log", report.rank,
                     bytes, report.text);
}

/* A rank that has given up has reported it before its process ended. */
static enum tutti_status check_exits(const struct comm_setup *self)
{
    struct rank_set dead = rank_set_none;
    for (int r = 0; r < self->comm->world_size && self->processes; r++)
        if (process_has_ended(&self->processes[r], &self->self))
            rank_set_add(&dead, r);
    if (rank_set_empty(dead))
        return TUTTI_OK;
    enum tutti_status status = check_reports(self);
    return status == TUTTI_OK ? meet_dead_error(dead) : status;
}

/* Ranks of several hosts: one whose process has ended, since the store has its will
 * (hierarchy_will()), or one that has given up. */
static enum tutti_status check_store(struct comm_setup *self)
{
    enum tutti_status status = TUTTI_OK;
    struct tutti_fault fault;
    char key[KEY_BYTES];
    bool there = false;
    const int64_t now = deadline_now();
    if (self->comm->generation && self->comm->fabric && !self->dead &&
        now - self->looked_at >= LOOK_NS) {
        struct tutti_store view = view_of(self, "fault", key);
        if (store_look_up(&view, key, &fault, sizeof fault, &there) == TUTTI_OK && there &&
            fault.status == TUTTI_ERR_PEER_DEAD && fault.peer >= 0 &&
            fault.peer < self->comm->world_size)
            self->dead = 1 + fault.peer;
        else
            status = check_reports(self);
        self->looked_at = deadline_now();
    }
    return self->dead ? meet_dead_error(rank_set_of(self->dead - 1)) : status;
}

static bool why_is_known(void *context)
{
    struct comm_setup *self = context;
    self->why = check_exits(self);
    if (self->why == TUTTI_OK)
        self->why = check_reports(self);
    if (self->why == TUTTI_OK)
        self->why = check_abort(context);
    return self->why != TUTTI_OK;
}

static enum tutti_status ask_why(void *context)
{
    struct comm_setup *self = context;
    wait_napping(why_is_known, self, deadline_after(REPORT_MS), CHECK_NS);
    return self->why;
}

/* Once the ranks have connected, the channel shows a rank that has given up. */
static enum tutti_status ask_pointless(void *context)
{
    struct comm_setup *self = context;
    const struct tutti_comm *comm = self->comm;
    const struct peers_ranks *ranks = peers_ranks(comm->peers);
    enum tutti_status status = check_exits(self);
    if (status == TUTTI_OK)
        status = check_store(self);
    int r = ranks->channel ? rank_set_next(ranks->remote, -1) : -1;
    while (r >= 0 && channel_peer_alive(ranks->channel, r))
        r = rank_set_next(ranks->remote, r);
    if (status != TUTTI_OK || r < 0)
        return status;
    status = ask_why(context);
    if (status != TUTTI_OK)
        return status;
    return error_set(TUTTI_ERR_PEER_DEAD,
                     "rank %d ended, or gave up, while the ranks met: look at rank %d's log, then "
                     "restart the group",
                     r, r);
}

/* Only the first report is kept. */
static void report_failure(void *context, enum tutti_status why)
{
    struct comm_setup *self = context;
    struct status_report report = status_report_make(why, self->comm->rank), unused;
    char key[KEY_BYTES];
    if (self->reported || !self->comm->generation)
        return;
    self->reported = true;
    struct tutti_store view = view_of(self, "why", key);
    (void)tutti_store_compare_set(&view, key, NULL, 0, &report, sizeof report, &unused,
                                  sizeof unused, NULL);
    error_set(why, "%s", report.text);
}

void comm_setup_begin(struct comm_setup *self, struct tutti_comm *comm)
{
    memset(self, 0, sizeof *self);
    self->comm = comm;
    self->interrupt = (struct interrupt){
        .ask = check_abort,
        .ask_pointless = ask_pointless,
        .ask_why = ask_why,
        .tell = report_failure,
        .context = self,
    };
    process_identify(&self->self);
    comm->setup = self;
}

enum tutti_status comm_setup_met(struct comm_setup *self, const struct host_record *records)
{
    const int size = self->comm->world_size;
    self->processes = malloc((size_t)size * sizeof *self->processes);
    if (!self->processes)
        return error_errno("the processes of %d ranks", size);
    for (int r = 0; r < size; r++)
        self->processes[r] = records[r].identity.address.process;
    return TUTTI_OK;
}

static bool rank_has_ended(void *context)
{
    struct comm_setup *self = context;
    self->why = check_exits(self);
    return self->why != TUTTI_OK;
}

/* The store has failed. */
static enum tutti_status await_exit(struct comm_setup *self)
{
    int64_t deadline = deadline_after(STORE_EXIT_MS);
    char text[MEET_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", tutti_last_error());
    if (wait_napping(rank_has_ended, self, deadline, CHECK_NS))
        return self->why;
    return error_set(TUTTI_ERR_SYSTEM, "%s", text);
}

enum tutti_status comm_setup_end(struct comm_setup *self, enum tutti_status status)
{
    self->comm->setup = NULL;
    if (status != TUTTI_OK && status != TUTTI_ERR_SYSTEM)
        report_failure(self, status);
    if (status == TUTTI_ERR_SYSTEM)
        status = await_exit(self);
    free(self->processes);
    return status;
}
