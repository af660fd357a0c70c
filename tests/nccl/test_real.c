/* SPDX-License-Identifier: MIT */
/* What libnccl.so.2 passes on to NVIDIA's library, of which a stand-in counts the calls. */
#include "harness.h"
#include "real_window.h"

#include <dlfcn.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* The calls that the stand-in has had. */
static const char *calls(void)
{
    void *library = dlopen(REAL, RTLD_NOW | RTLD_NOLOAD);
    const char *text = library ? dlsym(library, "real_calls") : "";
    CHECK(text);
    return text;
}

/* Whether a handle is device memory that begins as a window of NVIDIA's of this memory does. */
static bool is_window(ncclWindow_t window, const void *memory, int device_comms)
{
    const char *bytes = (const char *)window;
    unsigned type = 0;
    CUpointer_attribute name = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    void *value = &type;
    CHECK(cuPointerGetAttributes(1, &name, &value, (CUdeviceptr)(uintptr_t)window) == CUDA_SUCCESS);
    if (type != CU_MEMORYTYPE_DEVICE || window->memory != memory ||
        window->device_comms != device_comms || bytes[sizeof *window])
        return false;
    for (size_t i = 0; i < sizeof window->rest; i++)
        if (window->rest[i] != (memory ? REAL_WINDOW_BYTE : 0))
            return false;
    return true;
}

/* A program's kernels read the handle: NVIDIA's structure, once there is one. */
static void handles(struct rank *self)
{
    ncclWindow_t first, second, third;
    char *data = device_alloc(64);
    int made = 0;
    OK(ncclCommWindowRegister(self->comm, data, 32, &first, 1));
    OK(ncclCommWindowRegister(self->comm, data + 32, 32, &second, 1));
    CHECK(is_window(first, NULL, 0) && is_window(second, NULL, 0));
    OK(ncclDevCommCreate(self->comm, NULL, &made));
    CHECK(is_window(first, data, 0) && is_window(second, data + 32, 1));
    OK(ncclDevCommCreate(self->comm, NULL, &made));
    CHECK(is_window(second, data + 32, 2));
    pthread_barrier_wait(self->barrier);
    OK(ncclCommWindowDeregister(self->comm, first));
    /* The handle is used again. */
    OK(ncclCommWindowRegister(self->comm, data + 16, 16, &third, 1));
    CHECK(third == first && is_window(third, data + 16, 0));
    pthread_barrier_wait(self->barrier);
    OK(ncclCommWindowDeregister(self->comm, second));
    OK(ncclCommWindowDeregister(self->comm, third));
}

/* Kernels that communicate: NVIDIA's communicator, with the windows, is made by the first call. */
static void device(struct rank *self)
{
    ncclWindow_t window;
    char *data = device_alloc(64);
    void *address = NULL;
    int made = 0;
    OK(ncclCommWindowRegister(self->comm, data, 64, &window, 1));
    CHECK(ncclGetPeerDevicePointer(window, 8, 2, &address) == ncclInvalidUsage);
    CHECK(ncclSignal(0, 0, 0, 0, self->comm, self->stream) == ncclInvalidUsage);
    CHECK(strstr(ncclGetLastError(NULL), "TUTTI_NCCL_DEVICE_API"));
    OK(ncclDevCommCreate(self->comm, NULL, &made));
    CHECK(made == self->ranks);
    OK(ncclGetPeerDevicePointer(window, 8, 2, &address));
    CHECK(address == data + 10);
    OK(ncclSignal(0, 0, 0, 0, self->comm, self->stream));
    /* Tutti still serves the rest. */
    comm_check(self->comm, self->ranks, self->stream);
    CHECK(!strstr(calls(), "all_reduce"));
    pthread_barrier_wait(self->barrier);
    OK(ncclCommWindowDeregister(self->comm, window));
}

static void at_once(struct rank *self)
{
    ncclWindow_t window;
    char *data = device_alloc(64);
    OK(ncclSignal(0, 0, 0, 0, self->comm, self->stream));
    OK(ncclCommWindowRegister(self->comm, data, 64, &window, 1));
    CHECK(is_window(window, data, 0));
    comm_check(self->comm, self->ranks, self->stream);
    pthread_barrier_wait(self->barrier);
    OK(ncclCommWindowDeregister(self->comm, window));
}

static void test_device(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, device);
    CHECK(strstr(calls(), "id") && strstr(calls(), "window") && strstr(calls(), "destroy"));
}

