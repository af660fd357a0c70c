/* SPDX-License-Identifier: MIT */
/* Sleeping on a word that other threads or processes change. */
#ifndef TUTTI_IPC_FUTEX_H
#define TUTTI_IPC_FUTEX_H

#include <limits.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Sleeps while *word is value, for at most ns; may return early. */
static inline void futex_sleep_ns(uint32_t *word, uint32_t value, int64_t ns)
{
    struct timespec timeout = {.tv_sec = ns / 1000000000, .tv_nsec = (long)(ns % 1000000000)};
    (void)syscall(SYS_futex, word, FUTEX_WAIT, value, &timeout, NULL, 0);
}

static inline void futex_sleep(uint32_t *word, uint32_t value, int64_t ms)
{
    futex_sleep_ns(word, value, ms * 1000000);
}

/* Wakes all threads that sleep on the word. */
static inline void futex_wake_all(uint32_t *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

#endif
