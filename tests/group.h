/* SPDX-License-Identifier: MIT */
/* A group of ranks for tests, as threads of this process or as child processes, that meet over a
 * shared page. */
#ifndef TESTS_GROUP_H
#define TESTS_GROUP_H

#include "tutti/tutti.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GROUP_STEPS = 64, GROUP_VALUE_BYTES = 256, GROUP_TIMEOUT_MS = 60000 };

/* What the ranks share. Words are atomic. */
struct group {
    int size;
    int flags[8]; /* for the test's own signals between ranks */
    struct {
        int written[TUTTI_MAX_RANKS];
        unsigned char values[TUTTI_MAX_RANKS][GROUP_VALUE_BYTES];
    } steps[GROUP_STEPS];
};

static inline struct group *group_create(int size)
{
    struct group *group =
        mmap(NULL, sizeof *group, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (group == MAP_FAILED)
        abort();
    group->size = size;
    return group;
}

static inline void group_destroy(struct group *group)
{
    munmap(group, sizeof *group);
}

static inline struct tutti_exchanger group_exchanger(struct group *group, int rank)
{
    return (struct tutti_exchanger){.struct_size = sizeof(struct tutti_exchanger),
                                    .store = (tutti_store_t *)group,
                                    .prefix = "test",
                                    .rank = rank,
                                    .size = group->size};
}

/* Waits for a flag for as long as a test may take; false if it never rose. */
static inline bool group_await(struct group *group, int flag, int value)
{
    for (int i = 0; i < GROUP_TIMEOUT_MS; i++) {
        if (__atomic_load_n(&group->flags[flag], __ATOMIC_ACQUIRE) >= value)
            return true;
        usleep(1000);
    }
    return false;
}

static inline void group_raise(struct group *group, int flag)
{
    __atomic_fetch_add(&group->flags[flag], 1, __ATOMIC_ACQ_REL);
}

/* A rank's part; 0 is success, another number says where it failed. */
typedef int group_fn(struct group *group, int rank);

struct group_thread {
    pthread_t thread;
    struct group *group;
    group_fn *fn;
    int rank;
    int result;
};

static inline void *group_thread_main(void *argument)
{
    struct group_thread *thread = argument;
    thread->result = thread->fn(thread->group, thread->rank);
    if (thread->result)
        fprintf(stderr, "rank %d failed at %d: %s\n", thread->rank, thread->result,
                tutti_last_error());
    return NULL;
}

/* Runs fn on every rank, as threads; returns the first rank's result that is not 0. */
static inline int group_run_threads(struct group *group, group_fn *fn)
{
    struct group_thread threads[TUTTI_MAX_RANKS];
    int result = 0;
    for (int r = 0; r < group->size; r++) {
        threads[r] = (struct group_thread){.group = group, .fn = fn, .rank = r};
        if (pthread_create(&threads[r].thread, NULL, group_thread_main, &threads[r]) != 0)
            abort();
    }
    for (int r = 0; r < group->size; r++) {
        pthread_join(threads[r].thread, NULL);
        if (!result)
            result = threads[r].result;
    }
    return result;
}

/* The same as child processes. A rank that ends by SIGKILL is one that the test killed. */
static inline int group_run_processes(struct group *group, group_fn *fn)
{
    pid_t children[TUTTI_MAX_RANKS];
    int result = 0;
    for (int r = 0; r < group->size; r++) {
        children[r] = fork();
        if (children[r] < 0)
            abort();
        if (children[r] == 0) {
            int failed = fn(group, r);
            if (failed)
                fprintf(stderr, "rank %d failed at %d: %s\n", r, failed, tutti_last_error());
            _exit(failed ? 1 : 0);
        }
    }
    for (int r = 0; r < group->size; r++) {
        int how = 0;
        while (waitpid(children[r], &how, 0) < 0 && errno == EINTR)
            ;
        if (WIFEXITED(how) && WEXITSTATUS(how))
            result = WEXITSTATUS(how);
        if (WIFSIGNALED(how) && WTERMSIG(how) != SIGKILL)
            result = 128 + WTERMSIG(how);
    }
    return result;
}

/* Ends a rank's function with the line's number unless the condition holds. */
#define GROUP_CHECK(condition)                                                                     \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return __LINE__;                                                                       \
    } while (0)

#endif
