/* SPDX-License-Identifier: MIT */
/* The stand-in's memory: a physical allocation is a memfd, whose name contains the device. */
#include "standin_internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const size_t PAGE = 2 << 20;
static const size_t DEVICE_BYTES = (size_t)64 << 30;

/* What a CUmemGenericAllocationHandle is. */
struct allocation {
    struct object object;
    int fd;
    size_t bytes;
    int physical;
    bool released; /* by its handle; it lives until it is not mapped */
    unsigned mapped;
};

struct reservation {
    struct object object;
    void *base;
    size_t bytes;
    struct allocation *allocation; /* NULL: nothing is mapped here */
};

/* cuMemAlloc() and cuMemHostAlloc(). */
struct buffer {
    struct object object;
    void *base;
    size_t bytes;
    struct device *device;
    void *guarded; /* a second mapping of memory that the program cannot reach at `base`, or NULL */
};

static CUdeviceptr to_device(const void *pointer)
{
    return (CUdeviceptr)(uintptr_t)pointer;
}

static void *to_host(CUdeviceptr address)
{
    return (void *)(uintptr_t)address;
}

/* ---- physical memory ------------------------------------------------------------------------- */

static bool right_properties(const CUmemAllocationProp *prop)
{
    return prop->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
           prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE && standin_device(prop->location.id);
}

static struct allocation *as_allocation(CUmemGenericAllocationHandle handle)
{
    void *pointer = (void *)(uintptr_t)handle;
    return standin_object_is(pointer, OBJECT_ALLOCATION) ? pointer : NULL;
}

static CUmemGenericAllocationHandle add_allocation(int fd, size_t bytes, int physical)
{
    struct allocation *allocation = standin_object_create(OBJECT_ALLOCATION, sizeof *allocation);
    allocation->fd = fd;
    allocation->bytes = bytes;
    allocation->physical = physical;
    return (CUmemGenericAllocationHandle)(uintptr_t)allocation;
}

static void drop_allocation(struct allocation *allocation)
{
    if (!allocation->released || allocation->mapped)
        return;
    close(allocation->fd);
    standin_object_destroy(allocation);
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option)
{
    CUresult result = standin_enter(__func__);
    (void)option;
    if (result == CUDA_SUCCESS && !right_properties(prop))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *granularity = PAGE;
    return result;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *prop, unsigned long long flags)
{
    CUresult result = standin_enter_unsafe(__func__);
    if (result == CUDA_SUCCESS && (!right_properties(prop) || !size || size % PAGE || flags))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && size > DEVICE_BYTES)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&standin_lock);
    int physical = standin_device(prop->location.id)->physical;
    char name[64];
    snprintf(name, sizeof name, "standin-device-%d", physical);
    int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)size) != 0)
        abort();
    *handle = add_allocation(fd, size, physical);
    pthread_mutex_unlock(&standin_lock);
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CUresult result = standin_enter_unsafe(__func__);
    pthread_mutex_lock(&standin_lock);
    struct allocation *allocation = as_allocation(handle);
    if (result == CUDA_SUCCESS && (!allocation || allocation->released))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        allocation->released = true;
        drop_allocation(allocation);
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

/* Like libcuda's, the descriptor is not close-on-exec. */
CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags)
{
    CUresult result = standin_enter(__func__);
    pthread_mutex_lock(&standin_lock);
    struct allocation *allocation = as_allocation(handle);
    if (result == CUDA_SUCCESS &&
        (!allocation || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *(int *)shareable = dup(allocation->fd);
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                        CUmemAllocationHandleType type)
{
    CUresult result = standin_enter_unsafe(__func__);
    if (result != CUDA_SUCCESS)
        return result;
    int fd = (int)(intptr_t)shareable, physical = -1;
    char path[64], name[128] = "";
    struct stat info;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fstat(fd, &info) != 0 ||
        readlink(path, name, sizeof name - 1) < 0 ||
        sscanf(name, "/memfd:standin-device-%d", &physical) != 1)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&standin_lock);
    *handle = add_allocation(fcntl(fd, F_DUPFD_CLOEXEC, 0), (size_t)info.st_size, physical);
    pthread_mutex_unlock(&standin_lock);
    return CUDA_SUCCESS;
}

/* ---- addresses ------------------------------------------------------------------------------- */

