/* SPDX-License-Identifier: MIT */
/* Shared memory without a name: what is created, what is refused, who inherits it. */
#include "ipc/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const int SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

static void created_is_zeroed_sealed_and_shared(void **state)
{
    (void)state;
    struct segment one, two;
    int fd;
    assert_int_equal(segment_create("tutti-test", 5000, &one, &fd), TUTTI_OK);
    assert_int_equal(one.bytes % (size_t)sysconf(_SC_PAGESIZE), 0);
    assert_true(one.bytes >= 5000);
    const unsigned char *bytes = one.base;
    for (size_t i = 0; i < one.bytes; i++)
        assert_int_equal(bytes[i], 0);

    assert_int_equal(fcntl(fd, F_GET_SEALS) & SEALS, SEALS);
    assert_int_not_equal(ftruncate(fd, 1), 0);
    assert_int_not_equal(ftruncate(fd, 1 << 20), 0);
    assert_int_not_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
    assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    struct stat info;
    assert_int_equal(fstat(fd, &info), 0);
    assert_true((size_t)info.st_blocks * 512 >= one.bytes);

    assert_int_equal(segment_map(fd, 5000, &two), TUTTI_OK);
    assert_ptr_not_equal(one.base, two.base);
    memcpy(one.base, "hello", 6);
    assert_string_equal(two.base, "hello");
    close(fd);
    segment_unmap(&one);
    assert_null(one.base);
    assert_string_equal(two.base, "hello");
    segment_unmap(&two);
    segment_unmap(&two);
}

static void pages_have_nodes(void **state)
{
    (void)state;
    struct segment segment;
    int fd, nodes[3];
    unsigned here;
    assert_int_equal(segment_create("tutti-test", 5000, &segment, &fd), TUTTI_OK);
    close(fd);
    memset(segment.base, 1, 1);
    const char *used = segment.base;
    const void *const pages[] = {used, NULL, used + 100};
    segment_nodes(pages, 3, nodes);
    assert_int_equal(nodes[1], -1);
    assert_int_equal(nodes[0], nodes[2]);
    assert_int_equal(syscall(SYS_getcpu, NULL, &here, NULL), 0);
    if (access("/sys/devices/system/node/node1", F_OK) != 0 && nodes[0] >= 0)
        assert_int_equal(nodes[0], here);
    segment_unmap(&segment);
}

/* A memfd of `bytes` bytes with these seals. */
static int make_memfd(size_t bytes, int seals)
{
    int fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void assert_refused(int fd, size_t bytes, const char *word)
{
    struct segment segment;
    assert_int_equal(segment_map(fd, bytes, &segment), TUTTI_ERR_INVALID);
    assert_null(segment.base);
    assert_non_null(strstr(tutti_last_error(), word));
    if (fd >= 0)
        close(fd);
}

static void hostile_descriptors_are_refused(void **state)
{
    (void)state;
    int pipes[2];
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    close(pipes[1]);
    assert_refused(pipes[0], 4096, "memfd");
    assert_refused(open("/dev/null", O_RDWR | O_CLOEXEC), 4096, "memfd");
    assert_refused(open("/dev/zero", O_RDWR | O_CLOEXEC), 4096, "memfd");
    assert_refused(open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600), 4096, "memfd");
    assert_refused(open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600), 4096, "memfd");
    assert_refused(-1, 4096, "memfd");
    assert_refused(make_memfd(4096, 0), 4096, "seals");
    assert_refused(make_memfd(4096, F_SEAL_GROW | F_SEAL_SEAL), 4096, "seals");
    assert_refused(make_memfd(4096, F_SEAL_SHRINK | F_SEAL_SEAL), 4096, "seals");
    assert_refused(make_memfd(4096, F_SEAL_SHRINK | F_SEAL_GROW), 4096, "seals");
    assert_refused(make_memfd(4096, SEALS), 4097, "expected 8192");
    assert_refused(make_memfd(8192, SEALS), 4096, "has 8192 bytes");
    assert_refused(make_memfd(0, SEALS), 4096, "has 0 bytes");
    assert_refused(make_memfd(4096, SEALS), SIZE_MAX, "expected");
    assert_refused(make_memfd(4096, SEALS | F_SEAL_WRITE), 4096, "written");
}

static void read_only_descriptor_is_refused(void **state)
{
    (void)state;
    struct segment segment;
    int fd;
    assert_int_equal(segment_create("tutti-test", 4096, &segment, &fd), TUTTI_OK);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    assert_refused(open(path, O_RDONLY | O_CLOEXEC), 4096, "written");
    close(fd);
    segment_unmap(&segment);
}

static void child_does_not_inherit(void **state)
{
    (void)state;
    struct segment segment;
    int fd;
    assert_int_equal(segment_create("tutti-test", 4096, &segment, &fd), TUTTI_OK);
    pid_t child = fork();
    if (child == 0) {
        /* mincore() says ENOMEM of an address that is not mapped. */
        unsigned char page;
        _exit(mincore(segment.base, segment.bytes, &page) == 0 ? 1 : 0);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), 0);
    close(fd);
    segment_unmap(&segment);
}

static void assert_no_memory(size_t bytes, const char *word)
{
    struct segment segment;
    int fd;
    assert_int_equal(segment_create("tutti-test", bytes, &segment, &fd), TUTTI_ERR_NO_MEMORY);
    assert_null(segment.base);
    assert_int_equal(fd, -1);
    char number[32];
    snprintf(number, sizeof number, "%zu", bytes);
    assert_non_null(strstr(tutti_last_error(), number));
    assert_non_null(strstr(tutti_last_error(), word));
}

