/* SPDX-License-Identifier: MIT */
/*
 * The kernels of combine.cu, for ranks that a fabric joins: none of them waits. Compiles as C11 and
 * as CUDA.
 *
 * The fabric's transfers on a stream may fit each other on no rank if the ranks make different
 * calls. So each operation first exchanges headers, whose lengths are always the same.
 */
#ifndef TUTTI_CUDA_COMBINE_LAUNCH_H
#define TUTTI_CUDA_COMBINE_LAUNCH_H

#include "cuda/kernels/launch.h"

enum {
    CUDA_ANNOUNCED = 64,         /* headers of a launch, a thread each */
    CUDA_ANNOUNCE_HEADERS = 960, /* of an operation, at most */
    CUDA_COMBINE_THREADS = 256,
    CUDA_NO_PEER = 255,
};

/* Combines one block of each rank. The launch's `recv` and `count` are those of the result, `leaf`
 * is 0. */
struct cuda_combine {
    struct cuda_launch launch;
    const void *from[CUDA_RANKS]; /* by leaves; may be `recv` */
};

/* On the device, for one communicator. */
struct cuda_fabric_words {
    struct cuda_control control; /* `claimed` and `failed` */
    uint64_t sequence;           /* of the last operation of all ranks */
    uint64_t begun;              /* operations, and groups of messages */
    uint64_t marks;
    unsigned char pad[232];
    struct cuda_header own[CUDA_ANNOUNCE_HEADERS];
    struct cuda_header theirs[CUDA_ANNOUNCE_HEADERS]; /* empty until they come */
    uint8_t
        peers[CUDA_ANNOUNCE_HEADERS + 64]; /* of the headers that are awaited; else CUDA_NO_PEER */
};
static_assert(sizeof(struct cuda_fabric_words) % 256 == 0, "data follows");

/* Pinned: the device writes, the watch reads. */
struct cuda_fabric_page {
    uint32_t begun;      /* operations, modulo 2^32: release Q1 pairs Q1a */
    uint32_t ended;      /* release Q2 pairs Q2a */
    uint32_t marks;      /* steps that the last one has made; relaxed: a sign of life */
    uint32_t headers;    /* of the last one: the watch looks for those that have not come */
    uint64_t sequence;   /* of the last one of all ranks that has begun */
    uint64_t completed;  /* ... that has ended */
    uint64_t timeout_ns; /* of the one that has begun last; UINT64_MAX: none */
    uint64_t reserved[3];
};

/* The steps of an operation. BEGIN and CHECK may have several launches; the first BEGIN counts.
 * MARK stands behind each part of the transfers, which has the operation's time-out. */
enum cuda_announce_step {
    CUDA_ANNOUNCE_BEGIN,
    CUDA_ANNOUNCE_CHECK,
    CUDA_ANNOUNCE_MARK,
    CUDA_ANNOUNCE_END
};

struct cuda_announce {
    struct cuda_launch launch; /* `control` is that of the words */
    struct cuda_fabric_words *words;
    struct cuda_fabric_page *page;
    uint64_t timeout_ns;
    uint32_t parameter;      /* of all headers */
    uint16_t at, count, all; /* the headers of this launch, and of the operation */
    uint8_t step;
    uint8_t numbered; /* an operation of all ranks */
    uint8_t pad[4];
    uint8_t peers[CUDA_ANNOUNCED];
    uint64_t own[CUDA_ANNOUNCED], expected[CUDA_ANNOUNCED]; /* signatures; 0: no header */
};
static_assert(sizeof(struct cuda_announce) < 4096, "arguments of a kernel");

#endif
