/* SPDX-License-Identifier: MIT */
#include "../../tools/collective.h"
#include "device.h"
#include "reference.h"
#include "soak.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    SETUP_PATIENCE_MS = 2500, /* of a set-up that a rank is to miss */
    MOST_AFTERWARDS = 30,     /* operations of a new communicator */
};

/* ---- the store ------------------------------------------------------------------------------- */

static enum tutti_status store_serve(struct soak_rank *self)
{
    struct soak_shared *shared = self->soak->shared;
    enum tutti_status status =
        tutti_store_open("tcp://127.0.0.1:0?server=1", SOAK_GENEROUS_MS, &self->base);
    if (status == TUTTI_OK)
        snprintf(shared->rank_url, sizeof shared->rank_url, "%s", tutti_store_url(self->base));
    ranks_raise(self->ranks, SOAK_SERVED);
    return status;
}

static enum tutti_status store_open(struct soak_rank *self)
{
    const struct soak_episode *episode = self->episode;
    const char *text = self->soak->shared->url;
    char url[160];
    switch (episode->store) {
    case SOAK_STORE_RANK:
        if (self->rank == 0)
            return store_serve(self);
        if (!ranks_await(self->ranks, SOAK_SERVED, 1))
            return TUTTI_ERR_TIMEOUT;
        text = self->soak->shared->rank_url;
        break;
    case SOAK_STORE_FILE:
        snprintf(url, sizeof url, "file:%s-store", self->soak->directory);
        text = url;
        break;
    case SOAK_STORE_MEMORY:
        text = "memory:soak";
        break;
    case SOAK_STORE_TCP:
    case SOAK_STORE_PREFIX:
        break;
    }
    return tutti_store_open(text, SOAK_GENEROUS_MS, &self->base);
}

static int stores_open(struct soak_rank *self)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    char prefix[48];
    RANKS_CHECK(store_open(self) == TUTTI_OK);
    if (self->episode->store != SOAK_STORE_PREFIX)
        return 0;
    snprintf(prefix, sizeof prefix, "soak/%llu", (unsigned long long)self->episode->number);
    RANKS_CHECK(tutti_store_prefix(self->base, prefix, &self->store) == TUTTI_OK);
    return 0;
}

static tutti_store_t *store_of(const struct soak_rank *self)
{
    return self->store ? self->store : self->base;
}

/* ---- communicators --------------------------------------------------------------------------- */

/* Whether one of the victims is in it. */
static bool is_hit(const struct soak_rank *self, int comm)
{
    const struct soak_members *members = &self->episode->comms[comm];
    for (int i = 0; i < members->size; i++)
        if (self->episode->victims >> members->members[i] & 1)
            return true;
    return false;
}

/* Whether the fault is to end it on every rank. */
static bool is_doomed(const struct soak_rank *self, int comm)
{
    const enum soak_fault fault = self->episode->fault;
    if (!fault || fault == SOAK_PAUSE || fault == SOAK_FORK || !is_hit(self, comm))
        return false;
    return comm == 0 || episode_is_deadly(self->episode);
}

/* A failed set-up: the victim's. */
static int setup_suffer(struct soak_rank *self, int comm, enum tutti_status status)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    RANKS_CHECK(episode_is_of_setup(self->episode) && is_doomed(self, comm));
    RANKS_CHECK(status == TUTTI_ERR_TIMEOUT ||
                (self->episode->fault == SOAK_KILL_SETUP &&
                 (status == TUTTI_ERR_PEER_DEAD ||
                  (status == TUTTI_ERR_SYSTEM && self->episode->store == SOAK_STORE_RANK))));
    RANKS_CHECK(strstr(tutti_last_error(), "rank"));
    self->failed[comm] = status;
    fault_notice(self);
    return 0;
}

