/* SPDX-License-Identifier: MIT */
/* The stand-in's devices, contexts and objects, and the calls that are made to fail. */
#include "standin_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CALLS_MAX = 128, FAILURES_MAX = 16, STACK_MAX = 16 };

pthread_mutex_t standin_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t standin_changed = PTHREAD_COND_INITIALIZER;
unsigned standin_destructors;
bool standin_one_channel, standin_guards;

static struct device devices[STANDIN_DEVICES_MAX];
static int device_count;
static int capability[2] = {9, 0};
static int driver_version = 13000;
static pid_t owner; /* the process of cuInit(); 0 before it */

static struct object *objects;
static struct count {
    char name[STANDIN_NAME_BYTES];
    uint64_t made;  /* since standin_forget() */
    uint64_t since; /* standin_fail() */
} counts[CALLS_MAX];
static struct failure {
    char name[STANDIN_NAME_BYTES];
    int at;
    CUresult error;
} failures[FAILURES_MAX];
static bool separate[STANDIN_DEVICES_MAX][STANDIN_DEVICES_MAX];

static _Thread_local CUcontext stack[STACK_MAX];
static _Thread_local int depth;

/* ---- failures -------------------------------------------------------------------------------- */

/* The name without its version. */
static void plain_name(const char *function, char name[STANDIN_NAME_BYTES])
{
    snprintf(name, STANDIN_NAME_BYTES, "%s", function);
    char *version = strstr(name, "_v");
    if (version)
        *version = 0;
}

static struct count *count_of(const char *name)
{
    for (int i = 0; i < CALLS_MAX; i++) {
        if (!counts[i].name[0])
            snprintf(counts[i].name, sizeof counts[i].name, "%s", name);
        if (strcmp(counts[i].name, name) == 0)
            return &counts[i];
    }
    abort();
}

static void add_failure(const char *call, int at, CUresult error)
{
    for (int i = 0; i < FAILURES_MAX; i++) {
        if (failures[i].name[0])
            continue;
        snprintf(failures[i].name, sizeof failures[i].name, "%s", call);
        failures[i].at = at;
        failures[i].error = error;
        return;
    }
    abort();
}

static CUresult count_call(const char *function)
{
    char name[STANDIN_NAME_BYTES];
    plain_name(function, name);
    struct count *count = count_of(name);
    count->made++;
    count->since++;
    for (int i = 0; i < FAILURES_MAX; i++)
        if ((strcmp(failures[i].name, name) == 0 || strcmp(failures[i].name, "*") == 0) &&
            (failures[i].at == 0 || (uint64_t)failures[i].at == count->since))
            return failures[i].error;
    return CUDA_SUCCESS;
}

