/* SPDX-License-Identifier: MIT */
/* NCCL as a rival in `tutti bench --vs nccl`, opened at run time. False, or NULL, leaves the reason
 * in nccl_error(). Its environment is left as it is. */
#ifndef TUTTI_TOOL_NCCL_H
#define TUTTI_TOOL_NCCL_H

#include "tutti/tutti.h"

struct nccl_comm;

/* The calling thread's last error. */
const char *nccl_error(void);
/* Opens libnccl.so.2, or TUTTI_NCCL_LIBRARY; again and from any thread. */
bool nccl_open(void);
/* Such as 22809; 0 when it does not say. */
int nccl_version(void);
/* Whether it has symmetric windows (2.27 and newer). */
bool nccl_has_windows(void);
/* Whether it knows the dtype and the operation. */
bool nccl_serves(enum tutti_dtype dtype, tutti_op_t op);

/* Collective: the ranks meet at the store, in the context that is current. */
struct nccl_comm *nccl_comm_create(tutti_store_t *store, int rank, int size);
/* Takes NULL. */
void nccl_comm_destroy(struct nccl_comm *comm);
/* Collective: memory for symmetric windows, registered as one; freed with the communicator. One a
 * communicator. */
void *nccl_window_create(struct nccl_comm *comm, size_t bytes);
/* Enqueues. */
bool nccl_all_reduce(struct nccl_comm *comm, const void *send, void *recv, size_t count,
                     enum tutti_dtype dtype, tutti_op_t op, tutti_stream_t stream);

#endif
