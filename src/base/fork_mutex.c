/* SPDX-License-Identifier: MIT */
#include "base/fork_mutex.h"

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER; /* no mutex is taken under it */
static struct fork_mutex *list; /* all that were ever locked; one that was first locked later comes
                                   before the others */
/* Two threads may call fork() at the same time: the second thread waits for the end of the first
 * fork().
 */
static pthread_mutex_t forking = PTHREAD_MUTEX_INITIALIZER;
static struct fork_mutex *held; /* fork() holds this mutex and all after it */

/* Waits until no thread holds the mutex. */
static void await_free(struct fork_mutex *mutex)
{
    pthread_mutex_lock(&mutex->mutex);
    pthread_mutex_unlock(&mutex->mutex);
}

/* A thread may take one of these mutexes while it holds another one, and the list knows no order.
 * So this waits for a mutex only while it holds none of them. */
static void hold_all(void)
{
    struct fork_mutex *each;
    pthread_mutex_lock(&forking);
    pthread_mutex_lock(&list_lock);
    held = list;
    pthread_mutex_unlock(&list_lock);
    for (;;) {
        for (each = held; each && pthread_mutex_trylock(&each->mutex) == 0;)
            each = each->next;
        if (!each)
            break;
        for (struct fork_mutex *taken = held; taken != each; taken = taken->next)
            pthread_mutex_unlock(&taken->mutex);
        await_free(each);
    }
    pthread_mutex_lock(&list_lock);
}

static void release_all(void)
{
    pthread_mutex_unlock(&list_lock);
    for (struct fork_mutex *each = held; each; each = each->next)
        pthread_mutex_unlock(&each->mutex);
    pthread_mutex_unlock(&forking);
}

static void release_in_child(void)
{
    for (struct fork_mutex *each = held; each; each = each->next)
        if (each->in_child)
            each->in_child();
    release_all();
}

void fork_mutex_lock(struct fork_mutex *mutex)
{
    pthread_mutex_lock(&list_lock);
    if (!mutex->known) {
        if (!list)
            (void)pthread_atfork(hold_all, release_all, release_in_child);
        mutex->known = true;
        mutex->next = list;
        list = mutex;
    }
    pthread_mutex_unlock(&list_lock);
    pthread_mutex_lock(&mutex->mutex);
}

void fork_mutex_unlock(struct fork_mutex *mutex)
{
    pthread_mutex_unlock(&mutex->mutex);
}
