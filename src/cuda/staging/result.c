/* SPDX-License-Identifier: MIT */
/*
 * Memory of a device for results that a process group makes: used again, as all that a stage has.
 * Whoever gives it back may do so when the group has gone: no stage is another group's as long as a
 * ticket is out.
 */
#include "base/error.h"
#include "cuda/staging/stage_internal.h"

#include <stdlib.h>

enum { LEAST_BYTES = 1 << 16 };

/* Under the lock: the smallest that will do, NULL if there is none. */
static struct cuda_result *idle_take(struct cuda_stage *stage, int device, size_t bytes)
{
    struct cuda_result **best = NULL, *taken = NULL;
    for (struct cuda_result **link = &stage->results; *link; link = &(*link)->next)
        if ((*link)->device == device && (*link)->bytes >= bytes &&
            (!best || (*link)->bytes < (*best)->bytes))
            best = link;
    if (best) {
        taken = *best;
        *best = taken->next;
    }
    return taken;
}

static enum tutti_status result_alloc(struct cuda_stage *stage, struct cuda_result *result)
{
    const struct cuda_driver *driver = stage->driver;
    const int place = cuda_place_of_device(stage, result->device);
    struct cuda_visit visit;
    CUdeviceptr memory = 0;
    enum tutti_status status = cuda_visit_begin(driver, stage->places[place].context, &visit);
    if (status != TUTTI_OK)
        return status;
    cuda_stage_call_begin(stage);
    status = cuda_check(driver, driver->mem_alloc(&memory, result->bytes), "cuMemAlloc");
    cuda_stage_call_end(stage);
    cuda_visit_end(driver, &visit);
    if (status != TUTTI_OK)
        return error_context(status, "%zu bytes of device %d", result->bytes, result->device);
    result->memory = (void *)(uintptr_t)memory;
    return TUTTI_OK;
}

enum tutti_status cuda_result_take(struct cuda_stage *stage, int device, size_t bytes,
                                   struct cuda_result **result)
{
    size_t size = LEAST_BYTES;
    pthread_mutex_lock(&stage->lock);
    *result = idle_take(stage, device, bytes);
    pthread_mutex_unlock(&stage->lock);
    if (*result)
        return TUTTI_OK;
    while (size < bytes && size <= SIZE_MAX / 2)
        size *= 2;
    struct cuda_result *made = malloc(sizeof *made);
    if (!made)
        return error_errno("malloc of a result");
    *made = (struct cuda_result){.bytes = size, .device = device};
    enum tutti_status status = result_alloc(stage, made);
    if (status == TUTTI_OK)
        *result = made;
    else
        free(made);
    return status;
}

void cuda_result_give(struct cuda_stage *stage, struct cuda_result *result)
{
    if (!result)
        return;
    pthread_mutex_lock(&stage->lock);
    result->next = stage->results;
    stage->results = result;
    pthread_mutex_unlock(&stage->lock);
}

void cuda_results_free(struct cuda_stage *stage, bool child)
{
    struct cuda_visit visit;
    while (stage->results) {
        struct cuda_result *result = stage->results;
        stage->results = result->next;
        const int place = child ? -1 : cuda_place_of_device(stage, result->device);
        if (!child &&
            cuda_visit_begin(stage->driver, stage->places[place].context, &visit) == TUTTI_OK) {
            stage->driver->mem_free((CUdeviceptr)(uintptr_t)result->memory);
            cuda_visit_end(stage->driver, &visit);
        }
        free(result);
    }
}
