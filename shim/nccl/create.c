/* SPDX-License-Identifier: MIT */
/*
 * The functions that make communicators. All ranks of one meet, so a creation waits for others:
 * several of one group run in a thread each, and so does one that must not block its caller.
 *
 * Ranks that have a communicator already, but may not use it (it has failed, or some ranks are left
 * out), meet at a store: a file in Tutti's private directory, whose name they all can tell. The
 * last of them removes it.
 */
#include "shim.h"

#include "base/thread.h"
#include "cuda/kernels/arena.h"
#include "ipc/channel.h"
#include "store/hmac.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- running --------------------------------------------------------------------------------- */

/* Guards what a thread that creates and an abort tell each other. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void state_set(ncclComm_t comm, ncclResult_t state)
{
    order_store_release_u32(&comm->state, (uint32_t)state); /* release N1 */
}

/* Ends what a thread did on a handle that the program has. */
static void handle_release(ncclComm_t comm, const struct create *create)
{
    pthread_mutex_lock(&lock);
    const bool abandoned = comm->abandoned;
    if (create->outcome.result == ncclSuccess)
        comm->made = true;
    else
        comm->outcome = create->outcome;
    state_set(comm, create->outcome.result);
    pthread_mutex_unlock(&lock);
    if (abandoned)
        comm_free(comm, create->symbol);
}

bool create_abandon(ncclComm_t comm)
{
    pthread_mutex_lock(&lock);
    const bool abandoned = comm->abandoned = comm_state(comm) == ncclInProgress;
    if (comm->made) /* else the thread may be writing `comm` */
        tutti_comm_abort(comm->comm);
    pthread_mutex_unlock(&lock);
    return abandoned;
}

static void create_make(struct create *create)
{
    const struct cuda_driver *driver = create->comm->driver;
    const int64_t begin = report_begin();
    bool pushed;
    ncclResult_t result =
        fail_status(cuda_context_enter(driver, create->comm->context, &pushed), create->symbol);
    if (result == ncclSuccess) {
        result = create->make(create);
        cuda_context_leave(driver, pushed);
    }
    outcome_keep(&create->outcome, result);
    report_end(create->symbol, !create->comm->comm && create->comm->real, 0, begin);
}

/* Gives the caller its communicator, if there is one, and frees the creation. */
static void create_end(struct create *create)
{
    ncclComm_t comm = create->comm;
    if (!create->destination) {
        handle_release(comm, create);
        free(create);
        return;
    }
    if (create->outcome.result == ncclSuccess && (comm->comm || comm->real)) {
        comm->made = true;
        state_set(comm, ncclSuccess);
        /* Release N2. */
        order_store_release_u64((uint64_t *)(void *)create->destination, (uintptr_t)comm);
    } else {
        comm_free(comm, create->symbol);
    }
    if (create->parent && !create->waits)
        handle_release(create->parent, create);
    free(create);
}

static void *create_thread(void *opaque)
{
    struct create *create = opaque;
    create_make(create);
    if (!create->waits)
        create_end(create);
    return NULL;
}

/* After a success a creation for which nobody waits may be freed already. */
static bool create_launch(struct create *create, pthread_t *thread)
{
    if (thread_start(thread, create_thread, create))
        return true;
    outcome_keep(&create->outcome, fail(ncclSystemError, create->symbol,
                                        "cannot start a thread: %s", strerror(errno)));
    return false;
}

/* A creation for which the caller does not wait. */
static ncclResult_t create_detach(struct create *create)
{
    pthread_t thread;
    state_set(create->destination && create->parent ? create->parent : create->comm,
              ncclInProgress);
    if (create_launch(create, &thread)) {
        pthread_detach(thread);
        return ncclInProgress;
    }
    const ncclResult_t result = create->outcome.result;
    create_end(create);
    return result;
}

