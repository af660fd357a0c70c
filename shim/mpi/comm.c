/* SPDX-License-Identifier: MIT */
/*
 * The communicator of Tutti's beside one of MPI's: an attribute of it, which MPI deletes with the
 * communicator and does not copy to a duplicate. The second call that Tutti can serve makes it, so
 * that a communicator of one call costs nothing. All ranks count the same calls.
 */
#include "shim.h"

#include "base/deadline.h"
#include "base/env.h"
#include "base/log.h"
#include "base/wait.h"
#include "comm/comm.h"
#include "ipc/process.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    CALLS = 2,
    MEETING_MS = 60000,
    PROBED_TAG = 32767,
    PROBED_TAGS = 64,
    SOON_NS = 100000000,
    SOON_RESTS = 64,
    BURST_NS = 200000,
    REST_NS = 10000, /* and longer: a nap, a sleep, or another thread's turn */
};

/* What a rank tells the others before they meet. */
struct card {
    uint64_t host, network;
    uint32_t version, serves;
    struct tutti_unique_id id; /* rank 0's */
};

static int key; /* of the attribute */

/* ---- progress -------------------------------------------------------------------------------- */

/* Asks for messages that the program does not send. A probe that finds one may make no progress, so
 * this goes on with the next tag. */
void comm_probe(const struct comm *comm)
{
    _Alignas(16) unsigned char status[MPI_STATUS_BYTES];
    int found = 1;
    for (int tag = PROBED_TAG; found && tag > PROBED_TAG - PROBED_TAGS; tag--)
        if (comm->real->Iprobe(comm->real->abi.any_source, tag, comm->handle, &found, status) != 0)
            return;
}

/* While a rank waits in Tutti, a peer may wait for a message that this rank has begun to send. So
 * the rank polls, as MPI does, for 100 ms of a call; after that a message may be late by the
 * millisecond of a sleep. A message needs several steps, so a rank that has rested goes on for as
 * long as it rested. Where ranks outnumber the cores it goes on for an eighth of that time, and
 * polls until it has rested 64 times. */
static int progress(void *context)
{
    struct comm *comm = context;
    int64_t now = deadline_now();
    const int64_t begin = now;
    const bool crowded = comm->tutti && comm->tutti->crowded; /* NULL: the ranks still meet */
    if (!comm->waits_from) {
        comm->waits_from = comm->probed = begin;
        comm->rests = 0;
    }
    const int64_t away = begin - comm->probed, most = crowded ? away / 8 : away;
    comm->rests += away > REST_NS;
    comm_probe(comm);
    while (away > REST_NS && now - begin < most && now - begin < BURST_NS) {
        if (!wait_yield(&now))
            now = deadline_now();
        comm_probe(comm);
    }
    comm->probed = deadline_now();
    comm->progress_soon =
        begin - comm->waits_from < SOON_NS && (!crowded || comm->rests < SOON_RESTS);
    return 0;
}

/* ---- making one ------------------------------------------------------------------------------ */

/* Writes why MPI serves the communicator. */
static bool refuse(const struct comm *comm)
{
    log_write(TUTTI_LOG_WARN, comm->rank, "MPI: MPI serves a communicator of %d ranks: %s",
              comm->size, tutti_last_error());
    return false;
}

/* Whether this rank could be served, before it knows of the others. */
static bool serves(const struct comm *comm, struct card *card)
{
    char enabled[32];
    struct process self;
    process_identify(&self);
    *card = (struct card){.host = self.host,
                          .network = process_namespace("net"),
                          .version = (uint32_t)tutti_version()};
    if (!self.host || tutti_info("enabled", enabled, sizeof enabled) != TUTTI_OK ||
        strcmp(enabled, "no") == 0)
        return false;
    return comm->rank != 0 || tutti_unique_id_create(&card->id) == TUTTI_OK || refuse(comm);
}

/* True if all ranks are of one host and say that they serve. */
static bool agree(const struct comm *comm, const struct card *own, struct card *all)
{
    const uintptr_t byte = comm->real->abi.byte;
    const int bytes = sizeof *own;
    bool same = comm->real->Allgather(own, bytes, byte, all, bytes, byte, comm->handle) == 0;
    for (int r = 0; r < comm->size && same; r++)
        same = all[r].serves && all[r].host == own->host && all[r].network == own->network &&
               all[r].version == own->version;
    return same;
}

