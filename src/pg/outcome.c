/* SPDX-License-Identifier: MIT */
/* How operations and groups end: the fault of the communicator, and the error texts. */
#include "base/error.h"
#include "base/signature.h"
#include "base/text.h"
#include "peers/peers.h"
#include "pg/pg.h"

#include <inttypes.h>

enum { TEXT_BYTES = 640 };

enum tutti_status pg_comm_fail(struct tutti_comm *comm, enum tutti_status status, int peer)
{
    const int first = comm->hosts.group ? PEERS_ELSEWHERE : 0;
    const struct tutti_fault fault = {
        .struct_size = sizeof fault,
        .status = status,
        .rank = first + comm->rank,
        .peer = first + peer,
        .sequence = peers_sequence(comm->peers),
    };
    return peers_fail(comm->peers, &fault);
}

struct text {
    int length;
    char bytes[TEXT_BYTES];
};

#define APPEND(text, ...) text_append((text)->bytes, TEXT_BYTES, &(text)->length, __VA_ARGS__)

/* Return the stride of a dimension, from the positions and sizes. */
static int64_t stride_of(const struct layout_operation *description, int dims, int dim)
{
    int64_t stride = 1;
    for (int d = 0; d < dims; d++)
        if (description->order[d] < description->order[dim])
            stride *= description->sizes[d];
    return stride;
}

static void append_sparse(struct text *text, const struct layout_operation *description)
{
    static const char *const kinds[] = {", sparse sizes [", ", dense sizes ["};
    for (int kind = 0; kind < 2; kind++) {
        const char *separator = kinds[kind];
        for (int d = 0; d < LAYOUT_DIMS; d++)
            if (description->order[d] == kind) {
                APPEND(text, "%s%" PRId64, separator, description->sizes[d]);
                separator = ", ";
            }
        APPEND(text, "%s", separator == kinds[kind] ? "" : "]");
    }
}

const char *pg_description_name(const struct layout_operation *description)
{
    if (description->format == LAYOUT_SPARSE)
        return "all_reduce_sparse";
    return tutti_collective_name(signature_unpack(description->signature, 0).collective);
}

/* Append what follows the operation's name, except the layout. */
static void append_call(struct text *text, const struct layout_operation *description,
                        const struct tutti_signature *what)
{
    const uint32_t mask = (1u << SIGNATURE_ROOT_BITS) - 1;
    const bool rooted = coll_is_rooted(what->collective);
    const uint32_t hash = rooted ? what->parameter & ~mask : what->parameter;
    APPEND(text, " of ");
    if (description->pairs > 1)
        APPEND(text, "%" PRIu32 " x ", description->pairs);
    if (description->format == LAYOUT_LISTS && !what->count && !description->dims)
        APPEND(text, "lists of %s", tutti_dtype_name(what->dtype));
    else
        APPEND(text, "%" PRIu64 " %s", what->count, tutti_dtype_name(what->dtype));
    if (what->op)
        APPEND(text, ", %s", tutti_op_name(what->op));
    if (hash)
        APPEND(text, " (scalar hash %08" PRIx32 ")", hash);
    if (rooted)
        APPEND(text, ", root %" PRIu32, (what->parameter & mask) - 1);
    if (description->more_pairs)
        APPEND(text, " (layouts of the other pairs: hash %08" PRIx32 ")", description->more_pairs);
}

/* `description` may come from another process, so its fields are not trusted. */
static void append_operation(struct text *text, const struct layout_operation *description)
{
    struct tutti_signature what = signature_unpack(description->signature, description->parameter);
    int dims = description->dims < LAYOUT_DIMS ? description->dims : LAYOUT_DIMS;
    const char *where = description->device == TUTTI_DEVICE_CUDA ? " on CUDA devices" : "";
    if (description->format == LAYOUT_SPARSE) {
        APPEND(text, "%s of %s", pg_description_name(description), tutti_dtype_name(what.dtype));
        append_sparse(text, description);
        APPEND(text, "%s", where);
        return;
    }
    APPEND(text, "%s", pg_description_name(description));
    if (what.collective == TUTTI_COLLECTIVE_BARRIER)
        return;
    append_call(text, description, &what);
    if (what.collective == TUTTI_COLLECTIVE_SEND || what.collective == TUTTI_COLLECTIVE_RECV)
        return;
    if (description->format == LAYOUT_LISTS) {
        if (dims == 2)
            APPEND(text, " from rank %" PRId64 " to rank %" PRId64, description->sizes[0],
                   description->sizes[1]);
        APPEND(text, "%s", where);
        return;
    }
    APPEND(text, ", sizes [");
    for (int d = 0; d < dims; d++)
        APPEND(text, "%s%" PRId64, d ? ", " : "", description->sizes[d]);
    APPEND(text, "], strides [");
    for (int d = 0; d < dims; d++)
        APPEND(text, description->order[d] == LAYOUT_NO_POSITION ? "%s-" : "%s%" PRId64,
               d ? ", " : "", stride_of(description, dims, d));
    APPEND(text, "]%s", where);
}

