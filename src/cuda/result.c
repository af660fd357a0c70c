/* SPDX-License-Identifier: MIT */
/*
 * Memory of a device for results that a process group makes. Whoever gives it back may do so when
 * the group has gone: the contexts stay as long as any ticket is out. Making and freeing it may
 * synchronise the device, so it is used again (pg/home.c).
 */
#include "cuda/stage_internal.h"
#include "error.h"

enum { LEAST_BYTES = 1 << 16 };

enum tutti_status cuda_result_alloc(struct cuda_stage *stage, int device, size_t bytes,
                                    struct cuda_result *result)
{
    const struct cuda_driver *driver = stage->driver;
    const struct cuda_stage_place *place = &stage->places[cuda_place_of_device(stage, device)];
    struct cuda_visit visit;
    CUdeviceptr memory = 0;
    size_t size = LEAST_BYTES;
    *result = (struct cuda_result){.memory = NULL};
    while (size < bytes && size <= SIZE_MAX / 2)
        size *= 2;
    enum tutti_status status = cuda_visit_begin(driver, place->context, &visit);
    if (status != TUTTI_OK)
        return status;
    status = cuda_check(driver, driver->mem_alloc(&memory, size), "cuMemAlloc");
    cuda_visit_end(driver, &visit);
    if (status != TUTTI_OK)
        return error_context(status, "%zu bytes of device %d", size, device);
    *result = (struct cuda_result){(void *)(uintptr_t)memory, size, device};
    return TUTTI_OK;
}

void cuda_result_free(struct cuda_stage *stage, struct cuda_result *result)
{
    struct cuda_visit visit;
    if (!result->memory)
        return;
    const struct cuda_stage_place *place =
        &stage->places[cuda_place_of_device(stage, result->device)];
    if (cuda_visit_begin(stage->driver, place->context, &visit) == TUTTI_OK) {
        stage->driver->mem_free((CUdeviceptr)(uintptr_t)result->memory);
        cuda_visit_end(stage->driver, &visit);
    }
    *result = (struct cuda_result){.memory = NULL};
}
