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
    ncclComm_t *destination; /* NULL until a success; no address: the caller has the handle */
    ncclUniqueId id;
    bool has_id;
    int color, key;
    unsigned members; /* a bit for each rank of the parent that takes part */
    bool waits; /* the caller waits for the end; else a thread of its own ends and frees this */
    pthread_t thread; /* if started */
    bool started;
    struct outcome outcome;
};

/* ---- hosts.c --------------------------------------------------------------------------------- */

/* Finds who serves the ranks of an id: NVIDIA's library if `*real` is set, or if they are on
 * several hosts, which sets it. *real_id is then the id for that library. All ranks decide alike.
 */
ncclResult_t server_agree(const struct ncclComm *comm, const ncclUniqueId *id, const char *name,
                          bool *real, ncclUniqueId *real_id);

/* ---- create.c -------------------------------------------------------------------------------- */

/* Makes `create` of a handle and what makes it, and runs or keeps it. Takes the handle over. */
ncclResult_t create_start(const struct create *given);

#endif
