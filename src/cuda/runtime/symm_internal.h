/* SPDX-License-Identifier: MIT */
/* What symm.c and symm_watch.c share. */
#ifndef TUTTI_CUDA_SYMM_INTERNAL_H
#define TUTTI_CUDA_SYMM_INTERNAL_H

#include "cuda/runtime/driver.h"
#include "cuda/runtime/resources.h"
#include "cuda/runtime/symm.h"

#include <pthread.h>

struct cuda_symm {
    const struct cuda_driver *driver;
    struct cuda_resources *resources; /* what a captured graph needs; frees this struct, too */
    struct cuda_symm_config config;
    CUfunction kernel;
    struct cuda_symm_launch launch; /* the template of every launch */
    CUdevice device;
    CUstream own; /* for set-up and end; no order with other streams */
    CUevent event;
    uint64_t launched;         /* outside of graphs */
    pthread_mutex_t capturing; /* guards `capture` and the user object of the resources */
    uint64_t capture;          /* the last capture whose graph was given the resources */

    struct cuda_symm *next_watched;
};

/* Kernels learn of the ends of peers' processes from now on. Returns SYSTEM, NO_MEMORY. */
enum tutti_status cuda_symm_watch(struct cuda_symm *symm);
/* Not any more. Also takes an allocation that is not watched. */
void cuda_symm_unwatch(struct cuda_symm *symm);

#endif
