/* SPDX-License-Identifier: MIT */
/* Each call of the driver fails in turn, while two ranks, threads of this process, set something up
 * and end it: they agree on how that went, and nothing is left. */
#ifndef TESTS_CUDA_FAILING_CALLS_H
#define TESTS_CUDA_FAILING_CALLS_H

#include "device.h"

#include <stdio.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s [%s]\n", __FILE__, __LINE__, #condition,                    \
                    tutti_last_error());                                                           \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* The begin of the ranks' shared bytes: 1 for a rank that has set all up. */
struct failing_calls_outcome {
    int whole[2];
};

struct failing_calls {
    ranks_fn *once;
    size_t shared_bytes;
    const char *const *calls; /* functions of the driver */
    size_t count;
    bool doubling;        /* from the fourth on, of one function, the 8th, the 16th... */
    size_t (*left)(void); /* the number of objects that the stand-in still has: standin_left() or
                             device_left() */
};

/* Once without a failure. Threads that come with the first thread (of a sanitizer) exist from now
 * on. */
static inline int failing_calls_warm_up(const struct failing_calls *tests)
{
    struct ranks *ranks = ranks_create(2, 0, tests->shared_bytes);
    int failures = ranks_run(ranks, tests->once);
    ranks_destroy(ranks);
    return failures;
}

static inline int failing_calls_fail_at(const struct failing_calls *tests, const char *call, int at,
                                        bool *reached)
{
    int descriptors = device_count("/proc/self/fd"), threads = device_count("/proc/self/task");
    struct ranks *ranks = ranks_create(2, 0, tests->shared_bytes);
    const struct failing_calls_outcome *outcome =
        (const struct failing_calls_outcome *)(void *)ranks->shared;
    standin_forget();
    standin_fail(call, at, CUDA_ERROR_INVALID_VALUE);
    int failures = ranks_run(ranks, tests->once);
    standin_fail(NULL, 0, CUDA_SUCCESS);
    *reached = standin_calls(call) >= (uint64_t)at;
    /* Both ranks have it or neither; if no call fails, both. */
    bool agreed = outcome->whole[0] == outcome->whole[1] && (*reached || outcome->whole[0]);
    ranks_destroy(ranks);
    CHECK(failures == 0);
    CHECK(agreed);
    CHECK(tests->left() == 0);
    CHECK(device_count("/proc/self/fd") == descriptors);
    /* The streams' threads, of the stand-in, take a moment to end: now, and before we counted. */
    for (int i = 0; i < 20000 && device_count("/proc/self/task") > threads; i++)
        usleep(1000);
    CHECK(device_count("/proc/self/task") <= threads);
    return 0;
}

static inline int failing_calls_run(const struct failing_calls *tests)
{
    CHECK(device_enter(0));
    CHECK(failing_calls_warm_up(tests) == 0 && tests->left() == 0);
    for (size_t i = 0; i < tests->count; i++) {
        bool reached = true;
        for (int at = 1; reached; at += tests->doubling && at >= 4 ? at : 1)
            if (failing_calls_fail_at(tests, tests->calls[i], at, &reached) != 0) {
                fprintf(stderr, "%s, call %d\n", tests->calls[i], at);
                return 1;
            }
    }
    return 0;
}

#endif
