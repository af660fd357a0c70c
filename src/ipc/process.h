/* SPDX-License-Identifier: MIT */
/* Describes the process of a rank, so that other ranks of the host notice its end. No descriptor is
 * kept, because a rank may have none left. */
#ifndef TUTTI_IPC_PROCESS_H
#define TUTTI_IPC_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct process {
    uint64_t host;   /* a hash of the boot id; 0: unknown */
    uint64_t spaces; /* a hash of the namespaces in which pid and start are valid; 0: unknown */
    uint64_t start;  /* when the process started, in ticks since the boot; 0: unknown */
    int64_t pid;
    int64_t tid; /* of the thread that asked */
};

/* Describes the calling thread and its process. What the system does not tell stays 0. */
void process_identify(struct process *process);

/* Returns true only if the process is known to have ended. Returns false where `self`, the caller's
 * process, cannot tell: on another host, in another namespace, without /proc. */
bool process_has_ended(const struct process *process, const struct process *self);

/* The boot id of this host; false if the system does not tell. */
bool process_boot_id(char *text, size_t size);
/* A number for a namespace of this process ("pid", "time", "user"); 0: unknown. */
uint64_t process_namespace(const char *name);

/* A process' parent, and when the process started, in ticks since the boot. False if /proc does not
 * tell. */
bool process_parent(int64_t pid, int64_t *parent, uint64_t *start);

/* Whether the two are different threads or processes. */
bool process_differs(const struct process *a, const struct process *b);

#endif
