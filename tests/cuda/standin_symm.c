/* SPDX-License-Identifier: MIT */
/* The stand-in's kernel of symmetric memory: what symm.cu does, one peer after the other. */
#include "standin_internal.h"

#include "base/deadline.h"
#include "base/order.h"

#include <sched.h>
#include <time.h>

enum { SPINS = 100, YIELDS = 1000, NAP_NS = 50000 };

static struct cuda_symm_tail *own_tail(const struct cuda_symm_launch *launch)
{
    return launch->tails[launch->rank];
}

static void stop(const struct cuda_symm_launch *launch)
{
    order_store_release_u32(&own_tail(launch)->failed, 1);
}

static void fail(const struct cuda_symm_launch *launch, enum tutti_status status, int peer,
                 uint32_t awaited)
{
    struct cuda_symm_page *page = launch->page;
    if (order_exchange_u32(&own_tail(launch)->claimed, 1) == 0) {
        page->status = (int32_t)status;
        page->peer = peer;
        page->channel = launch->channel;
        page->call = launch->call;
        page->awaited = awaited;
        order_store_release_u32(&page->failed, 1);
    }
    stop(launch);
}

/* Returns true if the wait goes on; *last: the peer is gone, so the next look is the last. */
static bool keep_waiting(const struct cuda_symm_launch *launch, int peer, uint32_t awaited,
                         int64_t start, bool *last)
{
    struct cuda_symm_page *page = launch->page;
    uint64_t limit =
        launch->timeout_ns ? launch->timeout_ns : order_load_relaxed_u64(&page->timeout_ns);
    if (order_load_acquire_u32(&own_tail(launch)->failed))
        return false;
    if (order_load_acquire_u32(&page->stop)) {
        stop(launch);
        return false;
    }
    if (*last) {
        fail(launch, TUTTI_ERR_PEER_DEAD, peer, awaited);
        return false;
    }
    *last = order_load_relaxed_u32(&page->gone) >> peer & 1 ||
            order_load_acquire_u32(&launch->tails[peer]->left);
    if (*last || !limit || (uint64_t)(deadline_now() - start) <= limit)
        return true;
    fail(launch, TUTTI_ERR_TIMEOUT, peer, awaited);
    return false;
}

static bool turn(const struct cuda_symm_launch *launch, int owner, int from, int peer,
                 uint32_t awaited, int64_t start)
{
    uint32_t *word =
        launch->pads[owner] + (launch->channel * launch->size + from) * CUDA_SYMM_LINE_WORDS;
    bool last = false;
    for (int polls = 0; order_load_acquire_u32(word) != awaited; polls++) {
        if (polls >= SPINS && !keep_waiting(launch, peer, awaited, start, &last))
            return false;
        if (polls < YIELDS)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
    order_store_release_u32(word, !awaited);
    return true;
}

static void meet(const struct cuda_symm_launch *launch)
{
    int64_t start = deadline_now();
    bool well = true;
    for (int i = 1; i < launch->size && well; i++) {
        int peer = (launch->rank + i) % launch->size;
        well = turn(launch, peer, launch->rank, peer, 0, start);
    }
    for (int i = 1; i < launch->size && well; i++) {
        int peer = (launch->rank + i) % launch->size;
        well = turn(launch, launch->rank, peer, peer, 1, start);
    }
}

void standin_run_symm(const struct cuda_symm_launch *launch)
{
    struct cuda_symm_tail *own = own_tail(launch);
    if (launch->call == CUDA_SYMM_LEAVE) {
        stop(launch);
        order_store_release_u32(&own->left, 1);
    } else if (!order_load_acquire_u32(&own->failed)) {
        if (launch->call == CUDA_SYMM_BARRIER)
            meet(launch);
        else if (launch->call == CUDA_SYMM_PUT)
            turn(launch, launch->peer, launch->rank, launch->peer, 0, deadline_now());
        else
            turn(launch, launch->rank, launch->peer, launch->peer, 1, deadline_now());
    }
    if (launch->counted)
        order_fetch_add_relaxed_u64(&own->ended, 1);
}