static void append_timeout(struct text *text, const struct pg_outcome *outcome)
{
    const int rank = outcome->rank, peer = outcome->peer;
    if (outcome->wait_expired)
        APPEND(
            text,
            "a call of CUDA blocked it on rank %d until its time-out, and the streams that "
            "waited for it went on without the result: another call of that process, such as "
            "cuMemFree or the first use of a kernel, waits for a stream that waits for this work "
            "(docs/streams.md): wait on the host before such a call",
            rank);
    else if (outcome->has_failed)
        APPEND(text,
               "rank %d does not go on, noticed by rank %d at its time-out: find out what rank %d "
               "does; then create a new communicator and group",
               peer, rank, peer);
    else if (peer < 0)
        APPEND(
            text,
            "nothing had matched it when the time-out passed on rank %d: find out what the ranks "
            "do, or raise timeout_ms in the options of the call, else of the group, else of its "
            "communicator; the group goes on",
            rank);
    else if (peer == rank)
        APPEND(
            text,
            "the stream of rank %d had not reached the input when the time-out passed there: "
            "check the work on that stream, or raise timeout_ms in the options of the call, else "
            "of the group, else of its communicator; the group goes on",
            rank);
    else
        APPEND(text,
               "rank %d had not submitted it when the time-out passed on rank %d: find out what "
               "rank %d does, or raise timeout_ms in the options of the call, else of the group, "
               "else of its communicator; the group goes on",
               peer, rank, peer);
}

static void append_reason(struct text *text, const struct pg_outcome *outcome)
{
    const enum tutti_status status = outcome->status;
    if (status == TUTTI_ERR_TIMEOUT) {
        append_timeout(text, outcome);
    } else if (status == TUTTI_ERR_PEER_DEAD) {
        APPEND(text,
               "rank %d is gone (its process ended or it destroyed its group), noticed by rank "
               "%d: see rank %d's log; create a new communicator and group without it",
               outcome->peer, outcome->rank, outcome->peer);
    } else if (status == TUTTI_ERR_MISMATCH) {
        APPEND(text, "ranks disagree: rank %d has ", outcome->rank);
        append_operation(text, &outcome->expected);
        APPEND(text, "; rank %d has ", outcome->peer);
        append_operation(text, &outcome->seen);
        APPEND(text, ": submit the same on all ranks, in the same order in each tag");
    } else if (status == TUTTI_ERR_ABORTED) {
        APPEND(text, "rank %d aborted the communicator or destroyed its group, noticed by rank %d",
               outcome->peer, outcome->rank);
    } else {
        APPEND(text, "rank %d failed: %s", outcome->rank, tutti_status_text(status));
    }
}

enum tutti_status pg_outcome_report(const struct pg_outcome *outcome,
                                    const struct pg_operation *operation, const char *list)
{
    struct text text = {.length = 0};
    if (operation)
        APPEND(&text, "%s %" PRIu64 " of tag %" PRIu32,
               pg_description_name(&operation->description), operation->work.sequence,
               operation->work.tag);
    else
        APPEND(&text, outcome->has_failed ? "the process group has ended"
                                          : "collectives of the process group have ended");
    APPEND(&text, ": ");
    if (operation && operation->sparse && operation->sparse->error_text[0] && !outcome->has_failed)
        APPEND(&text, "%s", operation->sparse->error_text);
    else
        append_reason(&text, outcome);
    if (*list)
        APPEND(&text, " (rank 0 is the first in the list of %s)", list);
    return error_set(outcome->status, "%s", text.bytes);
}
