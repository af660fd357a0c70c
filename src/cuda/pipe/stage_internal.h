/* SPDX-License-Identifier: MIT */
/* The inside of a process group's staging: context.c, pool.c and stream_fence.c, and on them
 * stage.c.
 */
#ifndef TUTTI_CUDA_STAGE_INTERNAL_H
#define TUTTI_CUDA_STAGE_INTERNAL_H

#include "base/layout.h"
#include "cuda/comm/group_internal.h"
#include "cuda/kernels/stream_wait_launch.h"
#include "cuda/pipe/stage.h"

#include <pthread.h>

enum {
    CUDA_STAGE_CONTEXTS = 32,
    CUDA_PAGE_FENCES = 256,
};

/* A stream of ours for copies in one direction. */
struct cuda_flow {
    CUstream stream;
    uint64_t marks;   /* number of marks so far */
    uint64_t *passed; /* pinned; the device writes the last mark that it passed: L4 */
    bool unmarked;    /* there may be work behind the last mark */
};

/* What a stage has in one context. */
struct cuda_stage_context {
    CUcontext handle;
    CUdevice device;
    unsigned long long id; /* the context's id, because handles are used again */
    CUfunction stream_wait;
    bool copies;     /* false: it is for waiting kernels alone */
    uint64_t *words; /* the flows' words, until the stage closes */
    unsigned char pad0[LAYOUT_LINE];
    struct cuda_flow flows[CUDA_DIRECTIONS]; /* used by the group's thread alone */
    unsigned char pad1[LAYOUT_LINE];
};

struct cuda_fence {
    struct cuda_stage *stage;
    struct cuda_fence_words *words;
    struct cuda_fence *next;
    uint32_t number; /* of the operation, the present or the last one */
    int comes;       /* number of words that streams write; 0 once they have been read */
    int waits;       /* number of waiting kernels; under the lock */
    int devices;
    uint8_t contexts[CUDA_FENCE_STREAMS]; /* of the devices, `devices` of them */
    unsigned char pad[LAYOUT_LINE];       /* another thread may use the next fence */
};

struct cuda_fence_page {
    struct cuda_fence_page *next;
    struct cuda_fence_words *words;
    struct cuda_fence fences[CUDA_PAGE_FENCES];
};

/* Pads keep three sets on lines apart: what submitters write, what the thread writes, and what both
 * read. */
struct cuda_stage {
    /* Set once, under the lock. A context is constant except for its flows. */
    const struct cuda_driver *driver; /* NULL before a device is named */
    struct cuda_calls *calls; /* behind the words of the first page; NULL before there is one */
    uint32_t context_count;   /* release L5 */
    struct cuda_stage_context contexts[CUDA_STAGE_CONTEXTS];

    pthread_mutex_t lock;
    /* Under the lock: */
    bool closed;
    int out; /* number of fences that are taken */
    struct cuda_fence_page *pages;
    struct cuda_fence *first, *last; /* idle fences, the longest idle one first */
    struct cuda_ranges ranges;
    struct cuda_block *results; /* idle */
    unsigned char pad[LAYOUT_LINE];

    struct cuda_block *idle; /* used by the thread alone, as is `lost` */
    struct cuda_block *lost; /* copies may use them until the end */

    struct cuda_stage *next; /* of the kept stages */
};

/* ---- stage.c --------------------------------------------------------------------------------- */

/* Takes a kept stage to which no stream writes any more, or one that lost a context and with it its
 * words. NULL if there is none. */
struct cuda_stage *cuda_stage_take_kept(void);
/* Frees a stage that has made nothing in a context, or one that lost a context. */
void cuda_stage_free(struct cuda_stage *stage);

/* ---- context.c ------------------------------------------------------------------------------- */

/* The number of the device's context, -1 if the device has none. */
int cuda_stage_context_of(const struct cuda_stage *stage, int device);
/* The same; adds the context if need be. Under the lock. Returns as cuda_stage_check(). */
enum tutti_status cuda_stage_device_find(struct cuda_stage *stage, int device, int *context);
/* The number of a context, which is added if need be. Under the lock. */
enum tutti_status cuda_stage_context_find(struct cuda_stage *stage, CUcontext handle, int *context);
/* Returns false if the context was destroyed or the device reset: then all of this is gone, too. */
bool cuda_stage_context_lives(const struct cuda_driver *driver,
                              const struct cuda_stage_context *context);
/* Waits for the work on one stream of the context. */
void cuda_flow_drain(const struct cuda_driver *driver, const struct cuda_stage_context *context,
                     const struct cuda_flow *flow);
/* The same for all its streams. Makes no call for streams that are known to be empty. */
void cuda_flows_drain(const struct cuda_driver *driver, const struct cuda_stage_context *context);

/* ---- stream_fence.c -------------------------------------------------------------------------- */

/* Returns true if no stream writes to any fence of the stage. No fence is taken. */
bool cuda_fences_quiet(const struct cuda_stage *stage);
/* For a stage that lost a context, and with it all that the driver gave. */
void cuda_fences_free(struct cuda_stage *stage);
/* Makes the fence idle. Returns true if it was the last one of a closed stage. */
bool cuda_fence_return(struct cuda_fence *fence);

/* ---- pool.c ---------------------------------------------------------------------------------- */

/* Makes lost blocks idle. No copy is under way any more. */
void cuda_blocks_find(struct cuda_stage *stage);
/* As cuda_fences_free(). */
void cuda_blocks_free(struct cuda_stage *stage);

#endif
