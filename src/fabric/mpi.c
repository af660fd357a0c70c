/* SPDX-License-Identifier: MIT */
/*
 * MPI as a fabric. Each link has an MPI communicator of its own, made of the world's group, so no
 * receive of the program meets our messages, nor the other way round. Ranks outside of the link
 * take no part. A message that is longer than mpi_piece_bytes is several of MPI's, with one tag,
 * which MPI keeps in order.
 *
 * Only test() makes progress, by MPI_Test() of each request. MPICH's MPI_Testany() and
 * MPI_Testsome() would end the process after a fault: they forget that the communicator returns
 * errors.
 */
#include "fabric/fabric.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "base/thread.h"
#include "fabric/mpi_library.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CANCEL_MS = 20, GROUP_TAGS = 32768, LEAST_PIECES = 16 };

size_t mpi_piece_bytes = 1 << 30;

struct address {
    char version[56], job[56];
    int32_t rank, size; /* in MPI_COMM_WORLD */
};
static_assert(sizeof(struct address) <= FABRIC_ADDRESS_BYTES, "an address fits");

struct piece {
    uintptr_t request;
    int peer, bytes;
    bool is_send, has_ended;
};

struct fabric_batch {
    struct fabric_batch *next;
    int capacity, count;
    int left; /* pieces that have not ended */
    struct piece pieces[];
};

struct mpi_link {
    struct fabric_link base;
    struct mpi_library *library;
    uintptr_t comm;
    bool has_failed;
    struct fabric_batch *running, *idle;
};

static enum tutti_status mpi_open(const char *rest, struct tutti_fabric *fabric)
{
    static const char *const levels[] = {"SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE"};
    struct mpi_library *library;
    const enum tutti_status status = mpi_library_open(rest, &library);
    if (status != TUTTI_OK)
        return status;
    fabric->engine = library;
    snprintf(fabric->description, sizeof fabric->description,
             "mpi (%s, interface of %s, MPI_THREAD_%s)", library->version, library->abi.name,
             levels[library->level]);
    return TUTTI_OK;
}

static void mpi_close(struct tutti_fabric *fabric)
{
    (void)fabric;
    mpi_library_close();
}

static bool mpi_threads(const struct tutti_fabric *fabric)
{
    const struct mpi_library *library = fabric->engine;
    return library->level == 3;
}

static enum tutti_status mpi_address(struct tutti_fabric *fabric, int rank, void *to)
{
    const struct mpi_library *library = fabric->engine;
    struct address address = {.rank = library->rank, .size = library->size};
    (void)rank;
    memcpy(address.version, library->version, sizeof address.version);
    memcpy(address.job, library->job, sizeof address.job);
    memcpy(to, &address, sizeof address);
    return TUTTI_OK;
}

/* ---- connecting ------------------------------------------------------------------------------ */

static enum tutti_status check_addresses(const struct address *all, int rank, int size)
{
    const struct address *own = &all[rank];
    for (int r = 0; r < size; r++) {
        if (strncmp(all[r].version, own->version, sizeof own->version) != 0)
            return error_set(TUTTI_ERR_MISMATCH,
                             "rank %d has %.55s, this rank (%d) has %.55s: start all with one MPI",
                             r, all[r].version, rank, own->version);
        if (strncmp(all[r].job, own->job, sizeof own->job) != 0 || all[r].size != own->size ||
            all[r].rank < 0 || all[r].rank >= own->size)
            return error_set(TUTTI_ERR_DECLINED,
                             "rank %d is in another MPI_COMM_WORLD (of %d ranks) than this rank, "
                             "%d (of %d): start all by one mpirun",
                             r, all[r].size, rank, own->size);
        for (int other = 0; other < r; other++)
            if (all[other].rank == all[r].rank)
                return error_set(TUTTI_ERR_DECLINED,
                                 "ranks %d and %d are both rank %d of MPI_COMM_WORLD: MPI has one "
                                 "rank a process, and a world of one where no mpirun started it",
                                 other, r, all[r].rank);
    }
    return TUTTI_OK;
}

/* Makes the communicator. Its tag is of its ranks, so that overlapping groups that are made in
 * another order do not meet. */