/* Makes those for which the caller waits. Returns the first failure. */
static ncclResult_t creates_wait(struct create *list)
{
    struct outcome first = {.result = ncclSuccess};
    if (list && !list->next) {
        create_make(list);
    } else {
        for (struct create *create = list; create; create = create->next)
            create->started = create_launch(create, &create->thread);
        for (struct create *create = list; create; create = create->next)
            if (create->started)
                pthread_join(create->thread, NULL);
    }
    for (struct create *create = list, *next; create; create = next) {
        next = create->next;
        if (first.result == ncclSuccess)
            first = create->outcome;
        create_end(create);
    }
    return outcome_tell(&first);
}

ncclResult_t creates_run(struct create *list)
{
    ncclResult_t result = ncclSuccess;
    struct create *waiting = NULL, **end = &waiting;
    for (struct create *create = list, *next; create; create = next) {
        next = create->next;
        create->next = NULL;
        if (create->waits) {
            *end = create;
            end = &create->next;
            continue;
        }
        const ncclResult_t started = create_detach(create);
        if (result == ncclSuccess || result == ncclInProgress)
            result = started;
    }
    const ncclResult_t waited = creates_wait(waiting);
    return waited == ncclSuccess ? result : waited;
}

void creates_drop(struct create *list)
{
    for (struct create *create = list, *next; create; create = next) {
        next = create->next;
        if (create->destination) {
            comm_free(create->comm, create->symbol);
        } else if (comm_state(create->comm) == ncclInProgress) { /* the program has the handle */
            outcome_keep(&create->outcome, fail(ncclInvalidUsage, create->symbol,
                                                "its group was refused or not ended"));
            handle_release(create->comm, create);
        }
        free(create);
    }
}

ncclResult_t create_start(const struct create *given)
{
    struct create *create = malloc(sizeof *create);
    if (!create) {
        if (given->destination)
            comm_free(given->comm, given->symbol);
        return fail(ncclSystemError, given->symbol, "no memory");
    }
    *create = *given;
    create->next = NULL;
    return group_create(create);
}

/* ---- meeting at a store ---------------------------------------------------------------------- */

/* A name that only the same bytes give. */
static uint64_t name_of(const void *bytes, size_t size)
{
    uint8_t digest[SHA256_BYTES];
    uint64_t name;
    sha256(NULL, bytes, size, digest);
    memcpy(&name, digest, sizeof name);
    return name;
}

/* A name for what these ranks of the communicator do together: another one each time, and for each
 * color. They do so equally often. */
static uint64_t name_next(ncclComm_t comm, unsigned members, int color)
{
    static_assert(sizeof comm->meetings / sizeof *comm->meetings == 1u << CUDA_RANKS,
                  "one for each set of ranks");
    const uint64_t key[] = {comm->lineage, members, comm->meetings[members]++, (uint64_t)color};
    return name_of(key, sizeof key);
}

/* Of a communicator that Tutti serves. */
static unsigned every_rank(const struct ncclComm *comm)
{
    return (1u << comm->ranks) - 1;
}

/* Opens a store that these ranks of the communicator share. The last one to close it removes it. */
static enum tutti_status shared_open(ncclComm_t comm, unsigned members,
                                     struct tutti_exchanger *ranks)
{
    char directory[PATH_MAX], url[PATH_MAX + 64];
    *ranks =
        (struct tutti_exchanger){.struct_size = sizeof *ranks,
                                 .prefix = "ranks",
                                 .rank = __builtin_popcount(members & ((1u << comm->rank) - 1)),
                                 .size = __builtin_popcount(members)};
    const uint64_t name = name_next(comm, members, TUTTI_NO_COLOR);
    const enum tutti_status status = channel_directory(directory, sizeof directory, false);
    if (status != TUTTI_OK)
        return status;
    snprintf(url, sizeof url, "file:%s/job-nccl-%016" PRIx64 "?world_size=%d", directory, name,
             ranks->size);
    return tutti_store_open(url, 0, &ranks->store);
}

/* ---- Tutti's communicators ------------------------------------------------------------------- */

static struct tutti_comm_options options_make(void)
{
    return (struct tutti_comm_options){.struct_size = sizeof(struct tutti_comm_options),
                                       .name = "nccl",
                                       .device = TUTTI_DEVICE_CUDA,
                                       .transient_streams = true};
}

