/* SPDX-License-Identifier: MIT */
#include "cuda/driver/memory.h"

#include "base/error.h"
#include "base/fd.h"
#include "cuda/driver/wrappers.h"

#include <fcntl.h>
#include <unistd.h>

static CUmemAllocationProp properties(CUdevice device)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
    };
}

/* Rounds up to whole pages of the device. The driver refuses a size that overflows. */
static enum tutti_status round_up(const struct cuda_driver *driver, CUdevice device, size_t bytes,
                                  size_t *rounded)
{
    CUmemAllocationProp prop = properties(device);
    size_t page = 0;
    enum tutti_status status =
        CUDA_CALL(driver, mem_granularity, &page, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    if (status == TUTTI_OK)
        *rounded = bytes > SIZE_MAX - page ? SIZE_MAX : (bytes + page - 1) / page * page;
    return status;
}

/* Maps `handle` at an address that `device` may read and write. */
static enum tutti_status map_handle(const struct cuda_driver *driver, CUdevice device,
                                    CUmemGenericAllocationHandle handle, size_t bytes,
                                    struct cuda_memory *memory)
{
    CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    CUdeviceptr base = 0;
    enum tutti_status status;
    status = CUDA_CALL(driver, mem_reserve, &base, bytes, 0, 0, 0);
    if (status != TUTTI_OK)
        return status;
    status = CUDA_CALL(driver, mem_map, base, bytes, 0, handle, 0);
    if (status != TUTTI_OK)
        goto err_unreserve;
    status = CUDA_CALL(driver, mem_set_access, base, bytes, &access, 1);
    if (status != TUTTI_OK)
        goto err_unmap;
    *memory = (struct cuda_memory){.base = base, .bytes = bytes};
    return TUTTI_OK;

err_unmap:
    driver->mem_unmap(base, bytes);
err_unreserve:
    driver->mem_unreserve(base, bytes);
    return status;
}

static enum tutti_status out_of_memory(const struct cuda_driver *driver, CUdevice device,
                                       size_t bytes)
{
    size_t left = 0, all = 0;
    if (driver->mem_info(&left, &all) != CUDA_SUCCESS)
        return error_set(TUTTI_ERR_NO_MEMORY, "cannot allocate %zu bytes on device %d", bytes,
                         device);
    return error_set(TUTTI_ERR_NO_MEMORY,
                     "cannot allocate %zu bytes on device %d: %zu of its %zu bytes are free", bytes,
                     device, left, all);
}

static enum tutti_status export_handle(const struct cuda_driver *driver,
                                       CUmemGenericAllocationHandle handle, int *fd)
{
    enum tutti_status status =
        CUDA_CALL(driver, mem_export, fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (status != TUTTI_OK)
        return status;
    *fd = fd_lift(*fd);
    if (*fd < 0 || fcntl(*fd, F_SETFD, FD_CLOEXEC) != 0) {
        status = error_errno("fcntl of exported memory");
        fd_drop(fd);
    }
    return status;
}

enum tutti_status cuda_memory_create(const struct cuda_driver *driver, CUdevice device,
                                     size_t bytes, struct cuda_memory *memory, int *fd)
{
    CUmemAllocationProp prop = properties(device);
    CUmemGenericAllocationHandle handle;
    enum tutti_status status;
    CUresult result;
    size_t rounded;
    int file = -1;
    *memory = (struct cuda_memory){0};
    *fd = -1;

    status = round_up(driver, device, bytes, &rounded);
    if (status != TUTTI_OK)
        return status;
    result = driver->mem_create(&handle, rounded, &prop, 0);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return out_of_memory(driver, device, bytes);
    status = cuda_check(driver, result, cuda_names.mem_create);
    if (status != TUTTI_OK)
        return status;
    status = export_handle(driver, handle, &file);
    if (status != TUTTI_OK)
        goto err_release;
    status = map_handle(driver, device, handle, rounded, memory);
    if (status != TUTTI_OK)
        goto err_close;
    /* The mapping and the descriptor keep the memory alive. */
    driver->mem_release(handle);
    *fd = file;
    return TUTTI_OK;

err_close:
    close(file);
err_release:
    driver->mem_release(handle);
    return status;
}

enum tutti_status cuda_memory_map(const struct cuda_driver *driver, CUdevice device, int fd,
                                  size_t bytes, struct cuda_memory *memory)
{
    CUmemGenericAllocationHandle handle;
    enum tutti_status status;
    CUresult result;
    size_t rounded;
    *memory = (struct cuda_memory){0};

    status = round_up(driver, device, bytes, &rounded);
    if (status != TUTTI_OK)
        return status;
    /* The call takes the descriptor as a pointer. */
    result =
        driver->mem_import(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_HANDLE) {
        cuda_check(driver, result, cuda_names.mem_import);
        return error_context(TUTTI_ERR_INVALID,
                             "descriptor %d is no exported allocation of device memory", fd);
    }
    status = cuda_check(driver, result, cuda_names.mem_import);
    if (status != TUTTI_OK)
        return status;
    status = map_handle(driver, device, handle, rounded, memory);
    if (status != TUTTI_OK)
        status = error_context(status,
                               "device %d cannot map a peer's memory of %zu bytes; the two need "
                               "peer access over NVLink or PCIe, which `nvidia-smi topo -p2p rw` "
                               "shows",
                               device, rounded);
    driver->mem_release(handle);
    return status;
}

/* Makes the device map memory->segment. Unmaps it on failure. */
static enum tutti_status register_segment(const struct cuda_driver *driver,
                                          struct cuda_memory *memory)
{
    struct segment *segment = &memory->segment;
    enum tutti_status status = CUDA_CALL(driver, mem_host_register, segment->base, segment->bytes,
                                         CU_MEMHOSTREGISTER_DEVICEMAP);
    if (status != TUTTI_OK)
        goto err_unmap;
    status = CUDA_CALL(driver, mem_host_device_pointer, &memory->base, segment->base, 0);
    if (status != TUTTI_OK)
        goto err_unregister;
    memory->bytes = segment->bytes;
    return TUTTI_OK;

err_unregister:
    driver->mem_host_unregister(segment->base);
err_unmap:
    segment_unmap(segment);
    *memory = (struct cuda_memory){0};
    return error_context(status, "the device cannot map memory of the host");
}

enum tutti_status cuda_memory_create_host(const struct cuda_driver *driver, size_t bytes,
                                          struct cuda_memory *memory, int *fd)
{
    *memory = (struct cuda_memory){0};
    enum tutti_status status = segment_create("tutti-staged", bytes, &memory->segment, fd);
    if (status != TUTTI_OK)
        return status;
    status = register_segment(driver, memory);
    if (status != TUTTI_OK)
        fd_drop(fd);
    return status;
}

enum tutti_status cuda_memory_map_host(const struct cuda_driver *driver, int fd, size_t bytes,
                                       struct cuda_memory *memory)
{
    *memory = (struct cuda_memory){0};
    enum tutti_status status = segment_map(fd, bytes, &memory->segment);
    return status == TUTTI_OK ? register_segment(driver, memory) : status;
}

void cuda_memory_unmap(const struct cuda_driver *driver, struct cuda_memory *memory)
{
    if (memory->segment.base) {
        driver->mem_host_unregister(memory->segment.base);
        segment_unmap(&memory->segment);
    } else if (memory->base) {
        driver->mem_unmap(memory->base, memory->bytes);
        driver->mem_unreserve(memory->base, memory->bytes);
    }
    *memory = (struct cuda_memory){0};
}
