/* SPDX-License-Identifier: MIT */
/* Threads of the library. */
#ifndef TUTTI_THREAD_H
#define TUTTI_THREAD_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/* A number of the calling thread, not 0. No two threads whose memory lies less than 128 GiB apart
 * have the same one. One load: pthread_self() would be a call. */
static inline uint32_t thread_number(void)
{
    uintptr_t pointer;
#if defined __x86_64__
    __asm__("mov %%fs:0, %0" : "=r"(pointer));
#elif defined __aarch64__
    __asm__("mrs %0, tpidr_el0" : "=r"(pointer));
#else
    pointer = (uintptr_t)pthread_self();
#endif
    return (uint32_t)(pointer >> 5) | 1;
}

/* Starts a thread in which all signals are blocked: they are for the program's own threads. Returns
 * false with errno. */
static inline bool thread_start(pthread_t *thread, void *(*run)(void *), void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    errno = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return errno == 0;
}

/* For pthread_cond_timedwait() with a deadline_timespec(). */
static inline void thread_condition_init(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

#endif
