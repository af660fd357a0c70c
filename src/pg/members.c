/* SPDX-License-Identifier: MIT */
#include "pg/members.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/log.h"
#include "base/order.h"
#include "base/rank_set.h"
#include "base/text.h"
#include "bootstrap/agree.h"
#include "comm/hierarchy.h"
#include "store/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A list that is too long ends with a hash of all of it. */
enum {
    LIST_BYTES = 200,
    HASH_BYTES = sizeof ",...#0123456789abcdef",
    TOPIC_BYTES = LIST_BYTES + 8
};

/* The communicators that the members make: one on the host and, possibly, one of the devices. */
enum { COMM_HOST, COMM_DIRECT };

static const char call[] = "tutti_pg_create";

/* The list with which a rank waits. Other processes read it. */
struct waiting {
    int32_t round; /* of the agreement about this list */
    struct rank_set ranks;
    char list[LIST_BYTES]; /* "0,4,2" */
};

/* The lists with which this rank has made groups. `round` is the first one that may have keys: all
 * members have ended those before it. */
struct pg_lists {
    int count;
    struct waiting of[];
};

struct group {
    struct tutti_comm *comm;
    const struct pg_members *members;
    struct waiting own, *known; /* known: in comm->lists */
    char key[AGREE_KEY_BYTES];  /* of `own` in the store */
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
    *members =
        (struct pg_members){.listed = options->ranks != NULL, .max_blocks = options->max_blocks};
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

/* NULL: this rank has not made a group with the list. */
static struct waiting *list_find(const struct tutti_comm *comm, const char *list)
{
    struct pg_lists *lists = comm->lists;
    for (int i = 0; lists && i < lists->count; i++)
        if (strcmp(lists->of[i].list, list) == 0)
            return &lists->of[i];
    return NULL;
}

/* Finds the group's list, or adds it. Returns NO_MEMORY. */
static enum tutti_status list_know(struct group *self)
{
    struct pg_lists *lists = self->comm->lists;
    const int count = lists ? lists->count : 0;
    self->known = list_find(self->comm, self->own.list);
    if (self->known)
        return TUTTI_OK;
    lists = realloc(lists, sizeof *lists + (size_t)(count + 1) * sizeof self->own);
    if (!lists)
        return error_set(TUTTI_ERR_NO_MEMORY, "%s: no memory for the list of a group", call);
    lists->count = count + 1;
    lists->of[count] = self->own;
    self->known = &lists->of[count];
    self->comm->lists = lists;
    return TUTTI_OK;
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
                     call, self->comm->name, self->comm->rank, self->own.list, rank, theirs);
}

/* Check whether a member that has not come waits for this rank with another list, in a round
 * without a decision that this rank has not ended. Neither would ever come, so both rounds are
 * ended. */
static enum tutti_status check_other_list(const struct agree *agree, int rank)
{
    const struct group *self = agree->context;
    const struct waiting *known;
    struct waiting other;
    struct agree_decision decision;
    char key[AGREE_KEY_BYTES], topic[TOPIC_BYTES];
    bool found = false;
    waiting_key_make(self, rank, key);
    enum tutti_status status = store_look_up(agree->store, key, &other, sizeof other, &found);
    if (status != TUTTI_OK || !found)
        return status;
    other.list[LIST_BYTES - 1] = 0; /* what the store holds is not trusted */
    known = list_find(self->comm, other.list);
    if (strcmp(other.list, self->own.list) == 0 || !rank_set_has(other.ranks, agree->rank) ||
        (known && other.round < known->round))
        return TUTTI_OK;
    snprintf(topic, sizeof topic, "group/%s", other.list);
    struct agree their_agree = *agree;
    their_agree.topic = topic;
    their_agree.round = other.round;
    status = agree_decision_look(&their_agree, &decision, &found);
    if (status != TUTTI_OK || found)
        return status;
    status = lists_differ(self, rank, other.list);
    (void)agree_fail(&their_agree, status, rank_set_none, &decision);
    return decision.report.rank == agree->rank ? lists_differ(self, rank, other.list) : TUTTI_OK;
}