static struct reservation *reservation_at(CUdeviceptr address, size_t bytes)
{
    for (struct object *object = standin_objects(); object; object = object->next) {
        struct reservation *reservation = (struct reservation *)object;
        if (object->kind == OBJECT_RESERVATION && to_device(reservation->base) == address &&
            reservation->bytes == bytes)
            return reservation;
    }
    return NULL;
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wish,
                             unsigned long long flags)
{
    CUresult result = standin_enter_unsafe(__func__);
    (void)alignment;
    (void)wish;
    if (result == CUDA_SUCCESS && (!size || size % PAGE || flags))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    void *base = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&standin_lock);
    struct reservation *reservation =
        standin_object_create(OBJECT_RESERVATION, sizeof *reservation);
    reservation->base = base;
    reservation->bytes = size;
    pthread_mutex_unlock(&standin_lock);
    *address = to_device(base);
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
    CUresult result = standin_enter_unsafe(__func__);
    pthread_mutex_lock(&standin_lock);
    struct reservation *reservation = reservation_at(address, size);
    if (result == CUDA_SUCCESS && (!reservation || reservation->allocation))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        munmap(reservation->base, reservation->bytes);
        standin_object_destroy(reservation);
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

/* No access yet, as on a device. */
CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    CUresult result = standin_enter_unsafe(__func__);
    pthread_mutex_lock(&standin_lock);
    struct reservation *reservation = reservation_at(address, size);
    struct allocation *allocation = as_allocation(handle);
    if (result == CUDA_SUCCESS && (!reservation || reservation->allocation || !allocation ||
                                   offset || flags || size != allocation->bytes))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        if (mmap(reservation->base, size, PROT_NONE, MAP_SHARED | MAP_FIXED, allocation->fd, 0) ==
            MAP_FAILED)
            abort();
        reservation->allocation = allocation;
        allocation->mapped++;
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
    CUresult result = standin_enter_unsafe(__func__);
    pthread_mutex_lock(&standin_lock);
    struct reservation *reservation = reservation_at(address, size);
    if (result == CUDA_SUCCESS && (!reservation || !reservation->allocation))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        if (mmap(reservation->base, size, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
            abort();
        reservation->allocation->mapped--;
        drop_allocation(reservation->allocation);
        reservation->allocation = NULL;
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access,
                        size_t count)
{
    CUresult result = standin_enter_unsafe(__func__);
    pthread_mutex_lock(&standin_lock);
    struct reservation *reservation = reservation_at(address, size);
    const struct device *device = count == 1 ? standin_device(access->location.id) : NULL;
    if (result == CUDA_SUCCESS && (!reservation || !reservation->allocation || !device ||
                                   access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS &&
        !standin_peers(device->physical, reservation->allocation->physical))
        result = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    if (result == CUDA_SUCCESS && mprotect(reservation->base, size, PROT_READ | PROT_WRITE) != 0)
        abort();
    pthread_mutex_unlock(&standin_lock);
    return result;
}

/* ---- buffers --------------------------------------------------------------------------------- */

/* With TUTTI_STANDIN_GUARD a program that reads or writes memory of a device itself gets a SIGSEGV,
 * as on a GPU. Kernels cannot reach it either: for programs that copy alone. */
static CUresult map_guarded(size_t bytes, void **base, void **guarded)
{
    const int fd = memfd_create("standin-guarded", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        abort();
    *base = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, fd, 0);
    *guarded = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return *base == MAP_FAILED || *guarded == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

void *standin_reach(const void *address)
{
    uintptr_t found = (uintptr_t)address;
    if (!standin_guards)
        return (void *)found;
    pthread_mutex_lock(&standin_lock);
    for (struct object *object = standin_objects(); object; object = object->next) {
        const struct buffer *buffer = (const struct buffer *)object;
        if (object->kind == OBJECT_BUFFER && buffer->guarded &&
            (uintptr_t)address - (uintptr_t)buffer->base < buffer->bytes) {
            found += (uintptr_t)buffer->guarded - (uintptr_t)buffer->base;
            break;
        }
    }
    pthread_mutex_unlock(&standin_lock);
    return (void *)found;
}

static CUresult add_buffer(enum object_kind kind, size_t bytes, void **base)
{
    if (!standin_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    void *guarded = NULL;
    if (kind == OBJECT_BUFFER && standin_guards) {
        const CUresult result = map_guarded(bytes, base, &guarded);
        if (result != CUDA_SUCCESS)
            return result;
    } else {
        *base = aligned_alloc(256, (bytes + 255) / 256 * 256);
    }
    if (!*base)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(guarded ? guarded : *base, 0xa5, bytes); /* not what anybody expects */
    pthread_mutex_lock(&standin_lock);
    struct buffer *buffer = standin_object_create(kind, sizeof *buffer);
    buffer->base = *base;
    buffer->bytes = bytes;
    buffer->device = standin_device_of(standin_context());
    buffer->guarded = guarded;
    pthread_mutex_unlock(&standin_lock);
    return CUDA_SUCCESS;
}

static CUresult remove_buffer(enum object_kind kind, void *base)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&standin_lock);
    for (struct object *object = standin_objects(); object; object = object->next) {
        struct buffer *buffer = (struct buffer *)object;
        if (object->kind != kind || buffer->base != base)
            continue;
        if (buffer->guarded) {
            munmap(base, buffer->bytes);
            munmap(buffer->guarded, buffer->bytes);
        } else if (kind != OBJECT_REGISTERED) {
            free(base);
        }
        standin_object_destroy(buffer);
        result = CUDA_SUCCESS;
        break;
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    void *base = NULL;
    CUresult result = standin_enter_unsafe(__func__);
    if (result == CUDA_SUCCESS)
        result = add_buffer(OBJECT_BUFFER, bytes, &base);
    *address = to_device(base);
    return result;
}

/* Waits, as drivers do, for all streams of the process, those of other devices, too. The streams of
 * the device for which it waits take no work meanwhile. */
CUresult cuMemFree_v2(CUdeviceptr address)
{
    CUresult result = standin_enter_unsafe(__func__);
    if (result == CUDA_SUCCESS)
        standin_drain();
    return result == CUDA_SUCCESS ? remove_buffer(OBJECT_BUFFER, to_host(address)) : result;
}

/* ---- memory of a stream ----------------------------------------------------------------------
 */

/* Of a capture: the addresses exist from the capture on, the memory while the graph runs. The
 * allocation stays on this list. */
static struct graph_memory {
    struct graph_memory *next;
    void *base;
    size_t bytes;
} * graph_memories;

static void graph_memory_open(void *argument)
{
    const struct graph_memory *memory = argument;
    if (mprotect(memory->base, memory->bytes, PROT_READ | PROT_WRITE) != 0)
        abort();
}

static void graph_memory_close(void *argument)
{
    const struct graph_memory *memory = argument;
    if (mprotect(memory->base, memory->bytes, PROT_NONE) != 0)
        abort();
}

static void buffer_close(void *base)
{
    (void)remove_buffer(OBJECT_BUFFER, base);
}

/* With the lock held. */
static CUresult memory_call(CUstream handle, CUhostFn call, void *memory)
{
    CUresult result = CUDA_SUCCESS;
    struct work work = {.kind = WORK_CALL, .call = call, .argument = memory};
    struct stream *stream = standin_stream(handle, &result);
    return stream && result == CUDA_SUCCESS ? standin_submit(stream, &work) : result;
}

static bool is_captured(CUstream handle)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&standin_lock);
    const struct stream *stream = standin_stream(handle, &result);
    const bool captured = stream && stream->capture;
    pthread_mutex_unlock(&standin_lock);
    return captured;
}

CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    CUresult result = standin_enter(__func__);
    if (result != CUDA_SUCCESS)
        return result;
    if (!is_captured(stream)) {
        void *base = NULL;
        result = add_buffer(OBJECT_BUFFER, bytes, &base);
        *address = to_device(base);
        return result;
    }
    struct graph_memory *memory = calloc(1, sizeof *memory);
    if (!memory)
        abort();
    memory->bytes = bytes;
    memory->base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory->base == MAP_FAILED)
        abort();
    pthread_mutex_lock(&standin_lock);
    memory->next = graph_memories;
    graph_memories = memory;
    result = memory_call(stream, graph_memory_open, memory);
    pthread_mutex_unlock(&standin_lock);
    *address = to_device(memory->base);
    return result;
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    CUresult result = standin_enter(__func__);
    pthread_mutex_lock(&standin_lock);
    struct graph_memory *memory = graph_memories;
    while (memory && to_device(memory->base) != address)
        memory = memory->next;
    if (result == CUDA_SUCCESS)
        result = memory ? memory_call(stream, graph_memory_close, memory)
                        : memory_call(stream, buffer_close, to_host(address));
    pthread_mutex_unlock(&standin_lock);
    return result;
}

