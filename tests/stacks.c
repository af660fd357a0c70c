/* SPDX-License-Identifier: MIT */
/*
 * Writes the stacks of all threads of a test that hangs, for addr2line(1). It runs in signal
 * handlers, so it makes no call that allocates.
 */
#include "stacks.h"

#include <dirent.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { FRAMES = 64, LIST_BYTES = 1 << 16, TURN_NS = 5000000 };

static void one_thread(int signal)
{
    void *frames[FRAMES];
    char head[64];
    (void)signal;
    int length = snprintf(head, sizeof head, "-- process %d, thread %ld\n", (int)getpid(),
                          syscall(SYS_gettid));
    if (write(STDERR_FILENO, head, (size_t)length) == length)
        backtrace_symbols_fd(frames, backtrace(frames, FRAMES), STDERR_FILENO);
}

void stacks_write(void)
{
    static char list[LIST_BYTES];
    int folder = open("/proc/self/task", O_RDONLY | O_DIRECTORY);
    long bytes = syscall(SYS_getdents64, folder, list, sizeof list);
    for (long at = 0; at < bytes;) {
        const struct dirent64 *entry = (const struct dirent64 *)(const void *)&list[at];
        long thread = strtol(entry->d_name, NULL, 10);
        at += entry->d_reclen;
        if (thread > 0 && syscall(SYS_tgkill, (long)getpid(), thread, (long)SIGRTMAX) == 0)
            nanosleep(&(struct timespec){.tv_nsec = TURN_NS}, NULL); /* one after the other */
    }
    close(folder);
}

static void quit(int number)
{
    stacks_write();
    signal(number, SIG_DFL);
    raise(number);
}

void stacks_on_quit(void)
{
    struct sigaction action = {.sa_flags = SA_RESTART};
    void *frame;
    backtrace(&frame, 1); /* the first call loads a library */
    action.sa_handler = one_thread;
    sigaction(SIGRTMAX, &action, NULL);
    action.sa_handler = quit;
    sigaction(SIGQUIT, &action, NULL);
}
