/* SPDX-License-Identifier: MIT */
/*
 * Windows. A handle of NVIDIA's is the address of a structure in the device's memory, which a
 * program's kernels read. A program may register a window while there is no communicator of
 * NVIDIA's, and keeps the handle. So a handle of this library is device memory of its own: of
 * zeros, until NVIDIA's communicator has the window; then with the contents of NVIDIA's structure.
 * They are copied again whenever ncclDevCommCreate() may have changed them. To the kernels a copy
 * is as good: they read the structure's members and make no use of its address.
 *
 * Functions that a thread of the host calls find the window by the handle's address.
 */
#include "shim.h"

#include "base/error.h"

#include <pthread.h>
#include <stdlib.h>

enum {
    HANDLE_BYTES = 512, /* NVIDIA's structure has 72 in 2.28 and about 100 in 2.32 */
    PAGE_HANDLES = 128,
};

struct window {
    struct window *next; /* of the communicator's, as they were registered */
    CUdeviceptr handle;
    void *memory; /* NULL: this handle is unused */
    size_t bytes;
    int flags;
    ncclWindow_t real; /* in comm->real; NULL: none */
};

/* Handles of a communicator, in one allocation. */
struct window_page {
    struct window_page *next;
    const struct ncclComm *comm;
    struct device_memory memory;
    struct window windows[PAGE_HANDLES];
};

/* Guards the list of pages, which threads of all communicators read. A communicator's windows are
 * those of its own thread. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct window_page *pages;

/* ---- contents -------------------------------------------------------------------------------- */

/* The structure's bytes, and maybe others behind it in NVIDIA's allocation. */
static size_t contents_bytes(const struct cuda_driver *driver, CUdeviceptr structure)
{
    CUdeviceptr begin = 0;
    size_t bytes = 0;
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                   CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    void *values[] = {&begin, &bytes};
    if (driver->pointer_attributes(2, names, values, structure) != CUDA_SUCCESS || !begin)
        return HANDLE_BYTES;
    const size_t left = begin + bytes - structure;
    return left < HANDLE_BYTES ? left : HANDLE_BYTES;
}

/* A kernel may read a handle while its contents are copied again: the bytes that it reads stay. */
static enum tutti_status contents_copy(const struct cuda_driver *driver,
                                       const struct window *window, CUstream stream)
{
    const CUdeviceptr structure = cuda_address(window->real);
    return structure ? CUDA_CALL(driver, memcpy_async, window->handle, structure,
                                 contents_bytes(driver, structure), stream)
                     : CUDA_CALL(driver, memset_d8_async, window->handle, 0, HANDLE_BYTES, stream);
}

/* Waits for what was enqueued, and destroys the stream; returns the first failure. */
static enum tutti_status stream_end(const struct cuda_driver *driver, CUstream stream,
                                    enum tutti_status status)
{
    const enum tutti_status finished = CUDA_CALL(driver, stream_synchronize, stream);
    driver->stream_destroy(stream);
    return status == TUTTI_OK ? finished : status;
}

/* Copies the contents of the windows from that one on. Within the context. */
static enum tutti_status contents_update(const struct ncclComm *comm, const struct window *window)
{
    const struct cuda_driver *driver = comm->driver;
    CUstream stream;
    enum tutti_status status = CUDA_CALL(driver, stream_create, &stream, CU_STREAM_NON_BLOCKING, 0);
    if (status != TUTTI_OK)
        return status;
    for (; window && status == TUTTI_OK; window = window->next)
        status = contents_copy(driver, window, stream);
    return stream_end(driver, stream, status);
}

/* ---- handles --------------------------------------------------------------------------------- */

/* Makes memory of zeros. */
static enum tutti_status zeros_alloc(size_t bytes, struct device_memory *memory)
{
    CUstream stream;
    enum tutti_status status = device_memory_alloc(bytes, memory);
    if (status != TUTTI_OK)
        return status;
    const struct cuda_driver *driver = memory->driver;
    status = CUDA_CALL(driver, stream_create, &stream, CU_STREAM_NON_BLOCKING, 0);
    if (status == TUTTI_OK)
        status =
            stream_end(driver, stream,
                       CUDA_CALL(driver, memset_d8_async, memory->memory.base, 0, bytes, stream));
    if (status != TUTTI_OK)
        device_memory_free(memory);
    return status;
}

