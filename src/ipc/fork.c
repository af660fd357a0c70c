/* SPDX-License-Identifier: MIT */
#include "ipc/fork.h"

#include "base/error.h"
#include "ipc/random.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The page that a child finds full of zeros. */
struct guard {
    uint32_t epoch;   /* published last */
    uint32_t filling; /* 1 while a thread fills the page */
    uint8_t nonce[FORK_NONCE_BYTES];
};

static const uint32_t none;
const uint32_t *fork_guard = &none;

static struct guard *guard;
static uint32_t last_epoch; /* a child inherits it and takes the next number */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Where the kernel does not know MADV_WIPEONFORK, fork() itself wipes. */
static void wipe_in_child(void)
{
    if (guard)
        memset(guard, 0, sizeof *guard);
}

static void map_guard(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *base = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return;
    (void)madvise(base, page, MADV_WIPEONFORK);
    (void)pthread_atfork(NULL, NULL, wipe_in_child);
    guard = base;
    fork_guard = &guard->epoch;
}

enum tutti_status fork_epoch(uint32_t *epoch)
{
    pthread_once(&once, map_guard);
    if (!guard)
        return error_set(TUTTI_ERR_NO_MEMORY, "cannot map the page that detects fork()");
    /* Y2a: the nonce is visible before the epoch. */
    while ((*epoch = order_load_acquire_u32(&guard->epoch)) == 0) {
        /* No mutex: it could be locked for ever in a child. This word is wiped with the rest. Y1a
         * pairs Y1. */
        if (!order_compare_exchange_u32(&guard->filling, 0, 1)) {
            sched_yield();
            continue;
        }
        enum tutti_status status = random_fill(guard->nonce, sizeof guard->nonce);
        if (status != TUTTI_OK) {
            order_store_release_u32(&guard->filling, 0); /* Y1 pairs Y1a */
            return status;
        }
        order_store_release_u32(&guard->epoch, ++last_epoch); /* Y2 pairs Y2a */
    }
    return TUTTI_OK;
}

const uint8_t *fork_process_nonce(void)
{
    return guard->nonce;
}
