/* SPDX-License-Identifier: MIT */
/*
 * Is it memory of our device? The driver knows, for a fraction of a microsecond; so the allocations
 * that it named last are remembered, and addresses inside them are not asked about again. What is
 * freed and handed out anew at the same addresses on another device is not noticed: this finds
 * mistakes, it guards nothing.
 */
#include "cuda/group_internal.h"
#include "error.h"

static bool is_known(const struct cuda_group *group, CUdeviceptr first, CUdeviceptr last)
{
    for (int i = 0; i < CUDA_RANGES; i++) {
        const struct cuda_range *range = &group->ranges[i];
        if (first - range->base < range->bytes && last - range->base < range->bytes)
            return true;
    }
    return false;
}

enum tutti_status cuda_pointer_ask(const struct cuda_driver *driver, CUdeviceptr address,
                                   struct cuda_pointer *facts)
{
    unsigned type = 0, managed = 0;
    *facts = (struct cuda_pointer){.ordinal = -1};
    CUpointer_attribute names[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_IS_MANAGED,  CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    };
    void *values[] = {&type, &facts->ordinal, &managed, &facts->range.base, &facts->range.bytes};
    CUresult result =
        driver->pointer_attributes(sizeof names / sizeof *names, names, values, address);
    /* An address that the driver has never heard of is one of the host's. */
    if (result == CUDA_ERROR_INVALID_VALUE)
        return TUTTI_OK;
    if (result != CUDA_SUCCESS)
        return cuda_check(driver, result, "cuPointerGetAttributes");
    facts->managed = managed != 0;
    facts->device = type == CU_MEMORYTYPE_DEVICE;
    return TUTTI_OK;
}

/* Asks about one address; *range is the allocation that it lies in. */
static enum tutti_status ask(struct cuda_group *group, const char *what, const void *pointer,
                             CUdeviceptr address, struct cuda_range *range)
{
    struct cuda_pointer facts;
    enum tutti_status status = cuda_pointer_ask(group->driver, address, &facts);
    if (status != TUTTI_OK)
        return status;
    *range = facts.range;
    if (!facts.device && !facts.managed)
        return error_set(TUTTI_ERR_INVALID,
                         "tutti_all_reduce: %s %p is host memory: a CUDA communicator on device %d "
                         "takes memory of that device",
                         what, pointer, group->device.ordinal);
    if (facts.ordinal != group->device.ordinal && !facts.managed)
        return error_set(TUTTI_ERR_INVALID,
                         "tutti_all_reduce: %s %p is memory of device %d, the communicator is on "
                         "device %d",
                         what, pointer, facts.ordinal, group->device.ordinal);
    return TUTTI_OK;
}

enum tutti_status cuda_operand_check(struct cuda_group *group, const char *what,
                                     const void *pointer, size_t bytes)
{
    CUdeviceptr first = (CUdeviceptr)(uintptr_t)pointer, last = first + bytes - 1;
    struct cuda_range range = {.base = 0};
    if (__builtin_expect(is_known(group, first, last), 1))
        return TUTTI_OK;
    enum tutti_status status = ask(group, what, pointer, first, &range);
    if (status != TUTTI_OK)
        return status;
    if (first - range.base < range.bytes) {
        group->ranges[group->next_range++ % CUDA_RANGES] = range;
        if (last - range.base < range.bytes)
            return TUTTI_OK;
    }
    /* Several mappings in a row, or one that the driver tells nothing of: the end is asked for too.
     */
    return ask(group, what, pointer, last, &range);
}