static enum tutti_status page_create(ncclComm_t comm, struct window_page **made)
{
    struct window_page *page = calloc(1, sizeof *page);
    if (!page)
        return error_errno("the handles of windows");
    const enum tutti_status status =
        zeros_alloc((size_t)PAGE_HANDLES * HANDLE_BYTES, &page->memory);
    if (status != TUTTI_OK) {
        free(page);
        return status;
    }
    page->comm = comm;
    for (int i = 0; i < PAGE_HANDLES; i++)
        page->windows[i].handle = page->memory.memory.base + (CUdeviceptr)i * HANDLE_BYTES;
    pthread_mutex_lock(&lock);
    page->next = pages;
    *made = pages = page;
    pthread_mutex_unlock(&lock);
    return TUTTI_OK;
}

/* Finds an unused handle. Within the context. */
static enum tutti_status window_take(ncclComm_t comm, struct window **window)
{
    struct window_page *page;
    *window = NULL;
    pthread_mutex_lock(&lock);
    for (page = pages; page && !*window; page = page->next)
        for (int i = 0; page->comm == comm && i < PAGE_HANDLES && !*window; i++)
            if (!page->windows[i].memory)
                *window = &page->windows[i];
    pthread_mutex_unlock(&lock);
    const enum tutti_status status = *window ? TUTTI_OK : page_create(comm, &page);
    if (!*window && status == TUTTI_OK)
        *window = &page->windows[0];
    return status;
}

/* NULL if this is no handle of this library. */
static struct window *window_find(ncclWindow_t handle)
{
    struct window *found = NULL;
    pthread_mutex_lock(&lock);
    for (struct window_page *page = pages; page && !found; page = page->next) {
        const CUdeviceptr offset = cuda_address(handle) - page->memory.memory.base;
        if (offset < PAGE_HANDLES * HANDLE_BYTES && offset % HANDLE_BYTES == 0)
            found = &page->windows[offset / HANDLE_BYTES];
    }
    pthread_mutex_unlock(&lock);
    return found && found->memory ? found : NULL;
}

ncclWindow_t window_real(ncclWindow_t handle)
{
    const struct window *window = handle ? window_find(handle) : NULL;
    return window ? window->real : handle;
}

void windows_free(ncclComm_t comm)
{
    struct window_page *own = NULL, *page;
    struct cuda_visit visit;
    pthread_mutex_lock(&lock);
    for (struct window_page **place = &pages; (page = *place);) {
        if (page->comm == comm) {
            *place = page->next;
            page->next = own;
            own = page;
        } else {
            place = &page->next;
        }
    }
    pthread_mutex_unlock(&lock);
    if (!own)
        return;
    const bool entered = cuda_visit_begin(comm->driver, comm->context, &visit) == TUTTI_OK;
    while ((page = own)) {
        own = page->next;
        device_memory_free(&page->memory);
        free(page);
    }
    if (entered)
        cuda_visit_end(comm->driver, &visit);
}

/* ---- NVIDIA's communicator ------------------------------------------------------------------- */

static ncclResult_t window_register(ncclComm_t comm, struct window *window)
{
    return real_wait(comm->real,
                     REAL(ncclCommWindowRegister)(comm->real, window->memory, window->bytes,
                                                  &window->real, window->flags),
                     SYMBOL_ncclCommWindowRegister);
}

ncclResult_t windows_register(ncclComm_t comm)
{
    ncclResult_t result = ncclSuccess;
    for (struct window *window = comm->windows; window && result == ncclSuccess;
         window = window->next)
        result = window_register(comm, window);
    return result;
}

ncclResult_t windows_update(ncclComm_t comm, enum symbol symbol)
{
    struct cuda_visit visit;
    if (!comm->windows)
        return ncclSuccess;
    enum tutti_status status = cuda_visit_begin(comm->driver, comm->context, &visit);
    if (status == TUTTI_OK) {
        status = contents_update(comm, comm->windows);
        cuda_visit_end(comm->driver, &visit);
    }
    return fail_status(status, symbol);
}

