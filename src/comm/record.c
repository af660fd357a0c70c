/* SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "comm/comm.h"
#include "comm/work.h"

static const char call[] = "tutti_work_record";

static enum tutti_status record_check(struct tutti_comm *comm, tutti_stream_t stream)
{
    enum tutti_status status = comm_check_met(comm, call, COMM_MEET_FIRST);
    if (status != TUTTI_OK)
        return status;
    if (!comm->cuda && stream != TUTTI_STREAM_DEFAULT)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: stream %p: a CPU communicator takes TUTTI_STREAM_DEFAULT only", call,
                         (const void *)stream);
    /* work_record() reports a fault on a device. */
    if (cpu_group_has_failed(comm->host))
        return tutti_comm_status(comm, NULL);
    return TUTTI_OK;
}

enum tutti_status tutti_work_record(tutti_comm_t *comm, tutti_stream_t stream, tutti_work_t **work)
{
    if (!work)
        return error_set(TUTTI_ERR_INVALID, "%s: work is NULL", call);
    *work = NULL;
    enum tutti_status status = record_check(comm, stream);
    if (status != TUTTI_OK)
        return status;
    status = work_record(comm, stream, work);
    return status == TUTTI_OK ? TUTTI_OK : error_context(status, "%s", call);
}
