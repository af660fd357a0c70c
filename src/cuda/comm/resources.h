/* SPDX-License-Identifier: MIT */
/*
 * What kernels of a communicator, or of a symmetric allocation, touch: device memory, the pinned
 * page. Captured graphs may be replayed after their owner has ended. So each graph that captures an
 * operation holds the resources through a CUDA user object. They are freed when the last graph is
 * gone and nothing runs. If a graph holds them, or something may still run, `failed` is set in the
 * arena, so that a later launch returns at once.
 *
 * The user object's destructor may call no CUDA function, and may run in any thread. So it only
 * notes that it ran. The next opening or closing of a communicator or of an allocation frees what
 * is due. CUDA calls that free may wait for streams, so none is made under the lock of the list.
 * No call is made in a context that the program has destroyed.
 */
#ifndef TUTTI_CUDA_RESOURCES_H
#define TUTTI_CUDA_RESOURCES_H

#include "cuda/driver/driver.h"
#include "cuda/driver/memory.h"
#include "cuda/kernels/arena.h"
#include "cuda/kernels/symm_launch.h"

struct cuda_resources {
    const struct cuda_driver *driver;
    CUcontext context;
    unsigned long long context_id;         /* context handles are used again; 0: not known */
    struct cuda_memory arenas[CUDA_RANKS]; /* or the segments of an allocation */
    struct cuda_memory control;            /* where arenas are in host memory */
    void *page;                            /* pinned; of a communicator */
    struct cuda_host *host;                /* in `page`, or in `recorder` */
    struct cuda_memory recorder;           /* written by kernels; of a communicator */
    struct cuda_symm_page *symm_page;      /* pinned; of an allocation */
    struct cuda_proxy_page *proxy_page;    /* pinned; where a host thread stages */
    void *fabric_page;                     /* pinned; of ranks that a fabric joins */

    /* Both may be NULL. */
    bool (*idle)(
        void *owner); /* returns true if nothing runs; called in the context, does not wait long */
    /* frees the owner before the rest; called in the context if that still lives */
    void (*end)(void *owner, bool lives);
    void *owner;

    CUuserObject object; /* NULL until an operation is captured */
    bool let_go;         /* the owner's share of it is given back */
    uint32_t graphless;  /* its destructor has run: release K2 pairs K2a */
    CUevent pending;     /* behind operations that may still run; NULL if none can */
    bool stuck;          /* some work may never end: never freed */
    struct cuda_resources *next;
};

/* Makes an owner of `owner_bytes`, and its resources; both are zero except the driver. Returns the
 * owner, or NULL: NO_MEMORY. */
void *cuda_resources_create(const struct cuda_driver *driver, size_t owner_bytes,
                            struct cuda_resources **resources);
/* Returns true if the context still exists: the program may have destroyed it or reset the
 * device. */
bool cuda_resources_live(const struct cuda_resources *resources);
/* Makes `graph` hold the resources. Within a capture. */
enum tutti_status cuda_resources_retain(struct cuda_resources *resources, CUgraph graph);
/* The owner captures no more. Returns false if graphs still hold the resources. */
bool cuda_resources_let_go(struct cuda_resources *resources);
/* The owner gives the resources up. `pending` is an event behind its last operation; the resources
 * own it from then on. In the context if that lives. Frees at once what can be freed. Takes NULL.
 */
void cuda_resources_release(struct cuda_resources *resources, CUevent pending, bool stuck);
/* Frees all resources that are due. */
void cuda_resources_sweep(void);

#endif
