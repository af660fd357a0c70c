/* SPDX-License-Identifier: MIT */
/* Threads of the library. */
#ifndef TUTTI_THREAD_H
#define TUTTI_THREAD_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

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

#endif
