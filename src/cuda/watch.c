/* SPDX-License-Identifier: MIT */
/*
 * The watcher: one thread a communicator, which carries news between the device and the hosts of
 * all ranks, since kernels hear nothing but their pinned page and callers may not call for a long
 * time. device -> hosts   the record of a kernel that failed becomes the fault of the host group,
 * which wakes all ranks' watchers hosts -> device   a fault or an abort of any rank ends all waits
 * (`stop`); a rank that has left or died ends the waits for it alone (`gone`): what it had done its
 * part in succeeds. A death becomes a fault one look later, so that a kernel that does wait for
 * that rank can say so first, with its operation's sequence It looks every 20 ms, and at once when
 * a bell rings; it makes no CUDA call. Once a fault stands there is nothing left to carry, and it
 * ends.
 */
#include "cpu/bell.h"
#include "cuda/group_internal.h"
#include "error.h"
#include "ipc/fork.h"
#include "order.h"
#include "signature.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { LOOK_MS = 20, STACK_BYTES = 256 << 10 };

void cuda_stop(struct cuda_group *group, enum tutti_status status, int peer)
{
    struct cuda_host *page = group->keep->host;
    if (order_exchange_u32(&group->stopping, 1))
        return;
    page->stop_peer = peer;
    order_store_release_u32(&page->stop, (uint32_t)status); /* K3 pairs the device's K3d */
}

bool cuda_fault_read(const struct cuda_group *group, struct tutti_fault *fault)
{
    const struct cuda_host *page = group->keep->host;
    if (!order_load_acquire_u32(&page->failed)) /* K4a pairs the device's K4 */
        return false;
    *fault = (struct tutti_fault){
        .struct_size = sizeof *fault,
        .status = (enum tutti_status)page->status,
        .rank = group->launch.rank,
        .peer = page->peer,
        .sequence = page->sequence,
        .expected = signature_unpack(page->signatures[0], page->parameters[0]),
        .seen = signature_unpack(page->signatures[1], page->parameters[1]),
    };
    return true;
}

/* One look around; true once a fault stands, which `stop` then carries. */
static bool carry(struct cuda_group *group)
{
    struct cpu_group *host = group->host;
    struct tutti_fault fault;
    uint64_t left, dead;
    if (cuda_fault_read(group, &fault) || cpu_group_look(host, host->rank, false, &fault)) {
        cpu_group_fail(host, &fault);
    } else {
        cpu_group_gone(host, &left, &dead);
        /* Relaxed: a kernel that reads it looks at its word once more, and what a rank that is gone
         * had stored is stored. */
        order_store_relaxed_u32(&group->keep->host->gone, (uint32_t)(left | dead));
        uint64_t overdue = dead & group->dead;
        group->dead = dead;
        if (overdue) {
            fault.status = TUTTI_ERR_PEER_DEAD;
            fault.peer = __builtin_ctzll(overdue);
            cpu_group_fail(host, &fault);
        }
    }
    if (!order_load_acquire_u32(&host->failed)) /* A4 pairs F4 */
        return false;
    cuda_stop(group, host->fault.status, host->fault.peer);
    return true;
}

static void *watch(void *argument)
{
    struct cuda_group *group = argument;
    for (;;) {
        uint32_t bell = order_load_acquire_u32(&group->host->own->bell); /* A5 pairs W1 */
        if (order_load_acquire_u32(&group->quit) || carry(group))        /* K1a pairs K1 */
            return NULL;
        bell_nap(group->host, bell, LOOK_MS);
    }
}

/*
 * A program that exits without having destroyed its communicators must not have watchers that read
 * pinned pages when the driver takes those away: its own exit handlers run after ours, which is
 * installed later.
 */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_group *watched; /* all that have a watcher */
static uint32_t epoch;             /* of the process whose they are */

static void hold(void)
{
    pthread_mutex_lock(&lock);
}

static void release(void)
{
    pthread_mutex_unlock(&lock);
}

static void end(struct cuda_group *group)
{
    order_store_release_u32(&group->quit, 1); /* K1 pairs K1a */
    bell_ring(group->host);
    pthread_join(group->watcher, NULL);
}

static void end_all(void)
{
    if (fork_detected(epoch)) /* a child has no watchers */
        return;
    pthread_mutex_lock(&lock);
    for (; watched; watched = watched->next_watched)
        end(watched);
    pthread_mutex_unlock(&lock);
}

static void install_handlers(void)
{
    (void)fork_epoch(&epoch); /* it has one, or there would be no communicator */
    (void)pthread_atfork(hold, release, release);
    (void)atexit(end_all);
}

static void list_add(struct cuda_group *group)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_handlers);
    pthread_mutex_lock(&lock);
    group->next_watched = watched;
    watched = group;
    pthread_mutex_unlock(&lock);
}

/* False if the program's exit has been faster. */
static bool list_remove(struct cuda_group *group)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (struct cuda_group **link = &watched; *link; link = &(*link)->next_watched) {
        if (*link != group)
            continue;
        *link = group->next_watched;
        found = true;
        break;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

enum tutti_status cuda_watch_start(struct cuda_group *group)
{
    pthread_attr_t attributes;
    sigset_t all, before;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int result = pthread_create(&group->watcher, &attributes, watch, group);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    group->watched = result == 0;
    if (group->watched) {
        list_add(group);
        return TUTTI_OK;
    }
    errno = result;
    return error_errno("pthread_create of the communicator's watcher");
}

void cuda_watch_stop(struct cuda_group *group)
{
    if (group->watched && list_remove(group))
        end(group);
    group->watched = false;
}

enum tutti_status cuda_group_status(struct cuda_group *group, struct tutti_fault *fault)
{
    struct tutti_fault found;
    if (cuda_fault_read(group, &found))
        cpu_group_fail(group->host, &found);
    return cpu_group_status(group->host, fault);
}
