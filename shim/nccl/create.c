/* SPDX-License-Identifier: MIT */
/*
 * The functions that make communicators. All ranks of one meet, so a creation waits for others:
 * several of one group run in a thread each, and so does one that must not block its caller.
 *
 * Ranks that have a communicator already, but may not use it (it has failed, or some ranks are left
 * out), meet at a store: a file in Tutti's private directory, whose name they all can tell. The
 * last of them removes it.
 */
#include "create.h"

#include "cuda/kernels/arena.h"
#include "ipc/channel.h"
#include "real.h"
#include "store/hmac.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
    if (create->result != ncclSuccess)
        snprintf(comm->error, sizeof comm->error, "%s", create->error);
    state_set(comm, create->result);
    pthread_mutex_unlock(&lock);
    if (abandoned)
        comm_free(comm, create->symbol);
}

bool create_abandon(ncclComm_t comm)
{
    pthread_mutex_lock(&lock);
    comm->abandoned = comm_state(comm) == ncclInProgress;
    const bool abandoned = comm->abandoned;
    pthread_mutex_unlock(&lock);
    return abandoned;
}

static void create_make(struct create *create)
{
    const struct cuda_driver *driver = create->comm->driver;
    const int64_t begin = report_begin();
    bool pushed;
    create->result = fail_status(cuda_context_enter(driver, create->comm->context, &pushed),
                                 symbol_names[create->symbol]);
    if (create->result == ncclSuccess) {
        create->result = create->make(create);
        cuda_context_leave(driver, pushed);
    }
    if (create->result != ncclSuccess)
        error_copy(create->error, sizeof create->error);
    report_end(create->symbol, !create->comm->comm && create->comm->real, 0, begin);
}

/* Gives the caller its communicator, or NULL. */
static void create_end(struct create *create)
{
    ncclComm_t comm = create->comm;
    if (!create->destination) {
        handle_release(comm, create);
        return;
    }
    if (create->result == ncclSuccess && (comm->comm || comm->real)) {
        state_set(comm, ncclSuccess);
    } else {
        comm_free(comm, create->symbol);
        comm = NULL;
    }
    /* Release N2. */
    order_store_release_u64((uint64_t *)(void *)create->destination, (uintptr_t)comm);
    if (create->parent && !create->waits)
        handle_release(create->parent, create);
}

static void *create_thread(void *opaque)
{
    struct create *create = opaque;
    create_make(create);
    if (create->waits)
        return NULL;
    create_end(create);
    free(create);
    return NULL;
}

/* A thread that takes no signals of the program's. After a failure the creation has a result. */
static bool thread_start(struct create *create, pthread_t *thread)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int code = pthread_create(thread, NULL, create_thread, create);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code == 0)
        return true; /* a creation for which nobody waits may be freed already */
    create->result = fail(ncclSystemError, "%s: cannot start a thread: %s",
                          symbol_names[create->symbol], strerror(code));
    error_copy(create->error, sizeof create->error);
    return false;
}

/* A creation for which the caller does not wait. */
static ncclResult_t create_detach(struct create *create)
{
    pthread_t thread;
    state_set(create->destination && create->parent ? create->parent : create->comm,
              ncclInProgress);
    if (thread_start(create, &thread)) {
        pthread_detach(thread);
        return ncclInProgress;
    }
    const ncclResult_t result = create->result;
    create_end(create);
    free(create);
    return result;
}

/* Makes those for which the caller waits, and frees them. Returns the first failure. */
static ncclResult_t creates_wait(struct create *list)
{
    ncclResult_t first = ncclSuccess;
    char error[SHIM_ERROR_BYTES] = "";
    if (list && !list->next) {
        create_make(list);
    } else {
        for (struct create *create = list; create; create = create->next)
            create->started = thread_start(create, &create->thread);
        for (struct create *create = list; create; create = create->next)
            if (create->started)
                pthread_join(create->thread, NULL);
    }
    for (struct create *create = list, *next; create; create = next) {
        next = create->next;
        create_end(create);
        if (first == ncclSuccess && create->result != ncclSuccess) {
            first = create->result;
            memcpy(error, create->error, sizeof error);
        }
        free(create);
    }
    return first == ncclSuccess ? first : fail_again(first, error);
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
        create->result = ncclInvalidUsage;
        snprintf(create->error, sizeof create->error, "%s: its group was refused or not ended",
                 symbol_names[create->symbol]);
        if (create->destination)
            comm_free(create->comm, create->symbol);
        else if (comm_state(create->comm) == ncclInProgress) /* the program has the handle */
            handle_release(create->comm, create);
        free(create);
    }
}

