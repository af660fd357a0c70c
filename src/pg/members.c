/* SPDX-License-Identifier: MIT */
#include "pg/members.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/log.h"
#include "base/order.h"
#include "base/rank_set.h"
#include "base/text.h"
#include "bootstrap/agree.h"
#include "store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_BYTES = 200, TOPIC_BYTES = LIST_BYTES + 8 };

/* The communicators that the members make: one on the host and, possibly, one of the devices. */
enum { COMM_HOST, COMM_DIRECT };

static const char call[] = "tutti_pg_create";

/* What a rank waits for, or waited for last. */
struct waiting {
    int32_t round; /* of the agreement about this list */
    int32_t size;
    int32_t ranks[TUTTI_MAX_RANKS];
};

struct group {
    struct tutti_comm *comm;
    const struct pg_members *members;
    struct waiting own;
    char list[LIST_BYTES]; /* "0,4,2" */
    char topic[TOPIC_BYTES], subject[TOPIC_BYTES + 32], made_name[COMM_NAME_BYTES];
    struct agree agree;
};

/* ---- the list -------------------------------------------------------------------------------- */

static enum tutti_status list_read(const struct tutti_comm *comm,
                                   const struct tutti_pg_options *options,
                                   struct pg_members *members)
{
    struct rank_set listed = rank_set_none;
    members->own_index = -1;
    for (int i = 0; i < options->rank_count; i++) {
        int rank = options->ranks[i];
        if (rank < 0 || rank >= comm->world_size)
            return error_set(TUTTI_ERR_INVALID,
                             "%s: ranks[%d] is %d: expected ranks of communicator \"%s\", 0 to %d",
                             call, i, rank, comm->name, comm->world_size - 1);
        if (rank_set_has(listed, rank))
            return error_set(
                TUTTI_ERR_INVALID,
                "%s: ranks[%d] is %d, which is listed twice: expected each member once", call, i,
                rank);
        rank_set_add(&listed, rank);
        members->ranks[i] = rank;
        if (rank == comm->rank)
            members->own_index = i;
    }
    members->size = options->rank_count;
    if (members->own_index >= 0)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID,
                     "%s: the caller, rank %d, is not in the list of %d ranks: only members make a "
                     "group",
                     call, comm->rank, options->rank_count);
}

enum tutti_status pg_members_read(const struct tutti_comm *comm,
                                  const struct tutti_pg_options *options,
                                  struct pg_members *members)
{
    *members = (struct pg_members){.listed = options->ranks != NULL};
    if (!options->ranks != !options->rank_count || options->rank_count < 0 ||
        options->rank_count > comm->world_size)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: a list of %d ranks at %p: expected NULL and 0 for all ranks, or 1 to "
                         "%d members",
                         call, options->rank_count, (const void *)options->ranks, comm->world_size);
    if (members->listed)
        return list_read(comm, options, members);
    members->size = comm->world_size;
    members->own_index = comm->rank;
    for (int r = 0; r < comm->world_size; r++)
        members->ranks[r] = r;
    return TUTTI_OK;
}

/* Format "0,4,2". `list` may come from another process, so its fields are not trusted. */
static void list_format(const struct waiting *list, char text[LIST_BYTES])
{
    int length = 0;
    text[0] = 0;
    for (int i = 0; i < list->size && i < TUTTI_MAX_RANKS; i++)
        text_append(text, LIST_BYTES, &length, "%s%d", i ? "," : "", list->ranks[i]);
}

static bool list_has(const struct waiting *list, int rank)
{
    for (int i = 0; i < list->size && i < TUTTI_MAX_RANKS; i++)
        if (list->ranks[i] == rank)
            return true;
    return false;
}

/* ---- lists that differ ----------------------------------------------------------------------- */

/* The key under which a rank publishes what it waits for. */
static void waiting_key_make(const struct group *self, int rank, char key[AGREE_KEY_BYTES])
{
    struct agree agree = self->agree;
    agree.topic = "waiting";
    agree.round = 0;
    agree_key_make(&agree, "list", rank, key);
}