static enum tutti_status make_comm(struct mpi_link *link, const struct address *all)
{
    const struct mpi_abi *abi = &link->library->abi;
    const bool all_ranks = link->base.size == link->library->size;
    uintptr_t parent = 0, whole = 0, group = 0;
    uint32_t tag = 0;
    const char *call = "Group_incl";
    enum tutti_status status = mpi_library_parent(link->library, all_ranks, &parent);
    int *ranks = malloc((size_t)link->base.size * sizeof *ranks);
    if (status == TUTTI_OK && !ranks)
        status = error_errno("mpi");
    if (status != TUTTI_OK) {
        free(ranks);
        return status;
    }
    for (int r = 0; r < link->base.size; r++) {
        ranks[r] = all[r].rank;
        tag = tag * 31 + (uint32_t)ranks[r];
    }
    int code = abi->comm_group(parent, &whole);
    if (code == 0)
        code = abi->group_incl(whole, link->base.size, ranks, &group);
    if (code == 0) {
        call = "Comm_create_group";
        code = abi->comm_create_group(parent, group, (int)(tag % GROUP_TAGS), &link->comm);
        abi->group_free(&group);
    }
    if (whole)
        abi->group_free(&whole);
    if (code == 0) {
        call = "Comm_set_errhandler";
        code = abi->comm_set_errhandler(link->comm, abi->errors_return);
    }
    free(ranks);
    return code == 0 ? TUTTI_OK : mpi_error(abi, call, code);
}

/*
 * MPI has no call that makes a communicator and ends at a deadline: where a rank dies, the others
 * wait for it for ever. So the call runs in a thread of its own, which its caller leaves alone
 * then. That thread frees the struct if MPI returns after all.
 */
struct making {
    struct mpi_link *link;
    struct address *all;
    enum tutti_status status;
    char text[512]; /* of the error */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool has_returned, is_left; /* under the lock */
};

/* But the link, which is the caller's after a success. */
static void free_making(struct making *making)
{
    pthread_cond_destroy(&making->changed);
    pthread_mutex_destroy(&making->lock);
    free(making->all);
    free(making);
}

static void *run_making(void *opaque)
{
    struct making *making = opaque;
    making->status = make_comm(making->link, making->all);
    if (making->status != TUTTI_OK)
        snprintf(making->text, sizeof making->text, "%s", tutti_last_error());
    pthread_mutex_lock(&making->lock);
    making->has_returned = true;
    const bool is_left = making->is_left;
    pthread_cond_signal(&making->changed);
    pthread_mutex_unlock(&making->lock);
    if (is_left) {
        free(making->link);
        free_making(making);
    }
    return NULL;
}

/* Waits for the thread. Else returns why it is left alone. */
static enum tutti_status await_making(struct making *making, int64_t deadline,
                                      const struct interrupt *interrupt)
{
    enum tutti_status status = TUTTI_OK;
    pthread_mutex_lock(&making->lock);
    while (!making->has_returned && status == TUTTI_OK) {
        const int64_t until = deadline_min(deadline, deadline_after(INTERRUPT_MS));
        const struct timespec time = deadline_timespec(until);
        pthread_cond_timedwait(&making->changed, &making->lock, &time);
        if (making->has_returned || !deadline_passed(until))
            continue;
        pthread_mutex_unlock(&making->lock);
        status = interrupt_ask(interrupt);
        if (status == TUTTI_OK)
            status = interrupt_ask_pointless(interrupt);
        if (status == TUTTI_OK && deadline_passed(deadline))
            status = error_set(TUTTI_ERR_TIMEOUT, "%s has not connected the ranks in time",
                               making->link->library->version);
        pthread_mutex_lock(&making->lock);
    }
    making->is_left = !making->has_returned;
    pthread_mutex_unlock(&making->lock);
    return making->is_left ? status : TUTTI_OK;
}

/* Runs make_comm(), in a thread of its own where MPI allows that. Takes `all`, and the link unless
 * it succeeds. */
static enum tutti_status make_link(struct making *making, int64_t deadline,
                                   const struct interrupt *interrupt, struct fabric_link **made)
{
    struct mpi_link *link = making->link;
    enum tutti_status status = TUTTI_OK;
    pthread_t thread;
    pthread_mutex_init(&making->lock, NULL);
    thread_condition_init(&making->changed);
    if (link->library->level >= 2 && thread_start(&thread, run_making, making)) {
        pthread_detach(thread);
        status = await_making(making, deadline, interrupt);
    } else {
        run_making(making);
    }
    if (status != TUTTI_OK) { /* it is left alone */
        mpi_library_hold();
        return status;
    }
    status = making->status;
    if (status == TUTTI_OK) {
        *made = &link->base;
    } else {
        error_set(status, "%s", making->text);
        free(link);
    }
    free_making(making);
    return status;
}