/* Collective. MPI serves the communicator for ever if it does not succeed on all ranks. */
static void meet(struct comm *comm)
{
    const struct tutti_comm_options options = {.struct_size = sizeof options,
                                               .name = "mpi",
                                               .timeout_ms = MEETING_MS,
                                               .progress = progress,
                                               .progress_context = comm};
    struct card own, all[TUTTI_MAX_RANKS];
    own.serves = serves(comm, &own);
    if (!agree(comm, &own, all))
        return;
    own.serves = tutti_comm_create_from_id(&all[0].id, comm->rank, comm->size, &options,
                                           &comm->tutti) == TUTTI_OK ||
                 refuse(comm);
    if (!agree(comm, &own, all)) {
        tutti_comm_destroy(comm->tutti);
        comm->tutti = NULL;
        return;
    }
    int64_t timeout_ms = 0; /* none, as with MPI */
    (void)env_int64("TUTTI_TIMEOUT_MS", &timeout_ms);
    comm->tutti->timeout_ms = timeout_ms ? timeout_ms : -1;
    comm->tutti->timeout_source = TIMEOUT_OF_ENVIRONMENT;
    peers_progress_often(comm->tutti->peers, &comm->progress_soon);
}

/* ---- its life -------------------------------------------------------------------------------- */

static int comm_copy(uintptr_t comm, int own_key, void *extra, void *in, void *out, int *flag)
{
    (void)comm, (void)own_key, (void)extra, (void)in, (void)out;
    *flag = 0;
    return 0;
}

/* Relaxed: a handle has become another communicator's only after its deletion, of which the thread
 * that uses it has heard. */
static uint64_t deletions;

static int comm_delete(uintptr_t handle, int own_key, void *value, void *extra)
{
    struct comm *comm = value;
    (void)handle, (void)own_key, (void)extra;
    order_fetch_add_relaxed_u64(&deletions, 1);
    tutti_comm_destroy(comm->tutti);
    free(comm);
    return 0;
}

static bool has_key;

static void start(void)
{
    has_key = real_mpi()->Comm_create_keyval(comm_copy, comm_delete, &key, NULL) == 0;
}

/* NULL: no memory, or MPI refuses the handle. */
static struct comm *comm_add(const struct real *real, uintptr_t handle)
{
    int inter = 0;
    struct comm *comm = calloc(1, sizeof *comm);
    if (!comm)
        return NULL;
    *comm = (struct comm){.handle = handle & real->abi.handle_bits, .real = real};
    if (real->abi.comm_size(handle, &comm->size) == 0 &&
        real->abi.comm_rank(handle, &comm->rank) == 0 &&
        real->Comm_test_inter(handle, &inter) == 0) {
        /* No call is the second one then. */
        if (inter || comm->size < 2 || comm->size > TUTTI_MAX_RANKS)
            comm->calls = CALLS;
        if (real->Comm_set_attr(handle, key, comm) == 0)
            return comm;
    }
    free(comm);
    return NULL;
}

static struct comm *comm_lookup(const struct real *real, uintptr_t handle)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct comm *comm = NULL;
    int flag = 0;
    pthread_once(&once, start);
    if (!has_key || real->Comm_get_attr(handle, key, &comm, &flag) != 0)
        return NULL;
    if (!flag)
        comm = comm_add(real, handle);
    if (comm && comm->calls < CALLS && ++comm->calls == CALLS)
        meet(comm);
    return comm && comm->tutti ? comm : NULL;
}

struct comm *comm_find(const struct real *real, uintptr_t handle)
{
    /* That of this thread's last call. A deletion by any thread makes it invalid. */
    static _Thread_local struct {
        uintptr_t handle;
        uint64_t deletions;
        struct comm *comm;
    } last __attribute__((tls_model("initial-exec")));
    const uint64_t now = order_load_relaxed_u64(&deletions);
    if (!last.comm || last.handle != handle || last.deletions != now) {
        last.comm = comm_lookup(real, handle);
        last.handle = handle;
        last.deletions = now;
        if (!last.comm)
            return NULL;
    }
    last.comm->waits_from = 0;
    last.comm->progress_soon = true;
    return last.comm;
}
