/* SPDX-License-Identifier: MIT */
/* The checks that a public call makes of its communicator. */
#include "base/error.h"
#include "comm/comm.h"
#include "ipc/fork.h"

enum tutti_status comm_check_own(const struct tutti_comm *comm, const char *call)
{
    if (!comm)
        return error_set(TUTTI_ERR_INVALID, "%s: comm is NULL", call);
    if (!fork_detected(comm->epoch))
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID,
                     "%s: communicator \"%s\" belongs to the process that created it, not to its "
                     "fork: create one in each process",
                     call, comm->name);
}

enum tutti_status comm_check_met(const struct tutti_comm *comm, const char *call,
                                 const char *advice)
{
    const enum tutti_status status = comm_check_own(comm, call);
    if (status != TUTTI_OK || comm->ready)
        return status;
    return error_set(TUTTI_ERR_INVALID, "%s: communicator \"%s\" has not met%s", call, comm->name,
                     advice);
}

enum tutti_status comm_check_finalized(const struct tutti_comm *comm, const char *call)
{
    if (!order_load_relaxed_u32(&comm->finalized)) /* relaxed: nothing but itself */
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID,
                     "%s: communicator \"%s\" was finalized: destroy it, and create another one",
                     call, comm->name);
}
