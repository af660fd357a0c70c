/* SPDX-License-Identifier: MIT */
/* The stand-in's kernels: libraries, look-up, the log of launches, and runs of the kernels by the
 * emulator. */
#include "standin_internal.h"

#include "base/order.h"
#include "emulator/emulator.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Two blocks of the kernels with most threads, those of RMSNorm, fit on a multiprocessor. */
enum { LOG_ENTRIES = 1024, THREADS_OF_MULTIPROCESSOR = 2 * (512 + 32), SLOW_NS = 20000000 };

static struct standin_launch launches[LOG_ENTRIES];
static size_t launch_count, late_loads;

/* ---- what is known of the library's kernels -------------------------------------------------- */

/* Both exist for good, as functions do: nothing is unloaded. */
struct library {
    struct library *next;
    struct kernel *kernels;
    bool is_stub; /* a fatbin that holds nothing: of a build without nvcc */
};

struct kernel {
    struct kernel *next;
    struct function *functions; /* of the contexts that asked */
    struct function known;
};

static struct library *libraries; /* under the lock */

/* The kernel's function in this library; NULL: there is no such kernel. */
static const void *entry_of(const char *name)
{
    Dl_info self;
    if (strncmp(name, "cu", 2) == 0 || !dladdr((void *)(uintptr_t)entry_of, &self))
        return NULL;
    void *library = dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    const void *entry = library ? dlsym(library, name) : NULL;
    if (library)
        dlclose(library);
    return entry;
}

static struct library *library_of(CUlibrary handle)
{
    struct library *library = libraries;
    while (library && library != (struct library *)handle)
        library = library->next;
    return library;
}

static struct kernel *kernel_of(CUkernel handle)
{
    for (struct library *library = libraries; library; library = library->next)
        for (struct kernel *kernel = library->kernels; kernel; kernel = kernel->next)
            if (kernel == (struct kernel *)handle)
                return kernel;
    return NULL;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit_options,
                           void **jit_values, unsigned jit_count, CUlibraryOption *options,
                           void **values, unsigned count)
{
    CUresult result = standin_enter_unsafe(__func__);
    if (result == CUDA_SUCCESS && memcmp(code, "\x50\xed\x55\xba", 4) != 0)
        result = CUDA_ERROR_INVALID_IMAGE; /* no fatbin */
    if (result == CUDA_SUCCESS && (jit_options || jit_values || jit_count || count != 1 ||
                                   *options != CU_LIBRARY_BINARY_IS_PRESERVED || !*values))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    struct library *loaded = calloc(1, sizeof *loaded);
    if (!loaded)
        abort();
    loaded->is_stub = standin_fatbin_bytes(code) == 0;
    pthread_mutex_lock(&standin_lock);
    loaded->next = libraries;
    libraries = loaded;
    pthread_mutex_unlock(&standin_lock);
    *library = (CUlibrary)loaded;
    return CUDA_SUCCESS;
}