/* Every other episode works on copies, whose originals have ended. */
static int comm_copy(struct soak_rank *self, int comm, const char *name)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    const struct tutti_comm_options options = {.struct_size = sizeof options, .name = name};
    tutti_comm_t *original = self->comms[comm];
    if (self->episode->number % 2 || device_is_cuda() || episode_is_of_setup(self->episode))
        return 0;
    RANKS_CHECK(tutti_comm_dup(original, &options, &self->comms[comm]) == TUTTI_OK);
    tutti_comm_destroy(original);
    return 0;
}

static int comm_create(struct soak_rank *self, int comm)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    const struct soak_episode *episode = self->episode;
    const struct soak_members *members = &episode->comms[comm];
    const int own = members_rank(members, rank);
    char name[48];
    int order[SOAK_RANKS];
    for (int i = 0; i < members->size; i++)
        order[i] = members->size - 1 - i;
    if (episode->known)
        snprintf(name, sizeof name, "soak-%d-%d", members->size, comm);
    else
        snprintf(name, sizeof name, "soak-%llu-%d", (unsigned long long)episode->number, comm);
    const struct tutti_comm_options options = {
        .struct_size = sizeof options,
        .name = name,
        .leaf_order = episode->reversed ? order : NULL,
        .timeout_ms = episode_is_of_setup(episode) && is_doomed(self, comm) ? SETUP_PATIENCE_MS
                                                                            : SOAK_GENEROUS_MS,
    };
    enum tutti_status status =
        tutti_comm_create(store_of(self), own, members->size, &options, &self->comms[comm]);
    self->progress->steps++;
    if (status)
        return setup_suffer(self, comm, status);
    RANKS_CHECK(episode->fault != SOAK_LATE_SETUP || !is_doomed(self, comm));
    self->progress->comms += members_counts(self, members);
    return comm_copy(self, comm, name);
}

static int comms_create(struct soak_rank *self)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    const struct soak_episode *episode = self->episode;
    int failed = 0;
    if (episode->fault == SOAK_KILL_SETUP && fault_is_victim(self))
        failed = fault_arm(self);
    for (int c = 0; c < episode->count && !failed; c++) {
        bool misses = episode->fault == SOAK_LATE_SETUP && c == 0;
        if (misses && fault_is_victim(self)) {
            RANKS_CHECK(ranks_await(ranks, SOAK_FAILED, (uint32_t)episode->size - 1));
            self->failed[c] = TUTTI_ERR_TIMEOUT;
            continue;
        }
        if (members_rank(&episode->comms[c], rank) >= 0)
            failed = comm_create(self, c);
        if (misses)
            ranks_raise(ranks, SOAK_FAILED);
    }
    ranks_raise(ranks, SOAK_MET);
    return failed;
}

/* ---- operations ------------------------------------------------------------------------------ */

int life_suffer(struct soak_rank *self, int comm, enum tutti_status status,
                const struct tutti_fault *fault, const char *what)
{
    char text[400];
    /* What ends around a thread while its process ends is nobody's concern. */
    bool ends = fault_is_victim(self) && episode_is_deadly(self->episode);
    const char *why = ends ? NULL : fault_explains(self, status, fault, comm);
    if (why) {
        snprintf(text, sizeof text, "%s: %s by rank %d, peer %d, with fault %s of %x at %d: %s",
                 what, tutti_status_name(status), fault->rank, fault->peer,
                 soak_fault_name(self->episode->fault), self->episode->victims,
                 self->episode->fault_at, why);
        return ranks_fail(self->ranks, self->rank, __FILE__, __LINE__, text);
    }
    self->failed[comm] = status;
    symmetric_leave(self);
    fault_notice(self);
    if (!fault_is_victim(self) &&
        (self->episode->fault == SOAK_LATE || self->episode->fault == SOAK_STOP))
        ranks_raise(self->ranks, SOAK_FAILED);
    return 0;
}

