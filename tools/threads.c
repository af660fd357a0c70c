/* SPDX-License-Identifier: MIT */
#include "threads.h"

#include <errno.h>
#include <pthread.h>

struct crew {
    pthread_mutex_t gate; /* held until all threads have started, or one could not */
    bool complete;
    threads_fn *fn;
};

struct member {
    struct crew *crew;
    void *argument;
    pthread_t thread;
    bool result;
};

static void *member_main(void *context)
{
    struct member *self = context;
    pthread_mutex_lock(&self->crew->gate);
    pthread_mutex_unlock(&self->crew->gate);
    self->result = self->crew->complete && self->crew->fn(self->argument);
    return NULL;
}

int threads_run(int count, threads_fn *fn, void *arguments, size_t argument_bytes)
{
    struct crew crew = {.gate = PTHREAD_MUTEX_INITIALIZER, .fn = fn};
    struct member members[TUTTI_MAX_RANKS];
    int started = 0, good = 0, code = 0;
    pthread_mutex_lock(&crew.gate);
    for (; started < count; started++) {
        struct member *member = &members[started];
        *member =
            (struct member){&crew, (char *)arguments + (size_t)started * argument_bytes, 0, false};
        code = pthread_create(&member->thread, NULL, member_main, member);
        if (code)
            break;
    }
    crew.complete = started == count;
    pthread_mutex_unlock(&crew.gate);
    for (int i = 0; i < started; i++) {
        pthread_join(members[i].thread, NULL);
        good += members[i].result;
    }
    errno = code;
    return code ? -1 : good;
}