/* ---- memory of the host ------------------------------------------------------------------------
 */

CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
    CUresult result = standin_enter_unsafe(__func__);
    (void)flags;
    *pointer = NULL;
    return result == CUDA_SUCCESS ? add_buffer(OBJECT_PINNED, bytes, pointer) : result;
}

static int frees_before; /* the one that is held, 0: none is */
static bool free_held;

void standin_hold_free(int at)
{
    pthread_mutex_lock(&standin_lock);
    frees_before = at;
    free_held = false;
    pthread_cond_broadcast(&standin_changed);
    pthread_mutex_unlock(&standin_lock);
}

bool standin_free_is_held(void)
{
    pthread_mutex_lock(&standin_lock);
    bool held = free_held;
    pthread_mutex_unlock(&standin_lock);
    return held;
}

static void await_free(void)
{
    pthread_mutex_lock(&standin_lock);
    if (frees_before && --frees_before == 0) {
        free_held = true;
        while (free_held)
            pthread_cond_wait(&standin_changed, &standin_lock);
    }
    pthread_mutex_unlock(&standin_lock);
}

CUresult cuMemFreeHost(void *pointer)
{
    CUresult result = standin_enter_unsafe(__func__);
    await_free();
    return result == CUDA_SUCCESS ? remove_buffer(OBJECT_PINNED, pointer) : result;
}

