/* SPDX-License-Identifier: MIT */
/* The public collectives that do more than a collective: enter the communicator, run one call. */
#include "comm/call_set.h"
#include "comm/rms_norm.h"
#include "comm/run.h"

/* In a group of calls: the group will start none of its calls. */
static enum tutti_status refuse_group(struct call_set *set, struct tutti_comm *comm,
                                      const char *call)
{
    const struct request none = {.collective = TUTTI_COLLECTIVE_ALL_REDUCE_RMS_NORM};
    enum tutti_status status = call_set_enter(set, comm, call);
    if (status != TUTTI_OK)
        return status;
    status = error_set(TUTTI_ERR_INVALID,
                       "%s: the call cannot be one of a group: make it before tutti_group_start() "
                       "or after tutti_group_end()",
                       call);
    return call_set_add(set, comm, &none, TUTTI_STREAM_DEFAULT,
                        (uint64_t)none.collective << SIGNATURE_COLLECTIVE_AT, status);
}

enum tutti_status tutti_all_reduce_rms_norm_with(const struct tutti_rms_norm *norm,
                                                 tutti_comm_t *comm, tutti_stream_t stream,
                                                 const struct tutti_call_options *options)
{
    const char *call = coll_rows[TUTTI_COLLECTIVE_ALL_REDUCE_RMS_NORM].call;
    struct call_set *set = call_set_of_thread();
    if (set)
        return refuse_group(set, comm, call);
    if (!call_enter(comm))
        return call_refuse_entry(comm, call);
    const enum tutti_status status = comm_rms_norm(comm, norm, stream, options);
    call_leave(comm);
    return status;
}

enum tutti_status tutti_all_reduce_rms_norm(const struct tutti_rms_norm *norm, tutti_comm_t *comm,
                                            tutti_stream_t stream)
{
    return tutti_all_reduce_rms_norm_with(norm, comm, stream, NULL);
}
