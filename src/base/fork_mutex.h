/* SPDX-License-Identifier: MIT */
/* A mutex of a list that a whole process has. fork() waits until no thread holds it. Otherwise the
 * child could find it held by a thread that the child lacks. Not for fast paths. */
#ifndef TUTTI_FORK_MUTEX_H
#define TUTTI_FORK_MUTEX_H

#include <pthread.h>
#include <stdbool.h>

struct fork_mutex {
    pthread_mutex_t mutex;
    void (*in_child)(void); /* called in a child, under the mutex; may be NULL */
    bool known;             /* it is in the list below */
    struct fork_mutex *next;
};

#define FORK_MUTEX(function)                                                                       \
    {                                                                                              \
        .mutex = PTHREAD_MUTEX_INITIALIZER, .in_child = (function)                                 \
    }

void fork_mutex_lock(struct fork_mutex *mutex);
void fork_mutex_unlock(struct fork_mutex *mutex);

#endif