/* The caller's memory: counted as pinned memory, not freed. */
CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags)
{
    struct device *device;
    CUresult result = standin_enter_context(__func__, &device);
    (void)flags;
    if (result == CUDA_SUCCESS && (!pointer || !bytes))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&standin_lock);
    struct buffer *buffer = standin_object_create(OBJECT_REGISTERED, sizeof *buffer);
    buffer->base = pointer;
    buffer->bytes = bytes;
    buffer->device = device;
    pthread_mutex_unlock(&standin_lock);
    return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void *pointer)
{
    CUresult result = standin_enter_unsafe(__func__);
    return result == CUDA_SUCCESS ? remove_buffer(OBJECT_REGISTERED, pointer) : result;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *pointer, unsigned flags)
{
    CUresult result = standin_enter(__func__);
    (void)flags;
    if (result == CUDA_SUCCESS)
        *address = to_device(pointer);
    return result;
}

CUresult cuMemGetInfo_v2(size_t *left, size_t *all)
{
    CUresult result = standin_enter(__func__);
    if (result == CUDA_SUCCESS && !standin_context())
        result = CUDA_ERROR_INVALID_CONTEXT;
    if (result != CUDA_SUCCESS)
        return result;
    *all = *left = DEVICE_BYTES;
    pthread_mutex_lock(&standin_lock);
    for (const struct object *object = standin_objects(); object; object = object->next)
        if (object->kind == OBJECT_ALLOCATION)
            *left -= ((const struct allocation *)object)->bytes;
    pthread_mutex_unlock(&standin_lock);
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult result = standin_enter(__func__);
    if (result == CUDA_SUCCESS && !standin_device(device))
        result = CUDA_ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS)
        *bytes = DEVICE_BYTES;
    return result;
}

/* All devices reach host memory; other code refuses what a device may not touch. */
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    CUresult result = standin_enter(__func__);
    if (result == CUDA_SUCCESS && (!peer || flags))
        result = CUDA_ERROR_INVALID_VALUE;
    return result;
}

/* ---- what a pointer is ----------------------------------------------------------------------- */

struct pointer_facts {
    CUmemorytype type; /* 0: not known here */
    void *base;
    size_t bytes;
    int device;
    CUcontext context;
};

static int ordinal_of_physical(int physical)
{
    for (int i = 0; standin_device(i); i++)
        if (standin_device(i)->physical == physical)
            return i;
    return -1;
}

