/* SPDX-License-Identifier: MIT */
/* NCCL as a rival in `tutti bench --vs nccl`, opened at run time. A function that returns false, or
 * NULL, leaves the reason in nccl_error(). NCCL's environment variables are not changed. */
#ifndef TUTTI_TOOL_NCCL_H
#define TUTTI_TOOL_NCCL_H

#include "tutti/tutti.h"

struct nccl_comm;

/* The calling thread's last error. */
const char *nccl_error(void);
/* Opens libnccl.so.2, or TUTTI_NCCL_LIBRARY. Any thread may call it, also more than once. */
bool nccl_open(void);
/* The version, such as 22809; 0: unknown. */
int nccl_version(void);
/* Whether NCCL has symmetric windows (2.27 and newer). */
bool nccl_has_windows(void);
/* Whether NCCL has the dtype and the operation. */
bool nccl_serves(enum tutti_dtype dtype, tutti_op_t op);

/* Creates a communicator. Collective: the ranks meet at the store. Uses the current context. */
struct nccl_comm *nccl_comm_create(tutti_store_t *store, int rank, int size);
/* Takes NULL. */
void nccl_comm_destroy(struct nccl_comm *comm);
/* Allocates memory and registers it as a symmetric window. Collective; once for a communicator,
 * which frees it. */
void *nccl_window_create(struct nccl_comm *comm, size_t bytes);
/* Enqueues an all-reduce. */
bool nccl_all_reduce(struct nccl_comm *comm, const void *send, void *recv, size_t count,
                     enum tutti_dtype dtype, tutti_op_t op, tutti_stream_t stream);

#endif
