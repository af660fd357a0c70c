/* SPDX-License-Identifier: MIT */
/* The types and numbers of libcuda's binary interface that the tool needs. The tool does not use
 * the library's own. A driver for CUDA 12.4 has each symbol. */
#include "gpu.h"

#include "library.h"
#include "tool.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int result_t;     /* CUresult; 0 is success */
typedef int device_t;     /* CUdevice */
typedef uint64_t where_t; /* CUdeviceptr */
typedef void *handle_t;   /* CUcontext, CUstream, CUevent, CUgraph, CUgraphExec */

enum {
    NOT_READY = 600, /* values of result_t */
    PEER_ACCESS_ALREADY_ENABLED = 704,
    ATTRIBUTE_MULTIPROCESSORS = 16,
    ATTRIBUTE_MAJOR = 75,
    ATTRIBUTE_MINOR = 76,
    ATTRIBUTE_MULTICAST = 132,
    STREAM_NON_BLOCKING = 1,
    CAPTURE_THREAD_LOCAL = 1, /* other threads' calls do not invalidate a capture */
};

/* X(member, symbol, arguments), versions included. */
#define GPU_MAP(X)                                                                                 \
    X(init, cuInit, (unsigned flags))                                                              \
    X(driver_version, cuDriverGetVersion, (int *version))                                          \
    X(error_name, cuGetErrorName, (result_t result, const char **text))                            \
    X(error_string, cuGetErrorString, (result_t result, const char **text))                        \
    X(device_count, cuDeviceGetCount, (int *count))                                                \
    X(device_get, cuDeviceGet, (device_t * device, int ordinal))                                   \
    X(device_attribute, cuDeviceGetAttribute, (int *value, int attribute, device_t device))        \
    X(device_name, cuDeviceGetName, (char *name, int bytes, device_t device))                      \
    X(device_uuid, cuDeviceGetUuid_v2, (unsigned char *uuid, device_t device))                     \
    X(device_bus_id, cuDeviceGetPCIBusId, (char *text, int bytes, device_t device))                \
    X(device_memory, cuDeviceTotalMem_v2, (size_t * bytes, device_t device))                       \
    X(context_retain, cuDevicePrimaryCtxRetain, (handle_t * context, device_t device))             \
    X(context_set, cuCtxSetCurrent, (handle_t context))                                            \
    X(peer_enable, cuCtxEnablePeerAccess, (handle_t peer, unsigned flags))                         \
    X(peer_can_access, cuDeviceCanAccessPeer, (int *can, device_t device, device_t peer))          \
    X(mem_alloc, cuMemAlloc_v2, (where_t * memory, size_t bytes))                                  \
    X(mem_free, cuMemFree_v2, (where_t memory))                                                    \
    X(mem_fill, cuMemsetD8Async, (where_t to, unsigned char byte, size_t bytes, handle_t stream))  \
    X(mem_copy, cuMemcpyAsync, (where_t to, where_t from, size_t bytes, handle_t stream))          \
    X(stream_create, cuStreamCreateWithPriority,                                                   \
      (handle_t * stream, unsigned flags, int priority))                                           \
    X(stream_destroy, cuStreamDestroy_v2, (handle_t stream))                                       \
    X(stream_synchronize, cuStreamSynchronize, (handle_t stream))                                  \
    X(stream_query, cuStreamQuery, (handle_t stream))                                              \
    X(stream_wait_event, cuStreamWaitEvent, (handle_t stream, handle_t event, unsigned flags))     \
    X(capture_begin, cuStreamBeginCapture_v2, (handle_t stream, int mode))                         \
    X(capture_end, cuStreamEndCapture, (handle_t stream, handle_t * graph))                        \
    X(graph_instantiate, cuGraphInstantiateWithFlags,                                              \
      (handle_t * executable, handle_t graph, unsigned long long flags))                           \
    X(graph_upload, cuGraphUpload, (handle_t executable, handle_t stream))                         \
    X(graph_destroy, cuGraphDestroy, (handle_t graph))                                             \
    X(graph_launch, cuGraphLaunch, (handle_t executable, handle_t stream))                         \
    X(graph_free, cuGraphExecDestroy, (handle_t executable))                                       \
    X(event_create, cuEventCreate, (handle_t * event, unsigned flags))                             \
    X(event_destroy, cuEventDestroy_v2, (handle_t event))                                          \
    X(event_record, cuEventRecord, (handle_t event, handle_t stream))                              \
    X(event_elapsed, cuEventElapsedTime, (float *ms, handle_t from, handle_t to))

