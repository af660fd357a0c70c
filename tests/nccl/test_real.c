/* SPDX-License-Identifier: MIT */
/* What libnccl.so.2 passes on to NVIDIA's library, of which a stand-in counts the calls. */
#include "harness.h"

#include <dlfcn.h>
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
    OK(ncclSignal(0, 0, 0, 0, self->comm, self->stream));
    comm_check(self->comm, self->ranks, self->stream);
}

static void test_device(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, device);
    CHECK(strstr(calls(), "id") && strstr(calls(), "window") && strstr(calls(), "destroy"));
}

static void test_device_at_once(void **unused)
{
    (void)unused;
    setenv("TUTTI_NCCL_DEVICE_API", "1", 1);
    ranks_run(RANKS, true, at_once);
    unsetenv("TUTTI_NCCL_DEVICE_API");
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
    OK(ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat32, ncclScalarHostImmediate, comm));
    OK(ncclRedOpDestroy(op, comm));
    OK(ncclMemAlloc(&memory, 8));
    OK(ncclMemFree(memory));
    CHECK(ncclBroadcast(&id, &id, 1, ncclInt8, 0, comm, NULL) == ncclInvalidUsage);
    CHECK(strstr(ncclGetLastError(comm), "ncclBroadcast"));
    OK(ncclCommFinalize(child));
    OK(ncclCommDestroy(child));
    OK(ncclCommAbort(comm));
    CHECK(strcmp(calls(), " id init all_reduce all_reduce send split alloc destroy abort") == 0);
}

/* In a process of its own, since the setting is read once. */
static void in_process(const char *name, const char *value)
{
    int status = -1;
    const pid_t pid = fork();
    if (pid == 0) {
        setenv(name, value, 1);
        served();
        _exit(0);
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
}

static void test_disabled(void **unused)
{
    (void)unused;
    in_process("TUTTI_DISABLE", "1");
}

/* More ranks than a host has: the launcher's variables tell. */
static void test_hosts(void **unused)
{
    (void)unused;
    setenv("RANK", "3", 1);
    setenv("WORLD_SIZE", "12", 1);
    setenv("LOCAL_RANK", "3", 1);
    in_process("LOCAL_WORLD_SIZE", "4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_disabled), /* forks, so before CUDA is used */
        cmocka_unit_test(test_hosts),    cmocka_unit_test(test_version),
        cmocka_unit_test(test_device),   cmocka_unit_test(test_device_at_once),
    };
    setenv("TUTTI_NCCL_LIBRARY", REAL, 1);
    harness_setup();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