static enum tutti_status lists_differ(const struct group *self, int rank, const char *theirs)
{
    return error_set(TUTTI_ERR_MISMATCH,
                     "%s: ranks disagree about the members of a group of communicator \"%s\": rank "
                     "%d has [%s], rank %d, which waits for it, has [%s]: give the same list, in "
                     "the same order, and make groups in the same order",
                     call, self->comm->name, self->comm->rank, self->list, rank, theirs);
}

/* Check whether a member that has not come waits for this rank with another list, in a round
 * without a decision. Neither would ever come, so both rounds are ended. */
static enum tutti_status check_other_list(const struct agree *agree, int rank)
{
    const struct group *self = agree->context;
    struct waiting other;
    struct agree_decision decision;
    char key[AGREE_KEY_BYTES], theirs[LIST_BYTES], topic[TOPIC_BYTES];
    bool found = false;
    waiting_key_make(self, rank, key);
    enum tutti_status status = store_look_up(agree->store, key, &other, sizeof other, &found);
    if (status != TUTTI_OK || !found)
        return status;
    list_format(&other, theirs);
    if (strcmp(theirs, self->list) == 0 || !list_has(&other, agree->rank))
        return TUTTI_OK;
    snprintf(topic, sizeof topic, "group/%s", theirs);
    struct agree their_agree = *agree;
    their_agree.topic = topic;
    their_agree.round = other.round;
    status = agree_decision_look(&their_agree, &decision, &found);
    if (status != TUTTI_OK || found)
        return status;
    status = lists_differ(self, rank, theirs);
    (void)agree_fail(&their_agree, status, rank_set_none, &decision);
    return decision.report.rank == agree->rank ? lists_differ(self, rank, theirs) : TUTTI_OK;
}

/* ---- the members' communicators -------------------------------------------------------------- */

/* Adapt the configuration. The communicator on the host has no device and no links between devices.
 * With a list the order of sums is that of the list; without one it is that of the caller's
 * communicator. */
static void config_adapt(const struct tutti_comm *from, const struct pg_members *members, int which,
                         struct tutti_comm *made)
{
    if (which == COMM_HOST && from->config.device != TUTTI_DEVICE_CPU) {
        free(made->links);
        made->links = NULL;
        made->config.device = TUTTI_DEVICE_CPU;
        made->config.algo = TUTTI_ALGO_NONE;
        made->config.topology_size = 0;
        made->programmatic = TUTTI_PROGRAMMATIC_AUTO;
    }
    for (int leaf = 0; leaf < members->size; leaf++)
        made->config.leaf_order[leaf] = members->listed ? leaf : from->config.leaf_order[leaf];
    made->config.leaf_order_given = true;
}

/* Make one of the members' communicators. */
static enum tutti_status assemble(struct group *self, int which, struct tutti_comm **made)
{
    const struct pg_members *members = self->members;
    enum tutti_status status = comm_derive(self->comm, members->ranks, members->size,
                                           members->own_index, self->made_name, made);
    if (status != TUTTI_OK)
        return status;
    config_adapt(self->comm, members, which, *made);
    status = comm_assemble_agreed(*made, &self->agree, which);
    return status == TUTTI_OK
               ? TUTTI_OK
               : error_context(status, "%s: the communicator of the group's members", call);
}

/* Make the communicator of the devices. If one member has none, all members give it up. A member
 * that was aborted returns at once; its peers notice that in the communicator on the host. */
static enum tutti_status assemble_direct(struct group *self, struct tutti_comm *made,
                                         struct tutti_comm **direct)
{
    if (!self->comm->cuda || self->members->size < 2)
        return TUTTI_OK;
    enum tutti_status status = assemble(self, COMM_DIRECT, direct);
    uint32_t all = status == TUTTI_OK;
    const struct coll_args minimum = coll_args_make(&all, &all, 1, TUTTI_UINT32, TUTTI_MIN, 0);
    if (status == TUTTI_ERR_ABORTED)
        return status;
    if (!all)
        log_write(TUTTI_LOG_INFO, self->comm->rank,
                  "a process group goes through the host alone: %s", tutti_last_error());
    status = comm_run(made, TUTTI_COLLECTIVE_ALL_REDUCE, &minimum, made->timeout_ms,
                      TUTTI_STREAM_DEFAULT);
    if (status == TUTTI_OK && all)
        return TUTTI_OK;
    tutti_comm_destroy(*direct);
    *direct = NULL;
    return status;
}

