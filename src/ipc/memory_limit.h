/* SPDX-License-Identifier: MIT */
/* How much memory this process may still allocate, and which limit says so. */
#ifndef TUTTI_IPC_MEMORY_LIMIT_H
#define TUTTI_IPC_MEMORY_LIMIT_H

#include <stddef.h>
#include <stdint.h>

/*
 * An estimate of the bytes of shared memory that can be allocated now: the least of what the
 * machine has available and what this process' control groups leave. Asked before a large
 * fallocate(), because the kernel does not refuse one that the machine cannot hold: it calls the
 * out-of-memory killer.
 * [out] name  of the limit that decides.
 */
uint64_t memory_limit(char *name, size_t size);

#endif