ncclResult_t create_start(const struct create *given)
{
    struct create *create = malloc(sizeof *create);
    if (!create) {
        comm_free(given->comm, given->symbol);
        return fail(ncclSystemError, "%s: no memory", symbol_names[given->symbol]);
    }
    *create = *given;
    create->next = NULL;
    return group_create(create);
}

/* ---- meeting at a store ---------------------------------------------------------------------- */

/* A name that only the same bytes give, and the same use of them. */
static uint64_t name_of(char use, const void *bytes, size_t size)
{
    uint8_t text[sizeof(ncclUniqueId) + 1] = {(uint8_t)use}, digest[SHA256_BYTES];
    uint64_t name;
    memcpy(text + 1, bytes, size);
    sha256(NULL, text, size + 1, digest);
    memcpy(&name, digest, sizeof name);
    return name;
}

static uint64_t every_rank(const struct ncclComm *comm)
{
    return comm->ranks < 64 ? (UINT64_C(1) << comm->ranks) - 1 : UINT64_MAX;
}

struct shared_store {
    tutti_store_t *store;
    uint64_t name; /* equal on these ranks, and of no other meeting */
    int ranks;
    char path[PATH_MAX];
};

/* Opens a store that these ranks of the communicator share. They do so equally often. */
static ncclResult_t shared_open(ncclComm_t comm, uint64_t members, enum symbol symbol,
                                struct shared_store *shared)
{
    char directory[PATH_MAX - 64], url[PATH_MAX + 8];
    uint32_t *meetings = &comm->meetings[members % 256];
    const uint64_t key[] = {comm->lineage, members, (*meetings)++};
    shared->store = NULL;
    shared->name = name_of('m', key, sizeof key);
    shared->ranks = __builtin_popcountll(members);
    enum tutti_status status = channel_directory(directory, sizeof directory, false);
    if (status == TUTTI_OK) {
        snprintf(shared->path, sizeof shared->path, "%s/job-nccl-%016" PRIx64, directory,
                 shared->name);
        snprintf(url, sizeof url, "file:%s", shared->path);
        status = tutti_store_open(url, 0, &shared->store);
    }
    return fail_status(status, symbol_names[symbol]);
}

/* The last rank to close it removes the file; after a failure, the first. */
static void shared_close(struct shared_store *shared, bool failed)
{
    int64_t done = 0;
    if (!shared->store)
        return;
    if (failed ||
        (tutti_store_add(shared->store, "done", 1, &done) == TUTTI_OK && done == shared->ranks))
        unlink(shared->path);
    tutti_store_close(shared->store);
}

/* The caller of `gives` sends bytes to all ranks. */
static enum tutti_status shared_bytes(const struct shared_store *shared, const char *key,
                                      bool gives, void *bytes, size_t size)
{
    size_t got = 0;
    return gives ? tutti_store_set(shared->store, key, bytes, size)
                 : tutti_store_get(shared->store, key, 0, bytes, size, &got);
}

/* ---- Tutti's communicators ------------------------------------------------------------------- */

static struct tutti_comm_options options_make(void)
{
    return (struct tutti_comm_options){.struct_size = sizeof(struct tutti_comm_options),
                                       .name = "nccl",
                                       .device = TUTTI_DEVICE_CUDA,
                                       .transient_streams = true};
}

/* The ranks of a store make a communicator. */
static ncclResult_t make_at_store(struct create *create, struct shared_store *shared, int rank,
                                  int ranks)
{
    const struct tutti_comm_options options = options_make();
    create->comm->rank = rank;
    create->comm->ranks = ranks;
    return fail_status(tutti_comm_create(shared->store, rank, ranks, &options, &create->comm->comm),
                       symbol_names[create->symbol]);
}

/* ---- NVIDIA's communicators ------------------------------------------------------------------ */

static ncclResult_t real_init(ncclComm_t comm, const ncclUniqueId *id, enum symbol symbol)
{
    if (!real_library())
        return real_absent(symbol);
    ncclResult_t result =
        REAL(ncclCommInitRankConfig)(&comm->real, comm->ranks, *id, comm->rank, NULL);
    result = real_wait(comm->real, result, symbol_names[symbol]);
    if (result != ncclSuccess)
        comm->real = NULL;
    return result;
}

