/* SPDX-License-Identifier: MIT */
/* The life of a hierarchy, and its row of functions as a back end. */
#include "comm/hierarchy_internal.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/wait.h"
#include "bootstrap/agree.h"
#include "bootstrap/meet.h"
#include "comm/options.h"
#include "store/status_agree.h"
#include "store/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How long a close waits for headers, and for messages that this rank has sent. */
enum { CLOSE_MS = 1000, CLOSE_NAP_NS = 100000 };

/* In which a rank whose engine fails to connect learns of a death that may be the reason. */
enum { DEATH_MS = 1000, DEATH_NAP_NS = 5000000 };

/* ---- who is where ---------------------------------------------------------------------------- */

static void hosts_read(struct hierarchy *self, const struct hosts *hosts)
{
    int next = 0;
    self->hosts = hosts->count;
    self->host = hosts->of[self->comm->rank];
    for (int host = 0; host < hosts->count; host++) {
        self->first[host] = next;
        for (int r = 0; r < self->comm->world_size; r++) {
            if (hosts->of[r] != host)
                continue;
            self->host_of[r] = host;
            self->local_of[r] = next - self->first[host];
            self->members[next++] = r;
        }
    }
    self->first[hosts->count] = next;
    self->local = self->local_of[self->comm->rank];
    self->names = (struct peers_names){.ranks = &self->members[self->first[self->host]],
                                       .sequence = &self->sequence,
                                       .hosts = self->host_names,
                                       .host_of = self->host_of};
    memcpy(self->host_names, hosts->names, (size_t)hosts->count * sizeof *hosts->names);
}

