/* SPDX-License-Identifier: MIT */
/*
 * No malloc, lock or system call on the way of an operation below 4 KiB while ranks do not
 * outnumber cores. A rank that loses its core for a while may well sleep, so what is asked for is
 * one block of operations without any, on both ranks.
 *
 * System calls are caught by the kernel's system call user dispatch; malloc and locks by the linker
 * (--wrap). Skipped where the former is missing.
 *
 * usage: test_quiet threads|processes
 */
#include "base/deadline.h"
#include "ranks.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

#if defined(__x86_64__) && !defined(SANITIZED)

enum { SIZE = 2, BLOCK = 50, LEAST_BLOCKS = 20, PATIENCE_MS = 60000 };

/* What PR_SET_SYSCALL_USER_DISPATCH needs; older headers lack it. */
enum { SET_DISPATCH = 59, DISPATCH_ON = 1, ALLOW = 0, BLOCK_CALLS = 1 };

static _Thread_local volatile char selector = ALLOW;
static _Thread_local volatile int system_calls, allocations, locks;

/* ---- what must not happen -------------------------------------------------------------------- */

/* Lets the system call that was caught happen, and all later ones of the block. */
static void caught(int number, siginfo_t *info, void *context)
{
    ucontext_t *machine = context;
    (void)number;
    selector = ALLOW;
    system_calls++;
    machine->uc_mcontext.gregs[REG_RAX] = info->si_syscall;
    machine->uc_mcontext.gregs[REG_RIP] -= 2; /* the instruction again */
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void __real_free(void *pointer);
int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void __wrap_free(void *pointer);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);

void *__wrap_malloc(size_t size)
{
    allocations++;
    return __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    allocations++;
    return __real_calloc(count, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    allocations++;
    return __real_aligned_alloc(alignment, size);
}

void __wrap_free(void *pointer)
{
    allocations++;
    __real_free(pointer);
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    locks++;
    return __real_pthread_mutex_lock(mutex);
}

/* ---- the ranks ------------------------------------------------------------------------------- */

static bool dispatch_on(void)
{
    struct sigaction action = {.sa_sigaction = caught, .sa_flags = SA_SIGINFO | SA_NODEFER};
    return sigaction(SIGSYS, &action, NULL) == 0 &&
           prctl(SET_DISPATCH, DISPATCH_ON, 0, 0, &selector) == 0;
}

/* A block of operations of `bytes` bytes, barriers for 0; false if one failed. */
static bool block_run(tutti_comm_t *comm, float *data, size_t bytes)
{
    bool good = true;
    system_calls = allocations = locks = 0;
    selector = BLOCK_CALLS;
    for (int i = 0; i < BLOCK && good; i++)
        good = (bytes ? tutti_all_reduce(data, data, bytes / sizeof *data, TUTTI_FLOAT32, TUTTI_MAX,
                                         comm, TUTTI_STREAM_DEFAULT)
                      : tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT)) == TUTTI_OK;
    selector = ALLOW;
    return good;
}

static int quiet(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const size_t sizes[] = {0, 4, 48, 64, 1000, 2048, 4092};
    static _Thread_local float data[1024];
    tutti_comm_t *comm;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    RANKS_CHECK(dispatch_on());
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t deadline = deadline_after(PATIENCE_MS);
        int32_t block = 0, state[2] = {1, 0}; /* noisy so far; in time */
        for (; state[0] && !state[1]; block++) {
            RANKS_CHECK(block_run(comm, data, sizes[i]));
            /* A slow wait asks whether its peer lives, under a lock: that is a system call, too. */
            RANKS_CHECK(system_calls > 0 || (allocations == 0 && locks == 0));
            state[0] = system_calls > 0 || block < LEAST_BLOCKS;
            state[1] = deadline_passed(deadline);
            RANKS_CHECK(tutti_all_reduce(state, state, 2, TUTTI_INT32, TUTTI_MAX, comm,
                                         TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        }
        if (rank == 0)
            printf("%zu bytes: quiet after %d blocks\n", sizes[i], (int)block);
        RANKS_CHECK(!state[0]);
    }
    /* The trap works: this is one. */
    selector = BLOCK_CALLS;
    sched_yield();
    selector = ALLOW;
    RANKS_CHECK(system_calls == 1);
    tutti_comm_destroy(comm);
    return 0;
}

int main(int argc, char **argv)
{
    cpu_set_t set;
    int skip = ranks_skip_cuda("launching takes system calls of the driver");
    if (skip)
        return skip;
    int processes = argc == 2 && strcmp(argv[1], "processes") == 0 ? SIZE : 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) < SIZE) {
        puts("skipped: needs two cores");
        return 77;
    }
    if (!dispatch_on()) {
        puts("skipped: this kernel cannot dispatch system calls");
        return 77;
    }
    struct ranks *ranks = ranks_create(SIZE, processes, 0);
    int failures = ranks_run(ranks, quiet);
    ranks_destroy(ranks);
    return failures ? 1 : 0;
}

#else

int main(void)
{
    puts("skipped: neither under sanitizers nor on this architecture");
    return 77;
}

#endif
