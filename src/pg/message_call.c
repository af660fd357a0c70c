/* SPDX-License-Identifier: MIT */
/* Messages, the calls. message.c moves them. */
#include "base/error.h"
#include "base/order.h"
#include "pg/pg.h"

static enum tutti_status message_read(const struct tutti_pg *pg, const struct pg_call *call,
                                      struct pg_lists *lists, struct pg_operation *operation)
{
    const int peer = operation->args.peer;
    const bool any = peer == TUTTI_ANY_SOURCE && call->collective == TUTTI_COLLECTIVE_RECV;
    const struct tutti_tensor *tensor = lists->list[0];
    if (!any && (unsigned)peer >= (unsigned)pg->comm->world_size)
        return coll_explain(call->name, &coll_rows[call->collective], &operation->args,
                            COLL_BAD_PEER, pg->comm->rank, pg->comm->world_size, NULL);
    if (!tensor)
        return error_set(TUTTI_ERR_INVALID, "%s: tensor is NULL", call->name);
    if (!pg->comm->rules.paths.all)
        return error_set(TUTTI_ERR_DECLINED,
                         "%s: not all ranks of the topology file are linked: only all-reduces and "
                         "barriers run",
                         call->name);
    operation->args.op = TUTTI_SUM; /* only for the check, which is that of a sum */
    const enum tutti_status status = pg_list_read(pg, call, lists, operation);
    operation->args.op = NULL;
    return status;
}

static enum tutti_status submit(tutti_pg_t *pg, const struct pg_call *call,
                                const struct tutti_tensor *tensor, int peer,
                                const struct tutti_pg_call_options *options, tutti_work_t **work)
{
    const struct coll_args args = {.peer = peer};
    return pg_submit(pg, call, &(struct pg_lists){{tensor}, {1}}, &args, options, work);
}

enum tutti_status tutti_pg_send(tutti_pg_t *pg, const struct tutti_tensor *tensor, int peer,
                                const struct tutti_pg_call_options *options, tutti_work_t **work)
{
    static const struct pg_call call =
        PG_TENSORS_CALL("tutti_pg_send", TUTTI_COLLECTIVE_SEND, message_read);
    return submit(pg, &call, tensor, peer, options, work);
}

enum tutti_status tutti_pg_recv(tutti_pg_t *pg, const struct tutti_tensor *tensor, int peer,
                                const struct tutti_pg_call_options *options, tutti_work_t **work)
{
    static const struct pg_call call =
        PG_TENSORS_CALL("tutti_pg_recv", TUTTI_COLLECTIVE_RECV, message_read);
    return submit(pg, &call, tensor, peer, options, work);
}

int tutti_work_source(const tutti_work_t *work)
{
    if (!work || work->class != &pg_work_class)
        return -1;
    const struct pg_operation *operation = (const struct pg_operation *)work;
    /* Relaxed: a thread that has found the work done sees the value. */
    return (int)order_load_relaxed_u32(&operation->source) - 1;
}
