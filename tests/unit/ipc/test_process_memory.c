/* SPDX-License-Identifier: MIT */
/* Copies between the memories of two processes: whole ranges in both directions, ranges that end in
 * unmapped memory, processes that have ended; what is said where the kernel refuses. */
#include "ipc/process_memory.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGE = 64 * 1024, BYTES = 3 * PAGE, SKIPPED = 77 };

/* Three pages of the child, of which the third is unmapped once a byte has come through the pipe.
 */
static unsigned char *memory;
static pid_t child;
static int go[2], ready[2];

static void child_run(void)
{
    char byte;
    memset(memory, 7, BYTES);
    (void)!write(ready[1], "r", 1);
    while (read(go[0], &byte, 1) == 1) {
        if (byte == 'u')
            munmap(memory + 2 * PAGE, PAGE);
        else if (byte == 'c') /* that the parent has written */
            for (int i = 0; i < BYTES; i++)
                if (memory[i] != (unsigned char)i)
                    _exit(1);
        (void)!write(ready[1], "r", 1);
    }
    _exit(0);
}

static void tell(char byte)
{
    char answer;
    assert_int_equal(write(go[1], &byte, 1), 1);
    assert_int_equal(read(ready[0], &answer, 1), 1);
}

static int child_start(void **state)
{
    char answer;
    (void)state;
    memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || pipe(go) != 0 || pipe(ready) != 0)
        return -1;
    child = fork();
    if (child == 0) {
        close(go[1]);
        child_run();
    }
    close(ready[1]);
    return read(ready[0], &answer, 1) == 1 ? 0 : -1;
}

static int child_end(void **state)
{
    int how = 0;
    (void)state;
    close(go[1]);
    close(go[0]);
    close(ready[0]);
    munmap(memory, BYTES);
    return waitpid(child, &how, 0) == child && how == 0 ? 0 : -1;
}

static void whole_ranges_are_copied(void **state)
{
    unsigned char *own = malloc(BYTES);
    (void)state;
    assert_non_null(own);
    memset(own, 0, BYTES);
    assert_int_equal(process_memory_read(child, own + 1, (uintptr_t)memory + 3, BYTES - 5), 0);
    assert_true(own[0] == 0 && own[1] == 7 && own[BYTES - 5] == 7 && own[BYTES - 4] == 0);
    for (int i = 0; i < BYTES; i++)
        own[i] = (unsigned char)i;
    assert_int_equal(process_memory_write(child, (uintptr_t)memory, own, BYTES), 0);
    tell('c');
    assert_int_equal(process_memory_read(child, own, 1, 0), 0); /* nothing */
    free(own);
}

static void unmapped_memory_is_an_error(void **state)
{
    unsigned char *own = malloc(BYTES);
    (void)state;
    assert_non_null(own);
    tell('u');
    assert_true(process_memory_is_mapped(own, BYTES));
    void *hole = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(hole != MAP_FAILED && process_memory_is_mapped(hole, BYTES));
    munmap((char *)hole + PAGE, PAGE);
    assert_false(process_memory_is_mapped(hole, BYTES));
    assert_int_equal(process_memory_write(child, (uintptr_t)memory, hole, BYTES), EFAULT);
    munmap(hole, BYTES);
    assert_int_equal(process_memory_read(child, own, (uintptr_t)memory, BYTES), EFAULT);
    assert_int_equal(process_memory_write(child, (uintptr_t)memory, own, BYTES), EFAULT);
    assert_int_equal(process_memory_read(child, own, (uintptr_t)memory + 2 * PAGE, 1), EFAULT);
    assert_int_equal(process_memory_read(child, own, UINT64_MAX - 7, 16), EFAULT);
    assert_int_equal(process_memory_read(child, own, (uintptr_t)memory, 2 * PAGE), 0);
    free(own);
}

static void an_ended_process_is_an_error(void **state)
{
    char byte = 0;
    (void)state;
    const pid_t dead = fork();
    if (dead == 0)
        _exit(0);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)dead, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(process_memory_read(dead, &byte, (uintptr_t)memory, 1), ESRCH); /* a zombie */
    assert_int_equal(waitpid(dead, NULL, 0), dead);
    assert_int_equal(process_memory_read(dead, &byte, (uintptr_t)memory, 1), ESRCH);
    assert_int_equal(process_memory_read(0, &byte, (uintptr_t)memory, 1), ESRCH);
    assert_int_equal(process_memory_write(-1, (uintptr_t)memory, &byte, 1), ESRCH);
}

static void refusals_say_what_to_do(void **state)
{
    static const struct {
        int error, scope;
        const char *words[2];
    } rows[] = {
        {EPERM, 1, {"ptrace_scope is 1", "TUTTI_DIRECT=on"}},
        {EPERM, 2, {"ptrace_scope is 2", "set it to 0"}},
        {EPERM, 3, {"ptrace_scope is 3", "next boot"}},
        {EPERM, 0, {"the kernel refuses", "CAP_SYS_PTRACE"}},
        {EPERM, -1, {"the kernel refuses", "seccomp"}},
        {ENOSYS, 1, {"process_vm_readv", "seccomp"}},
        {ESRCH, -1, {"not seen", "pid namespace"}},
        {EFAULT, -1, {"Bad address", ""}},
    };
    char text[256];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        process_memory_why(rows[i].error, rows[i].scope, text, sizeof text);
        for (int word = 0; word < 2; word++)
            assert_non_null(strstr(text, rows[i].words[word]));
        assert_true(strlen(text) < 240);
    }
    assert_true(process_memory_scope() >= -1 && process_memory_scope() <= 3);
    process_memory_allow();
}

int main(void)
{
    char byte;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(whole_ranges_are_copied, child_start, child_end),
        cmocka_unit_test_setup_teardown(unmapped_memory_is_an_error, child_start, child_end),
        cmocka_unit_test_setup_teardown(an_ended_process_is_an_error, child_start, child_end),
        cmocka_unit_test(refusals_say_what_to_do),
    };
    if (child_start(NULL) != 0)
        return 1;
    const int error = process_memory_read(child, &byte, (uintptr_t)memory, 1);
    (void)child_end(NULL);
    if (error) {
        printf("the kernel refuses copies between processes here: %s\n", strerror(error));
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
