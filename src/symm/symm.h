/* SPDX-License-Identifier: MIT */
/*
 * Symmetric memory. symm.c has the calls for groups, allocations and views, meet.c maps the peers'
 * buffers, signal.c has the calls for signals and the barrier.
 *
 * An allocation is one sealed memfd, or one exported allocation of a device: the buffer, the signal
 * pad, and a tail that says that the owner has freed it. A group meets once. Then each allocation
 * has a round of its own. Each allocation is a region (coll/region.h), whose id rank 0 chooses.
 */
#ifndef TUTTI_SYMM_H
#define TUTTI_SYMM_H

#include "coll/region.h"
#include "comm/comm.h"
#include "cuda/comm/symm.h"
#include "ipc/segment.h"

#include <assert.h>
#include <pthread.h>

enum {
    SYMM_NAME_BYTES = 64,
    SYMM_PAGE = 4096,           /* alignment of buffers, also where the machine's page is larger */
    SYMM_LINE_WORDS = 16,       /* a cache line of signal words */
    SYMM_CHANNELS = 8,          /* of each signal pad */
    SYMM_FREE_PAD_BYTES = 2048, /* after the channels' words, for the user */
    SYMM_OFFER_BYTES = 80,      /* what ranks tell each other in a rendezvous */
};

/*
 * Layout of one rank's segment. All ranks have the same layout, on CPU and on CUDA:
 *   0                       the buffer of `bytes` bytes, up to the end of its last page
 *   pad_offset              the signal pad of pad_bytes bytes
 *   pad_offset + pad_bytes  the tail: this struct, or struct cuda_symm_tail on CUDA
 * Word [(channel * world_size + from) * 16] of the pad is 1 while a signal from rank `from` is
 * raised. Rank `from` sets it to 1, the owner of the segment sets it to 0.
 */
struct symm_tail {
    uint32_t left; /* 1 after the owner has freed the allocation; only the owner writes it */
    uint32_t reserved[SYMM_LINE_WORDS - 1];
};
static_assert(sizeof(struct symm_tail) == 64, "a cache line");
static_assert((int)SYMM_LINE_WORDS == (int)CUDA_SYMM_LINE_WORDS, "one layout for CPU and CUDA");

struct symm_allocation {
    struct region region; /* the first member; `ready`: release Y4 */
    struct tutti_symmetric_group *group;
    enum tutti_device device;
    struct segment segment; /* on CUDA: the address and size of the device memory */
    struct cuda_symm *cuda; /* NULL on CPU */
    uint8_t uuid[CUDA_UUID_BYTES];
    int fd;      /* of the segment; -1 after the rendezvous */
    uint64_t id; /* by which threads find a host's segment: peers/segments.h */
    size_t pad_offset;
    size_t pad_bytes;

    /* Constant once region.ready is set. */
    void *buffers[NODE_RANKS]; /* by rank; NULL where not mapped */
    uint32_t *pads[NODE_RANKS];
    void *const *device_buffers; /* both arrays lie in device memory; NULL on CPU */
    uint32_t *const *device_pads;
};

struct tutti_symmetric_group {
    struct tutti_symmetric_group *next; /* in the process's list */
    struct tutti_comm *comm; /* of the group's ranks, which meet in the group's first rendezvous */
    char name[SYMM_NAME_BYTES];
    int rank;
    int world_size;
    int64_t timeout_ms; /* of calls whose time-out is 0 */

    pthread_mutex_t rendezvous_lock; /* held during a rendezvous; protects all fields below */
    enum tutti_status failed; /* of a rendezvous after which the ranks' exchanges no longer match */
    char reason[512];         /* the message of that failure */
    unsigned char rows[];     /* of the gathers of a rendezvous */
};

/* The tail of the host-memory segment that is mapped at `buffer`. */
static inline struct symm_tail *symm_tail(const struct symm_allocation *allocation, void *buffer)
{
    return (struct symm_tail *)(void *)((char *)buffer + allocation->pad_offset +
                                        allocation->pad_bytes);
}

/* ---- symm.c ---------------------------------------------------------------------------------- */

/* Return this process's live allocation whose address is `buffer`. If there is none, return NULL
 * and set an error message that begins with `call`. */
struct symm_allocation *symm_allocation_get(const void *buffer, const char *call);
/* The same, but also NULL if its rendezvous has not succeeded yet. */
struct symm_allocation *symm_allocation_get_mapped(const void *buffer, const char *call);

/* ---- meet.c ---------------------------------------------------------------------------------- */

/* The collective part of tutti_symm_rendezvous(), for a live allocation. */
enum tutti_status symm_meet(struct symm_allocation *allocation, int64_t timeout_ms);

#endif