/* ---- NVIDIA's communicators ------------------------------------------------------------------ */

static ncclResult_t real_init(ncclComm_t comm, const ncclUniqueId *id, enum symbol symbol)
{
    if (!real_library())
        return real_absent(symbol);
    ncclResult_t result =
        REAL(ncclCommInitRankConfig)(&comm->real, comm->ranks, *id, comm->rank, NULL);
    result = real_wait(comm->real, result, symbol);
    if (result != ncclSuccess)
        comm->real = NULL;
    return result;
}

ncclResult_t create_real(ncclComm_t comm, enum symbol symbol)
{
    struct tutti_exchanger ranks;
    ncclUniqueId id;
    if (comm->real)
        return ncclSuccess;
    ncclResult_t result = fail_status(shared_open(comm, every_rank(comm), &ranks), symbol);
    if (result == ncclSuccess)
        result = real_agree(&ranks, symbol, &id);
    tutti_store_close(ranks.store);
    if (result == ncclSuccess)
        result = real_init(comm, &id, symbol);
    if (result == ncclSuccess)
        result = windows_register(comm);
    return result == ncclSuccess ? windows_update(comm, symbol) : result;
}

ncclResult_t create_alone(ncclComm_t comm, enum symbol symbol)
{
    const struct tutti_comm_options options = options_make();
    tutti_store_t *store = NULL;
    bool pushed;
    if (comm->alone || comm->ranks == 1)
        return ncclSuccess;
    enum tutti_status status = cuda_context_enter(comm->driver, comm->context, &pushed);
    if (status != TUTTI_OK)
        return fail_status(status, symbol);
    status = tutti_store_open("memory:nccl-alone", 0, &store);
    if (status == TUTTI_OK)
        status = tutti_comm_create(store, 0, 1, &options, &comm->alone);
    tutti_store_close(store);
    cuda_context_leave(comm->driver, pushed);
    return fail_status(status, symbol);
}

/* ---- ranks that have an id ------------------------------------------------------------------- */

static ncclResult_t make_of_id(struct create *create)
{
    ncclComm_t comm = create->comm;
    const struct tutti_comm_options options = options_make();
    bool real = comm->ranks > CUDA_RANKS;
    struct tutti_unique_id id;
    ncclUniqueId real_id;
    memcpy(&id, &create->id, sizeof id);
    comm->lineage = name_of(&id, sizeof id);
    if (comm->ranks > 1) {
        const ncclResult_t result =
            server_agree(comm, &create->id, create->symbol, &real, &real_id);
        if (result != ncclSuccess)
            return result;
    }
    return real ? real_init(comm, &real_id, create->symbol)
                : fail_status(tutti_comm_create_from_id(&id, comm->rank, comm->ranks, &options,
                                                        &comm->comm),
                              create->symbol);
}

static ncclResult_t make_rank(struct create *create)
{
    const char *device_api = getenv("TUTTI_NCCL_DEVICE_API");
    if (real_serves_all())
        return real_init(create->comm, &create->id, create->symbol);
    const ncclResult_t result = make_of_id(create);
    return result == ncclSuccess && device_api && strcmp(device_api, "1") == 0
               ? create_real(create->comm, create->symbol)
               : result;
}

/* Of all functions that give each rank an id and a number. */
static ncclResult_t init_rank(ncclComm_t *destination, int ranks, const ncclUniqueId *id, int rank,
                              const ncclConfig_t *config, int device, enum symbol symbol)
{
    struct create create = {.make = make_rank, .symbol = symbol, .destination = destination};
    ncclResult_t result = ncclSuccess;
    if (!destination || !id)
        result = fail(ncclInvalidArgument, symbol, "the communicator or the id is NULL");
    else if (ranks < 1 || rank < 0 || rank >= ranks)
        result = fail(ncclInvalidArgument, symbol, "rank %d of %d: expected 0 to the number - 1",
                      rank, ranks);
    else
        result = comm_allocate(config, NULL, device, symbol, &create.comm);
    if (result != ncclSuccess)
        return group_refuse(result);
    create.id = *id;
    create.comm->rank = rank;
    create.comm->ranks = ranks;
    create.waits = create.comm->blocking;
    *destination = create.waits ? NULL : create.comm;
    if (!create.waits) {
        state_set(create.comm, ncclInProgress);
        create.destination = NULL;
    }
    return create_start(&create);
}

