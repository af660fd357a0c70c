/* SPDX-License-Identifier: MIT */
#include "ipc/process_memory.h"

#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MOST_BYTES = 1 << 30 }; /* of a call: the kernel takes less than 2 GiB */

typedef ssize_t copy_call(pid_t pid, const struct iovec *local, unsigned long local_count,
                          const struct iovec *remote, unsigned long remote_count,
                          unsigned long flags);

/* A copy that meets an unmapped page ends before it. The next call then returns the error. */
static int copy(copy_call *call, int64_t pid, void *local, uint64_t remote, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const size_t left = bytes - done, length = left < MOST_BYTES ? left : MOST_BYTES;
        const struct iovec here = {.iov_base = (char *)local + done, .iov_len = length};
        const struct iovec there = {.iov_base = (void *)(uintptr_t)(remote + done),
                                    .iov_len = length};
        const ssize_t copied = call((pid_t)pid, &here, 1, &there, 1, 0);
        if (copied < 0 && errno == EINTR)
            continue;
        if (copied <= 0)
            return copied < 0 ? errno : EFAULT;
        done += (size_t)copied;
    }
    return 0;
}

int process_memory_read(int64_t pid, void *to, uint64_t from, size_t bytes)
{
    return pid > 0 ? copy(process_vm_readv, pid, to, from, bytes) : ESRCH;
}

int process_memory_write(int64_t pid, uint64_t to, const void *from, size_t bytes)
{
    return pid > 0 ? copy(process_vm_writev, pid, (void *)(uintptr_t)from, to, bytes) : ESRCH;
}

bool process_memory_is_mapped(const void *at, size_t bytes)
{
    char part[4096];
    for (size_t done = 0; done < bytes; done += sizeof part) {
        const size_t left = bytes - done;
        if (process_memory_read(getpid(), part, (uintptr_t)at + done,
                                left < sizeof part ? left : sizeof part) == EFAULT)
            return false;
    }
    return true;
}

bool process_memory_is_reachable(void *at, size_t bytes, bool writes)
{
    const int64_t self = getpid();
    for (int end = 0; end < 2 && bytes; end++) {
        const uint64_t address = (uintptr_t)at + (end ? bytes - 1 : 0);
        char byte;
        if (process_memory_read(self, &byte, address, 1) ||
            (writes && process_memory_write(self, address, &byte, 1)))
            return false;
    }
    return true;
}

void process_memory_allow(void)
{
    (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); /* EINVAL: the kernel has no Yama */
}

int process_memory_scope(void)
{
    char text[16];
    const int fd = fd_lift(open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC));
    if (fd < 0)
        return -1;
    const ssize_t bytes = read(fd, text, sizeof text - 1);
    close(fd);
    text[bytes > 0 ? bytes : 0] = 0;
    return bytes > 0 ? atoi(text) : -1;
}

void process_memory_why(int error, int scope, char *text, size_t size)
{
    static const char *const remedies[] = {
        "in a container give it CAP_SYS_PTRACE, or a seccomp profile that allows "
        "process_vm_readv; elsewhere the processes differ in ids or capabilities",
        "set it to 0, or set TUTTI_DIRECT=on, which lets all processes of this user copy the "
        "ranks' memory",
        "set it to 0, or to 1 with TUTTI_DIRECT=on",
        "it stays so until the next boot",
    };
    const int row = scope < 0 ? 0 : scope > 3 ? 3 : scope;
    if (error == EPERM && row > 0)
        snprintf(text, size, "the kernel refuses, since kernel.yama.ptrace_scope is %d: %s", scope,
                 remedies[row]);
    else if (error == EPERM)
        snprintf(text, size, "the kernel refuses: %s", remedies[row]);
    else if (error == ENOSYS)
        snprintf(text, size,
                 "the kernel or the container has no process_vm_readv: a seccomp profile may "
                 "allow it");
    else if (error == ESRCH)
        snprintf(text, size,
                 "the process is not seen from there, or its first thread has ended: start all "
                 "ranks in one pid namespace");
    else if (error == EILSEQ)
        snprintf(text, size, "the bytes that arrived were others than those that were there");
    else
        snprintf(text, size, "%s", strerror(error));
}
