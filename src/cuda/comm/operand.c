/* SPDX-License-Identifier: MIT */
/*
 * Checks that an operand is memory that the communicator's device can use at that address. A query
 * of the driver takes a fraction of a microsecond. So the communicator remembers the last
 * allocations that the driver named, and makes no query for addresses in them. The check does not
 * notice memory that was freed and allocated again on another device at the same address: the check
 * finds mistakes, but it is no protection.
 *
 * The driver does not know memory that a graph allocates before the graph is launched. So a capture
 * may name an address that neither driver nor host knows.
 */
#include "base/error.h"
#include "coll/request.h"
#include "cuda/comm/group_internal.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

bool cuda_ranges_have(const struct cuda_ranges *ranges, int device, CUdeviceptr first,
                      CUdeviceptr last)
{
    for (int i = 0; i < CUDA_RANGES; i++) {
        const struct cuda_range *range = &ranges->ranges[i];
        if (first - range->base < range->bytes && last - range->base < range->bytes &&
            ranges->devices[i] == device)
            return true;
    }
    return false;
}

void cuda_ranges_add(struct cuda_ranges *ranges, int device, const struct cuda_range *range)
{
    ranges->ranges[ranges->next % CUDA_RANGES] = *range;
    ranges->devices[ranges->next++ % CUDA_RANGES] = device;
}

enum tutti_status cuda_pointer_ask(const struct cuda_driver *driver, CUdeviceptr address,
                                   struct cuda_pointer *facts)
{
    unsigned type = 0, managed = 0;
    *facts = (struct cuda_pointer){.ordinal = -1};
    CUpointer_attribute names[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_IS_MANAGED,  CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE,  CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
    };
    void *values[] = {
        &type, &facts->ordinal, &managed, &facts->range.base, &facts->range.bytes, &facts->mapped};
    CUresult result =
        driver->pointer_attributes(sizeof names / sizeof *names, names, values, address);
    /* The driver does not know the address: it is host memory. */
    if (result == CUDA_ERROR_INVALID_VALUE)
        return TUTTI_OK;
    if (result != CUDA_SUCCESS)
        return cuda_check(driver, result, cuda_names.pointer_attributes);
    facts->managed = managed != 0;
    facts->device = type == CU_MEMORYTYPE_DEVICE;
    facts->pinned = type == CU_MEMORYTYPE_HOST;
    return TUTTI_OK;
}

/* Returns true if the host can read there. The kernel copies the mask before it refuses the unknown
 * operation. */
static bool is_hosts(CUdeviceptr address)
{
    enum { MASK_BYTES = 8 };
    const CUdeviceptr mask = address & ~(CUdeviceptr)(MASK_BYTES - 1);
    return syscall(SYS_rt_sigprocmask, -1, (const void *)(uintptr_t)mask, NULL, MASK_BYTES) == 0 ||
           errno != EFAULT;
}

static bool is_captured(const struct cuda_group *group, tutti_stream_t stream)
{
    uint64_t id = 0;
    return cuda_capture_of(group->driver, cuda_stream_of(stream), &id, NULL) == TUTTI_OK && id;
}

/* One of a call's operands. */
struct operand {
    const char *call, *what; /* names, for messages */
    const void *pointer;
    size_t bytes; /* not 0 */
    tutti_stream_t stream;
};

/* Refuses host memory, or an unknown address. */
static enum tutti_status refuse(const struct cuda_group *group, const struct operand *operand,
                                const struct cuda_pointer *facts)
{
    const int ordinal = group->device.ordinal;
    if (facts->pinned && facts->mapped)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: %s %p is pinned host memory, which device %d has at another address: "
                         "pass that address, %p (cuMemHostGetDevicePointer())",
                         operand->call, operand->what, operand->pointer, ordinal,
                         (void *)(uintptr_t)facts->mapped);
    return error_set(TUTTI_ERR_INVALID,
                     "%s: %s %p is host memory that is not pinned for the device: a CUDA "
                     "communicator on device %d takes memory of that device, managed memory, and "
                     "pinned memory of the host: copy it to the device, or pin it with "
                     "cuMemHostRegister() or cudaHostRegister()",
                     operand->call, operand->what, operand->pointer, ordinal);
}

