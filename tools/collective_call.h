/* SPDX-License-Identifier: MIT */
/* Calls any collective of collective.h that has operands. */
#ifndef TUTTI_TOOL_COLLECTIVE_CALL_H
#define TUTTI_TOOL_COLLECTIVE_CALL_H

#include "base/rank_set.h"
#include "collective.h"

/* The neighbour of a rank at this distance, round the world. */
static inline int collective_neighbour(int rank, int distance, int ranks)
{
    return (rank + ranks + distance) % ranks;
}

/* Sends to the next rank and receives from the previous one. */
static inline enum tutti_status collective_send_recv_on(tutti_stream_t stream, const void *send,
                                                        void *recv, size_t count,
                                                        enum tutti_dtype dtype, tutti_comm_t *comm,
                                                        const struct tutti_call_options *options)
{
    const int rank = tutti_comm_rank(comm), ranks = tutti_comm_world_size(comm);
    enum tutti_status status = tutti_group_start();
    if (status != TUTTI_OK)
        return status;
    if (tutti_send_with(send, count, dtype, collective_neighbour(rank, 1, ranks), comm, stream,
                        options) == TUTTI_OK)
        (void)tutti_recv_with(recv, count, dtype, collective_neighbour(rank, -1, ranks), comm,
                              stream, options);
    return tutti_group_end();
}

static inline enum tutti_status collective_send_recv(const void *send, void *recv, size_t count,
                                                     enum tutti_dtype dtype, tutti_comm_t *comm,
                                                     const struct tutti_call_options *options)
{
    return collective_send_recv_on(TUTTI_STREAM_DEFAULT, send, recv, count, dtype, comm, options);
}

/* In a v-form counts[r] is the length of rank r's block; an all_to_all_v sends this to rank r. In
 * other calls counts[0] is the length of every block. With TUTTI_CALL_DEVICE_COUNTS `counts` is
 * what the operation reads, and the blocks of an all_to_all_v have one length. In a group of calls
 * `counts` must stay until its end, and an all_to_all_v may not be one of them. `op` is ignored
 * unless the collective reduces, `root` unless it has a root. `options` may be NULL. */
static inline enum tutti_status
collective_call_on(tutti_stream_t stream, enum tutti_collective which, const void *send, void *recv,
                   const size_t *counts, enum tutti_dtype dtype, tutti_op_t op, int root,
                   tutti_comm_t *comm, const struct tutti_call_options *options)
{
    const bool reads = options && options->flags & TUTTI_CALL_DEVICE_COUNTS;
    const size_t count = reads ? 0 : counts[0],
                 own = reads ? 0 : counts[collectives[which].varies ? tutti_comm_rank(comm) : 0];
    size_t received[WORLD_RANKS];
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
    case TUTTI_COLLECTIVE_BROADCAST:
        return tutti_broadcast_with(send, recv, count, dtype, root, comm, stream, options);
    case TUTTI_COLLECTIVE_REDUCE:
        return tutti_reduce_with(send, recv, count, dtype, op, root, comm, stream, options);
    case TUTTI_COLLECTIVE_GATHER:
        return tutti_gather_with(send, recv, count, dtype, root, comm, stream, options);
    case TUTTI_COLLECTIVE_SCATTER:
        return tutti_scatter_with(send, recv, count, dtype, root, comm, stream, options);
    case TUTTI_COLLECTIVE_SEND:
        return collective_send_recv_on(stream, send, recv, count, dtype, comm, options);
    case TUTTI_COLLECTIVE_ALL_GATHER_V:
        return tutti_all_gather_v_with(send, own, recv, counts, NULL, dtype, comm, stream, options);
    case TUTTI_COLLECTIVE_REDUCE_SCATTER_V:
        return tutti_reduce_scatter_v_with(send, counts, NULL, recv, dtype, op, comm, stream,
                                           options);
    case TUTTI_COLLECTIVE_ALL_TO_ALL_V:
        for (int r = 0; r < tutti_comm_world_size(comm); r++)
            received[r] = own;
        return tutti_all_to_all_v_with(send, counts, NULL, recv, reads ? counts : received, NULL,
                                       dtype, comm, stream, options);
    case TUTTI_COLLECTIVE_GATHER_V:
        return tutti_gather_v_with(send, own, recv, counts, NULL, dtype, root, comm, stream,
                                   options);
    case TUTTI_COLLECTIVE_SCATTER_V:
        return tutti_scatter_v_with(send, counts, NULL, recv, own, dtype, root, comm, stream,
                                    options);
    case TUTTI_COLLECTIVE_BARRIER:
    case TUTTI_COLLECTIVE_RECV:
    case TUTTI_COLLECTIVE_SPLIT:
    case TUTTI_COLLECTIVE_ALL_REDUCE_RMS_NORM:
        break;
    }
    return TUTTI_ERR_INVALID;
}

static inline enum tutti_status collective_call(enum tutti_collective which, const void *send,
                                                void *recv, const size_t *counts,
                                                enum tutti_dtype dtype, tutti_op_t op, int root,
                                                tutti_comm_t *comm,
                                                const struct tutti_call_options *options)
{
    return collective_call_on(TUTTI_STREAM_DEFAULT, which, send, recv, counts, dtype, op, root,
                              comm, options);
}

#endif