/* One that failed: the communicator says the same, and goes on failing. */
static int operation_suffer(struct soak_rank *self, tutti_comm_t *comm,
                            const struct soak_operation *operation, enum tutti_status status)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    char what[160];
    operation_format(operation, what, sizeof what);
    tutti_comm_status(comm, &fault);
    int failed = life_suffer(self, operation->comm, status, &fault, what);
    if (!failed && !(fault_is_victim(self) && episode_is_deadly(self->episode)))
        RANKS_CHECK(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == status);
    return failed;
}

static bool is_mismatch(enum soak_fault fault)
{
    return fault == SOAK_COUNT || fault == SOAK_DTYPE || fault == SOAK_OP;
}

/* The operation at which the fault is: all ranks take part in it. */
static void operation_point(struct soak_rank *self, struct soak_operation *operation)
{
    const enum soak_fault fault = self->episode->fault;
    if (!is_mismatch(fault) && fault != SOAK_LATE && fault != SOAK_STOP)
        return;
    operation->comm = 0;
    operation->barrier = false;
    /* An all-gather has no operation that could be wrong, and a broadcast needs nothing of the
     * others. */
    if (is_mismatch(fault) || !collective_is_plain(operation->collective)) {
        operation->collective = TUTTI_COLLECTIVE_ALL_REDUCE;
        operation->grouped = false;
    }
    operation->count += operation->count == 0;
}

/* What the victim does instead. */
static void operation_spoil(struct soak_rank *self, struct soak_operation *operation)
{
    const enum soak_fault fault = self->episode->fault;
    const struct soak_operation right = *operation;
    uint64_t random = operation->bits;
    if (fault == SOAK_COUNT)
        operation->count = soak_below(&random, 2) ? right.count / 2 : right.count + 1;
    while (fault == SOAK_DTYPE &&
           (operation->dtype == right.dtype || !reference_has(operation->dtype, right.op)))
        operation->dtype = (enum tutti_dtype)soak_below(&random, TUTTI_DTYPE_COUNT);
    while (fault == SOAK_OP &&
           (operation->op == right.op || !reference_has(right.dtype, operation->op)))
        operation->op = (tutti_op_t)(uintptr_t)(1 + soak_below(&random, REFERENCE_OPS - 1));
    if (fault == SOAK_DTYPE && operation->count > SOAK_MOST_BYTES / 8)
        operation->count = SOAK_MOST_BYTES / 8;
}

/* Before operation number `at`: what the fault wants of this rank. */
static int operation_prepare(struct soak_rank *self, int at, struct soak_operation *operation)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    const enum soak_fault fault = self->episode->fault;
    if (fault == SOAK_STOP && at >= self->episode->fault_at)
        operation->subset = 0; /* who waits there for the victim is late elsewhere */
    if (at != self->episode->fault_at || !fault)
        return 0;
    operation_point(self, operation);
    bool waits = fault == SOAK_LATE || fault == SOAK_STOP;
    if (!fault_is_victim(self)) {
        RANKS_CHECK(!waits || fault_begin_timeout(self));
        return 0;
    }
    if (fault == SOAK_LATE)
        RANKS_CHECK(ranks_await(ranks, SOAK_FAILED, (uint32_t)self->episode->size - 1));
    if (is_mismatch(fault))
        operation_spoil(self, operation);
    /* A process has one timer. */
    bool is_of_process =
        fault == SOAK_KILL || fault == SOAK_EXIT || fault == SOAK_PAUSE || fault == SOAK_STOP;
    if (episode_is_of_setup(self->episode) ||
        (is_of_process && self->episode->thread_of[rank] != 0))
        return 0;
    return fault_arm(self);
}