/* Asks the driver about one address. *range is its allocation; empty if it is not known. */
static enum tutti_status ask(struct cuda_group *group, const struct operand *operand,
                             CUdeviceptr address, struct cuda_range *range)
{
    struct cuda_pointer facts;
    enum tutti_status status = cuda_pointer_ask(group->driver, address, &facts);
    if (status != TUTTI_OK)
        return status;
    *range = facts.range;
    if (facts.managed || (facts.pinned && facts.mapped == address))
        return TUTTI_OK;
    if (!facts.device && !facts.pinned && is_captured(group, operand->stream) &&
        !is_hosts(address)) {
        *range = (struct cuda_range){.base = 0};
        return TUTTI_OK;
    }
    if (!facts.device)
        return refuse(group, operand, &facts);
    if (facts.ordinal != group->device.ordinal)
        return error_set(
            TUTTI_ERR_INVALID, "%s: %s %p is memory of device %d, the communicator is on device %d",
            operand->call, operand->what, operand->pointer, facts.ordinal, group->device.ordinal);
    return TUTTI_OK;
}

static enum tutti_status operand_check(struct cuda_group *group, const struct operand *operand)
{
    const CUdeviceptr first = cuda_address(operand->pointer), last = first + operand->bytes - 1;
    struct cuda_range range = {.base = 0};
    if (__builtin_expect(cuda_ranges_have(&group->ranges, group->device.ordinal, first, last), 1))
        return TUTTI_OK;
    enum tutti_status status = ask(group, operand, first, &range);
    if (status != TUTTI_OK)
        return status;
    if (first - range.base < range.bytes) {
        cuda_ranges_add(&group->ranges, group->device.ordinal, &range);
        if (last - range.base < range.bytes)
            return TUTTI_OK;
    }
    /* Several mappings in a row, or an allocation that the driver does not describe: ask about the
     * end too. */
    return ask(group, operand, last, &range);
}

enum tutti_status cuda_operand_check(struct cuda_group *group, const char *call, const char *what,
                                     const void *pointer, size_t bytes, tutti_stream_t stream)
{
    const struct operand operand = {
        .call = call, .what = what, .pointer = pointer, .bytes = bytes, .stream = stream};
    return operand_check(group, &operand);
}

/* Checks the arrays of a v-form whose kernel reads them. */
static enum tutti_status counts_check(struct cuda_group *group, const struct request *request,
                                      tutti_stream_t stream)
{
    const struct coll_blocks *blocks[] = {&request->send_blocks, &request->recv_blocks};
    enum tutti_status status = TUTTI_OK;
    for (int i = 0; i < 4 && status == TUTTI_OK; i++) {
        const struct coll_blocks *its = blocks[i / 2];
        const void *array = i % 2 ? its->displacements : its->counts;
        const struct operand operand = {.call = coll_rows[request->collective].call,
                                        .what = i % 2 ? "displacements" : "counts",
                                        .pointer = array,
                                        .bytes = (size_t)group->launch.size * coll_entry_bytes(its),
                                        .stream = stream};
        if (array)
            status = operand_check(group, &operand);
    }
    return status;
}

static enum tutti_status scalar_check(struct cuda_group *group, const struct request *request,
                                      tutti_stream_t stream)
{
    const struct operand operand = {.call = coll_rows[request->collective].call,
                                    .what = "the scalar",
                                    .pointer = request->scalar.memory,
                                    .bytes = request->element_bytes,
                                    .stream = stream};
    return operand_check(group, &operand);
}

enum tutti_status cuda_operands_check(struct cuda_group *group, const struct request *request,
                                      tutti_stream_t stream)
{
    enum tutti_status status = cuda_group_check(group);
    if (__builtin_expect(coll_rows[request->collective].varies && request->limits.most, 0) &&
        status == TUTTI_OK)
        status = counts_check(group, request, stream);
    if (__builtin_expect(request->scalar_in_memory, 0) && status == TUTTI_OK)
        status = scalar_check(group, request, stream);
    for (int i = 0; i < 2 && status == TUTTI_OK; i++) {
        size_t first;
        const size_t bytes =
            request_span(request, i == 0, group->launch.rank, group->launch.size, &first);
        const struct operand operand = {
            .call = coll_rows[request->collective].call,
            .what = i ? "recv" : "send",
            .pointer = (const char *)(i ? request->recv : request->send) + first,
            .bytes = bytes,
            .stream = stream};
        if (bytes)
            status = operand_check(group, &operand);
    }
    return status;
}