static enum tutti_status mpi_connect(struct tutti_fabric *fabric, int rank, int size,
                                     const void *addresses, int64_t deadline,
                                     const struct interrupt *interrupt, struct fabric_link **made)
{
    struct mpi_link *link = calloc(1, sizeof *link);
    struct making *making = calloc(1, sizeof *making);
    struct address *all = malloc((size_t)size * sizeof *all);
    enum tutti_status status = TUTTI_OK;
    if (!link || !making || !all)
        status = error_errno("mpi");
    if (status == TUTTI_OK) {
        memcpy(all, addresses, (size_t)size * sizeof *all);
        *link = (struct mpi_link){.base = {.fabric = fabric, .rank = rank, .size = size},
                                  .library = fabric->engine};
        *making = (struct making){.link = link, .all = all};
        status = check_addresses(all, rank, size);
    }
    if (status == TUTTI_OK && !mpi_library_works(link->library))
        status = error_set(TUTTI_ERR_DECLINED, "the program has finalized MPI");
    if (status == TUTTI_OK)
        return make_link(making, deadline, interrupt, made);
    free(link);
    free(making);
    free(all);
    return status;
}

/* ---- batches --------------------------------------------------------------------------------- */

static int count_pieces(size_t bytes)
{
    return bytes ? (int)((bytes - 1) / mpi_piece_bytes + 1) : 1;
}

static void free_batches(struct fabric_batch *batch)
{
    for (struct fabric_batch *next; batch; batch = next) {
        next = batch->next;
        free(batch);
    }
}

/* Takes an idle batch with room for so many pieces, or makes one. */
static struct fabric_batch *take_batch(struct mpi_link *link, int count)
{
    struct fabric_batch **at = &link->idle, *batch;
    while ((batch = *at) && batch->capacity < count)
        at = &batch->next;
    if (batch) {
        *at = batch->next;
    } else {
        const int capacity = count < LEAST_PIECES ? LEAST_PIECES : count;
        batch = malloc(sizeof *batch + (size_t)capacity * sizeof *batch->pieces);
        if (!batch)
            return NULL;
        batch->capacity = capacity;
    }
    batch->count = batch->left = 0;
    batch->next = link->running;
    link->running = batch;
    return batch;
}

static void give_batch(struct mpi_link *link, struct fabric_batch *batch)
{
    struct fabric_batch **at = &link->running;
    while (*at != batch)
        at = &(*at)->next;
    *at = batch->next;
    batch->next = link->idle;
    link->idle = batch;
}

static enum tutti_status check(const struct mpi_link *link)
{
    if (fabric_link_is_aborted(&link->base))
        return error_set(TUTTI_ERR_ABORTED, "the link over MPI was aborted");
    if (link->has_failed)
        return error_set(TUTTI_ERR_SYSTEM, "the link over MPI has failed before");
    return TUTTI_OK;
}

static enum tutti_status fail(struct mpi_link *link, enum tutti_status status)
{
    link->has_failed = true;
    return error_context(status, "rank %d, a link of %d ranks over %s", link->base.rank,
                         link->base.size, link->library->version);
}

/* Begins the pieces of one transfer. */
static enum tutti_status begin(struct mpi_link *link, struct fabric_batch *batch,
                               const struct fabric_transfer *transfer)
{
    const struct mpi_abi *abi = &link->library->abi;
    size_t done = 0;
    do {
        const size_t left = transfer->bytes - done;
        const int bytes = (int)(left < mpi_piece_bytes ? left : mpi_piece_bytes);
        char *at = (char *)transfer->buffer + done;
        struct piece *piece = &batch->pieces[batch->count];
        *piece = (struct piece){0, transfer->peer, bytes, transfer->is_send, false};
        const int code = transfer->is_send ? abi->isend(at, bytes, abi->byte, transfer->peer,
                                                        transfer->tag, link->comm, &piece->request)
                                           : abi->irecv(at, bytes, abi->byte, transfer->peer,
                                                        transfer->tag, link->comm, &piece->request);
        if (code != 0)
            return mpi_error(abi, transfer->is_send ? "Isend" : "Irecv", code);
        batch->count++;
        batch->left++;
        done += (size_t)bytes;
    } while (done < transfer->bytes);
    return TUTTI_OK;
}

static enum tutti_status mpi_start(struct fabric_link *base,
                                   const struct fabric_transfer *transfers, int count,
                                   struct fabric_batch **started)
{
    struct mpi_link *link = (struct mpi_link *)base;
    enum tutti_status status = check(link);
    int pieces = 0;
    if (status != TUTTI_OK)
        return status;
    for (int i = 0; i < count; i++)
        pieces += count_pieces(transfers[i].bytes);
    struct fabric_batch *batch = take_batch(link, pieces);
    if (!batch)
        return fail(link, error_errno("mpi"));
    for (int i = 0; i < count && status == TUTTI_OK; i++)
        status = begin(link, batch, &transfers[i]);
    if (status != TUTTI_OK)
        return fail(link, status);
    *started = batch;
    return TUTTI_OK;
}