/* Number `at` has succeeded. */
static int result_check(struct soak_rank *self, const struct soak_place *place,
                        const struct soak_members *members, int at,
                        const struct soak_operation *operation)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    char what[160], text[320];
    size_t index;
    if (is_mismatch(self->episode->fault) && at == self->episode->fault_at) {
        RANKS_CHECK(device_is_cuda()); /* where the next operation notices it */
        return 0;
    }
    const char *wrong = operation_check(place, operation, &index);
    if (wrong) {
        operation_format(operation, what, sizeof what);
        snprintf(text, sizeof text, "operation %d, %s: %s at %zu", at, what, wrong, index);
        return ranks_fail(ranks, rank, __FILE__, __LINE__, text);
    }
    struct soak_progress *progress = self->progress;
    progress->bytes += operation->count * tutti_dtype_size(operation->dtype);
    progress->operations += !operation->barrier && members_counts(self, members);
    progress->barriers += operation->barrier && members_counts(self, members);
    return 0;
}

/* Number `at` of the communicator's, with its members. */
static int operation_do(struct soak_rank *self, tutti_comm_t *comm,
                        const struct soak_members *members, int at,
                        const struct soak_operation *operation)
{
    const bool waits = self->episode->fault == SOAK_LATE || self->episode->fault == SOAK_STOP;
    const bool hurries = waits && !fault_is_victim(self) && at >= self->episode->fault_at;
    const struct soak_place place = {
        .self = self,
        .comm = comm,
        .pool = self->soak->pools[members->size][self->episode->reversed],
        .timeout_ms = hurries ? SOAK_PATIENCE_MS : 0,
    };
    self->progress->inside = 1;
    enum tutti_status status = operation_run(&place, operation);
    self->progress->inside = 0;
    self->progress->steps++;
    if (status)
        return operation_suffer(self, comm, operation, status);
    return result_check(self, &place, members, at, operation);
}

static bool has_failed(const struct soak_rank *self, int comm)
{
    return !self->comms[comm] || self->failed[comm];
}

static int operations_run(struct soak_rank *self)
{
    const struct soak_episode *episode = self->episode;
    int failed = 0;
    for (int i = 0; i < episode->operations && !failed; i++) {
        struct soak_operation operation;
        operation_make(episode, &self->random, &operation);
        failed = operation_prepare(self, i, &operation);
        if (failed || has_failed(self, operation.comm))
            continue;
        if (self->group && operation.bits % 8 == 0)
            failed = symmetric_exchange(self, &operation);
        if (!failed && !has_failed(self, operation.comm))
            failed = operation_do(self, self->comms[operation.comm],
                                  &episode->comms[operation.comm], i, &operation);
    }
    return failed;
}

/* All meet once more in each communicator: who has not seen the fault yet does so there. */
static int operations_end(struct soak_rank *self)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    const struct soak_episode *episode = self->episode;
    const bool waits = episode->fault == SOAK_LATE || episode->fault == SOAK_STOP;
    int failed = fault_await(self);
    for (int c = 0; c < episode->count && !failed; c++) {
        const struct soak_operation operation = {.comm = c, .barrier = true};
        /* Who was late may still succeed in what the others had given their part to. */
        int times = waits && fault_is_victim(self) ? 2 : 1;
        for (int i = 0; i < times && !failed && !has_failed(self, c); i++)
            failed = operation_do(self, self->comms[c], &episode->comms[c], episode->operations,
                                  &operation);
        if (!failed && members_rank(&episode->comms[c], rank) >= 0)
            RANKS_CHECK(!is_doomed(self, c) == !self->failed[c]);
    }
    return failed;
}

/* ---- going on -------------------------------------------------------------------------------- */

static int shrunk_check(struct soak_rank *self, const struct tutti_shrink_result *result,
                        struct soak_members *members)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    const struct soak_episode *episode = self->episode;
    const bool without = episode_is_deadly(episode) || episode->excludes;
    members->size = 0;
    for (int r = 0; r < episode->size; r++) {
        bool goes_on = !without || !(episode->victims >> r & 1);
        RANKS_CHECK(result->new_ranks[r] == (goes_on ? members->size : -1));
        if (goes_on)
            members->members[members->size++] = r;
    }
    RANKS_CHECK(result->world_size == members->size);
    RANKS_CHECK(result->completed_by_any - result->completed_by_all <= 1 || device_is_cuda());
    return 0;
}