ncclResult_t create_real(ncclComm_t comm, enum symbol symbol)
{
    struct shared_store shared;
    ncclUniqueId id;
    if (comm->real)
        return ncclSuccess;
    ncclResult_t result =
        real_library() ? shared_open(comm, every_rank(comm), symbol, &shared) : real_absent(symbol);
    if (result != ncclSuccess)
        return result;
    if (comm->rank == 0)
        result = fail_real(REAL(ncclGetUniqueId)(&id), symbol_names[symbol]);
    if (result == ncclSuccess)
        result = fail_status(shared_bytes(&shared, "id", comm->rank == 0, &id, sizeof id),
                             symbol_names[symbol]);
    if (result == ncclSuccess)
        result = real_init(comm, &id, symbol);
    shared_close(&shared, result != ncclSuccess);
    return result == ncclSuccess ? windows_register(comm) : result;
}

/* ---- ranks that have an id ------------------------------------------------------------------- */

static bool wants_device_api(void)
{
    const char *text = getenv("TUTTI_NCCL_DEVICE_API");
    return text && strcmp(text, "1") == 0;
}

static ncclResult_t make_of_id(struct create *create)
{
    ncclComm_t comm = create->comm;
    const char *name = symbol_names[create->symbol];
    const struct tutti_comm_options options = options_make();
    struct meeting meeting = {.comm = comm};
    struct tutti_unique_id id;
    ncclResult_t result = ncclSuccess;
    memcpy(&id, &create->id, sizeof id);
    comm->lineage = name_of('i', &id, sizeof id);
    if (comm->ranks > 1)
        result = meeting_open(&meeting, comm, &create->id, comm->ranks > CUDA_RANKS, name);
    if (result == ncclSuccess)
        result = meeting.real ? real_init(comm, &meeting.real_id, create->symbol)
                              : fail_status(tutti_comm_create_from_id(&id, comm->rank, comm->ranks,
                                                                      &options, &comm->comm),
                                            name);
    meeting_close(&meeting, result == ncclSuccess);
    return result;
}

static ncclResult_t make_rank(struct create *create)
{
    ncclComm_t comm = create->comm;
    if (real_serves_all())
        return real_init(comm, &create->id, create->symbol);
    const ncclResult_t result = make_of_id(create);
    return result == ncclSuccess && wants_device_api() ? create_real(comm, create->symbol) : result;
}

/* Of all functions that give each rank an id and a number. */
static ncclResult_t init_rank(ncclComm_t *destination, int ranks, const ncclUniqueId *id, int rank,
                              const ncclConfig_t *config, int device, enum symbol symbol)
{
    const char *name = symbol_names[symbol];
    struct create create = {.make = make_rank, .symbol = symbol, .destination = destination};
    ncclResult_t result = ncclSuccess;
    if (!destination || !id)
        result = fail(ncclInvalidArgument, "%s: the communicator or the id is NULL", name);
    else if (ranks < 1 || rank < 0 || rank >= ranks)
        result = fail(ncclInvalidArgument, "%s: rank %d of %d: expected 0 to the number - 1", name,
                      rank, ranks);
    else
        result = comm_allocate(config, NULL, device, symbol, &create.comm);
    if (result != ncclSuccess)
        return group_refuse(result);
    create.id = *id;
    create.comm->rank = rank;
    create.comm->ranks = ranks;
    create.waits = create.comm->blocking;
    if (create.waits)
        return create_start(&create);
    state_set(create.comm, ncclInProgress);
    *destination = create.comm;
    create.destination = NULL;
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
        return group_refuse(
            fail(ncclInvalidArgument,
                 "ncclCommInitRankScalable: %d ids: expected 1 to %d, the number of "
                 "ranks",
                 id_count, ranks));
    return init_rank(comm, ranks, ids, rank, config, -1, SYMBOL_ncclCommInitRankScalable);
}

