/* SPDX-License-Identifier: MIT */
/*
 * Threads of the OpenMP library that the process uses. GNU's, LLVM's and Intel's libraries all have
 * the function that gcc's parallel regions call, GOMP_parallel(). A library that Python has loaded
 * is not visible to dlsym(RTLD_DEFAULT), so it is looked for among all loaded objects.
 */
#include "tutti/openmp.h"

#include "base/error.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static const char *const names[] = {"libgomp", "libiomp5", "libomp"};

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

/* Keeps the path of the first loaded object with one of the names. */
static int note_openmp(struct dl_phdr_info *object, size_t size, void *context)
{
    const char *path = object->dlpi_name ? object->dlpi_name : "";
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    (void)size;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(base, names[i], strlen(names[i])) == 0) {
            snprintf(context, PATH_MAX, "%s", path);
            return 1;
        }
    return 0;
}

/* A library that is found stays loaded. */
static void openmp_find(void)
{
    char path[PATH_MAX] = "";
    dl_iterate_phdr(note_openmp, path);
    if (!*path || !functions_find(dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD)))
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