NCCL_DEFINE(ncclResult_t, ncclCommInitRank, ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{
    return init_rank(comm, ranks, &id, rank, NULL, -1, SYMBOL_ncclCommInitRank);
}

NCCL_DEFINE(ncclResult_t, ncclCommInitRankConfig, ncclComm_t *comm, int ranks, ncclUniqueId id,
            int rank, ncclConfig_t *config)
{
    return init_rank(comm, ranks, &id, rank, config, -1, SYMBOL_ncclCommInitRankConfig);
}

/* More ids are there to meet faster among thousands of ranks; one is enough here. */
NCCL_DEFINE(ncclResult_t, ncclCommInitRankScalable, ncclComm_t *comm, int ranks, int rank,
            int id_count, ncclUniqueId *ids, ncclConfig_t *config)
{
    if (id_count < 1 || id_count > ranks)
        return group_refuse(fail(ncclInvalidArgument, SYMBOL_ncclCommInitRankScalable,
                                 "%d ids: expected 1 to %d, the number of ranks", id_count, ranks));
    return init_rank(comm, ranks, ids, rank, config, -1, SYMBOL_ncclCommInitRankScalable);
}

NCCL_DEFINE(ncclResult_t, ncclCommInitAll, ncclComm_t *comms, int devices, const int *list)
{
    ncclUniqueId id;
    if (!comms || devices < 1)
        return fail(ncclInvalidArgument, SYMBOL_ncclCommInitAll,
                    "%d devices, or NULL: expected 1 or more", devices);
    for (int i = 0; list && i < devices; i++)
        for (int j = 0; j < i; j++)
            if (list[i] == list[j])
                return fail(ncclInvalidUsage, SYMBOL_ncclCommInitAll,
                            "device %d is in the list twice", list[i]);
    ncclResult_t result = ncclGetUniqueId(&id);
    if (result == ncclSuccess)
        result = ncclGroupStart();
    if (result != ncclSuccess)
        return result;
    for (int i = 0; i < devices && result == ncclSuccess; i++)
        result =
            init_rank(&comms[i], devices, &id, i, NULL, list ? list[i] : i, SYMBOL_ncclCommInitAll);
    return ncclGroupEnd();
}

/* ---- communicators of communicators ---------------------------------------------------------- */

/* Enters the parent, which may have been revoked or have failed, and makes the handle. */
static ncclResult_t derive_begin(struct create *create, const ncclConfig_t *config)
{
    ncclComm_t parent = create->parent;
    ncclResult_t result = comm_enter(parent, create->symbol, false);
    if (result != ncclSuccess)
        return group_refuse(result);
    if (comm_state(parent) == ncclInProgress)
        result = fail(ncclInvalidUsage, create->symbol, "the communicator is not ready yet");
    else if (!create->destination)
        result = fail(ncclInvalidArgument, create->symbol, "the new communicator is NULL");
    else
        result = comm_allocate(config, parent, -1, create->symbol, &create->comm);
    if (result != ncclSuccess)
        return group_refuse(comm_leave(parent, result));
    create->waits = create->comm->blocking;
    return ncclSuccess;
}

/* Leaves the parent, and starts the creation unless its arguments were refused. */
static ncclResult_t derive_end(struct create *create, ncclResult_t result)
{
    comm_leave(create->parent, result);
    if (result != ncclSuccess) {
        comm_free(create->comm, create->symbol);
        return group_refuse(result);
    }
    *create->destination = NULL;
    return create_start(create);
}

/* The parent's members that pass one color make a communicator, in the order of their keys. */
static ncclResult_t make_at_store(struct create *create)
{
    ncclComm_t parent = create->parent, comm = create->comm;
    struct place {
        int color, key;
    } own = {create->color, create->key}, all[CUDA_RANKS];
    struct tutti_comm_options options = options_make();
    struct tutti_exchanger members;
    char name[32];
    comm->lineage = name_next(parent, create->members, create->color);
    enum tutti_status status = shared_open(parent, create->members, &members);
    if (status == TUTTI_OK)
        status = tutti_exchanger_all_gather(&members, &own, sizeof own, all, 0);
    if (status == TUTTI_OK && own.color >= 0) {
        for (int m = 0; m < members.size; m++) {
            const bool before = all[m].key < own.key || (all[m].key == own.key && m < members.rank);
            comm->ranks += all[m].color == own.color;
            comm->rank += all[m].color == own.color && before;
        }
        snprintf(name, sizeof name, "nccl-color-%d", own.color);
        options.name = name;
        status = tutti_comm_create(members.store, comm->rank, comm->ranks, &options, &comm->comm);
    }
    tutti_store_close(members.store);
    return fail_status(status, create->symbol);
}

static ncclResult_t make_split_real(struct create *create)
{
    ncclComm_t parent = create->parent, comm = create->comm;
    ncclResult_t result =
        REAL(ncclCommSplit)(parent->real, create->color, create->key, &comm->real, NULL);
    result = real_wait(parent->real, result, create->symbol);
    if (result == ncclSuccess && comm->real)
        result = fail_real(REAL(ncclCommCount)(comm->real, &comm->ranks), create->symbol);
    if (result == ncclSuccess && comm->real)
        result = fail_real(REAL(ncclCommUserRank)(comm->real, &comm->rank), create->symbol);
    return result;
}

static ncclResult_t make_split(struct create *create)
{
    ncclComm_t parent = create->parent, comm = create->comm;
    comm->lineage = name_next(parent, create->members, create->color);
    const ncclResult_t result =
        fail_status(tutti_comm_split(parent->comm, create->color, create->key, NULL, &comm->comm),
                    create->symbol);
    if (result == ncclSuccess && comm->comm) {
        comm->rank = tutti_comm_rank(comm->comm);
        comm->ranks = tutti_comm_world_size(comm->comm);
    }
    return result;
}

NCCL_DEFINE(ncclResult_t, ncclCommSplit, ncclComm_t comm, int color, int key, ncclComm_t *made,
            ncclConfig_t *config)
{
    static_assert((int)NCCL_SPLIT_NOCOLOR == TUTTI_NO_COLOR, "one number");
    struct create create = {.symbol = SYMBOL_ncclCommSplit,
                            .parent = comm,
                            .destination = made,
                            .color = color,
                            .key = key};
    ncclResult_t result = derive_begin(&create, config);
    if (result != ncclSuccess)
        return result;
    create.make = !comm->comm ? make_split_real : comm->revoked ? make_at_store : make_split;
    create.members = comm->comm ? every_rank(comm) : 0;
    if (color < 0 && color != NCCL_SPLIT_NOCOLOR)
        result = fail(ncclInvalidArgument, SYMBOL_ncclCommSplit,
                      "color %d: expected 0 or more, or NCCL_SPLIT_NOCOLOR", color);
    return derive_end(&create, result);
}

/* The bits of the ranks that are not left out. */
static ncclResult_t members_read(const struct ncclComm *comm, const int *excluded, int count,
                                 unsigned *members)
{
    if (!comm->comm)
        return fail(ncclInvalidUsage, SYMBOL_ncclCommShrink,
                    "Tutti shrinks its own communicators, of at most %d ranks of one host",
                    CUDA_RANKS);
    if (count < 1 || !excluded)
        return fail(ncclInvalidArgument, SYMBOL_ncclCommShrink,
                    "no rank is left out: expected 1 or more");
    *members = every_rank(comm);
    for (int i = 0; i < count; i++) {
        if (excluded[i] < 0 || excluded[i] >= comm->ranks || excluded[i] == comm->rank)
            return fail(
                ncclInvalidArgument, SYMBOL_ncclCommShrink,
                "rank %d is to be left out: expected a rank below %d, other than the caller's %d",
                excluded[i], comm->ranks, comm->rank);
        *members &= ~(1u << excluded[i]);
    }
    return ncclSuccess;
}

NCCL_DEFINE(ncclResult_t, ncclCommShrink, ncclComm_t comm, int *excluded, int count,
            ncclComm_t *made, ncclConfig_t *config, int flags)
{
    struct create create = {.make = make_at_store,
                            .symbol = SYMBOL_ncclCommShrink,
                            .parent = comm,
                            .destination = made};
    ncclResult_t result = derive_begin(&create, config);
    if (result != ncclSuccess)
        return result;
    result = members_read(comm, excluded, count, &create.members);
    if (result == ncclSuccess && (flags & NCCL_SHRINK_ABORT)) {
        comm->revoked = true;
        tutti_comm_abort(comm->comm);
    }
    return derive_end(&create, result);
}

/* ---- communicators that grow ----------------------------------------------------------------- */

NCCL_DEFINE(ncclResult_t, ncclCommGetUniqueId, ncclComm_t comm, ncclUniqueId *id)
{
    ncclResult_t result = comm_enter(comm, SYMBOL_ncclCommGetUniqueId, true);
    if (result != ncclSuccess)
        return result;
    if (!id)
        result = fail(ncclInvalidArgument, SYMBOL_ncclCommGetUniqueId, "the id is NULL");
    else if (comm->has_grow)
        result = fail(ncclInvalidUsage, SYMBOL_ncclCommGetUniqueId,
                      "the last id has not been used yet: call ncclCommGrow() with it first");
    else
        result = ncclGetUniqueId(id);
    comm->has_grow |= result == ncclSuccess;
    return comm_leave(comm, result);
}

/* One of the parent's ranks has the id, and tells the others. */
static ncclResult_t make_grown(struct create *create)
{
    ncclComm_t parent = create->parent;
    struct told {
        bool has_id;
        ncclUniqueId id;
    } own = {create->has_id, create->id}, all[CUDA_RANKS];
    struct tutti_exchanger ranks;
    enum tutti_status status = shared_open(parent, every_rank(parent), &ranks);
    if (status == TUTTI_OK)
        status = tutti_exchanger_all_gather(&ranks, &own, sizeof own, all, 0);
    tutti_store_close(ranks.store);
    for (int r = 0; r < ranks.size && status == TUTTI_OK; r++)
        if (all[r].has_id)
            create->id = all[r].id;
    ncclResult_t result = fail_status(status, create->symbol);
    if (result == ncclSuccess)
        result = make_of_id(create);
    if (result == ncclSuccess)
        parent->has_grow = false;
    return result;
}

NCCL_DEFINE(ncclResult_t, ncclCommGrow, ncclComm_t comm, int ranks, const ncclUniqueId *id,
            int rank, ncclComm_t *made, ncclConfig_t *config)
{
    struct create create = {
        .make = make_grown, .symbol = SYMBOL_ncclCommGrow, .parent = comm, .destination = made};
    if (!comm)
        return init_rank(made, ranks, id, rank, config, -1, create.symbol);
    ncclResult_t result = derive_begin(&create, config);
    if (result != ncclSuccess)
        return result;
    if (!comm->comm || ranks <= comm->ranks || ranks > CUDA_RANKS)
        result = fail(ncclInvalidArgument, SYMBOL_ncclCommGrow,
                      "%d ranks of %d: expected more ranks, and %d at most", ranks, comm->ranks,
                      CUDA_RANKS);
    else if (rank != -1)
        result = fail(ncclInvalidArgument, SYMBOL_ncclCommGrow,
                      "rank %d: expected -1 of a rank that has a communicator", rank);
    create.comm->rank = comm->rank;
    create.comm->ranks = ranks;
    create.has_id = id != NULL;
    if (id)
        create.id = *id;
    return derive_end(&create, result);
}