static bool is_named(const struct function *function, const char *variable)
{
    const char *start = getenv(variable);
    return start && strncmp(function->name, start, strlen(start)) == 0;
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary handle, const char *name)
{
    CUresult result = standin_enter(__func__);
    struct device *device = standin_device_of(standin_context());
    const void *entry = entry_of(name);
    int major = 0;
    if (device)
        cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                             standin_ordinal(device));
    pthread_mutex_lock(&standin_lock);
    struct library *library = library_of(handle);
    if (result == CUDA_SUCCESS && !library)
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS && !library->is_stub && device && major < 8)
        result = CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (result == CUDA_SUCCESS && !entry)
        result = CUDA_ERROR_NOT_FOUND;
    if (result == CUDA_SUCCESS) {
        struct kernel *found = library->kernels;
        while (found && strcmp(found->known.name, name) != 0)
            found = found->next;
        if (!found) {
            found = calloc(1, sizeof *found);
            if (!found)
                abort();
            snprintf(found->known.name, sizeof found->known.name, "%s", name);
            found->known.entry = entry;
            found->known.symm = strcmp(name, "symm") == 0;
            found->known.exchange = strncmp(name, "exchange", strlen("exchange")) == 0;
            found->known.varied = strncmp(name, "reduce_varied_", strlen("reduce_varied_")) == 0;
            found->known.counted = strncmp(name, "reduce_counted_", strlen("reduce_counted_")) == 0;
            found->known.norm = strncmp(name, "rms_norm_", strlen("rms_norm_")) == 0;
            found->known.push = strcmp(name, "copy_symmetric") == 0;
            found->known.combine = strncmp(name, "combine_", strlen("combine_")) == 0;
            found->known.announce = strcmp(name, "announce") == 0;
            found->known.probe = strcmp(name, "probe") == 0;
            found->known.stream_wait = strcmp(name, "stream_wait") == 0;
            found->next = library->kernels;
            library->kernels = found;
        }
        *kernel = (CUkernel)found;
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel handle)
{
    struct device *device;
    CUresult result = standin_enter_context(__func__, &device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&standin_lock);
    struct kernel *kernel = kernel_of(handle);
    if (kernel) {
        struct function *found = kernel->functions;
        while (found && (found->device != device || found->resets != device->resets))
            found = found->next;
        if (!found) {
            found = malloc(sizeof *found);
            if (!found)
                abort();
            *found = kernel->known;
            found->device = device;
            found->resets = device->resets;
            found->next = kernel->functions;
            kernel->functions = found;
        }
        found->slow = is_named(found, "TUTTI_STANDIN_SLOW");
        found->wrong = is_named(found, "TUTTI_STANDIN_WRONG");
        *function = (CUfunction)found;
    }
    pthread_mutex_unlock(&standin_lock);
    return kernel ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

const char *standin_function_name(CUfunction function)
{
    return ((const struct function *)function)->name;
}

/* The first call waits, as drivers do, until no kernel runs in the context. */
CUresult cuFuncLoad(CUfunction handle)
{
    CUresult result = standin_enter_unsafe(__func__);
    struct function *function = (struct function *)handle;
    pthread_mutex_lock(&standin_lock);
    while (result == CUDA_SUCCESS && !function->loaded && function->device->kernels)
        pthread_cond_wait(&standin_changed, &standin_lock);
    function->loaded |= result == CUDA_SUCCESS;
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads,
                                                     size_t shared_bytes)
{
    CUresult result = standin_enter(__func__);
    (void)function;
    (void)shared_bytes;
    if (result == CUDA_SUCCESS && (threads < 1 || threads > 1024))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *blocks = THREADS_OF_MULTIPROCESSOR / threads;
    return result;
}

/* ---- the log --------------------------------------------------------------------------------- */

void standin_note_launch(const CUlaunchConfig *config, const struct work *work, bool captured)
{
    late_loads += !work->function->loaded;
    if (work->function->probe) /* of set-up */
        return;
    struct standin_launch *entry = &launches[launch_count++ % LOG_ENTRIES];
    *entry = (struct standin_launch){
        .stream = config->hStream,
        .grid = config->gridDimX,
        .block = config->blockDimX,
        .attribute_count = config->numAttrs,
        .captured = captured,
    };
    if (work->function->symm)
        entry->symm = work->symm;
    else if (!work->function->stream_wait)
        entry->parameters = work->launch;
    memcpy(entry->name, work->function->name, sizeof entry->name);
    for (unsigned i = 0; i < config->numAttrs; i++)
        entry->attributes[i] = config->attrs[i];
}

size_t standin_forget_launches(void)
{
    size_t count = launch_count;
    launch_count = 0;
    late_loads = 0;
    return count;
}

size_t standin_launches(struct standin_launch *out, size_t capacity)
{
    pthread_mutex_lock(&standin_lock);
    size_t count = launch_count, kept = count < LOG_ENTRIES ? count : LOG_ENTRIES;
    if (capacity > kept)
        capacity = kept;
    for (size_t i = 0; i < capacity; i++)
        out[i] = launches[(count - capacity + i) % LOG_ENTRIES];
    pthread_mutex_unlock(&standin_lock);
    return count;
}

size_t standin_late_loads(void)
{
    pthread_mutex_lock(&standin_lock);
    size_t count = late_loads;
    pthread_mutex_unlock(&standin_lock);
    return count;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static uint32_t still = (uint32_t)-1; /* the rank */
static uint32_t orders;

void standin_stand_still(int rank)
{
    order_store_relaxed_u32(&still, (uint32_t)rank);
}

static void call_operation(const void *kernel, const void *launch)
{
    ((void (*)(struct cuda_launch))(uintptr_t)kernel)(*(const struct cuda_launch *)launch);
}

static void call_exchange(const void *kernel, const void *launch)
{
    ((void (*)(struct cuda_exchange))(uintptr_t)kernel)(*(const struct cuda_exchange *)launch);
}

static void call_varied(const void *kernel, const void *launch)
{
    ((void (*)(struct cuda_varied))(uintptr_t)kernel)(*(const struct cuda_varied *)launch);
}

static void call_counted(const void *kernel, const void *launch)
{
    ((void (*)(struct cuda_counted))(uintptr_t)kernel)(*(const struct cuda_counted *)launch);
}

static void call_push(const void *kernel, const void *launch)
{
    ((void (*)(struct cuda_push))(uintptr_t)kernel)(*(const struct cuda_push *)launch);
}

static void call_norm(const void *kernel, const void *launch)
{
    ((void (*)(struct cuda_rms_norm))(uintptr_t)kernel)(*(const struct cuda_rms_norm *)launch);
}

static void call_combine(const void *kernel, const void *launch)
{
    ((void (*)(struct cuda_combine))(uintptr_t)kernel)(*(const struct cuda_combine *)launch);
}

static void call_announce(const void *kernel, const void *launch)
{
    ((void (*)(struct cuda_announce))(uintptr_t)kernel)(*(const struct cuda_announce *)launch);
}

static void call_symm(const void *kernel, const void *launch)
{
    ((void (*)(struct cuda_symm_launch))(uintptr_t)kernel)(
        *(const struct cuda_symm_launch *)launch);
}

static void call_stream_wait(const void *kernel, const void *launch)
{
    ((void (*)(struct cuda_stream_wait_launch))(uintptr_t)kernel)(
        *(const struct cuda_stream_wait_launch *)launch);
}

/* The lines of rank a's probe for rank b get lost if TUTTI_STANDIN_LOST is "a b". */
static void lose_probe(struct cuda_launch *launch)
{
    static struct cuda_arena nowhere;
    const char *lost = getenv("TUTTI_STANDIN_LOST");
    int from, to;
    if (lost && launch->control == &launch->own->control &&
        sscanf(lost, "%d %d", &from, &to) == 2 && launch->rank == from)
        launch->arenas[to] = &nowhere;
}

/* An operation of a communicator. */
static void run_operation(const struct work *work, struct emulated_launch *run)
{
    struct cuda_exchange exchange = {.most = 0};
    struct cuda_varied varied;
    struct cuda_counted counted;
    struct cuda_push push;
    struct cuda_rms_norm norm;
    struct cuda_combine combine;
    struct cuda_announce announce;
    struct cuda_launch launch = work->launch;
    const int last = launch.size - 1;
    if (work->function->slow)
        nanosleep(&(struct timespec){.tv_nsec = SLOW_NS}, NULL);
    if (work->function->probe)
        lose_probe(&launch);
    for (int r = 0; r < launch.size && launch.own && launch.control == &launch.own->control; r++)
        run->ones[r] = launch.arenas[r]->one_shot[0];
    run->ones_bytes = sizeof(struct cuda_arena) - offsetof(struct cuda_arena, one_shot);
    if (order_load_relaxed_u32(&still) == (uint32_t)launch.rank) {
        run->only = (const unsigned char *)launch.arenas[launch.rank ? 0 : last];
        run->only_bytes = CUDA_HOST_ARENA_BYTES;
        run->stop = &launch.host->stop;
    }
    run->call = call_operation;
    run->argument = &launch;
    if (work->function->exchange) {
        exchange = work->exchange;
        run->call = call_exchange;
        run->argument = &exchange;
    } else if (work->function->varied) {
        varied = work->varied;
        run->call = call_varied;
        run->argument = &varied;
    } else if (work->function->counted) {
        counted = work->counted;
        run->call = call_counted;
        run->argument = &counted;
    } else if (work->function->push) {
        push = work->push;
        run->call = call_push;
        run->argument = &push;
    } else if (work->function->norm) {
        norm = work->norm;
        run->call = call_norm;
        run->argument = &norm;
    } else if (work->function->combine) {
        combine = work->combine;
        run->call = call_combine;
        run->argument = &combine;
    } else if (work->function->announce) {
        announce = work->announce;
        run->call = call_announce;
        run->argument = &announce;
    }
    if (!emulator_run(run)) {
        order_store_release_u32(&launch.control->failed, 1);
        for (int i = 0; i < CUDA_BLOCKS; i++)
            order_store_relaxed_u64(&launch.control->rows[i].failed, 1);
    }
    if (work->function->wrong && launch.count && launch.rank == last)
        *(unsigned char *)launch.recv ^= 1;
}

void standin_run(const struct work *work)
{
    struct emulated_launch launch = {.kernel = work->function->entry,
                                     .grid = work->grid,
                                     .block = work->block,
                                     .order = order_fetch_add_relaxed_u32(&orders, 0x9e3779b9)};
    if (work->function->symm) {
        launch.call = call_symm;
        launch.argument = &work->symm;
        emulator_run(&launch);
    } else if (work->function->stream_wait) {
        launch.call = call_stream_wait;
        launch.argument = &work->stream_wait;
        emulator_run(&launch);
    } else {
        run_operation(work, &launch);
    }
}