static void test_handles(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, handles);
}

static void test_device_at_once(void **unused)
{
    (void)unused;
    setenv("TUTTI_NCCL_DEVICE_API", "1", 1);
    ranks_run(RANKS, true, at_once);
    unsetenv("TUTTI_NCCL_DEVICE_API");
}

/* As PyTorch does, and before Tutti opens it. Its own calls then go to libnccl.so.2 of Tutti. */
static void loaded_before(void)
{
    CHECK(dlopen(REAL, RTLD_NOW | RTLD_LOCAL));
    ranks_run(RANKS, true, device);
    CHECK(strstr(calls(), "device") && strstr(calls(), "alloc") && strstr(calls(), "free"));
}

static void loaded_before_lazily(void)
{
    CHECK(dlopen(REAL, RTLD_LAZY | RTLD_LOCAL));
    ranks_run(RANKS, true, device);
}

static void test_version(void **unused)
{
    int version = 0;
    (void)unused;
    OK(ncclGetVersion(&version));
    CHECK(version == 22809);
}

/* One rank, all calls of which NVIDIA's library serves. */
static void served(void)
{
    ncclUniqueId id;
    ncclComm_t comm, child;
    ncclResult_t error;
    ncclRedOp_t op;
    float scalar = 1;
    void *memory;
    int count = 0;
    device_enter(0);
    OK(ncclGetUniqueId(&id));
    OK(ncclCommInitRank(&comm, 12, id, 3));
    OK(ncclAllReduce(&id, &id, 1, ncclInt8, ncclSum, comm, NULL));
    CHECK(ncclAllReduce(&id, &id, 13, ncclInt8, ncclSum, comm, NULL) == ncclSystemError);
    CHECK(strstr(ncclGetLastError(comm), "the stand-in's error"));
    OK(ncclGroupStart());
    OK(ncclSend(&id, 1, ncclInt8, 11, comm, NULL));
    OK(ncclGroupEnd());
    OK(ncclCommSplit(comm, 1, 0, &child, NULL));
    OK(ncclCommGetAsyncError(child, &error));
    OK(ncclCommCount(child, &count));
    CHECK(count == 12);
    OK(ncclSend(&id, 1, ncclInt8, 11, child, NULL));
    OK(ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat32, ncclScalarHostImmediate, comm));
    OK(ncclRedOpDestroy(op, comm));
    OK(ncclMemAlloc(&memory, 8));
    OK(ncclMemFree(memory));
    CHECK(ncclBroadcast(&id, &id, 1, ncclInt8, 0, comm, NULL) == ncclInvalidUsage);
    CHECK(strstr(ncclGetLastError(comm), "ncclBroadcast"));
    OK(ncclCommFinalize(child));
    OK(ncclCommDestroy(child));
    OK(ncclCommAbort(comm));
    CHECK(strcmp(calls(),
                 " id init all_reduce all_reduce send split send alloc free destroy abort") == 0);
}

/* NVIDIA's function returns before its communicator is there. */
static void served_unblocking(void)
{
    ncclUniqueId id;
    ncclComm_t comm;
    device_enter(0);
    setenv("NCCL_COMM_BLOCKING", "0", 1);
    OK(ncclGetUniqueId(&id));
    CHECK(ncclCommInitRank(&comm, 12, id, 3) == ncclInProgress && comm);
    OK(comm_wait(comm));
    OK(ncclAllReduce(&id, &id, 1, ncclInt8, ncclSum, comm, NULL));
    OK(ncclCommDestroy(comm));
}

