/* SPDX-License-Identifier: MIT */
#include "api/call.h"

#include "base/error.h"

#include <stdio.h>

enum tutti_status call_refuse_entry(struct tutti_comm *comm, const char *call)
{
    char advice[sizeof comm->reason + 64] = COMM_MEET_FIRST;
    comm_count_refused();
    if (comm && comm->reason[0])
        snprintf(advice, sizeof advice, COMM_MEET_FIRST "; it failed: %s", comm->reason);
    enum tutti_status status = comm_check_met(comm, call, advice);
    if (status == TUTTI_OK)
        status = comm_check_finalized(comm, call);
    if (status != TUTTI_OK)
        return status;
    return error_set(TUTTI_ERR_CONCURRENT,
                     "%s: another thread is inside communicator \"%s\", or it serves a process "
                     "group: one caller at a time, or a communicator for each thread and group",
                     call, comm->name);
}

enum tutti_status call_refused(struct tutti_comm *comm, uint64_t signature,
                               enum tutti_status status)
{
    const struct recorder_operation operation = {.sequence = comm->backend->sequence(comm->group),
                                                 .signature = signature};
    recorder_end(recorder_start(&comm->recorder, &operation, RECORD_REFUSED, ticks_now()),
                 RECORD_REFUSED, status, RECORD_CALL, 0);
    return status;
}
