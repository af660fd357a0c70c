/* SPDX-License-Identifier: MIT */
/* How operations and groups end: the fault of the communicator, and the error texts. */
#include "base/error.h"
#include "base/order.h"
#include "base/signature.h"
#include "cpu/group.h"
#include "pg/pg.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

enum { TEXT_BYTES = 640 };

enum tutti_status pg_comm_fail(struct tutti_comm *comm, enum tutti_status status, int peer)
{
    const struct tutti_fault fault = {
        .struct_size = sizeof fault,
        .status = status,
        .rank = comm->rank,
        .peer = peer,
        .sequence = cpu_group_sequence(comm->host),
    };
    return cpu_group_fail(comm->host, &fault);
}

struct text {
    size_t length;
    char bytes[TEXT_BYTES];
};

static void append(struct text *text, const char *format, ...) TUTTI_PRINTF(2, 3);

static void append(struct text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    size_t room = sizeof text->bytes - text->length;
    int length = vsnprintf(text->bytes + text->length, room, format, arguments);
    va_end(arguments);
    if (length > 0)
        text->length += (size_t)length < room ? (size_t)length : room - 1;
}

/* Return the stride of a dimension, from the positions and sizes. */
static int64_t stride_of(const struct layout_operation *operation, int dims, int dim)
{
    int64_t stride = 1;
    for (int d = 0; d < dims; d++)
        if (operation->order[d] < operation->order[dim])
            stride *= operation->sizes[d];
    return stride;
}

static void append_sparse(struct text *text, const struct layout_operation *operation)
{
    static const char *const kinds[] = {", sparse sizes [", ", dense sizes ["};
    for (int kind = 0; kind < 2; kind++) {
        const char *separator = kinds[kind];
        for (int d = 0; d < LAYOUT_DIMS; d++)
            if (operation->order[d] == kind) {
                append(text, "%s%" PRId64, separator, operation->sizes[d]);
                separator = ", ";
            }
        append(text, "%s", separator == kinds[kind] ? "" : "]");
    }
}

/* `operation` may come from another process, so its fields are not trusted. */
static void append_operation(struct text *text, const struct layout_operation *operation)
{
    struct tutti_signature what = signature_unpack(operation->signature, operation->parameter);
    int dims = operation->dims < LAYOUT_DIMS ? operation->dims : LAYOUT_DIMS;
    const char *where = operation->device == TUTTI_DEVICE_CUDA ? " on CUDA devices" : "";
    if (operation->dims == LAYOUT_SPARSE) {
        append(text, "all_reduce_sparse of %s", tutti_dtype_name(what.dtype));
        append_sparse(text, operation);
        append(text, "%s", where);
        return;
    }
    append(text, "%s of %" PRIu64 " %s, %s", tutti_collective_name(what.collective), what.count,
           tutti_dtype_name(what.dtype), tutti_op_name(what.op));
    if (what.parameter)
        append(text, " (scalar hash %08" PRIx32 ")", what.parameter);
    append(text, ", sizes [");
    for (int d = 0; d < dims; d++)
        append(text, "%s%" PRId64, d ? ", " : "", operation->sizes[d]);
    append(text, "], strides [");
    for (int d = 0; d < dims; d++)
        append(text, operation->order[d] == LAYOUT_NO_POSITION ? "%s-" : "%s%" PRId64,
               d ? ", " : "", stride_of(operation, dims, d));
    append(text, "]%s", where);
}

static void append_timeout(struct text *text, const struct pg_outcome *outcome)
{
    const int rank = outcome->rank, peer = outcome->peer;
    if (outcome->wait_expired)
        append(
            text,
            "a call of CUDA blocked it on rank %d until its time-out, and the streams that "
            "waited for it went on without the result: another call of that process, such as "
            "cuMemFree or the first use of a kernel, waits for a stream that waits for this work "
            "(docs/streams.md): wait on the host before such a call",
            rank);
    else if (outcome->has_failed)
        append(text,
               "rank %d does not go on, noticed by rank %d at its time-out: find out what rank %d "
               "does; then create a new communicator and group",
               peer, rank, peer);
    else if (peer == rank)
        append(
            text,
            "the stream of rank %d had not reached the input when the time-out passed there: "
            "check the work on that stream, or raise timeout_ms in the options of the call, else "
            "of the group, else of its communicator; the group goes on",
            rank);
    else
        append(text,
               "rank %d had not submitted it when the time-out passed on rank %d: find out what "
               "rank %d does, or raise timeout_ms in the options of the call, else of the group, "
               "else of its communicator; the group goes on",
               peer, rank, peer);
}

static void append_reason(struct text *text, const struct pg_outcome *outcome)
{
    switch (outcome->status) {
    case TUTTI_ERR_TIMEOUT:
        append_timeout(text, outcome);
        return;
    case TUTTI_ERR_PEER_DEAD:
        append(text,
               "rank %d is gone (its process ended or it destroyed its group), noticed by rank "
               "%d: see rank %d's log; create a new communicator and group without it",
               outcome->peer, outcome->rank, outcome->peer);
        return;
    case TUTTI_ERR_MISMATCH:
        append(text, "ranks disagree: rank %d has ", outcome->rank);
        append_operation(text, &outcome->expected);
        append(text, "; rank %d has ", outcome->peer);
        append_operation(text, &outcome->seen);
        append(text, ": submit the same on all ranks, in the same order in each tag");
        return;
    case TUTTI_ERR_ABORTED:
        append(text, "rank %d aborted the communicator or destroyed its group, noticed by rank %d",
               outcome->peer, outcome->rank);
        return;
    case TUTTI_OK:
    case TUTTI_ERR_INVALID:
    case TUTTI_ERR_DECLINED:
    case TUTTI_ERR_CONCURRENT:
    case TUTTI_ERR_NO_MEMORY:
    case TUTTI_ERR_SYSTEM:
    case TUTTI_ERR_CUDA:
    case TUTTI_ERR_VERSION:
        break;
    }
    append(text, "rank %d failed: %s", outcome->rank, tutti_status_text(outcome->status));
}

enum tutti_status pg_outcome_report(const struct pg_outcome *outcome, const struct pg_op *op,
                                    const char *list)
{
    struct text text = {.length = 0};
    if (op)
        append(&text, "%s %" PRIu64 " of tag %" PRIu32, pg_op_name(op), op->work.sequence,
               op->work.tag);
    else
        append(&text, "the process group has ended");
    append(&text, ": ");
    if (op && op->sparse && op->sparse->error_text[0] && !outcome->has_failed)
        append(&text, "%s", op->sparse->error_text);
    else
        append_reason(&text, outcome);
    if (*list)
        append(&text, " (rank 0 is the first in the list of %s)", list);
    return error_set(outcome->status, "%s", text.bytes);
}
