/* SPDX-License-Identifier: MIT */
/* Device memory that travels as a descriptor: created, sent, mapped, and nothing left behind when
 * any call on the way fails. */
#include "cuda/driver/memory.h"

#include "standin.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const size_t PAGE = 2 << 20;
static const struct cuda_driver *driver;

/* In the context of a device. */
static void enter_device(CUdevice device)
{
    CUcontext context;
    assert_int_equal(cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
    assert_int_equal(cuCtxSetCurrent(context), CUDA_SUCCESS);
}

static int open_driver(void **state)
{
    (void)state;
    setenv("TUTTI_CUDA_LIBRARY", STANDIN, 1);
    setenv("TUTTI_STANDIN_NO_PEER", "0-7", 1);
    if (cuda_driver_open(&driver) != TUTTI_OK)
        return 1;
    enter_device(0);
    return 0;
}

static int count_descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static char *bytes_of(const struct cuda_memory *memory)
{
    return (char *)(uintptr_t)memory->base;
}

static void created_memory_is_shared_with_whom_it_is_sent_to(void **state)
{
    (void)state;
    struct cuda_memory own, theirs;
    int fd;
    assert_int_equal(cuda_memory_create(driver, 0, 3 << 20, &own, &fd), TUTTI_OK);
    assert_int_equal(own.bytes, 2 * PAGE);
    assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal(cuda_memory_map(driver, 1, fd, 3 << 20, &theirs), TUTTI_OK);
    assert_int_equal(theirs.bytes, 2 * PAGE);
    assert_int_not_equal(own.base, theirs.base);
    memcpy(bytes_of(&own) + PAGE, "hello", 6);
    assert_string_equal(bytes_of(&theirs) + PAGE, "hello");
    /* A mapping outlives the descriptor and the owner. */
    close(fd);
    cuda_memory_unmap(driver, &own);
    assert_int_equal(own.base, 0);
    assert_string_equal(bytes_of(&theirs) + PAGE, "hello");
    cuda_memory_unmap(driver, &theirs);
    cuda_memory_unmap(driver, &theirs);
    assert_int_equal(standin_left(), 0);
}

static int pipe_to_child(void (*child)(int), pid_t *pid)
{
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    *pid = fork();
    if (*pid == 0) {
        close(ends[1]);
        child(ends[0]);
        _exit(0);
    }
    close(ends[0]);
    return ends[1];
}

/* Maps what the parent exports, found through /proc, and writes into it. */
static void map_in_child(int from_parent)
{
    struct cuda_memory memory;
    char path[64];
    int number;
    if (read(from_parent, &number, sizeof number) != sizeof number)
        _exit(1);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getppid(), number);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || open_driver(NULL) != 0)
        _exit(2);
    if (cuda_memory_map(driver, 0, fd, PAGE, &memory) != TUTTI_OK)
        _exit(3);
    strcpy(bytes_of(&memory), "from a child");
    cuda_memory_unmap(driver, &memory);
}

/* Runs before this process opens the driver, since its children must be able to. */
static void processes_share(void **state)
{
    (void)state;
    struct cuda_memory own;
    pid_t child;
    int fd, how;
    int to_child = pipe_to_child(map_in_child, &child);
    assert_int_equal(open_driver(NULL), 0);
    assert_int_equal(cuda_memory_create(driver, 0, PAGE, &own, &fd), TUTTI_OK);
    assert_int_equal(write(to_child, &fd, sizeof fd), sizeof fd);
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_int_equal(how, 0);
    assert_string_equal(bytes_of(&own), "from a child");
    cuda_memory_unmap(driver, &own);
    close(to_child);
    close(fd);
    assert_int_equal(standin_left(), 0);
}

static void what_is_no_allocation_is_refused(void **state)
{
    (void)state;
    struct cuda_memory memory;
    int files[] = {-1, open("/dev/null", O_RDWR | O_CLOEXEC), memfd_create("other", MFD_CLOEXEC)};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        assert_int_equal(cuda_memory_map(driver, 0, files[i], PAGE, &memory), TUTTI_ERR_INVALID);
        assert_int_equal(memory.base, 0);
        assert_non_null(strstr(tutti_last_error(), "no exported allocation"));
        if (files[i] >= 0)
            close(files[i]);
    }
    assert_int_equal(standin_left(), 0);
}

static void another_size_is_refused(void **state)
{
    (void)state;
    struct cuda_memory own, theirs;
    int fd;
    assert_int_equal(cuda_memory_create(driver, 0, PAGE, &own, &fd), TUTTI_OK);
    assert_int_equal(cuda_memory_map(driver, 1, fd, PAGE + 1, &theirs), TUTTI_ERR_CUDA);
    assert_int_equal(theirs.base, 0);
    cuda_memory_unmap(driver, &own);
    close(fd);
    assert_int_equal(standin_left(), 0);
}