/* Checks how a request has ended. */
static enum tutti_status check_end(const struct mpi_link *link, const struct piece *piece, int code,
                                   const void *result)
{
    const struct mpi_abi *abi = &link->library->abi;
    int bytes = piece->bytes, class_of = 0;
    if (code != 0) {
        const enum tutti_status status = mpi_error(abi, piece->is_send ? "Isend" : "Irecv", code);
        const bool is_longer = abi->error_class(code, &class_of) == 0 && class_of == abi->truncate;
        return error_context(is_longer ? TUTTI_ERR_MISMATCH : status, "%d bytes %s rank %d", bytes,
                             piece->is_send ? "to" : "from", piece->peer);
    }
    if (!piece->is_send && abi->get_count(result, abi->byte, &bytes) == 0 && bytes != piece->bytes)
        return error_set(TUTTI_ERR_MISMATCH, "rank %d sent %d bytes, this rank expected %d",
                         piece->peer, bytes, piece->bytes);
    return TUTTI_OK;
}

/* Notes the pieces that have ended. With `lenient` it ignores how they ended. */
static enum tutti_status progress(struct mpi_link *link, struct fabric_batch *batch, bool lenient)
{
    for (int i = 0; i < batch->count && batch->left; i++) {
        _Alignas(16) unsigned char result[MPI_STATUS_BYTES] = {0};
        struct piece *piece = &batch->pieces[i];
        int ended = piece->has_ended;
        if (ended)
            continue;
        const int code = link->library->abi.test(&piece->request, &ended, result);
        if (code == 0 && !ended)
            continue;
        piece->has_ended = true;
        batch->left--;
        const enum tutti_status status = check_end(link, piece, code, result);
        if (status != TUTTI_OK && !lenient)
            return status;
    }
    return TUTTI_OK;
}

static enum tutti_status mpi_test(struct fabric_link *base, struct fabric_batch *batch, bool *done)
{
    struct mpi_link *link = (struct mpi_link *)base;
    enum tutti_status status = check(link);
    *done = false;
    if (status != TUTTI_OK)
        return status;
    if (batch)
        status = progress(link, batch, false);
    else
        for (struct fabric_batch *one = link->running; one && status == TUTTI_OK; one = one->next)
            status = progress(link, one, false);
    if (status != TUTTI_OK)
        return fail(link, status);
    *done = !batch || !batch->left;
    if (*done && batch)
        give_batch(link, batch);
    return TUTTI_OK;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Cancels receives that no message has met, and gives the other requests a moment to end. Returns
 * whether all have. */
static bool end_batches(struct mpi_link *link)
{
    const int64_t deadline = deadline_after(CANCEL_MS);
    bool all = true;
    for (struct fabric_batch *batch = link->running; batch; batch = batch->next) {
        for (int i = 0; i < batch->count; i++)
            if (!batch->pieces[i].is_send && !batch->pieces[i].has_ended)
                link->library->abi.cancel(&batch->pieces[i].request);
        do
            progress(link, batch, true);
        while (batch->left && !deadline_passed(deadline));
        all &= !batch->left;
    }
    return all;
}

static bool mpi_disconnect(struct fabric_link *base, int64_t deadline)
{
    struct mpi_link *link = (struct mpi_link *)base;
    const bool works = mpi_library_works(link->library);
    const bool is_whole = !fabric_link_is_aborted(base) && !link->has_failed && !link->running;
    const bool quiet = works ? end_batches(link) : !link->running;
    (void)deadline;
    if (is_whole && works)
        link->library->abi.comm_free(&link->comm);
    if (!is_whole)
        mpi_library_keep(); /* MPI_Finalize() might wait for what a peer still expects */
    if (!quiet)
        return false; /* MPI may still write to buffers, and the handles stay */
    free_batches(link->running);
    free_batches(link->idle);
    free(link);
    return true;
}

const struct fabric_ops mpi_fabric = {
    .name = "mpi",
    .device_memory = false,
    .address_bytes = sizeof(struct address),
    .open = mpi_open,
    .close = mpi_close,
    .threads = mpi_threads,
    .address = mpi_address,
    .connect = mpi_connect,
    .disconnect = mpi_disconnect,
    .start = mpi_start,
    .test = mpi_test,
    .enqueue = NULL,
};