static struct {
#define GPU_MEMBER(member, symbol, arguments) result_t(*member) arguments;
    GPU_MAP(GPU_MEMBER)
#undef GPU_MEMBER
} cuda;

enum { MOST_DEVICES = 64 };

static pthread_mutex_t retaining = PTHREAD_MUTEX_INITIALIZER;
static handle_t contexts[MOST_DEVICES];

static bool check(result_t result, const char *call)
{
    const char *name = NULL, *text = NULL;
    if (!result)
        return true;
    cuda.error_name(result, &name);
    cuda.error_string(result, &text);
    return library_fail("%s: %s (%s)", call, name ? name : "unknown", text ? text : "no text");
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool begin(void)
{
    return check(cuda.init(0), "cuInit");
}

bool gpu_open(void)
{
    static const struct library_symbol symbols[] = {
#define GPU_SYMBOL(member, symbol, arguments)                                                      \
    {#symbol, (size_t)((char *)&cuda.member - (char *)&cuda), false},
        GPU_MAP(GPU_SYMBOL)
#undef GPU_SYMBOL
    };
    static struct library library = {
        .variable = "TUTTI_CUDA_LIBRARY",
        .file = "libcuda.so.1",
        .absent = "is there an NVIDIA driver?",
        .lacking = ": the driver is too old",
        .symbols = symbols,
        .count = sizeof symbols / sizeof *symbols,
    };
    return library_open(&library, &cuda, begin);
}

/* What the child found. */
struct probe {
    int count;
    char error[512];
};

static void probe_child(int end)
{
    struct probe probe = {0};
    if (gpu_open() && (probe.count = gpu_count()) == 0)
        library_fail("there is no GPU");
    snprintf(probe.error, sizeof probe.error, "%s", library_error());
    _exit(write(end, &probe, sizeof probe) < 0);
}

int gpu_probe(void)
{
    struct probe probe = {0};
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0) {
        library_fail("cannot make a pipe");
        return 0;
    }
    pid_t child = fork();
    if (child == 0)
        probe_child(ends[1]);
    close(ends[1]);
    if (child < 0 || read(ends[0], &probe, sizeof probe) != (ssize_t)sizeof probe)
        library_fail("the process that looks for GPUs ended early");
    else
        library_fail("%s", probe.error);
    close(ends[0]);
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
    return probe.count;
}

/* ---- devices --------------------------------------------------------------------------------- */

int gpu_driver_version(void)
{
    int version = 0;
    return check(cuda.driver_version(&version), "cuDriverGetVersion") ? version : 0;
}

int gpu_count(void)
{
    int count = 0;
    if (!check(cuda.device_count(&count), "cuDeviceGetCount"))
        return 0;
    return count < MOST_DEVICES ? count : MOST_DEVICES;
}

bool gpu_may_be_shared(void)
{
    static const char *const words[] = {"", "0", "off", "false", "no"}; /* the library's */
    const char *value = getenv("TUTTI_ALLOW_OVERLAPPING_DEVICES");
    bool allowed = value != NULL;
    for (size_t i = 0; i < sizeof words / sizeof *words && allowed; i++)
        allowed = strcasecmp(value, words[i]) != 0;
    return allowed;
}

static void write_uuid(const unsigned char *uuid, char *text)
{
    char *to = text + sprintf(text, "GPU-");
    for (int i = 0; i < 16; i++)
        to += sprintf(to, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

static int attribute(device_t device, int which)
{
    int value = 0;
    return cuda.device_attribute(&value, which, device) ? 0 : value;
}

bool gpu_facts(int ordinal, struct gpu_facts *facts)
{
    device_t device;
    unsigned char uuid[16] = {0};
    *facts = (struct gpu_facts){0};
    if (!check(cuda.device_get(&device, ordinal), "cuDeviceGet") ||
        !check(cuda.device_name(facts->name, sizeof facts->name, device), "cuDeviceGetName") ||
        !check(cuda.device_uuid(uuid, device), "cuDeviceGetUuid") ||
        !check(cuda.device_bus_id(facts->bus_id, sizeof facts->bus_id, device),
               "cuDeviceGetPCIBusId") ||
        !check(cuda.device_memory(&facts->memory_bytes, device), "cuDeviceTotalMem"))
        return false;
    write_uuid(uuid, facts->uuid);
    facts->major = attribute(device, ATTRIBUTE_MAJOR);
    facts->minor = attribute(device, ATTRIBUTE_MINOR);
    facts->multiprocessors = attribute(device, ATTRIBUTE_MULTIPROCESSORS);
    facts->multicast = attribute(device, ATTRIBUTE_MULTICAST);
    return true;
}

/* A process makes the primary context of a device once. */
static bool retain(int ordinal, handle_t *context)
{
    device_t device;
    bool ok = true;
    if (ordinal < 0 || ordinal >= MOST_DEVICES)
        return library_fail("there is no device %d", ordinal);
    pthread_mutex_lock(&retaining);
    if (!contexts[ordinal])
        ok = check(cuda.device_get(&device, ordinal), "cuDeviceGet") &&
             check(cuda.context_retain(&contexts[ordinal], device), "cuDevicePrimaryCtxRetain");
    *context = contexts[ordinal];
    pthread_mutex_unlock(&retaining);
    return ok;
}

bool gpu_bind(int ordinal)
{
    handle_t context = NULL;
    return retain(ordinal, &context) && check(cuda.context_set(context), "cuCtxSetCurrent");
}

/* ---- memory ---------------------------------------------------------------------------------- */

static where_t where(const void *memory)
{
    return (where_t)(uintptr_t)memory;
}

void *gpu_alloc(size_t bytes)
{
    where_t memory = 0;
    if (!check(cuda.mem_alloc(&memory, bytes), "cuMemAlloc"))
        return NULL;
    return (void *)(uintptr_t)memory;
}

void gpu_free(void *memory)
{
    if (memory)
        cuda.mem_free(where(memory));
}

bool gpu_copy_async(void *to, const void *from, size_t bytes, tutti_stream_t stream)
{
    return check(cuda.mem_copy(where(to), where(from), bytes, stream), "cuMemcpyAsync");
}

bool gpu_copy(void *to, const void *from, size_t bytes)
{
    return gpu_copy_async(to, from, bytes, TUTTI_STREAM_PER_THREAD) &&
           gpu_stream_synchronize(TUTTI_STREAM_PER_THREAD);
}

bool gpu_fill(void *memory, unsigned char byte, size_t bytes)
{
    return check(cuda.mem_fill(where(memory), byte, bytes, TUTTI_STREAM_PER_THREAD),
                 "cuMemsetD8Async") &&
           gpu_stream_synchronize(TUTTI_STREAM_PER_THREAD);
}

/* ---- streams, graphs, events ----------------------------------------------------------------- */

bool gpu_stream_create(tutti_stream_t *stream)
{
    handle_t made = NULL;
    bool ok = check(cuda.stream_create(&made, STREAM_NON_BLOCKING, 0), "cuStreamCreate");
    *stream = made;
    return ok;
}

void gpu_stream_destroy(tutti_stream_t stream)
{
    if (stream)
        cuda.stream_destroy(stream);
}

bool gpu_stream_synchronize(tutti_stream_t stream)
{
    return check(cuda.stream_synchronize(stream), "cuStreamSynchronize");
}

bool gpu_capture_begin(tutti_stream_t stream)
{
    return check(cuda.capture_begin(stream, CAPTURE_THREAD_LOCAL), "cuStreamBeginCapture");
}

void *gpu_capture_end(tutti_stream_t stream)
{
    handle_t graph = NULL, executable = NULL;
    if (!check(cuda.capture_end(stream, &graph), "cuStreamEndCapture"))
        return NULL;
    const bool ok = check(cuda.graph_instantiate(&executable, graph, 0), "cuGraphInstantiate") &&
                    check(cuda.graph_upload(executable, stream), "cuGraphUpload");
    cuda.graph_destroy(graph);
    if (ok)
        return executable;
    gpu_graph_destroy(executable);
    return NULL;
}

bool gpu_graph_launch(void *graph, tutti_stream_t stream)
{
    return check(cuda.graph_launch(graph, stream), "cuGraphLaunch");
}

void gpu_graph_destroy(void *graph)
{
    if (graph)
        cuda.graph_free(graph);
}

void *gpu_event_create(void)
{
    handle_t event = NULL;
    return check(cuda.event_create(&event, 0), "cuEventCreate") ? event : NULL;
}

void gpu_event_destroy(void *event)
{
    if (event)
        cuda.event_destroy(event);
}

bool gpu_event_record(void *event, tutti_stream_t stream)
{
    return check(cuda.event_record(event, stream), "cuEventRecord");
}

bool gpu_event_await(void *event, tutti_stream_t stream)
{
    return check(cuda.stream_wait_event(stream, event, 0), "cuStreamWaitEvent");
}

bool gpu_event_elapsed(void *from, void *to, double *us)
{
    float ms = 0;
    bool ok = check(cuda.event_elapsed(&ms, from, to), "cuEventElapsedTime");
    *us = (double)ms * 1e3;
    return ok;
}

/* ---- peers ----------------------------------------------------------------------------------- */

enum { PATTERN_WORDS = 1 << 16, PEER_DEADLINE_S = 10 };

/* One trial: `mine` is on the bound device, `theirs` on the peer; the stream copies between them.
 */
struct peer_trial {
    uint32_t words[2][PATTERN_WORDS]; /* what is sent, and what was received */
    void *mine, *theirs;
    tutti_stream_t stream;
    bool stuck; /* copies did not end in time and may still run */
};

/* A faulty link may never answer, so the wait is bounded. */
static bool stream_ends(struct peer_trial *trial)
{
    double deadline = clock_seconds() + PEER_DEADLINE_S;
    result_t result;
    while ((result = cuda.stream_query(trial->stream)) == NOT_READY && clock_seconds() < deadline)
        usleep(100);
    trial->stuck = result == NOT_READY;
    if (trial->stuck)
        return library_fail("no answer within %d s", PEER_DEADLINE_S);
    return check(result, "cuStreamQuery");
}

/* Sends a pattern through `first`, then `second`, and compares what comes back. */
static bool round_trip(struct peer_trial *trial, void *first, void *second, uint32_t seed)
{
    const size_t bytes = sizeof trial->words[0];
    for (uint32_t i = 0; i < PATTERN_WORDS; i++) {
        trial->words[0][i] = (i ^ seed) * 2654435761u;
        trial->words[1][i] = 0;
    }
    if (!gpu_copy_async(first, trial->words[0], bytes, trial->stream) ||
        !gpu_copy_async(second, first, bytes, trial->stream) ||
        !gpu_copy_async(trial->words[1], second, bytes, trial->stream) || !stream_ends(trial))
        return false;
    for (uint32_t i = 0; i < PATTERN_WORDS; i++)
        if (trial->words[0][i] != trial->words[1][i])
            return library_fail("word %u came as %08x instead of %08x", i, trial->words[1][i],
                                trial->words[0][i]);
    return true;
}

static bool enable_peer(int from, int to)
{
    handle_t peer = NULL;
    int can = 0;
    device_t devices[2];
    if (!check(cuda.device_get(&devices[0], from), "cuDeviceGet") ||
        !check(cuda.device_get(&devices[1], to), "cuDeviceGet") ||
        !check(cuda.peer_can_access(&can, devices[0], devices[1]), "cuDeviceCanAccessPeer"))
        return false;
    if (!can)
        return library_fail("the driver says that device %d cannot reach device %d", from, to);
    if (!retain(to, &peer) || !gpu_bind(from))
        return false;
    result_t result = cuda.peer_enable(peer, 0);
    return result == PEER_ACCESS_ALREADY_ENABLED || check(result, "cuCtxEnablePeerAccess");
}

bool gpu_try_peer(int from, int to)
{
    struct peer_trial *trial = calloc(1, sizeof *trial);
    bool ok = false;
    if (!trial)
        return library_fail("no memory");
    if (gpu_bind(to))
        trial->theirs = gpu_alloc(sizeof trial->words[0]);
    if (!trial->theirs || !enable_peer(from, to))
        goto err_free;
    trial->mine = gpu_alloc(sizeof trial->words[0]);
    if (!trial->mine || !gpu_stream_create(&trial->stream))
        goto err_free;
    /* This device writes to the peer and reads from it. */
    ok = round_trip(trial, trial->mine, trial->theirs, 1) &&
         round_trip(trial, trial->theirs, trial->mine, 2);

err_free:
    if (trial->stuck) /* the copies use the memory, and a free would wait for them */
        return false;
    gpu_stream_destroy(trial->stream);
    gpu_free(trial->mine);
    gpu_free(trial->theirs); /* addresses are unified, so any context can free it */
    free(trial);
    return ok;
}
