/* SPDX-License-Identifier: MIT */
#include "coll/coll.h"

#include "base/error.h"

#include <stdio.h>

static void overlap_explain(const struct coll *coll, const struct coll_args *args, int world_size,
                            char *text, size_t size)
{
    const size_t block = args->count * dtype_bytes(args->dtype);
    const char *place = "the same address";
    if (coll->recv_all != coll->send_all)
        place = coll->recv_all ? "recv + rank * count as send" : "send + rank * count as recv";
    snprintf(text, size,
             "send %p of %zu bytes and recv %p of %zu bytes overlap in part: use %s, or disjoint "
             "ones",
             args->send, block * coll_send_blocks(coll, world_size), args->recv,
             block * coll_recv_blocks(coll, world_size), place);
}

enum tutti_status coll_explain(const char *call, const struct coll *coll,
                               const struct coll_args *args, enum coll_error error, int rank,
                               int world_size, const char *send)
{
    char text[256] = "";
    const size_t width = dtype_bytes(dtype_component(args->dtype));
    const bool sends = coll_has(coll->send, rank, args->peer);
    const bool send_is_bad =
        sends && (error == COLL_NULL ? !args->send : (uintptr_t)args->send & (width - 1));
    const char *operand = send_is_bad ? send : "recv";
    switch (error) {
    case COLL_GOOD:
        break;
    case COLL_DTYPE:
        snprintf(text, sizeof text, "dtype %d: expected a value of enum tutti_dtype",
                 (int)args->dtype);
        break;
    case COLL_OP:
        snprintf(text, sizeof text,
                 "op is none: expected TUTTI_SUM or another constant, or one that "
                 "tutti_op_create_premul_sum() made and that is not destroyed");
        break;
    case COLL_UNDEFINED:
        snprintf(text, sizeof text, "%s is not defined for %s", tutti_op_name(args->op),
                 tutti_dtype_name(args->dtype));
        break;
    case COLL_BAD_PEER:
        if (coll->peer == COLL_ROOT || args->peer != rank)
            snprintf(text, sizeof text, "%s is %d: expected 0 to %d",
                     coll->peer == COLL_ROOT ? "root" : "peer", args->peer, world_size - 1);
        else
            snprintf(text, sizeof text,
                     "peer %d is the caller: make both calls in a group (tutti_group_start()), or "
                     "copy the data",
                     args->peer);
        break;
    case COLL_COUNT:
        snprintf(text, sizeof text, "count %zu is more than memory can hold", args->count);
        break;
    case COLL_NULL:
        snprintf(text, sizeof text, "%s is NULL with count %zu", operand, args->count);
        break;
    case COLL_ALIGNMENT:
        snprintf(text, sizeof text, "%s %p is not aligned to the %zu bytes of %s", operand,
                 send_is_bad ? args->send : args->recv, width, tutti_dtype_name(args->dtype));
        break;
    case COLL_OVERLAP:
        overlap_explain(coll, args, world_size, text, sizeof text);
        break;
    }
    return error_set(TUTTI_ERR_INVALID, "%s%s%s", call ? call : "", call ? ": " : "", text);
}