NCCL_DEFINE(ncclResult_t, ncclCommInitAll, ncclComm_t *comms, int devices, const int *list)
{
    ncclUniqueId id;
    if (!comms || devices < 1)
        return fail(ncclInvalidArgument, "ncclCommInitAll: %d devices, or NULL: expected 1 or more",
                    devices);
    for (int i = 0; list && i < devices; i++)
        for (int j = 0; j < i; j++)
            if (list[i] == list[j])
                return fail(ncclInvalidUsage, "ncclCommInitAll: device %d is in the list twice",
                            list[i]);
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

/* Checks the parent and makes the handle. The caller leaves the parent. */
static ncclResult_t derive(struct create *create, ncclConfig_t *config)
{
    const char *name = symbol_names[create->symbol];
    if (!create->destination)
        return fail(ncclInvalidArgument, "%s: the new communicator is NULL", name);
    *create->destination = NULL;
    const ncclResult_t result =
        comm_allocate(config, create->parent, -1, create->symbol, &create->comm);
    if (result == ncclSuccess)
        create->waits = create->comm->blocking;
    return result;
}

/* The parent may have been revoked, or have failed. */
static ncclResult_t derive_enter(ncclComm_t parent, enum symbol symbol)
{
    if (parent && comm_state(parent) == ncclInProgress)
        return fail(ncclInvalidUsage, "%s: the communicator is not ready yet",
                    symbol_names[symbol]);
    return comm_enter(parent, symbol, false);
}

static ncclResult_t derive_leave(struct create *create, ncclResult_t result)
{
    comm_leave(create->parent, result);
    return result == ncclSuccess ? create_start(create) : group_refuse(result);
}

/* The ranks tell each other color and key at a store. */
static ncclResult_t split_at_store(struct create *create)
{
    const struct ncclComm *parent = create->parent;
    const char *name = symbol_names[create->symbol];
    struct {
        int color, key;
    } own = {create->color, create->key}, other;
    struct shared_store shared;
    char key[32];
    int rank = 0, ranks = 0;
    ncclResult_t result = shared_open(create->parent, every_rank(parent), create->symbol, &shared);
    for (int r = -1; r < parent->ranks && result == ncclSuccess; r++) {
        const int of = r < 0 ? parent->rank : r;
        snprintf(key, sizeof key, "split/%d", of);
        other = own;
        result = fail_status(shared_bytes(&shared, key, r < 0, &other, sizeof other), name);
        if (r < 0 || result != ncclSuccess || other.color != own.color)
            continue;
        ranks++;
        rank += other.key < own.key || (other.key == own.key && r < parent->rank);
    }
    if (result == ncclSuccess && own.color >= 0) {
        tutti_store_t *view = NULL, *whole = shared.store;
        snprintf(key, sizeof key, "color-%d", own.color);
        result = fail_status(tutti_store_prefix(whole, key, &view), name);
        shared.store = view;
        if (result == ncclSuccess)
            result = make_at_store(create, &shared, rank, ranks);
        tutti_store_close(view);
        shared.store = whole;
    }
    shared_close(&shared, result != ncclSuccess);
    return result;
}

static ncclResult_t make_split(struct create *create)
{
    ncclComm_t parent = create->parent, comm = create->comm;
    const char *name = symbol_names[create->symbol];
    const int color = create->color < 0 ? TUTTI_NO_COLOR : create->color;
    const uint64_t lineage[] = {parent->lineage, (uint64_t)create->color + 1,
                                ++parent->meetings[0]};
    comm->lineage = name_of('s', lineage, sizeof lineage);
    if (!parent->comm)
        return real_wait(
            parent->real,
            REAL(ncclCommSplit)(parent->real, create->color, create->key, &comm->real, NULL), name);
    if (parent->revoked)
        return split_at_store(create);
    const ncclResult_t result =
        fail_status(tutti_comm_split(parent->comm, color, create->key, NULL, &comm->comm), name);
    if (result == ncclSuccess && comm->comm) {
        comm->rank = tutti_comm_rank(comm->comm);
        comm->ranks = tutti_comm_world_size(comm->comm);
    }
    return result;
}

NCCL_DEFINE(ncclResult_t, ncclCommSplit, ncclComm_t comm, int color, int key, ncclComm_t *made,
            ncclConfig_t *config)
{
    struct create create = {.make = make_split,
                            .symbol = SYMBOL_ncclCommSplit,
                            .parent = comm,
                            .destination = made,
                            .color = color,
                            .key = key};
    ncclResult_t result = derive_enter(comm, create.symbol);
    if (result != ncclSuccess)
        return group_refuse(result);
    if (color < 0 && color != NCCL_SPLIT_NOCOLOR)
        result = fail(ncclInvalidArgument,
                      "ncclCommSplit: color %d: expected 0 or more, or NCCL_SPLIT_NOCOLOR", color);
    if (result == ncclSuccess)
        result = derive(&create, config);
    return derive_leave(&create, result);
}

static ncclResult_t make_shrunk(struct create *create)
{
    ncclComm_t parent = create->parent;
    const uint64_t below = (UINT64_C(1) << parent->rank) - 1;
    struct shared_store shared;
    ncclResult_t result = shared_open(parent, create->members, create->symbol, &shared);
    if (result != ncclSuccess)
        return result;
    create->comm->lineage = name_of('r', &shared.name, sizeof shared.name);
    result =
        make_at_store(create, &shared, __builtin_popcountll(create->members & below), shared.ranks);
    shared_close(&shared, result != ncclSuccess);
    return result;
}

NCCL_DEFINE(ncclResult_t, ncclCommShrink, ncclComm_t comm, int *excluded, int count,
            ncclComm_t *made, ncclConfig_t *config, int flags)
{
    struct create create = {
        .make = make_shrunk, .symbol = SYMBOL_ncclCommShrink, .parent = comm, .destination = made};
    ncclResult_t result = derive_enter(comm, create.symbol);
    if (result != ncclSuccess)
        return group_refuse(result);
    create.members = every_rank(comm);
    if (count < 1 || !excluded)
        result =
            fail(ncclInvalidArgument, "ncclCommShrink: no rank is left out: expected 1 or more");
    for (int i = 0; i < count && result == ncclSuccess; i++) {
        if (excluded[i] < 0 || excluded[i] >= comm->ranks || excluded[i] == comm->rank)
            result = fail(ncclInvalidArgument,
                          "ncclCommShrink: rank %d is to be left out: expected a rank below %d, "
                          "other than the caller's %d",
                          excluded[i], comm->ranks, comm->rank);
        else
            create.members &= ~(UINT64_C(1) << excluded[i]);
    }
    if (result == ncclSuccess && !comm->comm)
        result = fail(ncclInvalidUsage,
                      "ncclCommShrink: Tutti shrinks its own communicators, of at "
                      "most %d ranks of one host",
                      CUDA_RANKS);
    if (result == ncclSuccess)
        result = derive(&create, config);
    if (result == ncclSuccess && (flags & NCCL_SHRINK_ABORT)) {
        comm->revoked = true;
        tutti_comm_abort(comm->comm);
    }
    return derive_leave(&create, result);
}

/* ---- communicators that grow ----------------------------------------------------------------- */

NCCL_DEFINE(ncclResult_t, ncclCommGetUniqueId, ncclComm_t comm, ncclUniqueId *id)
{
    ncclResult_t result = comm_enter(comm, SYMBOL_ncclCommGetUniqueId, true);
    if (result != ncclSuccess)
        return result;
    if (!id)
        result = fail(ncclInvalidArgument, "ncclCommGetUniqueId: the id is NULL");
    else if (comm->has_grow)
        result = fail(ncclInvalidUsage, "ncclCommGetUniqueId: the last id has not been used yet: "
                                        "call ncclCommGrow() with it first");
    if (result == ncclSuccess)
        result = ncclGetUniqueId(&comm->grow);
    if (result == ncclSuccess) {
        comm->has_grow = true;
        *id = comm->grow;
    }
    return comm_leave(comm, result);
}

/* One of the parent's ranks has the id, and tells the others. */
static ncclResult_t make_grown(struct create *create)
{
    struct shared_store shared;
    ncclResult_t result =
        shared_open(create->parent, every_rank(create->parent), create->symbol, &shared);
    if (result != ncclSuccess)
        return result;
    result =
        fail_status(shared_bytes(&shared, "id", create->has_id, &create->id, sizeof create->id),
                    symbol_names[create->symbol]);
    shared_close(&shared, result != ncclSuccess);
    if (result == ncclSuccess)
        result = make_of_id(create);
    if (result == ncclSuccess)
        create->parent->has_grow = false;
    return result;
}

NCCL_DEFINE(ncclResult_t, ncclCommGrow, ncclComm_t comm, int ranks, const ncclUniqueId *id,
            int rank, ncclComm_t *made, ncclConfig_t *config)
{
    struct create create = {
        .make = make_grown, .symbol = SYMBOL_ncclCommGrow, .parent = comm, .destination = made};
    if (!comm)
        return init_rank(made, ranks, id, rank, config, -1, create.symbol);
    ncclResult_t result = derive_enter(comm, create.symbol);
    if (result != ncclSuccess)
        return group_refuse(result);
    if (!comm->comm || ranks <= comm->ranks || ranks > CUDA_RANKS)
        result = fail(ncclInvalidArgument,
                      "ncclCommGrow: %d ranks of %d: expected more ranks, and %d at most", ranks,
                      comm->ranks, CUDA_RANKS);
    else if (rank != -1)
        result = fail(ncclInvalidArgument,
                      "ncclCommGrow: rank %d: expected -1 of a rank that has a communicator", rank);
    if (result == ncclSuccess)
        result = derive(&create, config);
    if (result == ncclSuccess) {
        create.comm->rank = comm->rank;
        create.comm->ranks = ranks;
        create.has_id = id != NULL;
        if (id)
            create.id = *id;
    }
    return derive_leave(&create, result);
}
