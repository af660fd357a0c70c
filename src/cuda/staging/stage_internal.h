/* SPDX-License-Identifier: MIT */
/* The inside of a process group's staging: place.c, pool.c and fence.c, and on them stage.c. */
#ifndef TUTTI_CUDA_STAGE_INTERNAL_H
#define TUTTI_CUDA_STAGE_INTERNAL_H

#include "base/layout.h"
#include "cuda/kernels/stream_wait_launch.h"
#include "cuda/runtime/group_internal.h"
#include "cuda/staging/stage.h"
#include "ipc/segment.h"

#include <pthread.h>

enum {
    CUDA_STAGE_PLACES = 32,
    CUDA_PAGE_FENCES = 256,
};

/* Of ours, for copies one way. */
struct cuda_flow {
    CUstream stream;
    uint64_t marks;   /* so far */
    uint64_t *passed; /* pinned: the device writes it: L4 */
    bool unmarked;    /* there may be something behind the last mark */
};

/* What there is in a context. */
struct cuda_stage_place {
    CUcontext context;
    CUdevice device;
    bool retained;         /* the primary one, by us */
    unsigned long long id; /* the context's: handles may be used again */
    CUfunction stream_wait;
    bool copies;     /* or it is for waiting kernels alone */
    uint64_t *words; /* the flows', until the stage closes */
    unsigned char pad0[LAYOUT_LINE];
    struct cuda_flow flows[CUDA_WAYS]; /* the group's thread's */
    unsigned char pad1[LAYOUT_LINE];
};

struct cuda_fence {
    struct cuda_stage *stage;
    struct cuda_fence_words *words;
    struct cuda_fence *next;
    uint32_t number; /* of the operation that it is, or was, for */
    int comes;       /* words that streams write; 0 once they are seen */
    int waits;       /* under the lock */
    int devices;
    uint8_t places[CUDA_FENCE_STREAMS]; /* of the devices */
    unsigned char pad[LAYOUT_LINE];     /* the next one may be another thread's by now */
};

struct cuda_fence_page {
    struct cuda_fence_page *next;
    struct cuda_fence_words *words;
    struct cuda_fence fences[CUDA_PAGE_FENCES];
};

/* Pads: what who submits writes, what the thread does, and what both read lie on lines apart. */
struct cuda_stage {
    /* Set under the lock, once. A place is constant but for its flows. */
    const struct cuda_driver *driver; /* NULL until a device is named */
    struct cuda_calls *calls;         /* behind the words of the first page; NULL: there is none */
    uint32_t place_count;             /* release L5 */
    struct cuda_stage_place places[CUDA_STAGE_PLACES];

    pthread_mutex_t lock;
    /* Under the lock: */
    bool closed;
    int out; /* fences taken */
    struct cuda_fence_page *pages;
    struct cuda_fence *first, *last; /* idle, the one that has been so longest first */
    struct cuda_ranges ranges;
    struct cuda_block *results; /* idle */
    unsigned char pad[LAYOUT_LINE];

    struct cuda_block *idle; /* the thread's, as are: */
    struct cuda_block *lost; /* that copies may touch until the end */

    struct cuda_stage *next; /* that is kept, too */
};

/* ---- place.c --------------------------------------------------------------------------------- */

/* The number of the place, -1 if the device has none. */
int cuda_place_of_device(const struct cuda_stage *stage, int device);
/* The same; makes the place if need be. Under the lock. Returns as cuda_stage_check(). */
enum tutti_status cuda_device_open(struct cuda_stage *stage, int device, int *place);
/* The place of a context, which is made if need be. Under the lock. */
enum tutti_status cuda_context_open(struct cuda_stage *stage, CUcontext context, int *place);
void cuda_place_close(const struct cuda_driver *driver, struct cuda_stage_place *place);
/* Holds the context if it is the device's primary one. */
bool cuda_primary_hold(const struct cuda_driver *driver, CUdevice device, CUcontext context);
/* Waits for what is on one stream of the place. */
void cuda_flow_drain(const struct cuda_driver *driver, const struct cuda_stage_place *place,
                     const struct cuda_flow *flow);
/* The same of all its streams, without a call for those that are known to have ended. */
void cuda_flows_drain(const struct cuda_driver *driver, const struct cuda_stage_place *place);

/* ---- fence.c -------------------------------------------------------------------------------- */

/* Whether no stream touches them any more; none is taken. */
bool cuda_fences_quiet(const struct cuda_stage *stage);
/* Whether a stream of this process may wait for a fence that is taken. */
bool cuda_fences_awaited(void);
void cuda_fences_free(struct cuda_stage *stage, bool child);
/* Makes it idle. Returns whether it was the last one of a stage that is closed. */
bool cuda_fence_return(struct cuda_fence *fence);

/* ---- pool.c ---------------------------------------------------------------------------------- */

/* No copy is under way any more. */
void cuda_blocks_find(struct cuda_stage *stage);
void cuda_blocks_free(struct cuda_stage *stage, bool child);

#endif