static bool facts_of(const struct object *object, struct pointer_facts *facts)
{
    if (object->kind == OBJECT_RESERVATION) {
        const struct reservation *reservation = (const struct reservation *)object;
        if (!reservation->allocation)
            return false;
        *facts =
            (struct pointer_facts){CU_MEMORYTYPE_DEVICE, reservation->base, reservation->bytes,
                                   ordinal_of_physical(reservation->allocation->physical), NULL};
        return true;
    }
    if (object->kind == OBJECT_BUFFER || object->kind == OBJECT_PINNED ||
        object->kind == OBJECT_REGISTERED) {
        const struct buffer *buffer = (const struct buffer *)object;
        *facts = (struct pointer_facts){
            object->kind == OBJECT_BUFFER ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST, buffer->base,
            buffer->bytes, standin_ordinal(buffer->device), (CUcontext)buffer->device};
        return true;
    }
    return false;
}

static struct pointer_facts find_facts(CUdeviceptr address)
{
    struct pointer_facts facts;
    pthread_mutex_lock(&standin_lock);
    for (const struct object *object = standin_objects(); object; object = object->next) {
        if (facts_of(object, &facts) && address >= to_device(facts.base) &&
            address - to_device(facts.base) < facts.bytes) {
            pthread_mutex_unlock(&standin_lock);
            return facts;
        }
    }
    pthread_mutex_unlock(&standin_lock);
    return (struct pointer_facts){.device = -2};
}

static _Thread_local size_t pinned_away;

void standin_pinned_away(size_t bytes)
{
    pinned_away = bytes;
}

static size_t elsewhere(const struct pointer_facts *facts)
{
    return facts->type == CU_MEMORYTYPE_HOST ? pinned_away : 0;
}

/* Of an address that is not known every attribute is 0, or -2 for the device's ordinal. */
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **data,
                                CUdeviceptr address)
{
    CUresult result = standin_enter(__func__);
    if (result != CUDA_SUCCESS)
        return result;
    struct pointer_facts facts = find_facts(address);
    for (unsigned i = 0; i < count; i++) {
        if (attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
            *(CUmemorytype *)data[i] = facts.type;
        else if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
            *(int *)data[i] = facts.device;
        else if (attributes[i] == CU_POINTER_ATTRIBUTE_CONTEXT)
            *(CUcontext *)data[i] = facts.context;
        else if (attributes[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED)
            *(unsigned *)data[i] = 0;
        else if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_POINTER)
            *(CUdeviceptr *)data[i] = facts.type ? address + elsewhere(&facts) : 0;
        else if (attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER)
            *(void **)data[i] = facts.type == CU_MEMORYTYPE_HOST ? to_host(address) : NULL;
        else if (attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
            *(CUdeviceptr *)data[i] = to_device(facts.base);
        else if (attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_SIZE)
            *(size_t *)data[i] = facts.bytes;
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* ---- fills ------------------------------------------------------------------------------------
 */

/* The descriptor of the allocation that holds the bytes, and their offset; -1: no allocation. */
static int place_of(void *to, size_t bytes, off_t *offset)
{
    int fd = -1;
    pthread_mutex_lock(&standin_lock);
    for (struct object *object = standin_objects(); object && fd < 0; object = object->next) {
        struct reservation *reservation = (struct reservation *)object;
        if (object->kind != OBJECT_RESERVATION || !reservation->allocation ||
            (uintptr_t)to - (uintptr_t)reservation->base >= reservation->bytes)
            continue;
        *offset = (char *)to - (char *)reservation->base;
        if (bytes <= reservation->bytes - (size_t)*offset)
            fd = reservation->allocation->fd;
    }
    pthread_mutex_unlock(&standin_lock);
    return fd;
}

/* Most of a set-up's time would go into the pages of the arenas, which are large. So zeros are a
 * hole in the file, and other bytes are written through the descriptor, which faults no page in. An
 * arena's lines, tens of MiB of ones, are a hole, too: the emulator takes the complement. */
void standin_fill(void *to, int value, size_t bytes)
{
    enum { LARGE = 1 << 20, LINES = 16 << 20 };
    unsigned char chunk[1 << 16];
    off_t offset;
    int fd = bytes < LARGE ? -1 : place_of(to, bytes, &offset);
    if (fd < 0) {
        memset(to, value, bytes);
        return;
    }
    if (bytes > LINES && value == 0xff)
        value = 0;
    if (value == 0 &&
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, (off_t)bytes) == 0)
        return;
    memset(chunk, value, sizeof chunk);
    while (bytes) {
        size_t part = bytes < sizeof chunk ? bytes : sizeof chunk;
        if (pwrite(fd, chunk, part, offset) != (ssize_t)part)
            abort();
        offset += (off_t)part;
        bytes -= part;
    }
}
