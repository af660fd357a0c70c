/* SPDX-License-Identifier: MIT */
/* A mutex of a list that the whole process shares. fork() waits until no thread holds it. Otherwise
 * a thread that does not exist in the child could hold the child's copy. Not for fast paths. */
#ifndef TUTTI_FORK_MUTEX_H
#define TUTTI_FORK_MUTEX_H

#include <pthread.h>
#include <stdbool.h>

struct fork_mutex {
    pthread_mutex_t mutex;
    void (*in_child)(void); /* called in a child, under the mutex; may be NULL */
    bool known;             /* it is in the list of fork_mutex.c */
    struct fork_mutex *next;
};

#define FORK_MUTEX(function)                                                                       \
    {                                                                                              \
        .mutex = PTHREAD_MUTEX_INITIALIZER, .in_child = (function)                                 \
    }

void fork_mutex_lock(struct fork_mutex *mutex);
void fork_mutex_unlock(struct fork_mutex *mutex);

#endif
