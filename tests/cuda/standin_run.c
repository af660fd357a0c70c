/* SPDX-License-Identifier: MIT */
/*
 * The stand-in's kernels: libraries, look-up, and one host function that does every operation, with
 * the library's reductions and a simple algorithm of its own. Pieces of all operations are
 * numbered; the numbers are equal on all ranks. A rank copies each piece of its input into its
 * place in every peer's arena (in the region of the tiles), waits for the peers' pieces in its own
 * arena, reduces, writes, and tells each peer that its piece was read. A rank writes piece k + 2
 * only after piece k was read.
 */
#include "standin_internal.h"

#include "base/deadline.h"
#include "base/device_trace.h"
#include "base/order.h"
#include "cpu/reduce/reduce.h"
#include "cuda/kernels/tiling.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    PIECE_BYTES = 64 << 10,
    CHAIN_ELEMENTS = 1024, /* at once */
    LOG_ENTRIES = 1024,
    THREADS_OF_MULTIPROCESSOR = 1536
};

struct slot {
    uint64_t iteration; /* written last */
    struct cuda_header header;
    int32_t place; /* of the source in its ring */
    unsigned char pad[64 - 28];
    unsigned char data[PIECE_BYTES];
};

/* What the region holds; its bytes are 0 at first. */
struct exchange {
    uint64_t sequence;         /* of the owner's last operation */
    uint64_t iteration;        /* the owner's last */
    uint64_t read[CUDA_RANKS]; /* the last iteration of the owner's that a peer has read */
    unsigned char pad[128 - 80];
    struct slot slots[2][CUDA_RANKS]; /* [iteration mod 2][source] */
};

static_assert(sizeof(struct exchange) <= CUDA_TILES_BYTES, "fits");

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

static const char *const kernel_names[] = {
#define KERNEL_NAME(NAME, name, text) #name,
    CUDA_KERNEL_MAP(KERNEL_NAME)
#undef KERNEL_NAME
};

static const char *const dtype_names[TUTTI_DTYPE_COUNT] = {
#define DTYPE_NAME(name, value, size, text) [value] = text,
    TUTTI_DTYPE_MAP(DTYPE_NAME)
#undef DTYPE_NAME
};

static const size_t dtype_sizes[TUTTI_DTYPE_COUNT] = {
#define DTYPE_SIZE(name, value, size, text) [value] = size,
    TUTTI_DTYPE_MAP(DTYPE_SIZE)
#undef DTYPE_SIZE
};