/* Cuts the tree of `count` leaves into the largest subtrees that are on one host. */
static void tree_cut(struct hierarchy *self, int first, int count)
{
    const uint8_t *order = self->comm->config.leaf_order;
    const int host = self->host_of[order[first]];
    int same = 1;
    while (same < count && self->host_of[order[first + same]] == host)
        same++;
    if (same == count) {
        self->subtrees[self->subtree_count++] =
            (struct hierarchy_subtree){.first = first, .count = count, .host = host};
        self->subtrees_of[host]++;
        return;
    }
    const int left = hierarchy_left_leaves(count);
    tree_cut(self, first, left);
    tree_cut(self, first + left, count - left);
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Called once a fault stands. Ranks of other hosts find the first one in the store. */
static void on_failure(void *opaque)
{
    struct hierarchy *self = opaque;
    struct tutti_store view = store_bounded(&self->store, deadline_after(STORE_GRACE_MS), NULL);
    struct tutti_fault fault, unused;
    memset(&fault, 0, sizeof fault);
    (void)peers_status(self->comm->peers, &fault);
    if (!hierarchy_fault_found(self))
        (void)tutti_store_compare_set(&view, "fault", NULL, 0, &fault, sizeof fault, &unused,
                                      sizeof unused, NULL);
    if (self->link) /* a peer that notices the end of the link finds the fault */
        fabric_link_abort(self->link);
    comm_dump_failure(self->comm);
}

/* Lets the engine go on while a rank waits for its node. */
static int progress(void *opaque)
{
    struct hierarchy *self = opaque;
    bool done;
    (void)fabric_test(self->link, NULL, &done);
    return self->comm->progress ? self->comm->progress(self->comm->progress_context) : 0;
}

/* Takes the communicator's peers back from the node, which ends. */
static void node_destroy(struct hierarchy *self)
{
    if (!self->node)
        return;
    self->node->peers = NULL;
    tutti_comm_destroy(self->node);
    self->node = NULL;
}

static enum tutti_status node_open(struct hierarchy *self, const struct comm_meeting *met)
{
    const int size = hierarchy_ranks(self, self->host);
    struct tutti_comm *const comm = self->comm;
    struct meeting agreed = *met->meeting;
    struct comm_assembly how = *met->how;
    char name[COMM_NAME_BYTES];
    snprintf(name, sizeof name, "h%d/%.*s", self->host, (int)sizeof name - 8, comm->name);
    enum tutti_status status = comm_derive(comm, &self->members[self->first[self->host]], size,
                                           self->local, name, &self->node);
    if (status != TUTTI_OK)
        return status;
    struct tutti_comm *const node = self->node;
    peers_free(node->peers);
    node->peers = comm->peers;
    node->part_of = self;
    comm_use_hosts(node);
    node->config.strict = false;
    node->config.leaf_order_given = false;
    /* The calling thread steps the node's operations, and the messages between hosts meanwhile. It
     * would step all parts in turn: nothing is gained by cutting. */
    node->config.threads = 0;
    for (size_t i = 0; i < sizeof agreed.nonce; i++)
        agreed.nonce[i] ^= (uint8_t)(self->host + 1);
    how.agreed = &agreed;
    how.join_hosts = NULL;
    status = comm_leaf_order_read(NULL, size, node->config.leaf_order);
    return status == TUTTI_OK ? comm_assemble(node, &how) : status;
}

struct reason {
    const struct interrupt *interrupt;
    enum tutti_status status; /* OK: none is known */
};

static bool reason_is_known(void *context)
{
    struct reason *self = context;
    self->status = interrupt_ask_pointless(self->interrupt);
    return self->status != TUTTI_OK;
}

/* A dead rank is often the reason why the engine has failed. Tells the ranks that still connect. */
static enum tutti_status connect_failed(const struct interrupt *interrupt, enum tutti_status status)
{
    struct reason reason = {.interrupt = interrupt};
    char text[512];
    snprintf(text, sizeof text, "%s", tutti_last_error());
    if (status == TUTTI_ERR_SYSTEM &&
        wait_napping(reason_is_known, &reason, deadline_after(DEATH_MS), DEATH_NAP_NS))
        status = reason.status;
    else
        error_set(status, "%s", text);
    interrupt_tell(interrupt, status);
    return status;
}

/* Collective over all ranks: the link, once each rank has told how its node came out. Behind its
 * address in the fabric each rank says whether its process serves the store. */
static enum tutti_status link_open(struct hierarchy *self, const struct comm_meeting *met,
                                   enum tutti_status status)
{
    struct tutti_comm *const comm = self->comm;
    struct tutti_fabric *const fabric = comm->fabric;
    const size_t each = fabric->ops->address_bytes;
    unsigned char own[FABRIC_ADDRESS_BYTES + 1] = {0}, row[FABRIC_ADDRESS_BYTES + 1];
    unsigned char *all = malloc((size_t)comm->world_size * each);
    if (status == TUTTI_OK && !all)
        status = error_errno("the addresses of %d ranks", comm->world_size);
    if (status == TUTTI_OK)
        status = fabric->ops->address(fabric, comm->rank, own);
    own[each] = self->store.serves;
    status =
        gather_agree(met->gather, status, own, each + 1, deadline_timeout_ms(met->how->deadline));
    for (int r = 0; r < comm->world_size && status == TUTTI_OK; r++) {
        gather_value(met->gather, r, row, each + 1);
        memcpy(all + (size_t)r * each, row, each);
        if (row[each])
            self->server = r;
    }
    if (status == TUTTI_OK) {
        status = fabric_connect(fabric, comm->rank, comm->world_size, all, met->how->deadline,
                                met->how->interrupt, &self->link);
        if (status != TUTTI_OK)
            status = connect_failed(met->how->interrupt, status);
    }
    free(all);
    return status;
}

static bool headers_have_come(void *opaque)
{
    const struct hierarchy *self = opaque;
    bool done = true;
    return !self->header_batch || fabric_test(self->link, self->header_batch, &done) != TUTTI_OK ||
           done;
}

static void wills_end(struct hierarchy *self)
{
    struct tutti_store view = store_bounded(&self->store, deadline_after(STORE_GRACE_MS), NULL);
    if (self->store.prefix)
        store_wills_end(&view, "");
}

static void hierarchy_free(struct hierarchy *self)
{
    const int64_t deadline = deadline_after(CLOSE_MS);
    bool ended = true;
    if (self->link) {
        wait_napping(headers_have_come, self, deadline, CLOSE_NAP_NS);
        ended = fabric_disconnect(self->link, deadline);
    }
    node_destroy(self);
    free(self->store.prefix);
    if (!ended)
        return; /* the engine may still use the memory of transfers */
    free(self->packets);
    free(self->transfers);
    free(self->scratch.bytes);
    free(self->running);
    pthread_mutex_destroy(&self->lock);
    free(self);
}

/* A CUDA communicator's thread steps the operations. */
static enum tutti_status threads_check(const struct tutti_comm *comm)
{
    if (!comm->backend->enqueues || comm->fabric->ops->threads(comm->fabric))
        return TUTTI_OK;
    return error_set(TUTTI_ERR_DECLINED,
                     "the ranks of this CUDA communicator run on several hosts, so a host thread "
                     "stages its operations, which may not use the fabric, %s: initialise MPI with "
                     "MPI_THREAD_MULTIPLE",
                     comm->fabric->description);
}

enum tutti_status hierarchy_open(struct tutti_comm *comm, const struct comm_meeting *met)
{
    struct hierarchy *self = calloc(1, sizeof *self);
    char prefix[AGREE_KEY_BYTES + COMM_NAME_BYTES + 40];
    if (self)
        self->running = aligned_alloc(LAYOUT_LINE, sizeof *self->running);
    if (!self || !self->running) {
        free(self);
        return error_errno("a communicator of %d hosts", met->hosts->count);
    }
    pthread_mutex_init(&self->lock, NULL);
    self->comm = comm;
    self->on_failure = on_failure;
    self->store = store_bounded(met->how->store, DEADLINE_NEVER, NULL);
    self->store.is_view = true;
    self->store.prefix = NULL;
    self->server = -1;
    hosts_read(self, met->hosts);
    tree_cut(self, 0, comm->world_size);
    snprintf(prefix, sizeof prefix, "%stutti/%s/%" PRId64,
             met->how->store->prefix ? met->how->store->prefix : "", comm->name,
             met->meeting->generation);
    enum tutti_status status = store_prefix_add(&self->store, prefix);
    if (status == TUTTI_OK)
        hierarchy_will(self, met->how);
    if (status == TUTTI_OK)
        status = threads_check(comm);
    if (status == TUTTI_OK)
        status = node_open(self, met);
    const bool has_node = status == TUTTI_OK;
    status = link_open(self, met, status);
    if (!met->gather->failed)
        status = status_agree(met->gather, status, deadline_timeout_ms(met->how->deadline));
    if (status != TUTTI_OK) {
        if (has_node)
            peers_close(comm->peers);
        wills_end(self);
        hierarchy_free(self);
        return status;
    }
    peers_set_progress(comm->peers, progress, self);
    comm->rules.paths.all = true;
    snprintf(comm->topology.reason, sizeof comm->topology.reason, "the ranks run on %d hosts",
             self->hosts);
    comm->hosts = (struct backend_hosts){
        .backend = &hierarchy_backend,
        .group = self,
        .link = comm->fabric->ops->device_memory ? self->link : NULL,
        .sequence = &self->sequence,
        .elsewhere = hierarchy_elsewhere(self),
        .left = hierarchy_left,
    };
    if (comm->backend->enqueues) /* its group is opened on this one */
        return TUTTI_OK;
    comm->backend = &hierarchy_backend;
    comm->group = self;
    return TUTTI_OK;
}

enum tutti_status hierarchy_split_store(const struct tutti_comm *comm, int color,
                                        struct tutti_store *store)
{
    const struct hierarchy *self = comm->hosts.group;
    char prefix[40];
    snprintf(prefix, sizeof prefix, "split-%u.%d/", comm->splits, color);
    *store = self->store;
    return store_prefix_add(store, prefix);
}

/* Tells ranks of other hosts that this one leaves. The last one deletes what all have written. */
static void leave(struct hierarchy *self)
{
    struct tutti_store view = store_bounded(&self->store, deadline_after(STORE_GRACE_MS), NULL);
    const uint64_t last = self->sequence;
    char key[HIERARCHY_KEY_BYTES];
    int64_t left = 0;
    hierarchy_key(HIERARCHY_LEFT_KEY, self->comm->rank, key);
    const enum tutti_status status = tutti_store_set(&view, key, &last, sizeof last);
    wills_end(self);
    if (status != TUTTI_OK) /* the store is lost */
        return;
    if (tutti_store_add(&view, HIERARCHY_LEFT_KEY, 1, &left) != TUTTI_OK ||
        left < self->comm->world_size)
        return;
    for (int r = 0; r < self->comm->world_size; r++) {
        hierarchy_key(HIERARCHY_LEFT_KEY, r, key);
        (void)tutti_store_delete(&view, key, NULL);
    }
    (void)tutti_store_delete(&view, HIERARCHY_LEFT_KEY, NULL);
    (void)tutti_store_delete(&view, "fault", NULL);
}

static void close_group(void *opaque, struct tutti_fault *fault)
{
    struct hierarchy *self = opaque;
    (void)fault;
    leave(self);
    hierarchy_free(self);
}

/* ---- the row --------------------------------------------------------------------------------- */

/* An all-reduce has one hop between hosts, or two: hierarchy_reduce.c. */
static enum tutti_status choose(const void *opaque, const struct choice_call *call,
                                struct choice *choice)
{
    const struct hierarchy *self = opaque;
    const bool is_all_reduce = call->collective == TUTTI_COLLECTIVE_ALL_REDUCE;
    enum tutti_algo algo = call->algo;
    if (is_all_reduce && algo == TUTTI_ALGO_NONE)
        algo = (enum tutti_algo)self->comm->config.algo;
    const bool one_hop = is_all_reduce ? call->bytes <= HIERARCHY_ONE_HOP_BYTES : true;
    *choice = (struct choice){.run = &hierarchy_algorithm,
                              .algo = one_hop ? TUTTI_ALGO_ONE_SHOT : TUTTI_ALGO_TWO_SHOT,
                              .reason = one_hop ? "one hop between the hosts"
                                                : "fewer bytes between the hosts in two hops"};
    if (algo == TUTTI_ALGO_NONE || algo == TUTTI_ALGO_HOST_STAGED) /* the latter: on CUDA */
        return TUTTI_OK;
    if (!is_all_reduce || (algo != TUTTI_ALGO_ONE_SHOT && algo != TUTTI_ALGO_TWO_SHOT))
        return error_set(TUTTI_ERR_INVALID,
                         "%s: algorithm %s cannot be forced between hosts: pass TUTTI_ALGO_NONE",
                         coll_rows[call->collective].call, tutti_algo_name(algo));
    choice->algo = algo;
    choice->reason = "forced";
    return TUTTI_OK;
}

static enum tutti_status send_own(void *opaque, struct request *send, struct request *recv,
                                  tutti_stream_t stream)
{
    const struct hierarchy *self = opaque;
    return cpu_backend.send_own(self->node->group, send, recv, stream);
}

static uint64_t sequence_of(const void *opaque)
{
    const struct hierarchy *self = opaque;
    return order_load_relaxed_u64(&self->sequence);
}

static enum tutti_status status_of(void *opaque, struct tutti_fault *fault)
{
    struct hierarchy *self = opaque;
    if (!peers_have_failed(self->comm->peers) && hierarchy_look(self))
        (void)hierarchy_adopt(self);
    return peers_status(self->comm->peers, fault);
}

static enum tutti_status finish(void *opaque, int64_t timeout_ms)
{
    (void)timeout_ms; /* a call returns when its operation has ended */
    return status_of(opaque, NULL);
}

static int describe(const void *opaque, char *text, size_t size)
{
    const struct hierarchy *self = opaque;
    int length = 0;
    char ranks[300];
    text_append(text, size, &length, "fabric: %s\nhosts: %d\n", self->comm->fabric->description,
                self->hosts);
    for (int host = 0; host < self->hosts; host++) {
        struct rank_set set = rank_set_none;
        for (int i = 0; i < hierarchy_ranks(self, host); i++)
            rank_set_add(&set, hierarchy_rank(self, host, i));
        text_append(text, size, &length, "host: %s, %d partial sums\n",
                    text_ranks(set, ranks, sizeof ranks), self->subtrees_of[host]);
    }
    return length;
}

/* Ranks that meet have the back end of their device; a hierarchy replaces it. */
const struct backend hierarchy_backend = {
    .name = "cpu",
    .title = "CPU",
    .most_ranks = WORLD_RANKS,
    .choose = choose,
    .barrier = &hierarchy_algorithm,
    .run_more = hierarchy_run_more,
    .send_own = send_own,
    .sequence = sequence_of,
    .status = status_of,
    .finish = finish,
    .describe = describe,
    .close = close_group,
};
