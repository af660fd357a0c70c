/* SPDX-License-Identifier: MIT */
/* Calls any collective that has operands on all ranks. */
#ifndef TUTTI_TOOL_COLLECTIVE_CALL_H
#define TUTTI_TOOL_COLLECTIVE_CALL_H

#include "tutti/tutti.h"

/* `op`: ignored unless the collective reduces. `options` may be NULL. */
static inline enum tutti_status collective_call(enum tutti_collective which, const void *send,
                                                void *recv, size_t count, enum tutti_dtype dtype,
                                                tutti_op_t op, tutti_comm_t *comm,
                                                const struct tutti_call_options *options)
{
    const tutti_stream_t stream = TUTTI_STREAM_DEFAULT;
    switch (which) {
    case TUTTI_COLLECTIVE_ALL_REDUCE:
        return options ? tutti_all_reduce_with(send, recv, count, dtype, op, comm, stream, options)
                       : tutti_all_reduce(send, recv, count, dtype, op, comm, stream);
    case TUTTI_COLLECTIVE_ALL_GATHER:
        return tutti_all_gather_with(send, recv, count, dtype, comm, stream, options);
    case TUTTI_COLLECTIVE_REDUCE_SCATTER:
        return tutti_reduce_scatter_with(send, recv, count, dtype, op, comm, stream, options);
    case TUTTI_COLLECTIVE_ALL_TO_ALL:
        return tutti_all_to_all_with(send, recv, count, dtype, comm, stream, options);
    case TUTTI_COLLECTIVE_BARRIER:
    case TUTTI_COLLECTIVE_BROADCAST:
    case TUTTI_COLLECTIVE_REDUCE:
    case TUTTI_COLLECTIVE_GATHER:
    case TUTTI_COLLECTIVE_SCATTER:
    case TUTTI_COLLECTIVE_SEND:
    case TUTTI_COLLECTIVE_RECV:
    case TUTTI_COLLECTIVE_SPLIT:
    case TUTTI_COLLECTIVE_ALL_GATHER_V:
    case TUTTI_COLLECTIVE_REDUCE_SCATTER_V:
    case TUTTI_COLLECTIVE_ALL_TO_ALL_V:
    case TUTTI_COLLECTIVE_GATHER_V:
    case TUTTI_COLLECTIVE_SCATTER_V:
        break;
    }
    return TUTTI_ERR_INVALID;
}

/* Calls any collective with a root. */
static inline enum tutti_status collective_call_rooted(enum tutti_collective which,
                                                       const void *send, void *recv, size_t count,
                                                       enum tutti_dtype dtype, tutti_op_t op,
                                                       int root, tutti_comm_t *comm)
{
    const tutti_stream_t stream = TUTTI_STREAM_DEFAULT;
    if (which == TUTTI_COLLECTIVE_BROADCAST)
        return tutti_broadcast(send, recv, count, dtype, root, comm, stream);
    if (which == TUTTI_COLLECTIVE_REDUCE)
        return tutti_reduce(send, recv, count, dtype, op, root, comm, stream);
    if (which == TUTTI_COLLECTIVE_GATHER)
        return tutti_gather(send, recv, count, dtype, root, comm, stream);
    return tutti_scatter(send, recv, count, dtype, root, comm, stream);
}

#endif