CUresult standin_enter(const char *function)
{
    pthread_mutex_lock(&standin_lock);
    CUresult result = count_call(function);
    if (result == CUDA_SUCCESS && owner != getpid())
        result = CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult standin_enter_unsafe(const char *function)
{
    CUresult result = standin_enter(function);
    pthread_mutex_lock(&standin_lock);
    if (result == CUDA_SUCCESS && !standin_captures_allow())
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult standin_enter_context(const char *function, struct device **device)
{
    CUresult result = standin_enter_unsafe(function);
    *device = standin_device_of(standin_context());
    return result == CUDA_SUCCESS && !*device ? CUDA_ERROR_INVALID_CONTEXT : result;
}

void standin_fail(const char *call, int at, CUresult error)
{
    pthread_mutex_lock(&standin_lock);
    memset(failures, 0, sizeof failures);
    for (int i = 0; i < CALLS_MAX; i++)
        counts[i].since = 0;
    if (call)
        add_failure(call, at, error);
    pthread_mutex_unlock(&standin_lock);
}

uint64_t standin_calls(const char *call)
{
    pthread_mutex_lock(&standin_lock);
    uint64_t made = count_of(call)->made;
    pthread_mutex_unlock(&standin_lock);
    return made;
}

void standin_forget(void)
{
    pthread_mutex_lock(&standin_lock);
    for (int i = 0; i < CALLS_MAX; i++)
        counts[i].made = 0;
    standin_forget_launches();
    pthread_mutex_unlock(&standin_lock);
}

/* ---- objects --------------------------------------------------------------------------------- */

void *standin_object_create(enum object_kind kind, size_t bytes)
{
    struct object *object = calloc(1, bytes);
    if (!object)
        abort();
    object->kind = kind;
    object->next = objects;
    objects = object;
    return object;
}

bool standin_object_is(const void *handle, enum object_kind kind)
{
    for (const struct object *object = objects; object; object = object->next)
        if (object == handle)
            return object->kind == kind;
    return false;
}

void standin_object_forget(void *handle)
{
    for (struct object **at = &objects; *at; at = &(*at)->next) {
        if (*at == handle) {
            *at = (*at)->next;
            return;
        }
    }
}

void standin_object_destroy(void *handle)
{
    standin_object_forget(handle);
    free(handle);
}

struct object *standin_objects(void)
{
    return objects;
}

void standin_wait_idle(void)
{
    pthread_mutex_lock(&standin_lock);
    while (standin_destructors)
        pthread_cond_wait(&standin_changed, &standin_lock);
    pthread_mutex_unlock(&standin_lock);
}

size_t standin_left(void)
{
    static const char *const names[] = {
#define OBJECT_NAME(KIND, text) [OBJECT_##KIND] = text,
        STANDIN_OBJECT_MAP(OBJECT_NAME)
#undef OBJECT_NAME
    };
    size_t left = 0;
    standin_wait_idle();
    pthread_mutex_lock(&standin_lock);
    for (const struct object *object = objects; object; object = object->next) {
        if (object->hidden)
            continue;
        fprintf(stderr, "stand-in: left: %s %p\n", names[object->kind], (const void *)object);
        left++;
    }
    pthread_mutex_unlock(&standin_lock);
    return left;
}

/* ---- start ----------------------------------------------------------------------------------- */

static void read_separate(const char *text)
{
    for (int a, b, used; sscanf(text, "%d-%d%n", &a, &b, &used) == 2; text++) {
        separate[a % STANDIN_DEVICES_MAX][b % STANDIN_DEVICES_MAX] = true;
        separate[b % STANDIN_DEVICES_MAX][a % STANDIN_DEVICES_MAX] = true;
        text += used;
        if (*text != ',')
            break;
    }
}

static void read_failures(const char *text)
{
    char name[STANDIN_NAME_BYTES];
    for (int at, used; sscanf(text, "%63[^:]:%d%n", name, &at, &used) == 2; text++) {
        int error = CUDA_ERROR_UNKNOWN;
        text += used;
        if (sscanf(text, ":%d%n", &error, &used) == 1)
            text += used;
        add_failure(name, at, (CUresult)error);
        if (*text != ',')
            break;
    }
}

static void read_environment(void)
{
    const char *text = getenv("TUTTI_STANDIN_DEVICES");
    int physical = text ? atoi(text) : 8;
    if (physical > STANDIN_DEVICES_MAX)
        physical = STANDIN_DEVICES_MAX;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    for (int i = 0; !visible && i < physical; i++)
        devices[device_count++].physical = i;
    while (visible && *visible) {
        int which = atoi(visible);
        if (which < 0 || which >= physical || device_count == STANDIN_DEVICES_MAX)
            break;
        devices[device_count++].physical = which;
        visible = strchr(visible, ',');
        if (visible)
            visible++;
    }
    if ((text = getenv("TUTTI_STANDIN_CAPABILITY")))
        (void)sscanf(text, "%d.%d", &capability[0], &capability[1]);
    if ((text = getenv("TUTTI_STANDIN_VERSION")))
        driver_version = atoi(text);
    if ((text = getenv("TUTTI_STANDIN_NO_PEER")))
        read_separate(text);
    standin_one_channel = getenv("TUTTI_STANDIN_ONE_CHANNEL");
    standin_guards = getenv("TUTTI_STANDIN_GUARD");
    if ((text = getenv("TUTTI_STANDIN_FAIL")))
        read_failures(text);
}

CUresult cuInit(unsigned flags)
{
    CUresult result = CUDA_SUCCESS;
    (void)flags;
    pthread_mutex_lock(&standin_lock);
    if (owner && owner != getpid()) {
        result = CUDA_ERROR_NOT_INITIALIZED;
    } else {
        if (!owner)
            read_environment();
        owner = getpid();
        result = count_call(__func__);
        if (result == CUDA_SUCCESS && device_count == 0)
            result = CUDA_ERROR_NO_DEVICE;
    }
    pthread_mutex_unlock(&standin_lock);
    return result;
}

CUresult cuDriverGetVersion(int *version)
{
    const char *text = getenv("TUTTI_STANDIN_VERSION"); /* it may be asked before cuInit() */
    *version = text ? atoi(text) : driver_version;
    return CUDA_SUCCESS;
}

/* X(name, text) of those that somebody meets. */
#define ERROR_MAP(X)                                                                               \
    X(CUDA_SUCCESS, "no error")                                                                    \
    X(CUDA_ERROR_INVALID_VALUE, "invalid argument")                                                \
    X(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")                                                   \
    X(CUDA_ERROR_NOT_INITIALIZED, "initialization error")                                          \
    X(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected")                                  \
    X(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal")                                         \
    X(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid")                                  \
    X(CUDA_ERROR_INVALID_CONTEXT, "invalid device context")                                        \
    X(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device")    \
    X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,                                                          \
      "peer access is not supported between these two devices")                                    \
    X(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle")                                        \
    X(CUDA_ERROR_NOT_FOUND, "named symbol not found")                                              \
    X(CUDA_ERROR_NOT_READY, "device not ready")                                                    \
    X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing")   \
    X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,                                                       \
      "operation failed due to a previous error during capture")                                   \
    X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work")                \
    X(CUDA_ERROR_UNKNOWN, "unknown error")

static const struct {
    CUresult error;
    const char *name, *text;
} error_rows[] = {
#define ERROR_ROW(error, text) {error, #error, text},
    ERROR_MAP(ERROR_ROW)
#undef ERROR_ROW
};

CUresult cuGetErrorName(CUresult error, const char **name)
{
    *name = NULL;
    for (size_t i = 0; i < sizeof error_rows / sizeof *error_rows; i++)
        if (error_rows[i].error == error)
            *name = error_rows[i].name;
    return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    *text = NULL;
    for (size_t i = 0; i < sizeof error_rows / sizeof *error_rows; i++)
        if (error_rows[i].error == error)
            *text = error_rows[i].text;
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- devices --------------------------------------------------------------------------------- */

struct device *standin_device(CUdevice ordinal)
{
    return ordinal >= 0 && ordinal < device_count ? &devices[ordinal] : NULL;
}

int standin_ordinal(const struct device *device)
{
    return (int)(device - devices);
}

bool standin_peers(int physical, int other)
{
    return !separate[physical][other];
}

CUresult cuDeviceGetCount(int *count)
{
    CUresult result = standin_enter(__func__);
    if (result == CUDA_SUCCESS)
        *count = device_count;
    return result;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult result = standin_enter(__func__);
    if (result == CUDA_SUCCESS && !standin_device(ordinal))
        result = CUDA_ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS)
        *device = ordinal;
    return result;
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
    CUresult result = standin_enter(__func__);
    if (result == CUDA_SUCCESS && !standin_device(device))
        result = CUDA_ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS)
        snprintf(name, (size_t)size, "Stand-in");
    return result;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    CUresult result = standin_enter(__func__);
    if (result == CUDA_SUCCESS && !standin_device(device))
        result = CUDA_ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS)
        for (int i = 0; i < 16; i++)
            uuid->bytes[i] = (char)(i * 16 + devices[device].physical);
    return result;
}

