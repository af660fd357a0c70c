/* SPDX-License-Identifier: MIT */
/* What the hosts and kernels of symmetric memory share, besides the buffers and the signal pads
 * before the tail: docs/layout.md. Compiles as C11 and as CUDA. */
#ifndef TUTTI_CUDA_SYMM_LAUNCH_H
#define TUTTI_CUDA_SYMM_LAUNCH_H

#include "cuda/kernels/arena.h"

#define CUDA_SYMM_MAGIC UINT64_C(0x747574746973796d)

enum {
    CUDA_SYMM_THREADS = 32,    /* one warp: a thread a peer */
    CUDA_SYMM_LINE_WORDS = 16, /* of a signal: a cache line */
};
static_assert((int)CUDA_RANKS <= (int)CUDA_SYMM_THREADS, "a thread a peer");

/* What a launch does. */
enum cuda_symm_call {
    CUDA_SYMM_BARRIER,
    CUDA_SYMM_PUT,
    CUDA_SYMM_WAIT,
    CUDA_SYMM_LEAVE, /* the owner frees its allocation: the last launch */
};

/* The end of a rank's segment. Peers read `left`, and magic and rank when they map it. */
struct cuda_symm_tail {
    uint32_t left;    /* 1 once the owner has freed the allocation: by its last kernel */
    uint32_t failed;  /* for the owner only: not 0 ends every wait; never cleared */
    uint32_t claimed; /* the first to fail writes the record in struct cuda_symm_page */
    int32_t rank;
    uint64_t magic;
    uint64_t ended; /* launches outside of graphs that touch nothing any more */
    unsigned char pad[64 - 32];
    /* For the user's kernels: addresses on the owner's device. */
    uint64_t buffers[CUDA_RANKS];
    uint64_t pads[CUDA_RANKS];
};

/* Pinned host memory of one rank, mapped on its device alone. */
struct cuda_symm_page {
    /* The host writes, the device reads while it waits. */
    uint32_t stop;       /* not 0: end every wait */
    uint32_t gone;       /* bit r: the process of rank r has ended: one more poll, then PEER_DEAD */
    uint64_t timeout_ns; /* of calls without their own; 0: none */
    unsigned char pad[64 - 16];
    /* The device writes, once. */
    uint32_t failed; /* 1: the record is complete */
    int32_t status;
    int32_t peer;
    int32_t channel;
    int32_t call;     /* enum cuda_symm_call */
    uint32_t awaited; /* 1: the peer's signal; 0: that the peer takes the previous one */
    unsigned char pad2[64 - 24];
    /* Where copies of a tail start or end. */
    uint64_t ended;
    struct cuda_symm_tail tail;
};

/* Passed by value: valid for every replay. Addresses are those on this rank's device, by rank. */
struct cuda_symm_launch {
    struct cuda_symm_tail *tails[CUDA_RANKS];
    uint32_t *pads[CUDA_RANKS];
    struct cuda_symm_page *page;
    uint64_t timeout_ns; /* 0: page->timeout_ns applies */
    int32_t call;        /* enum cuda_symm_call */
    int32_t rank;
    int32_t size;
    int32_t peer; /* of a put or a wait */
    int32_t channel;
    uint32_t counted; /* counts in `ended`: it is not part of a graph */
};

static_assert(offsetof(struct cuda_symm_tail, buffers) == 64, "tail");
static_assert(sizeof(struct cuda_symm_tail) == 64 + 2 * 8 * CUDA_RANKS, "tail");
static_assert(offsetof(struct cuda_symm_page, failed) == 64, "page");
static_assert(offsetof(struct cuda_symm_page, ended) == 128, "page");
static_assert(sizeof(struct cuda_symm_page) <= 4096, "page");

#endif
