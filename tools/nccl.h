/* SPDX-License-Identifier: MIT */
/* NCCL as a rival in `tutti bench --vs nccl`, opened at run time. A function that returns false, or
 * NULL, leaves the reason in library_error(). NCCL's environment variables are not changed. */
#ifndef TUTTI_TOOL_NCCL_H
#define TUTTI_TOOL_NCCL_H

#include "collective.h"
#include "library.h"

struct nccl_comm;

/* Opens libnccl.so.2, or TUTTI_NCCL_LIBRARY. Any thread may call it, also more than once. */
bool nccl_open(void);
/* The version, such as 22809; 0: unknown. */
int nccl_version(void);
/* Whether NCCL has symmetric windows (2.27 and newer). */
bool nccl_has_windows(void);
/* Whether NCCL can do the collective. What does not reduce is moved as bytes, in any dtype. */
bool nccl_serves(enum tutti_collective which, enum tutti_dtype dtype, tutti_op_t op);

/* Creates a communicator. Collective: the ranks meet at the store. Uses the current context. */
struct nccl_comm *nccl_comm_create(tutti_store_t *store, int rank, int size);
/* Takes NULL. */
void nccl_comm_destroy(struct nccl_comm *comm);
/* Allocates memory and registers it as a symmetric window. Collective; once for a communicator,
 * which frees it. */
void *nccl_window_create(struct nccl_comm *comm, size_t bytes);
/* Enqueues an operation: by NCCL's collective, or by what programs call where it has none: grouped
 * messages for all-to-all, gather, scatter, their v-forms and messages; a group of broadcasts for
 * all_gather_v, and of reductions for reduce_scatter_v. */
bool nccl_enqueue(struct nccl_comm *comm, const struct rival_call *call, tutti_stream_t stream);

#endif