CUresult cuDeviceGetPCIBusId(char *text, int size, CUdevice device)
{
    CUresult result = standin_enter(__func__);
    if (result == CUDA_SUCCESS && !standin_device(device))
        result = CUDA_ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS)
        snprintf(text, (size_t)size, "0000:%02X:00.0", 16 + devices[device].physical);
    return result;
}

/* Atomics are native where TUTTI_STANDIN_NVLINK is set. */
CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice from,
                                 CUdevice to)
{
    CUresult result = standin_enter(__func__);
    if (result == CUDA_SUCCESS && (!standin_device(from) || !standin_device(to) || from == to))
        result = CUDA_ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS)
        *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED &&
                 getenv("TUTTI_STANDIN_NVLINK") &&
                 standin_peers(devices[from].physical, devices[to].physical);
    return result;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    CUresult result = standin_enter(__func__);
    if (result == CUDA_SUCCESS && (!standin_device(device) || !standin_device(peer)))
        result = CUDA_ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS)
        *can = device != peer && standin_peers(devices[device].physical, devices[peer].physical);
    return result;
}

static int multiprocessors(void)
{
    const char *text = getenv("TUTTI_STANDIN_MULTIPROCESSORS");
    return text ? atoi(text) : 2;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    const struct {
        CUdevice_attribute attribute;
        int value;
    } rows[] = {
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, capability[0]},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, capability[1]},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, multiprocessors()},
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
        {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
        {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
        {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, !getenv("TUTTI_STANDIN_NO_WORDS")},
    };
    CUresult result = standin_enter(__func__);
    if (result == CUDA_SUCCESS && !standin_device(device))
        result = CUDA_ERROR_INVALID_DEVICE;
    if (result != CUDA_SUCCESS)
        return result;
    *value = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].attribute == attribute)
            *value = rows[i].value;
    return CUDA_SUCCESS;
}