/* Any name that the library could ask for. */
static bool known_function(const char *name, struct function *function)
{
    static const char *const suffixes[] = {
        "",           "_sum_2",      "_sum_3",      "_sum_4",
        "_sum_8",     "_sum_2_once", "_sum_3_once", "_sum_4_once",
        "_sum_8_once"};
    snprintf(function->name, sizeof function->name, "%s", name);
    function->barrier = strcmp(name, "barrier") == 0;
    function->symm = strcmp(name, "symm") == 0;
    function->probe = strcmp(name, "probe") == 0;
    function->stream_wait = strcmp(name, "stream_wait") == 0;
    if (function->barrier || function->symm || function->probe || function->stream_wait)
        return true;
    for (int dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++) {
        function->dtype = (enum tutti_dtype)dtype;
        if (strncmp(name, "two_shot_tiles_", 15) == 0 && strcmp(name + 15, dtype_names[dtype]) == 0)
            return true;
    }
    for (size_t k = 0; k < sizeof kernel_names / sizeof *kernel_names; k++)
        for (int dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++)
            for (size_t s = 0; s < sizeof suffixes / sizeof *suffixes; s++) {
                char full[STANDIN_NAME_BYTES];
                snprintf(full, sizeof full, "%s_%s%s", kernel_names[k], dtype_names[dtype],
                         suffixes[s]);
                function->dtype = (enum tutti_dtype)dtype;
                if (strcmp(full, name) == 0)
                    return true;
            }
    return false;
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
    struct function known = {0};
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
    if (result == CUDA_SUCCESS && !known_function(name, &known))
        result = CUDA_ERROR_NOT_FOUND;
    if (result == CUDA_SUCCESS) {
        struct kernel *found = library->kernels;
        while (found && strcmp(found->known.name, name) != 0)
            found = found->next;
        if (!found) {
            found = calloc(1, sizeof *found);
            if (!found)
                abort();
            found->known = known;
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

void standin_run_stream_wait(const struct cuda_stream_wait_launch *launch)
{
    const int64_t start = deadline_now();
    struct cuda_calls seen = {.begun = 0};
    int64_t seen_at = start;
    while ((int32_t)(order_load_acquire_u32(launch->open) - launch->number) < 0) {
        const struct cuda_calls calls = {order_load_relaxed_u32(&launch->calls->begun),
                                         order_load_relaxed_u32(&launch->calls->ended)};
        const int64_t now = deadline_now();
        if (calls.begun == calls.ended || calls.begun != seen.begun || calls.ended != seen.ended) {
            seen = calls;
            seen_at = now;
        }
        if ((uint64_t)(now - start) >= launch->timeout_ns ||
            (uint64_t)(now - seen_at) >= launch->call_limit_ns) {
            order_store_release_u32(launch->wait_expired, launch->number);
            break;
        }
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    order_store_release_u32(launch->ended, launch->number);
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

/* ---- waiting and failing --------------------------------------------------------------------- */

struct run {
    const struct cuda_launch *launch;
    struct cuda_arena *own;
    uint64_t sequence; /* 0 in a subset barrier, which has none */
    bool chains;       /* as a ring has them, instead of the tree */
};

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The devices' clock is another one. */
static uint64_t device_ns(int64_t ns)
{
    return (uint64_t)ns + UINT64_C(1700000000000000000);
}

/* Failed here: later launches return at once. */
static void poison(struct run *run)
{
    order_store_release_u32(&run->launch->control->failed, 1);
}

/* Tells the host, once. */
static void fail(struct run *run, enum tutti_status status, int peer,
                 const struct cuda_header *seen)
{
    struct cuda_host *host = run->launch->host;
    if (run->launch->control->claimed++ == 0) {
        host->status = (int32_t)status;
        host->peer = peer;
        host->sequence = run->sequence;
        host->signatures[0] = run->launch->signature;
        host->parameters[0] = run->launch->parameter;
        host->signatures[1] = seen ? seen->signature : 0;
        host->parameters[1] = seen ? seen->parameter : 0;
        order_store_release_u32(&host->failed, 1);
    }
    poison(run);
}

static struct device_trace *device_trace_of(const struct run *run)
{
    return (struct device_trace *)(void *)run->launch->host;
}

/* As the kernels do, of a wait that lasts. */
static void tell_wait(const struct run *run, int peer, int64_t now)
{
    struct device_trace_wait *wait = &device_trace_of(run)->wait;
    order_store_relaxed_u64(&wait->of, run->sequence << 8 | (uint64_t)peer);
    order_store_relaxed_u64(&wait->looked_ns, device_ns(now));
}

/* Waits until the word is at least `value`. Returns false if it never was; that has been
 * reported. */
static bool await(struct run *run, const uint64_t *word, uint64_t value, int peer)
{
    struct cuda_host *host = run->launch->host;
    int64_t start = 0;
    for (unsigned polls = 0; order_load_acquire_u64(word) < value; polls++) {
        if (polls < 100)
            continue;
        if (order_load_acquire_u32(&run->launch->control->failed))
            return false;
        if (order_load_acquire_u32(&host->stop)) {
            poison(run); /* the host knows why */
            return false;
        }
        if (order_load_relaxed_u32(&host->gone) >> peer & 1) {
            if (order_load_acquire_u64(word) >= value)
                return true;
            fail(run, TUTTI_ERR_PEER_DEAD, peer, NULL);
            return false;
        }
        int64_t now = now_ns();
        start = start ? start : now;
        if (now - start > 1000000)
            tell_wait(run, peer, now);
        uint64_t limit = run->launch->timeout_ns ? run->launch->timeout_ns
                                                 : order_load_relaxed_u64(&host->timeout_ns);
        if (limit && (uint64_t)(now - start) > limit) {
            fail(run, TUTTI_ERR_TIMEOUT, peer, NULL);
            return false;
        }
        if (polls < 1000)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
    return true;
}

static uint32_t still = (uint32_t)-1; /* the rank */

void standin_stand_still(int rank)
{
    order_store_relaxed_u32(&still, (uint32_t)rank);
}

/* Returns true if this rank's kernel stood still and was told to end. */
static bool stands_still(struct run *run)
{
    const struct cuda_launch *launch = run->launch;
    if (order_load_relaxed_u32(&still) != (uint32_t)launch->rank)
        return false;
    while (!order_load_acquire_u32(&launch->host->stop))
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    poison(run);
    return true;
}

/* ---- operations ------------------------------------------------------------------------------ */

static struct exchange *exchange_of(struct cuda_arena *arena)
{
    return (struct exchange *)arena->tiles;
}

static struct cuda_header header_of(const struct run *run)
{
    return (struct cuda_header){run->launch->signature, run->launch->parameter,
                                (uint32_t)run->sequence};
}

/* Copies the piece into every peer's arena, once the peer has read the piece before the last. */
static bool push(struct run *run, uint64_t iteration, const void *data, size_t bytes)
{
    const struct cuda_launch *launch = run->launch;
    for (int peer = 0; peer < launch->size; peer++) {
        if (peer == launch->rank)
            continue;
        if (iteration > 2 && !await(run, &exchange_of(run->own)->read[peer], iteration - 2, peer))
            return false;
        struct slot *slot = &exchange_of(launch->arenas[peer])->slots[iteration % 2][launch->rank];
        slot->header = header_of(run);
        slot->place = launch->ring.place;
        memcpy(slot->data, data, bytes);
        order_store_release_u64(&slot->iteration, iteration);
        if (stands_still(run))
            return false;
    }
    return true;
}

static bool collect(struct run *run, uint64_t iteration)
{
    const struct cuda_launch *launch = run->launch;
    for (int peer = 0; peer < launch->size; peer++) {
        const struct slot *slot = &exchange_of(run->own)->slots[iteration % 2][peer];
        if (peer == launch->rank)
            continue;
        if (!await(run, &slot->iteration, iteration, peer))
            return false;
        if (slot->header.signature != launch->signature ||
            slot->header.parameter != launch->parameter ||
            slot->header.sequence != (uint32_t)run->sequence) {
            fail(run, TUTTI_ERR_MISMATCH, peer, &slot->header);
            return false;
        }
    }
    return true;
}

/* Some of a rank's elements, from `first` on, of the piece that begins at `at`. */
static const void *input_of(const struct run *run, const struct slot *slots, int rank, size_t at,
                            size_t first, size_t size)
{
    return rank == run->launch->rank ? (const unsigned char *)run->launch->send + first * size
                                     : slots[rank].data + (first - at) * size;
}

static void reduce_tree(const struct run *run, const struct slot *slots, reduce_fn *fn, size_t size,
                        size_t at, size_t count)
{
    const struct cuda_launch *launch = run->launch;
    const void *in[CUDA_RANKS];
    for (int leaf = 0; leaf < launch->size; leaf++)
        in[leaf] =
            input_of(run, slots, launch->ranks[launch_leaf(leaf, launch->place)], at, at, size);
    fn(&(struct reduce_call){
        .out = (char *)launch->recv + at * size,
        .in = in,
        .n = launch->size,
        .count = count,
        .scalar = launch->scalar,
        .divisor = launch->size,
    });
}

/* Elements of one chunk: from the rank at its place in the ring on. */
static void reduce_chunk(const struct run *run, const struct slot *slots, reduce_fn *fn,
                         size_t size, size_t at, size_t first, size_t count, int place)
{
    const struct cuda_launch *launch = run->launch;
    double partial[CHAIN_ELEMENTS];
    int order[CUDA_RANKS];
    for (int rank = 0; rank < launch->size; rank++)
        order[rank == launch->rank ? launch->ring.place : slots[rank].place] = rank;
    for (int k = 0; k < launch->size; k++) {
        const void *input =
            input_of(run, slots, order[(place + k) % launch->size], at, first, size);
        const void *const in[] = {k ? partial : input, input};
        const bool ends = k == launch->size - 1;
        fn(&(struct reduce_call){
            .out = ends ? (char *)launch->recv + first * size : (void *)partial,
            .in = in,
            .n = k ? 2 : 1,
            .partials = k ? 1 : 0,
            .out_partial = !ends,
            .count = count,
            .scalar = launch->scalar,
            .divisor = launch->size,
        });
    }
}

static void reduce_chains(const struct run *run, const struct slot *slots, reduce_fn *fn,
                          enum tutti_dtype dtype, size_t at, size_t count)
{
    const struct cuda_launch *launch = run->launch;
    const size_t size = dtype_sizes[dtype];
    const size_t chunk = tiling_ring_chunk(launch->count, (unsigned)launch->size, (unsigned)size);
    for (size_t first = at, some; first < at + count; first += some) {
        some = chunk - first % chunk;
        some = some < CHAIN_ELEMENTS ? some : CHAIN_ELEMENTS;
        some = some < at + count - first ? some : at + count - first;
        reduce_chunk(run, slots, fn, size, at, first, some, (int)(first / chunk));
    }
}

static void reduce(const struct run *run, uint64_t iteration, enum tutti_dtype dtype, size_t at,
                   size_t count)
{
    const struct reduce_isa *isa = reduce_isa_named("baseline");
    reduce_fn *fn = reduce_function(isa ? isa : reduce_isa_best(), dtype, run->launch->op);
    const struct slot *slots = exchange_of(run->own)->slots[iteration % 2];
    uint64_t environment = reduce_env_begin();
    if (run->chains)
        reduce_chains(run, slots, fn, dtype, at, count);
    else
        reduce_tree(run, slots, fn, dtype_sizes[dtype], at, count);
    reduce_env_end(environment);
}

/* One operation of all ranks; without elements it is a barrier. */
static bool run_all(struct run *run, enum tutti_dtype dtype, size_t count)
{
    const struct cuda_launch *launch = run->launch;
    struct exchange *own = exchange_of(run->own);
    size_t size = dtype_sizes[dtype], most = PIECE_BYTES / size, at = 0;
    do {
        size_t piece = count - at < most ? count - at : most;
        uint64_t iteration = ++own->iteration;
        const void *data = piece ? (const char *)launch->send + at * size : "";
        if (!push(run, iteration, data, piece * size) || !collect(run, iteration))
            return false;
        if (piece)
            reduce(run, iteration, dtype, at, piece);
        for (int peer = 0; peer < launch->size; peer++)
            if (peer != launch->rank)
                order_store_release_u64(&exchange_of(launch->arenas[peer])->read[launch->rank],
                                        iteration);
        at += piece;
    } while (at < count);
    return true;
}

/* In the recorder, word by word, since somebody may be reading. */
static void mark(const struct run *run)
{
    const struct cuda_header what = header_of(run);
    uint64_t *to =
        (uint64_t *)(void *)&device_trace_of(run)->marks[run->sequence % DEVICE_TRACE_MARKS];
    uint64_t words[4] = {[2] = device_ns(now_ns()), [3] = run->sequence};
    memcpy(words, &what, sizeof what);
    for (int i = 0; i < 4; i++)
        order_store_relaxed_u64(to + i, words[i]);
}

/* As the kernels do, for whoever looks. */
static void announce(struct run *run)
{
    const struct cuda_launch *launch = run->launch;
    for (int peer = 0; peer < launch->size; peer++)
        if (peer != launch->rank)
            launch->arenas[peer]->headers[run->sequence % 2][launch->rank] = header_of(run);
}

static void begin(struct run *run)
{
    run->sequence = ++exchange_of(run->own)->sequence;
    run->launch->control->rows[0].sequence = run->sequence;
    announce(run);
    if (run->launch->marked)
        mark(run);
}

static void run_subset(struct run *run)
{
    const struct cuda_launch *launch = run->launch;
    for (int peer = 0; peer < launch->size; peer++) {
        if (peer == launch->rank || !(launch->subset >> peer & 1))
            continue;
        uint64_t count = ++run->launch->control->meetings[peer];
        struct cuda_meeting *theirs = &launch->arenas[peer]->meetings[launch->rank][count % 2];
        theirs->subset = launch->subset;
        order_store_release_u64(&theirs->count, count);
    }
    for (int peer = 0; peer < launch->size; peer++) {
        if (peer == launch->rank || !(launch->subset >> peer & 1))
            continue;
        uint64_t count = run->launch->control->meetings[peer];
        const struct cuda_meeting *meeting = &run->own->meetings[peer][count % 2];
        if (!await(run, &meeting->count, count, peer))
            return;
        if (meeting->subset != launch->subset) {
            fail(run, TUTTI_ERR_MISMATCH, peer,
                 &(struct cuda_header){launch->signature, (uint32_t)meeting->subset, 0});
            return;
        }
    }
}

/* Sends a pattern to every peer and waits for theirs. Patterns from rank a to rank b are lost if
 * TUTTI_STANDIN_LOST is "a b". */
static void run_probe(struct run *run)
{
    const struct cuda_launch *launch = run->launch;
    const char *lost = getenv("TUTTI_STANDIN_LOST");
    int from = -1, to = -1;
    if (lost && launch->control == &run->own->control)
        sscanf(lost, "%d %d", &from, &to);
    for (int peer = 0; peer < launch->size; peer++)
        if (peer != launch->rank && !(launch->rank == from && peer == to))
            order_store_release_u64((uint64_t *)launch->arenas[peer]->flagged + launch->rank, 1);
    for (int peer = 0; peer < launch->size; peer++)
        if (peer != launch->rank && !await(run, (uint64_t *)run->own->flagged + peer, 1, peer))
            return;
}

void standin_run(const struct function *function, const struct cuda_launch *launch)
{
    struct run run = {.launch = launch,
                      .own = launch->arenas[launch->rank],
                      .chains = strncmp(function->name, "ring_", 5) == 0};
    if (order_load_acquire_u32(&launch->control->failed))
        return;
    if (launch->subset) {
        run_subset(&run);
        return;
    }
    if (function->probe) {
        run_probe(&run);
        order_store_relaxed_u64(&device_trace_of(&run)->wait.looked_ns, device_ns(now_ns()));
        return;
    }
    begin(&run);
    if (function->slow)
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    if (function->barrier)
        run_all(&run, TUTTI_UINT8, 0);
    else
        run_all(&run, function->dtype, launch->count);
    if (function->wrong && launch->count && launch->rank == launch->size - 1)
        *(unsigned char *)launch->recv ^= 1;
}