/* The communicator that the survivors made does what the old one did, with the reference of its
 * number of ranks. */
static int shrunk_run(struct soak_rank *self, tutti_comm_t *shrunk,
                      const struct soak_members *members)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    struct soak_episode calm = *self->episode;
    uint64_t random = calm.random + 1;
    int failed = 0, count = 1 + (int)soak_below(&random, MOST_AFTERWARDS);
    struct soak_rank survivor = *self;
    calm.fault = SOAK_NONE;
    calm.victims = 0;
    calm.count = 1;
    calm.comms[0] = *members;
    survivor.episode = &calm;
    survivor.comms[0] = shrunk;
    for (int i = 0; i < count && !failed; i++) {
        struct soak_operation operation;
        operation_make(&calm, &random, &operation);
        failed = operation_do(&survivor, shrunk, members, i, &operation);
    }
    if (!failed)
        RANKS_CHECK(tutti_barrier(shrunk, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    return failed;
}

static int shrink(struct soak_rank *self)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    const struct soak_episode *episode = self->episode;
    int new_ranks[TUTTI_MAX_RANKS];
    struct tutti_shrink_result result = {
        .struct_size = sizeof result, .capacity = TUTTI_MAX_RANKS, .new_ranks = new_ranks};
    struct soak_members members;
    tutti_comm_t *shrunk;
    int victim = 0;
    if (!episode->shrinks || (episode->excludes && fault_is_victim(self)))
        return 0;
    while (episode->excludes && !(episode->victims >> victim & 1))
        victim++;
    const struct tutti_shrink_options options = {.struct_size = sizeof options,
                                                 .exclude = &victim,
                                                 .exclude_count = episode->excludes,
                                                 .timeout_ms = SOAK_GENEROUS_MS};
    RANKS_CHECK(tutti_comm_shrink(self->comms[0], store_of(self), &options, &shrunk, &result) ==
                TUTTI_OK);
    int failed = shrunk_check(self, &result, &members);
    if (!failed)
        failed = shrunk_run(self, shrunk, &members);
    self->progress->comms += members_counts(self, &members);
    tutti_comm_destroy(shrunk);
    return failed;
}

/* ---- a life ---------------------------------------------------------------------------------- */

static void life_close(struct soak_rank *self)
{
    fault_disarm(self);
    tutti_pg_destroy(self->pg);
    for (int c = 0; c < self->episode->count; c++)
        tutti_comm_destroy(self->comms[c]);
    symmetric_leave(self);
    tutti_store_close(self->store);
    tutti_store_close(self->base);
}

/* Nobody leaves while another one still might take his leave for the fault. */
static int life_meet(struct soak_rank *self)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    int left = self->episode->size;
    for (int r = 0; r < self->episode->size; r++)
        left -= episode_is_deadly(self->episode) && self->episode->victims >> r & 1;
    ranks_raise(ranks, SOAK_SEEN);
    RANKS_CHECK(ranks_await(ranks, SOAK_SEEN, (uint32_t)left));
    return 0;
}

int life_run(struct soak_rank *self)
{
    int failed = stores_open(self);
    self->random = self->episode->random;
    if (!failed && self->episode->kind == SOAK_SYMMETRIC)
        failed = symmetric_open(self);
    if (!failed)
        failed = comms_create(self);
    if (!failed && self->episode->kind == SOAK_GROUP && self->comms[0])
        failed = group_run(self);
    else if (!failed)
        failed = operations_run(self);
    if (!failed && self->episode->kind != SOAK_GROUP)
        failed = operations_end(self);
    if (!failed)
        failed = fault_await(self);
    if (!failed)
        failed = life_meet(self);
    if (!failed)
        failed = shrink(self);
    life_close(self);
    return failed;
}
