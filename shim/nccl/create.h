/* SPDX-License-Identifier: MIT */
/* What makes a communicator, kept until it may run. */
#ifndef SHIM_NCCL_CREATE_H
#define SHIM_NCCL_CREATE_H

#include "shim.h"

#include <pthread.h>

struct create {
    struct create *next;
    /* Makes create->comm, on its device. A comm->comm that stays NULL, and no comm->real: this rank
     * gets none. */
    ncclResult_t (*make)(struct create *create);
    enum symbol symbol;
    ncclComm_t comm;         /* what is made; of a finalize: what is finalized */
    ncclComm_t parent;       /* NULL: none */
    ncclComm_t *destination; /* written at the end; NULL: the caller has the handle already */
    ncclUniqueId id;
    bool has_id;
    int color, key;
    uint64_t members; /* a bit for each rank of the parent */
    bool waits; /* the caller waits for the end; else a thread of its own ends and frees this */
    pthread_t thread; /* if started */
    bool started;
    ncclResult_t result;
    char error[SHIM_ERROR_BYTES];
};

/* ---- hosts.c --------------------------------------------------------------------------------- */

/* The ranks of an id, at its store. */
struct meeting {
    struct ncclComm *comm;
    tutti_store_t *store;
    bool several, real; /* hosts; NVIDIA's library serves the ranks */
    ncclUniqueId real_id;
};

/* Finds who serves the ranks: if `real`, or if they are on several hosts, NVIDIA's library. All
 * ranks decide alike. */
ncclResult_t meeting_open(struct meeting *meeting, ncclComm_t comm, const ncclUniqueId *id,
                          bool real, const char *name);
/* `met`: the communicator has been made. */
void meeting_close(struct meeting *meeting, bool met);

/* ---- create.c -------------------------------------------------------------------------------- */

/* Makes `create` of a handle and what makes it, and runs or keeps it. Takes the handle over. */
ncclResult_t create_start(const struct create *given);

#endif
