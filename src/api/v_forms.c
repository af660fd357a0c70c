/* SPDX-License-Identifier: MIT */
/* The public v-forms. All share one function for their calls: a copy for each would not be faster.
 */
#include "comm/comm.h"

enum tutti_status tutti_all_gather_v(const void *send, size_t count, void *recv,
                                     const size_t *counts, const size_t *displacements,
                                     enum tutti_dtype dtype, tutti_comm_t *comm,
                                     tutti_stream_t stream)
{
    return tutti_all_gather_v_with(send, count, recv, counts, displacements, dtype, comm, stream,
                                   NULL);
}

enum tutti_status tutti_all_gather_v_with(const void *send, size_t count, void *recv,
                                          const size_t *counts, const size_t *displacements,
                                          enum tutti_dtype dtype, tutti_comm_t *comm,
                                          tutti_stream_t stream,
                                          const struct tutti_call_options *options)
{
    return comm_call_v(comm, TUTTI_COLLECTIVE_ALL_GATHER_V,
                       &(struct coll_args){.send = send,
                                           .recv = recv,
                                           .count = count,
                                           .dtype = dtype,
                                           .recv_blocks = {counts, displacements}},
                       stream, options);
}

enum tutti_status tutti_reduce_scatter_v(const void *send, const size_t *counts,
                                         const size_t *displacements, void *recv,
                                         enum tutti_dtype dtype, tutti_op_t op, tutti_comm_t *comm,
                                         tutti_stream_t stream)
{
    return tutti_reduce_scatter_v_with(send, counts, displacements, recv, dtype, op, comm, stream,
                                       NULL);
}

enum tutti_status tutti_reduce_scatter_v_with(const void *send, const size_t *counts,
                                              const size_t *displacements, void *recv,
                                              enum tutti_dtype dtype, tutti_op_t op,
                                              tutti_comm_t *comm, tutti_stream_t stream,
                                              const struct tutti_call_options *options)
{
    return comm_call_v(comm, TUTTI_COLLECTIVE_REDUCE_SCATTER_V,
                       &(struct coll_args){.send = send,
                                           .recv = recv,
                                           .dtype = dtype,
                                           .op = op,
                                           .send_blocks = {counts, displacements}},
                       stream, options);
}

enum tutti_status tutti_all_to_all_v(const void *send, const size_t *send_counts,
                                     const size_t *send_displacements, void *recv,
                                     const size_t *recv_counts, const size_t *recv_displacements,
                                     enum tutti_dtype dtype, tutti_comm_t *comm,
                                     tutti_stream_t stream)
{
    return tutti_all_to_all_v_with(send, send_counts, send_displacements, recv, recv_counts,
                                   recv_displacements, dtype, comm, stream, NULL);
}

enum tutti_status tutti_all_to_all_v_with(const void *send, const size_t *send_counts,
                                          const size_t *send_displacements, void *recv,
                                          const size_t *recv_counts,
                                          const size_t *recv_displacements, enum tutti_dtype dtype,
                                          tutti_comm_t *comm, tutti_stream_t stream,
                                          const struct tutti_call_options *options)
{
    return comm_call_v(comm, TUTTI_COLLECTIVE_ALL_TO_ALL_V,
                       &(struct coll_args){.send = send,
                                           .recv = recv,
                                           .dtype = dtype,
                                           .send_blocks = {send_counts, send_displacements},
                                           .recv_blocks = {recv_counts, recv_displacements}},
                       stream, options);
}

enum tutti_status tutti_gather_v(const void *send, size_t count, void *recv, const size_t *counts,
                                 const size_t *displacements, enum tutti_dtype dtype, int root,
                                 tutti_comm_t *comm, tutti_stream_t stream)
{
    return tutti_gather_v_with(send, count, recv, counts, displacements, dtype, root, comm, stream,
                               NULL);
}

enum tutti_status tutti_gather_v_with(const void *send, size_t count, void *recv,
                                      const size_t *counts, const size_t *displacements,
                                      enum tutti_dtype dtype, int root, tutti_comm_t *comm,
                                      tutti_stream_t stream,
                                      const struct tutti_call_options *options)
{
    return comm_call_v(comm, TUTTI_COLLECTIVE_GATHER_V,
                       &(struct coll_args){.send = send,
                                           .recv = recv,
                                           .count = count,
                                           .dtype = dtype,
                                           .peer = root,
                                           .recv_blocks = {counts, displacements}},
                       stream, options);
}

enum tutti_status tutti_scatter_v(const void *send, const size_t *counts,
                                  const size_t *displacements, void *recv, size_t count,
                                  enum tutti_dtype dtype, int root, tutti_comm_t *comm,
                                  tutti_stream_t stream)
{
    return tutti_scatter_v_with(send, counts, displacements, recv, count, dtype, root, comm, stream,
                                NULL);
}

enum tutti_status tutti_scatter_v_with(const void *send, const size_t *counts,
                                       const size_t *displacements, void *recv, size_t count,
                                       enum tutti_dtype dtype, int root, tutti_comm_t *comm,
                                       tutti_stream_t stream,
                                       const struct tutti_call_options *options)
{
    return comm_call_v(comm, TUTTI_COLLECTIVE_SCATTER_V,
                       &(struct coll_args){.send = send,
                                           .recv = recv,
                                           .count = count,
                                           .dtype = dtype,
                                           .peer = root,
                                           .send_blocks = {counts, displacements}},
                       stream, options);
}
