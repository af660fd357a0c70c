/* SPDX-License-Identifier: MIT */
/* Copies between this process's memory and that of another process of this user, by the kernel. */
#ifndef TUTTI_IPC_PROCESS_MEMORY_H
#define TUTTI_IPC_PROCESS_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Copy the whole range, or return an errno; then a part of the range may have been copied. EFAULT:
 * the range is not mapped in one of the two processes. ESRCH: the process ends or has ended. EPERM,
 * ENOSYS: process_memory_why(). A new process may have got the number of one that has ended, so the
 * caller checks before a write, and behind both, that the process lives. */
int process_memory_read(int64_t pid, void *to, uint64_t from, size_t bytes);
int process_memory_write(int64_t pid, uint64_t to, const void *from, size_t bytes);

/* Whether a range of this process's memory can be read: on which side a copy has failed. */
bool process_memory_is_mapped(const void *at, size_t bytes);

/* Whether the kernel can read a range of this process's memory from another process, and, if
 * `writes`, write it: it looks at both ends. Memory of a device, for example, it cannot. */
bool process_memory_is_reachable(void *at, size_t bytes, bool writes);

/* Lets every process of this user copy this process's memory, also where ptrace_scope is 1. Holds
 * until the process ends. */
void process_memory_allow(void);
/* The kernel's setting kernel.yama.ptrace_scope; -1: it has none. */
int process_memory_scope(void);
/* Writes why the kernel refused a copy, and how to allow it. `scope`: where it refused. */
void process_memory_why(int error, int scope, char *text, size_t size);

#endif