static void too_much_is_an_error(void **state)
{
    (void)state;
    assert_no_memory(SIZE_MAX, "no file is larger");
    assert_no_memory((size_t)1 << 60, "bytes left");
    assert_no_memory((size_t)1 << 46, "bytes left");
}

static void file_size_limit_is_an_error(void **state)
{
    (void)state;
    struct rlimit old, low;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    low = (struct rlimit){.rlim_cur = 1 << 20, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    assert_no_memory((1 << 20) + 1, "ulimit -f");
    struct segment segment;
    int fd;
    assert_int_equal(segment_create("tutti-test", 1 << 20, &segment, &fd), TUTTI_OK);
    close(fd);
    segment_unmap(&segment);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
}

/* Of a map in part the rest is addresses alone, which nobody else gets. */
static void a_part_is_mapped(void **state)
{
    (void)state;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = 64 * page;
    struct segment whole, part;
    int fd, ends[2];
    assert_int_equal(segment_create("tutti-test", bytes, &whole, &fd), TUTTI_OK);
    assert_int_equal(segment_map_part(fd, bytes, 1, &part), TUTTI_OK);
    assert_int_equal(part.bytes, bytes);
    memset(whole.base, 7, bytes);
    const unsigned char *seen = part.base;
    assert_int_equal(seen[page - 1], 7);
    assert_int_equal(pipe(ends), 0);
    for (size_t at = page; at < bytes; at += page) {
        assert_int_equal(write(ends[1], seen + at, 1), -1);
        assert_int_equal(errno, EFAULT);
    }
    assert_int_equal(segment_map_part(fd, bytes - page, 1, &part), TUTTI_ERR_INVALID);
    segment_unmap(&(struct segment){.base = (void *)(uintptr_t)seen, .bytes = bytes});
    assert_int_equal(write(ends[1], seen, 1), -1);
    close(ends[0]);
    close(ends[1]);
    close(fd);
    segment_unmap(&whole);
}

/* Neither two long segments nor two maps of one are alike in the bits of the address that a first
 * cache may look them up by; all leave room for huge pages. */
static void places_differ(void **state)
{
    (void)state;
    enum { SEGMENTS = 6, MAPS = 2 * SEGMENTS };
    struct segment maps[MAPS];
    for (int i = 0; i < MAPS; i += 2) {
        int fd;
        const size_t bytes = (size_t)(i + 1) << 20;
        assert_int_equal(segment_create("tutti-test", bytes, &maps[i], &fd), TUTTI_OK);
        assert_int_equal(segment_map(fd, bytes, &maps[i + 1]), TUTTI_OK);
        close(fd);
    }
    for (int i = 0; i < MAPS; i++) {
        assert_int_equal((uintptr_t)maps[i].base % (2 << 20), 0);
        for (int j = 0; j < i; j++)
            assert_int_not_equal((uintptr_t)maps[i].base % (256 << 20),
                                 (uintptr_t)maps[j].base % (256 << 20));
    }
    for (int i = 0; i < MAPS; i++)
        segment_unmap(&maps[i]);
}

/* Where addresses are short a segment still gets those that it needs. */
static void few_addresses_are_enough(void **state)
{
    (void)state;
    size_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%zu", &pages), 1);
    fclose(file);
    struct rlimit old, low;
    assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
    low = old;
    low.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (64 << 20);
    assert_int_equal(setrlimit(RLIMIT_AS, &low), 0);
    struct segment segment;
    int fd;
    enum tutti_status status = segment_create("tutti-test", 1 << 20, &segment, &fd);
    assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
    assert_int_equal(status, TUTTI_OK);
    memset(segment.base, 1, segment.bytes);
    close(fd);
    segment_unmap(&segment);
}

static void full_descriptor_table_is_an_error(void **state)
{
    (void)state;
    struct rlimit old, low;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    low = (struct rlimit){.rlim_cur = 0, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    struct segment segment;
    int fd;
    enum tutti_status status = segment_create("tutti-test", 4096, &segment, &fd);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(status, TUTTI_ERR_SYSTEM);
    assert_non_null(strstr(tutti_last_error(), "EMFILE"));
}

/* As the sandbox of a container may: the message names the call and the sandbox. */
static void blocked_memfd_is_an_error(void **state)
{
    (void)state;
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {.len = sizeof rules / sizeof *rules, .filter = rules};
    pid_t child = fork();
    if (child == 0) {
        struct segment segment;
        int fd;
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
            _exit(77);
        bool right = segment_create("tutti-test", 4096, &segment, &fd) == TUTTI_ERR_SYSTEM &&
                     strstr(tutti_last_error(), "memfd_create() is blocked") &&
                     strstr(tutti_last_error(), "allow it in the seccomp profile") &&
                     strstr(tutti_last_error(), "EPERM");
        if (!right)
            fprintf(stderr, "memfd_create is blocked: %s\n", tutti_last_error());
        _exit(right ? 0 : 1);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    if (WEXITSTATUS(how) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(how), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(created_is_zeroed_sealed_and_shared),
        cmocka_unit_test(pages_have_nodes),
        cmocka_unit_test(hostile_descriptors_are_refused),
        cmocka_unit_test(read_only_descriptor_is_refused),
        cmocka_unit_test(child_does_not_inherit),
        cmocka_unit_test(too_much_is_an_error),
        cmocka_unit_test(file_size_limit_is_an_error),
        cmocka_unit_test(places_differ),
        cmocka_unit_test(a_part_is_mapped),
        cmocka_unit_test(few_addresses_are_enough),
        cmocka_unit_test(full_descriptor_table_is_an_error),
        cmocka_unit_test(blocked_memfd_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
