/* SPDX-License-Identifier: MIT */
/* tutti_comm_finalize(): enqueued operations end, and no other one begins. Also the guard of calls
 * during which no other thread may use the communicator. */
#include "base/error.h"
#include "base/order.h"
#include "comm/comm.h"

static const char call[] = "tutti_comm_finalize";

enum tutti_status comm_enter_alone(struct tutti_comm *comm, const char *name)
{
    if (comm->service == COMM_SERVES)
        return error_set(TUTTI_ERR_CONCURRENT,
                         "%s: communicator \"%s\" has a process group: destroy that first", name,
                         comm->name);
    if (order_exchange_u32(&comm->alone, 1)) /* C3: pairs comm_leave_alone() */
        goto err_inside;
    /* Relaxed: C3 has ordered it. `busy` stays set after a process group has ended. */
    if (order_load_relaxed_u32(&comm->finalized) || comm->service != COMM_FREE ||
        order_compare_exchange_u32(&comm->busy, 0, COMM_HELD)) /* C1: pairs comm_leave_alone() */
        return TUTTI_OK;
    order_store_release_u32(&comm->alone, 0); /* C3 */
err_inside:
    return error_set(
        TUTTI_ERR_CONCURRENT,
        "%s: another thread is inside communicator \"%s\", or a group of calls that has "
        "not ended has calls on it: one caller at a time; end the group first",
        name, comm->name);
}

void comm_leave_alone(struct tutti_comm *comm)
{
    if (!order_load_relaxed_u32(&comm->finalized) && comm->service == COMM_FREE)
        order_store_release_u32(&comm->busy, 0); /* C1 */
    order_store_release_u32(&comm->alone, 0);    /* C3 */
}

enum tutti_status tutti_comm_finalize(tutti_comm_t *comm, int64_t timeout_ms)
{
    enum tutti_status status =
        comm_check_met(comm, call, ", so there is nothing to end: destroy it");
    if (status == TUTTI_OK)
        status = comm_enter_alone(comm, call);
    if (status != TUTTI_OK)
        return status;
    order_store_relaxed_u32(&comm->finalized, 1);
    status = comm->backend->finish(comm->group, timeout_ms ? timeout_ms : comm->timeout_ms);
    comm_leave_alone(comm);
    return status == TUTTI_OK ? TUTTI_OK : error_context(status, "%s", call);
}