/* ---- the members' communicators -------------------------------------------------------------- */

/* Adapt the configuration. The communicator on the host has no device and no links between devices.
 * With a list the order of sums is that of the list; without one it is that of the caller's
 * communicator. */
static void config_adapt(const struct tutti_comm *from, const struct pg_members *members, int which,
                         struct tutti_comm *made)
{
    if (which == COMM_HOST && from->backend->enqueues)
        comm_use_hosts(made);
    if (members->max_blocks)
        made->max_blocks = members->max_blocks;
    for (int leaf = 0; leaf < members->size; leaf++)
        made->config.leaf_order[leaf] =
            members->listed ? (uint8_t)leaf : from->config.leaf_order[leaf];
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

/* Make the communicator of the devices. Members on several hosts have none: all data would go
 * through the hosts there, too. If one member has none, all members give it up. A member
 * that was aborted returns at once; its peers notice that in the communicator on the host. */
static enum tutti_status assemble_direct(struct group *self, struct tutti_comm *made,
                                         struct tutti_comm **direct)
{
    if (!self->comm->backend->enqueues || made->hosts.group)
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
    uint64_t hash = 0;
    int length = 0, kept = 0;
    *self = (struct group){.comm = comm, .members = members};
    self->agree = (struct agree){
        .call = call,
        .name = comm->name,
        .nonce = comm->nonce,
        .peers = comm->peers,
        .left_elsewhere = comm->hosts.group ? hierarchy_left : NULL,
        .hierarchy = comm->hosts.group,
        .aborts = &comm->aborts,
        .rank = comm->rank,
        .topic = self->topic,
        .made = comm->backend->enqueues ? 2 : 1,
        .subject = self->subject,
        .exited_advice = "make the group without it",
        .late_advice = "does it call tutti_pg_create() with this list, on the same store?",
        .deadline = deadline_after(timeout_ms),
        .all_needed = true,
        .check_missing = check_other_list,
        .context = self,
    };
    for (int i = 0; i < members->size; i++) {
        rank_set_add(&self->own.ranks, members->ranks[i]);
        text_append(self->own.list, LIST_BYTES, &length, "%s%d", i ? "," : "", members->ranks[i]);
        kept = length < LIST_BYTES - HASH_BYTES ? length : kept;
        hash = (hash ^ (uint64_t)(members->ranks[i] + 1)) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    if (length >= LIST_BYTES)
        snprintf(self->own.list + kept, HASH_BYTES, ",...#%016" PRIx64, hash);
    self->agree.ranks = self->own.ranks;
    snprintf(self->topic, sizeof self->topic, "group/%s", self->own.list);
    snprintf(self->subject, sizeof self->subject, "the group of ranks [%s]", self->own.list);
    /* Errors that name a rank also name the communicator, so its name lists the members. */
    length =
        snprintf(self->made_name, sizeof self->made_name, "%s[%s]", comm->name, self->own.list);
    if ((size_t)length >= sizeof self->made_name)
        memcpy(self->made_name + sizeof self->made_name - 5, "...]", 5);
    agree_begin(&self->agree);
}

/* Take part in the first round about this list that has no decision. All members with this list
 * wait there. */
static enum tutti_status join(struct group *self)
{
    struct agree *agree = &self->agree;
    bool decided = false;
    enum tutti_status status = list_know(self);
    if (status != TUTTI_OK)
        return status;
    agree->first = agree->round = self->known->round;
    do
        status = agree_decision_look(agree, &agree->decision, &decided);
    while (status == TUTTI_OK && decided && ++agree->round);
    if (status != TUTTI_OK)
        return status;
    self->own.round = agree->round;
    waiting_key_make(self, agree->rank, self->key);
    agree->beside = self->key;
    status = tutti_store_set(agree->store, self->key, &self->own, sizeof self->own);
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
    status = agree_conclude(&self->agree, status, &again);
    if (status == TUTTI_OK)
        self->known->round = self->agree.round + 1;
    return status;
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
