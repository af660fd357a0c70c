/* SPDX-License-Identifier: MIT */
/* What the symm_*.c files share. */
#ifndef TUTTI_SYMM_INTERNAL_H
#define TUTTI_SYMM_INTERNAL_H

#include "cuda/symm.h"
#include "ipc/segment.h"
#include "symm.h"

#include <assert.h>
#include <pthread.h>

enum {
    SYMM_NAME_BYTES = 64,
    SYMM_PAGE = 4096,            /* what buffers are aligned to, whatever the machine's page */
    SYMM_LINE_WORDS = 16,        /* a cache line of signal words */
    SYMM_CHANNELS = 8,           /* of every pad */
    SYMM_FREE_PAD_BYTES = 2048,  /* of a pad, behind the channels: the user's own */
    SYMM_MAX_ALLOCATIONS = 1024, /* in a process */
};

/*
 * A rank's segment, the same on all ranks and on either device:
 *   0               the buffer, `bytes` bytes, to the end of its last page
 *   pad_offset      the signal pad, pad_bytes; word [(channel * world_size + from) * 16] is 1 while
 *                   a signal of rank `from` is raised: set by that rank, taken by the owner
 *   pad_offset + pad_bytes    the tail: this one, or struct cuda_symm_tail
 */
struct symm_tail {
    uint32_t left; /* 1 once the owner has freed the allocation: written by it alone */
    uint32_t reserved[SYMM_LINE_WORDS - 1];
};
static_assert(sizeof(struct symm_tail) == 64, "a cache line");
static_assert((int)SYMM_LINE_WORDS == (int)CUDA_SYMM_LINE_WORDS, "on either device");

struct symm_allocation {
    struct symm_allocation *next; /* in its group */
    struct tutti_symm_group *group;
    enum tutti_device device;
    struct segment segment; /* of device memory: where it is */
    struct cuda_symm *cuda; /* NULL on CPU */
    uint8_t uuid[CUDA_UUID_BYTES];
    int ordinal;    /* of its device, -1 on CPU */
    int fd;         /* until the rendezvous, then -1 */
    bool published; /* the segment is held through cpu/local.h, under `key` */
    uint8_t key[16];
    size_t bytes;
    size_t pad_offset;
    size_t pad_bytes;

    uint32_t ready; /* release Y4: what follows is constant */
    uint64_t id;
    void *buffers[TUTTI_MAX_RANKS]; /* NULL if not mapped */
    uint32_t *pads[TUTTI_MAX_RANKS];
    void *const *device_buffers; /* in device memory; NULL on CPU */
    uint32_t *const *device_pads;
};

struct tutti_symm_group {
    struct tutti_symm_group *next; /* in the process */
    uint32_t epoch;                /* of the process that it belongs to: ipc/fork.h */
    char name[SYMM_NAME_BYTES];
    int rank;
    int world_size;
    int64_t timeout_ms; /* what 0 means */
    tutti_store_t *store;
    struct symm_allocation *allocations;

    pthread_mutex_t meeting; /* held during a rendezvous; the rest is under it */
    bool met;
    enum tutti_status failed; /* a rendezvous has failed half-way: the ranks are out of step */
    char reason[512];
    uint8_t nonce[16];
    char prefix[128];
    struct tutti_exchanger exchanger;
    uint64_t remote;               /* bit r: rank r is of another process */
    int spin;                      /* polls before a waiter yields */
    struct channel *channel;       /* NULL when all ranks are of this process */
    struct cuda_symm_watch *watch; /* with the first allocation on a device */
};

/* The live allocation of this process that was returned as `buffer`; NULL, with a message that
 * begins with `call`, if there is none. */
struct symm_allocation *symm_allocation_get(const void *buffer, const char *call);
/* The same, and it has met its peers. */
struct symm_allocation *symm_allocation_met(const void *buffer, const char *call);

/* The collective part; symm_allocation_get() has succeeded. */
enum tutti_status symm_meet(struct symm_allocation *allocation, int64_t timeout_ms);
/* Lets go of all mappings, this rank's own last. */
void symm_unmap(struct symm_allocation *allocation);
/* The tail of a segment of host memory whose buffer is mapped there. */
struct symm_tail *symm_tail(const struct symm_allocation *allocation, void *buffer);

/* symm_device.c, all of allocations on a device: the segment, once the layout stands; the peers'
 * ones, of which those of this process have the descriptors fds[r]; a call on a stream; the fault
 * that stands. */
enum tutti_status symm_device_create(struct symm_allocation *allocation);
enum tutti_status symm_device_map(struct symm_allocation *allocation, const int *fds,
                                  int64_t deadline);
enum tutti_status symm_device_call(struct symm_allocation *allocation, enum cuda_symm_call call,
                                   int peer, int channel, int64_t timeout_ms,
                                   tutti_stream_t stream);
enum tutti_status symm_device_status(const struct symm_allocation *allocation,
                                     struct tutti_fault *fault);

#endif