static void missing_peer_access_is_said(void **state)
{
    (void)state;
    struct cuda_memory own, theirs;
    int fd;
    assert_int_equal(cuda_memory_create(driver, 0, PAGE, &own, &fd), TUTTI_OK);
    assert_int_equal(cuda_memory_map(driver, 7, fd, PAGE, &theirs), TUTTI_ERR_CUDA);
    assert_non_null(strstr(tutti_last_error(), "device 7"));
    assert_non_null(strstr(tutti_last_error(), "peer access"));
    assert_non_null(strstr(tutti_last_error(), "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"));
    assert_int_equal(cuda_memory_map(driver, 6, fd, PAGE, &theirs), TUTTI_OK);
    cuda_memory_unmap(driver, &theirs);
    cuda_memory_unmap(driver, &own);
    close(fd);
    assert_int_equal(standin_left(), 0);
}

static void too_much_is_an_error(void **state)
{
    (void)state;
    struct cuda_memory memory;
    int fd;
    assert_int_equal(cuda_memory_create(driver, 0, (size_t)1 << 40, &memory, &fd),
                     TUTTI_ERR_NO_MEMORY);
    assert_int_equal(fd, -1);
    assert_int_equal(memory.base, 0);
    assert_non_null(strstr(tutti_last_error(), "1099511627776 bytes on device 0"));
    assert_non_null(strstr(tutti_last_error(), "68719476736 bytes are free"));
    assert_int_equal(cuda_memory_create(driver, 0, SIZE_MAX, &memory, &fd), TUTTI_ERR_CUDA);
    assert_int_equal(cuda_memory_create(driver, 99, PAGE, &memory, &fd), TUTTI_ERR_CUDA);
    assert_int_equal(standin_left(), 0);
}

static void failing_creation_leaves_nothing(void **state)
{
    (void)state;
    static const char *const calls[] = {
        "cuMemGetAllocationGranularity", "cuMemCreate", "cuMemExportToShareableHandle",
        "cuMemAddressReserve",           "cuMemMap",    "cuMemSetAccess"};
    int descriptors = count_descriptors();
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        struct cuda_memory memory;
        int fd;
        standin_fail(calls[i], 1, CUDA_ERROR_UNKNOWN);
        assert_int_equal(cuda_memory_create(driver, 0, PAGE, &memory, &fd), TUTTI_ERR_CUDA);
        assert_non_null(strstr(tutti_last_error(), calls[i]));
        assert_int_equal(memory.base, 0);
        assert_int_equal(fd, -1);
        assert_int_equal(standin_left(), 0);
        assert_int_equal(count_descriptors(), descriptors);
    }
    standin_fail(NULL, 0, CUDA_SUCCESS);
}

static void failing_map_leaves_nothing(void **state)
{
    (void)state;
    static const char *const calls[] = {"cuMemGetAllocationGranularity",
                                        "cuMemImportFromShareableHandle", "cuMemAddressReserve",
                                        "cuMemMap", "cuMemSetAccess"};
    struct cuda_memory own, theirs;
    int fd;
    assert_int_equal(cuda_memory_create(driver, 0, PAGE, &own, &fd), TUTTI_OK);
    int descriptors = count_descriptors();
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        standin_fail(calls[i], 1, CUDA_ERROR_UNKNOWN);
        assert_int_equal(cuda_memory_map(driver, 1, fd, PAGE, &theirs), TUTTI_ERR_CUDA);
        assert_non_null(strstr(tutti_last_error(), calls[i]));
        assert_int_equal(theirs.base, 0);
        assert_int_equal(count_descriptors(), descriptors);
    }
    standin_fail(NULL, 0, CUDA_SUCCESS);
    cuda_memory_unmap(driver, &own);
    close(fd);
    assert_int_equal(standin_left(), 0);
}

int main(void)
{
    const struct CMUnitTest first[] = {
        cmocka_unit_test(processes_share),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(created_memory_is_shared_with_whom_it_is_sent_to),
        cmocka_unit_test(what_is_no_allocation_is_refused),
        cmocka_unit_test(another_size_is_refused),
        cmocka_unit_test(missing_peer_access_is_said),
        cmocka_unit_test(too_much_is_an_error),
        cmocka_unit_test(failing_creation_leaves_nothing),
        cmocka_unit_test(failing_map_leaves_nothing),
    };
    return cmocka_run_group_tests(first, NULL, NULL) +
           cmocka_run_group_tests(tests, open_driver, NULL);
}