/* ---- the meeting ----------------------------------------------------------------------------- */

static void group_init(struct group *self, struct tutti_comm *comm,
                       const struct pg_members *members, int64_t timeout_ms)
{
    *self = (struct group){.comm = comm, .members = members, .own = {.size = members->size}};
    self->agree = (struct agree){
        .call = call,
        .name = comm->name,
        .nonce = comm->nonce,
        .group = comm->host,
        .aborts = &comm->aborts,
        .rank = comm->rank,
        .topic = self->topic,
        .made_name = self->made_name,
        .made = comm->cuda ? 2 : 1,
        .subject = self->subject,
        .exited_advice = "make the group without it",
        .late_advice = "does it call tutti_pg_create() with this list, on the same store?",
        .deadline = deadline_after(timeout_ms),
        .all_needed = true,
        .check_missing = check_other_list,
        .context = self,
    };
    for (int i = 0; i < members->size; i++) {
        self->own.ranks[i] = members->ranks[i];
        rank_set_add(&self->agree.ranks, members->ranks[i]);
    }
    list_format(&self->own, self->list);
    snprintf(self->topic, sizeof self->topic, "group/%s", self->list);
    snprintf(self->subject, sizeof self->subject, "the group of ranks [%s]", self->list);
    /* Errors that name a rank also name the communicator, so its name lists the members. */
    int length =
        snprintf(self->made_name, sizeof self->made_name, "%s[%s]", comm->name, self->list);
    if ((size_t)length >= sizeof self->made_name)
        memcpy(self->made_name + sizeof self->made_name - 5, "...]", 5);
    agree_begin(&self->agree);
}

/* Take part in the first round about this list that has no decision. All members with this list
 * wait there. */
static enum tutti_status join(struct group *self)
{
    struct agree *agree = &self->agree;
    char key[AGREE_KEY_BYTES];
    bool decided = false;
    enum tutti_status status;
    do
        status = agree_decision_look(agree, &agree->decision, &decided);
    while (status == TUTTI_OK && decided && ++agree->round);
    if (status != TUTTI_OK)
        return status;
    self->own.round = agree->round;
    waiting_key_make(self, agree->rank, key);
    status = tutti_store_set(agree->store, key, &self->own, sizeof self->own);
    return status == TUTTI_OK ? agree_join(agree) : status;
}

static enum tutti_status meet_members(struct group *self, struct tutti_comm **made,
                                      struct tutti_comm **direct)
{
    bool again;
    enum tutti_status status = join(self);
    if (status != TUTTI_OK)
        return status;
    status = assemble(self, COMM_HOST, made);
    if (status == TUTTI_OK)
        status = assemble_direct(self, *made, direct);
    return agree_conclude(&self->agree, status, &again);
}

enum tutti_status pg_members_meet(struct tutti_comm *comm, tutti_store_t *store,
                                  const struct pg_members *members, int64_t timeout_ms,
                                  struct tutti_comm **made, struct tutti_comm **direct)
{
    struct group self;
    *made = *direct = NULL;
    if (order_exchange_u32(&comm->grouping, 1)) /* C2: pairs the release below */
        return error_set(TUTTI_ERR_CONCURRENT,
                         "%s: another thread of rank %d is making a group of communicator \"%s\": "
                         "one at a time",
                         call, comm->rank, comm->name);
    group_init(&self, comm, members, timeout_ms);
    struct tutti_store view = store_bounded(store, self.agree.deadline, &self.agree.aborted);
    self.agree.store = &view;
    enum tutti_status status = meet_members(&self, made, direct);
    if (status != TUTTI_OK) {
        tutti_comm_destroy(*direct);
        tutti_comm_destroy(*made);
        *made = *direct = NULL;
    }
    order_store_release_u32(&comm->grouping, 0); /* C2 */
    return status;
}