/* ---- NCCL's functions ------------------------------------------------------------------------ */

/* NVIDIA's window of a new one, and its contents. Within the context. */
static ncclResult_t window_make_real(ncclComm_t comm, struct window *window)
{
    ncclResult_t result = window_register(comm, window);
    if (result != ncclSuccess)
        return result;
    result = fail_status(contents_update(comm, window), SYMBOL_ncclCommWindowRegister);
    if (result != ncclSuccess && window->real)
        REAL(ncclCommWindowDeregister)(comm->real, window->real);
    return result;
}

/* Within the context. */
static ncclResult_t window_make(ncclComm_t comm, const struct window *given, ncclWindow_t *made)
{
    struct window *window, **end = &comm->windows;
    ncclResult_t result = fail_status(window_take(comm, &window), SYMBOL_ncclCommWindowRegister);
    if (result != ncclSuccess)
        return result;
    const CUdeviceptr handle = window->handle;
    *window = *given;
    window->handle = handle;
    if (comm->real)
        result = window_make_real(comm, window);
    if (result != ncclSuccess) {
        window->memory = NULL;
        return result;
    }
    /* All ranks register in one order, and NVIDIA's communicator gets them in that order. */
    while (*end)
        end = &(*end)->next;
    *end = window;
    *made = (ncclWindow_t)(uintptr_t)handle;
    return ncclSuccess;
}

NCCL_DEFINE(ncclResult_t, ncclCommWindowRegister, ncclComm_t comm, void *memory, size_t bytes,
            ncclWindow_t *made, int flags)
{
    const struct window window = {.memory = memory, .bytes = bytes, .flags = flags};
    struct cuda_visit visit;
    ncclResult_t result = comm_enter(comm, SYMBOL_ncclCommWindowRegister, true);
    if (result != ncclSuccess)
        return result;
    if (!memory || !made || bytes == 0)
        return comm_leave(
            comm, fail(ncclInvalidArgument, SYMBOL_ncclCommWindowRegister, "NULL, or 0 bytes"));
    result = fail_status(cuda_visit_begin(comm->driver, comm->context, &visit),
                         SYMBOL_ncclCommWindowRegister);
    if (result == ncclSuccess) {
        result = window_make(comm, &window, made);
        cuda_visit_end(comm->driver, &visit);
    }
    return comm_leave(comm, result);
}

NCCL_DEFINE(ncclResult_t, ncclCommWindowDeregister, ncclComm_t comm, ncclWindow_t handle)
{
    ncclResult_t result = comm_enter(comm, SYMBOL_ncclCommWindowDeregister, false);
    if (result != ncclSuccess || !handle)
        return result == ncclSuccess ? comm_leave(comm, result) : result;
    struct window **place = &comm->windows, *window;
    while (*place && (*place)->handle != cuda_address(handle))
        place = &(*place)->next;
    window = *place;
    if (!window)
        return comm_leave(comm, fail(ncclInvalidArgument, SYMBOL_ncclCommWindowDeregister,
                                     "this is no window of the communicator"));
    *place = window->next;
    if (window->real && comm->real)
        result = fail_real(REAL(ncclCommWindowDeregister)(comm->real, window->real),
                           SYMBOL_ncclCommWindowDeregister);
    window->memory = NULL;
    return comm_leave(comm, result);
}

NCCL_DEFINE(ncclResult_t, ncclWinGetUserPtr, ncclComm_t comm, ncclWindow_t handle, void **memory)
{
    ncclResult_t result = comm_enter(comm, SYMBOL_ncclWinGetUserPtr, false);
    if (result != ncclSuccess)
        return result;
    const struct window *window = handle ? window_find(handle) : NULL;
    if (!window || !memory)
        result = fail(ncclInvalidArgument, SYMBOL_ncclWinGetUserPtr,
                      "NULL, or no window of ncclCommWindowRegister()");
    else
        *memory = window->memory;
    return comm_leave(comm, result);
}
