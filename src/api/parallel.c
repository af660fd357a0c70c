/* SPDX-License-Identifier: MIT */
/*
 * Threads of the OpenMP library that the process uses. GNU's, LLVM's and Intel's libraries all have
 * the function that gcc's parallel regions call, GOMP_parallel().
 */
#include "tutti/openmp.h"

#include "base/error.h"
#include "base/loaded.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

static struct {
    void (*parallel)(void (*run)(void *data), void *data, unsigned threads, unsigned flags);
    int (*thread_num)(void);
    int (*num_threads)(void);
} openmp;

struct region {
    int tasks;
    void (*task)(void *argument, int i);
    void *argument;
};

static void member_run(void *data)
{
    const struct region *region = data;
    const int members = openmp.num_threads();
    for (int i = openmp.thread_num(); i < region->tasks; i += members)
        region->task(region->argument, i);
}

static void parallel(void *context, int tasks, void (*task)(void *argument, int i), void *argument)
{
    struct region region = {tasks, task, argument};
    (void)context;
    openmp.parallel(member_run, &region, (unsigned)tasks, 0);
}

static bool functions_find(void *library)
{
    if (!library)
        return false;
    void *const found[] = {dlsym(library, "GOMP_parallel"), dlsym(library, "omp_get_thread_num"),
                           dlsym(library, "omp_get_num_threads")};
    if (!found[0] || !found[1] || !found[2])
        return false;
    memcpy(&openmp.parallel, &found[0], sizeof found[0]); /* not an object pointer: no cast */
    memcpy(&openmp.thread_num, &found[1], sizeof found[1]);
    memcpy(&openmp.num_threads, &found[2], sizeof found[2]);
    return true;
}

/* A library that is found stays loaded. */
static void openmp_find(void)
{
    static const char *const names[] = {"libgomp", "libiomp5", "libomp", NULL};
    char path[1][LOADED_PATH_BYTES];
    if (!loaded_find(names, path, 1) ||
        !functions_find(dlopen(*path, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD)))
        (void)functions_find(dlopen("libgomp.so.1", RTLD_LAZY | RTLD_LOCAL));
}

enum tutti_status tutti_parallel_find(tutti_parallel_t *found)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (!found)
        return error_set(TUTTI_ERR_INVALID, "tutti_parallel_find: parallel is NULL: expected the "
                                            "address of a tutti_parallel_t");
    pthread_once(&once, openmp_find);
    *found = openmp.parallel ? parallel : NULL;
    if (openmp.parallel)
        return TUTTI_OK;
    return error_set(
        TUTTI_ERR_DECLINED,
        "tutti_parallel_find: this process has not loaded libgomp, libiomp5 or libomp, "
        "and there is no libgomp.so.1: install libgomp1, or pass a function of your "
        "own as options->parallel");
}
