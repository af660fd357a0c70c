/* SPDX-License-Identifier: MIT */
/* What the host and the kernel of gate.cu share. Compiles as C11 and as CUDA. */
#ifndef TUTTI_CUDA_GATE_LAUNCH_H
#define TUTTI_CUDA_GATE_LAUNCH_H

#include <assert.h>
#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CUDA_GATE_THREADS = 32, /* of which one looks */
    CUDA_TICKET_STREAMS = 16,
    CUDA_TICKET_GATES = 24,
};

/* Pinned: the words of one operation at a time. Each has one writer, and says `number`, which the
 * operation has from its ticket, once what it stands for has happened. */
struct cuda_ticket_words {
    uint64_t come[CUDA_TICKET_STREAMS]; /* the caller's streams have passed the call: L1 */
    uint32_t open;                      /* the host: gates let pass: release L2 */
    uint32_t forsaken;                  /* a gate: it let pass unopened: L6 */
    uint32_t ended[CUDA_TICKET_GATES];  /* the gates: they touch nothing any more: L3 */
    unsigned char pad2[24];
};
static_assert(sizeof(struct cuda_ticket_words) == 256, "words");

/* Pinned: calls of CUDA by threads that gates wait for. */
struct cuda_calls {
    alignas(8) uint32_t begun;
    uint32_t ended;
};

/* By value. Times are UINT64_MAX if they never end. */
struct cuda_gate_launch {
    const uint32_t *open;
    uint32_t *ended;
    uint32_t *forsaken;
    const struct cuda_calls *calls;
    uint32_t number; /* compared cyclically */
    uint32_t reserved;
    uint64_t timeout_ns;
    uint64_t patience_ns; /* with one call of the group's that does not end */
};

#endif
