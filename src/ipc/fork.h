/* SPDX-License-Identifier: MIT */
/*
 * Notices a fork(). Each process that uses the library has an epoch. An object stores the epoch at
 * its creation; if the process has another one later, the object belongs to an ancestor.
 *
 * The epoch lies in a page that the kernel wipes in a child (MADV_WIPEONFORK). So even a bare
 * clone() is noticed, and a check is one load.
 */
#ifndef TUTTI_IPC_FORK_H
#define TUTTI_IPC_FORK_H

#include "base/order.h"
#include "tutti/tutti.h"

#define FORK_NONCE_BYTES 16

/* This process' epoch, 0 if it has none (yet). Written by fork_epoch() alone. */
extern const uint32_t *fork_guard;

/* Gives this process an epoch and a nonce if it has none; *epoch is never 0. Returns SYSTEM,
 * NO_MEMORY. */
enum tutti_status fork_epoch(uint32_t *epoch);

/* 16 random bytes that no other process has, not even a parent or a child. Valid once fork_epoch()
 * has succeeded in this process. */
const uint8_t *fork_process_nonce(void);

/* True in a child of the process that has this epoch. Relaxed: a process reads its own write. */
static inline bool fork_detected(uint32_t epoch)
{
    return order_load_relaxed_u32(fork_guard) != epoch;
}

#endif