/* In a process of its own, since the setting is read once. */
static void in_process(const char *name, const char *value, void (*run)(void))
{
    int status = -1;
    const pid_t pid = fork();
    if (pid == 0) {
        setenv(name, value, 1);
        run();
        _exit(0);
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
}

static void test_disabled(void **unused)
{
    (void)unused;
    in_process("TUTTI_DISABLE", "1", served);
    in_process("TUTTI_DISABLE", "1", served_unblocking);
}

static void test_loaded_before(void **unused)
{
    (void)unused;
    in_process("TUTTI_DEBUG", "NONE", loaded_before);
    in_process("TUTTI_DEBUG", "NONE", loaded_before_lazily);
}

/* More ranks than a host has: the launcher's variables tell. */
static void test_hosts(void **unused)
{
    (void)unused;
    setenv("RANK", "3", 1);
    setenv("WORLD_SIZE", "12", 1);
    setenv("LOCAL_RANK", "3", 1);
    in_process("LOCAL_WORLD_SIZE", "4", served);
}

/* ---- several hosts, of which no variable tells ----------------------------------------------- */

enum { SKIPPED = 77 };

/* What is wrong with the second host. */
enum trouble { NOTHING, NO_NETWORK, NO_LIBRARY };

/* Makes the process another host: with another boot id, and maybe without a network. */
static bool become_host(bool without_network)
{
    static const char text[] = "01234567-89ab-cdef-0123-456789abcdef\n";
    char path[] = "/tmp/tutti-boot-id-XXXXXX";
    const int file = mkstemp(path);
    bool is = file >= 0 && write(file, text, sizeof text - 1) == (ssize_t)sizeof text - 1 &&
              unshare(CLONE_NEWNS | (without_network ? CLONE_NEWNET : 0)) == 0 &&
              mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
              mount(path, "/proc/sys/kernel/random/boot_id", NULL, MS_BIND, NULL) == 0;
    close(file);
    unlink(path);
    return is;
}

static bool has_address(void)
{
    struct ifaddrs *all, *one;
    CHECK(getifaddrs(&all) == 0);
    for (one = all; one; one = one->ifa_next)
        if (one->ifa_addr && one->ifa_addr->sa_family == AF_INET &&
            !(one->ifa_flags & IFF_LOOPBACK) && strncmp(one->ifa_name, "docker", 6) != 0)
            break;
    freeifaddrs(all);
    return one;
}

static int host_rank(int rank, ncclUniqueId id, enum trouble trouble)
{
    const bool second = rank % 2;
    ncclComm_t comm = NULL;
    char byte = 0;
    if (second && !become_host(trouble == NO_NETWORK))
        return SKIPPED;
    if (second && trouble == NO_LIBRARY)
        setenv("TUTTI_NCCL_LIBRARY", "/none", 1);
    device_enter(rank);
    const ncclResult_t result = ncclCommInitRank(&comm, RANKS, id, rank);
    if (trouble == NOTHING) {
        CHECK(result == ncclSuccess);
        OK(ncclAllReduce(&byte, &byte, 1, ncclInt8, ncclSum, comm, NULL));
        CHECK(strstr(calls(), "init all_reduce"));
        OK(ncclCommDestroy(comm));
        return 0;
    }
    CHECK(result != ncclSuccess && !comm);
    CHECK(strstr(ncclGetLastError(NULL),
                 trouble == NO_LIBRARY ? "TUTTI_NCCL_LIBRARY" : "TUTTI_DISABLE=1"));
    return 0;
}

static void hosts_run(enum trouble trouble)
{
    ncclUniqueId id;
    pid_t pids[RANKS];
    bool skipped = false;
    OK(ncclGetUniqueId(&id));
    for (int r = 0; r < RANKS; r++) {
        pids[r] = fork();
        CHECK(pids[r] >= 0);
        if (pids[r] == 0)
            _exit(host_rank(r, id, trouble));
    }
    for (int r = 0; r < RANKS; r++) {
        int status = -1;
        CHECK(waitpid(pids[r], &status, 0) == pids[r] && WIFEXITED(status));
        CHECK(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == SKIPPED);
        skipped |= WEXITSTATUS(status) == SKIPPED;
    }
    CHECK(!skipped);
}

/* All ranks end alike: by NVIDIA's library, or with an error that says what to set. */
static void test_several_hosts(void **unused)
{
    int status = -1;
    (void)unused;
    const pid_t pid = fork();
    if (pid == 0)
        _exit(has_address() && become_host(true) ? 0 : SKIPPED);
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    if (status != 0) {
        puts("skipped: needs root and a network, to be two hosts");
        skip();
    }
    /* A rank may be late for what the others delete, by chance alone. */
    for (int turn = 0; turn < 20; turn++)
        hosts_run(NOTHING);
    hosts_run(NO_LIBRARY);
    setenv("TUTTI_TIMEOUT_MS", "700", 1);
    hosts_run(NO_NETWORK);
    unsetenv("TUTTI_TIMEOUT_MS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_disabled), /* forks, so before CUDA is used */
        cmocka_unit_test(test_loaded_before),  cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_several_hosts),  cmocka_unit_test(test_version),
        cmocka_unit_test(test_device),         cmocka_unit_test(test_handles),
        cmocka_unit_test(test_device_at_once),
    };
    setenv("TUTTI_NCCL_LIBRARY", REAL, 1);
    harness_setup();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