/* ---- contexts: the primary ones -------------------------------------------------------------- */

struct device *standin_device_of(CUcontext context)
{
    for (int i = 0; i < device_count; i++)
        if ((CUcontext)&devices[i] == context)
            return &devices[i];
    return NULL;
}

CUcontext standin_context(void)
{
    return depth ? stack[depth - 1] : NULL;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CUresult result = standin_enter(__func__);
    if (result == CUDA_SUCCESS && !standin_device(device))
        result = CUDA_ERROR_INVALID_DEVICE;
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&standin_lock);
    devices[device].retained++;
    pthread_mutex_unlock(&standin_lock);
    *context = (CUcontext)&devices[device];
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    CUresult result = standin_enter(__func__);
    if (result == CUDA_SUCCESS && !standin_device(device))
        result = CUDA_ERROR_INVALID_DEVICE;
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&standin_lock);
    devices[device].retained--;
    pthread_mutex_unlock(&standin_lock);
    return CUDA_SUCCESS;
}

/* What is there stays. */
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    CUresult result = standin_enter(__func__);
    if (result == CUDA_SUCCESS && !standin_device(device))
        result = CUDA_ERROR_INVALID_DEVICE;
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&standin_lock);
    devices[device].retained = 0;
    devices[device].resets++;
    pthread_mutex_unlock(&standin_lock);
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    CUresult result = standin_enter(__func__);
    if (result == CUDA_SUCCESS)
        *context = standin_context();
    return result;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    CUresult result = standin_enter(__func__);
    if (result == CUDA_SUCCESS && !standin_context())
        result = CUDA_ERROR_INVALID_CONTEXT;
    if (result == CUDA_SUCCESS)
        *device = standin_ordinal(standin_device_of(standin_context()));
    return result;
}

CUresult cuCtxGetId(CUcontext context, unsigned long long *id)
{
    CUresult result = standin_enter(__func__);
    if (result == CUDA_SUCCESS && !standin_device_of(context))
        result = CUDA_ERROR_INVALID_CONTEXT;
    if (result == CUDA_SUCCESS)
        *id = 1 + (unsigned long long)standin_ordinal(standin_device_of(context)) +
              STANDIN_DEVICES_MAX * (unsigned long long)standin_device_of(context)->resets;
    return result;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    CUresult result = standin_enter(__func__);
    if (result == CUDA_SUCCESS && context && !standin_device_of(context))
        result = CUDA_ERROR_INVALID_CONTEXT;
    if (result != CUDA_SUCCESS)
        return result;
    if (depth)
        depth--;
    if (context)
        stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    CUresult result = standin_enter(__func__);
    if (result == CUDA_SUCCESS && (!standin_device_of(context) || depth == STACK_MAX))
        result = CUDA_ERROR_INVALID_CONTEXT;
    if (result == CUDA_SUCCESS)
        stack[depth++] = context;
    return result;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    CUresult result = standin_enter(__func__);
    if (result == CUDA_SUCCESS && !depth)
        result = CUDA_ERROR_INVALID_CONTEXT;
    if (result != CUDA_SUCCESS)
        return result;
    depth--;
    if (context)
        *context = stack[depth];
    return CUDA_SUCCESS;
}
