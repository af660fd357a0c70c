/* SPDX-License-Identifier: MIT */
/* The last call of a communicator before its destroy: what is enqueued ends, nothing new begins. */
#include "base/error.h"
#include "base/order.h"
#include "comm/comm.h"
#include "cuda/runtime/group.h"

static const char call[] = "tutti_comm_finalize";

static enum tutti_status comm_check(const struct tutti_comm *comm)
{
    enum tutti_status status =
        comm_check_met(comm, call, ", so there is nothing to end: destroy it");
    if (status != TUTTI_OK)
        return status;
    if (comm->service == COMM_SERVES)
        return error_set(TUTTI_ERR_CONCURRENT,
                         "%s: communicator \"%s\" has a process group: destroy that first", call,
                         comm->name);
    return TUTTI_OK;
}

/* Takes `busy` for good, so that no operation enters any more; `shrinking` keeps shrink.c and
 * another thread's tutti_comm_finalize() out until leave(). */
static enum tutti_status enter(struct tutti_comm *comm)
{
    if (order_exchange_u32(&comm->shrinking, 1)) /* C3: pairs leave() */
        goto err_inside;
    if (order_load_relaxed_u32(&comm->finalized)) /* relaxed: C3 has ordered it */
        return TUTTI_OK;
    if (comm->service == COMM_FREE && order_exchange_u32(&comm->busy, 1)) /* C1 */
        goto err_leave;
    order_store_relaxed_u32(&comm->finalized, 1);
    return TUTTI_OK;

err_leave:
    order_store_release_u32(&comm->shrinking, 0); /* C3 */
err_inside:
    return error_set(TUTTI_ERR_CONCURRENT,
                     "%s: another thread is inside communicator \"%s\": call once it has returned",
                     call, comm->name);
}

static void leave(struct tutti_comm *comm)
{
    order_store_release_u32(&comm->shrinking, 0); /* C3 */
}

enum tutti_status tutti_comm_finalize(tutti_comm_t *comm, int64_t timeout_ms)
{
    enum tutti_status status = comm_check(comm);
    if (status == TUTTI_OK)
        status = enter(comm);
    if (status != TUTTI_OK)
        return status;
    status = comm->backend->finish(comm->group, timeout_ms ? timeout_ms : comm->timeout_ms);
    leave(comm);
    return status == TUTTI_OK ? TUTTI_OK : error_context(status, "%s", call);
}
