/* SPDX-License-Identifier: MIT */
/* Writes a fault as a sentence. */
#include "base/counts.h"
#include "base/signature.h"
#include "base/timeout_source.h"
#include "coll/coll.h"
#include "tutti/tutti.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void signature_format(const struct tutti_signature *signature, char *text, size_t size)
{
    const char *name = tutti_collective_name(signature->collective);
    if (!signature->collective) {
        snprintf(text, size, "a collective that is no longer in its log");
        return;
    }
    if (signature->collective == TUTTI_COLLECTIVE_BARRIER) {
        if (signature->parameter)
            snprintf(text, size, "%s (subset %08" PRIx32 ")", name, signature->parameter);
        else
            snprintf(text, size, "%s", name);
        return;
    }
    if (signature->collective == TUTTI_COLLECTIVE_SPLIT) {
        snprintf(text, size, "%s", name);
        return;
    }
    const bool scaled = signature->op == TUTTI_PREMUL_SUM;
    const bool counted = coll_has_common_counts(signature->collective);
    const bool pushes =
        signature->algo == TUTTI_ALGO_COPY_ENGINE || signature->algo == TUTTI_ALGO_SYMMETRIC;
    const bool varies =
        coll_varies(signature->collective) && !coll_is_rooted(signature->collective);
    const bool norms = signature->collective == TUTTI_COLLECTIVE_ALL_REDUCE_RMS_NORM;
    const char *hashed = pushes     ? "place of recv"
                         : norms    ? "norm"
                         : !counted ? varies ? "max_count" : "scalar"
                         : scaled   ? "counts and scalar"
                                    : "counts";
    char count[24] = "";
    if (signature->count != SIGNATURE_COUNT_VARIES)
        snprintf(count, sizeof count, "%" PRIu64 " ", signature->count);
    int length =
        snprintf(text, size, "%s of %s%s, %s%s%s", name, count, tutti_dtype_name(signature->dtype),
                 signature->op ? tutti_op_name(signature->op) : "", signature->op ? ", " : "",
                 tutti_algo_name(signature->algo));
    const uint32_t mask = (1u << SIGNATURE_ROOT_BITS) - 1, root = signature->parameter & mask;
    const bool rooted = coll_is_rooted(signature->collective);
    uint32_t hash = signature->parameter;
    if (rooted && root && length > 0 && (size_t)length < size)
        length += snprintf(text + length, size - (size_t)length, ", root %" PRIu32, root - 1);
    if (rooted)
        hash &= ~mask;
    if (!hash || length <= 0 || (size_t)length >= size)
        return;
    snprintf(text + length, size - (size_t)length, ", %s hash %08" PRIx32, hashed, hash);
}

/* A fault that names no rank, for example of ranks that did not meet. The call that failed has said
 * why. */
static int format_nameless(const struct tutti_fault *fault, char *text, size_t size)
{
    char when[48] = "before the first operation";
    if (fault->sequence)
        snprintf(when, sizeof when, "in operation %" PRIu64, fault->sequence);
    return snprintf(text, size,
                    "rank %d failed %s: %s; the error of the call that failed says more",
                    fault->rank, when, tutti_status_text(fault->status));
}

/* A rank that waited for none but itself: a copy of a process group did not end. */
static int format_own_timeout(const struct tutti_fault *fault, char *text, size_t size)
{
    return snprintf(text, size,
                    "rank %d could not end its own part of operation %" PRIu64
                    " in time, such as a copy between device and host: look at what rank %d does; "
                    "a call such as cuMemFree or cudaFree in its process holds copies up, see "
                    "docs/streams.md; then create a new communicator",
                    fault->rank, fault->sequence, fault->rank);
}

/* The time-out of a device or of another version may lack its length and source. */
static int format_timeout(const struct tutti_fault *fault, char *text, size_t size)
{
    static const char *const remedies[] = {
        [TIMEOUT_UNKNOWN] =
            ("raise the time-out that holds: timeout_ms in the options of the call, "
             "else of the communicator, else TUTTI_TIMEOUT_MS"),
        [TIMEOUT_OF_CALL] = "raise timeout_ms in the options of the call",
        [TIMEOUT_OF_COMM] = "raise timeout_ms in the options of the communicator",
        [TIMEOUT_OF_ENVIRONMENT] = "raise TUTTI_TIMEOUT_MS",
        [TIMEOUT_OF_DEFAULT] = "set TUTTI_TIMEOUT_MS to more",
    };
    const struct tutti_signature *seen = &fault->seen;
    const bool is_thread = !seen->collective && (seen->parameter & TIMEOUT_OF_THREAD);
    char length[40] = "", thread[160] = "";
    uint32_t source = seen->parameter & ~(uint32_t)TIMEOUT_OF_THREAD;
    if (seen->collective || source >= sizeof remedies / sizeof *remedies)
        source = TIMEOUT_UNKNOWN;
    if (source != TIMEOUT_UNKNOWN)
        snprintf(length, sizeof length, " of %" PRIu64 " ms", seen->count);
    if (is_thread)
        snprintf(thread, sizeof thread,
                 " (a thread of the same process: a call such as cuMemFree or cudaFree waits for "
                 "this operation, see docs/streams.md)");
    return snprintf(text, size,
                    "rank %d waited for rank %d in operation %" PRIu64
                    " until its time-out%s: look at what rank %d does%s, or %s; go on without it "
                    "by tutti_comm_shrink() with rank %d in options->exclude",
                    fault->rank, fault->peer, fault->sequence, length, fault->peer, thread,
                    remedies[source], fault->peer);
}

static int format_mismatch(const struct tutti_fault *fault, char *text, size_t size)
{
    char mine[160], theirs[160];
    if (!fault->expected.collective && !fault->seen.collective)
        return snprintf(text, size,
                        "ranks %d and %d have called different collectives before operation "
                        "%" PRIu64 ", or the same with different roots, and their logs no longer "
                        "say which: make the same calls in the same order on all ranks",
                        fault->rank, fault->peer, fault->sequence);
    signature_format(&fault->expected, mine, sizeof mine);
    signature_format(&fault->seen, theirs, sizeof theirs);
    return snprintf(text, size,
                    "ranks disagree in operation %" PRIu64 ": rank %d has %s; rank %d has %s: "
                    "make the same calls in the same order on all ranks",
                    fault->sequence, fault->rank, mine, fault->peer, theirs);
}

/* Counts that a kernel has read. */
static int format_counts(const struct tutti_fault *fault, char *text, size_t size)
{
    const uint32_t which = fault->expected.parameter;
    const char *operand = which & COUNTS_OF_RECV ? "recv" : "send";
    const bool is_negative = which & COUNTS_NEGATIVE;
    char seen[40], what[192] = "";
    snprintf(seen, sizeof seen, "%s%" PRIu64 "%s", is_negative ? "-" : "", fault->seen.count,
             fault->seen.count != SIGNATURE_COUNT_MAX ? ""
             : is_negative                            ? " or less"
                                                      : " or more");
    if ((which & COUNTS_FAULT_MASK) == COUNTS_ABOVE_MOST)
        snprintf(what, sizeof what,
                 "block %" PRIu32 " of %s has %s elements, and max_count is %" PRIu64,
                 fault->seen.parameter, operand, seen, fault->expected.count);
    else if ((which & COUNTS_FAULT_MASK) == COUNTS_BEYOND_EXTENT && is_negative)
        snprintf(what, sizeof what, "block %" PRIu32 " of %s begins at element %s",
                 fault->seen.parameter, operand, seen);
    else if ((which & COUNTS_FAULT_MASK) == COUNTS_BEYOND_EXTENT)
        snprintf(what, sizeof what,
                 "block %" PRIu32 " of %s ends behind %s elements, and the operand has %" PRIu64,
                 fault->seen.parameter, operand, seen, fault->expected.count);
    else if ((which & COUNTS_FAULT_MASK) == COUNTS_OWN)
        snprintf(what, sizeof what, "rank %d sends %" PRIu64 " elements to itself and expects %s",
                 fault->rank, fault->expected.count, seen);
    else
        snprintf(what, sizeof what, "send and recv overlap in part at block %" PRIu32,
                 fault->seen.parameter);
    return snprintf(text, size,
                    "rank %d has wrong counts or displacements on its device in operation %" PRIu64
                    ", %s: %s: look at what writes them; then create a new communicator",
                    fault->rank, fault->sequence, tutti_collective_name(fault->expected.collective),
                    what);
}

/* A copy between the memories of two ranks' processes. */
static int format_copy(const struct tutti_fault *fault, char *text, size_t size)
{
    const int error = (int)fault->seen.count;
    return snprintf(text, size,
                    "rank %d could not copy the memory of rank %d in operation %" PRIu64 "%s%s: "
                    "rank %d has to keep its operands mapped until its call returns, and its first "
                    "thread has to live on (TUTTI_DIRECT=off: without such copies); create a new "
                    "communicator",
                    fault->rank, fault->peer, fault->sequence, error ? ": " : "",
                    error ? strerror(error) : "", fault->peer);
}

int tutti_fault_format(const struct tutti_fault *fault, char *text, size_t size)
{
    if (!fault) {
        if (size)
            *text = 0;
        return 0;
    }
    if (fault->peer < 0 && fault->status != TUTTI_OK)
        return format_nameless(fault, text, size);
    switch (fault->status) {
    case TUTTI_OK:
        return snprintf(text, size, "no fault");
    case TUTTI_ERR_TIMEOUT:
        return fault->rank == fault->peer ? format_own_timeout(fault, text, size)
                                          : format_timeout(fault, text, size);
    case TUTTI_ERR_PEER_DEAD:
        return snprintf(text, size,
                        "rank %d is gone (its process ended or it destroyed its communicator), "
                        "noticed by rank %d in operation %" PRIu64
                        ": look at rank %d's log; go on without it by tutti_comm_shrink()",
                        fault->peer, fault->rank, fault->sequence, fault->peer);
    case TUTTI_ERR_MISMATCH:
        return format_mismatch(fault, text, size);
    case TUTTI_ERR_ABORTED:
        return snprintf(text, size,
                        "rank %d aborted the communicator, noticed by rank %d in operation "
                        "%" PRIu64 ": create a new communicator",
                        fault->peer, fault->rank, fault->sequence);
    case TUTTI_ERR_CUDA:
    case TUTTI_ERR_NO_MEMORY:
        return snprintf(text, size,
                        "rank %d could not do its part of operation %" PRIu64
                        " (%s): rank %d's own error says why; restart that process if its CUDA "
                        "context is broken; go on without it by tutti_comm_shrink()",
                        fault->rank, fault->sequence, tutti_status_text(fault->status),
                        fault->rank);
    case TUTTI_ERR_INVALID:
        if (fault->expected.parameter)
            return format_counts(fault, text, size);
        break;
    case TUTTI_ERR_SYSTEM:
        if (fault->seen.count || fault->rank != fault->peer)
            return format_copy(fault, text, size);
        break;
    case TUTTI_ERR_DECLINED:
    case TUTTI_ERR_CONCURRENT:
    case TUTTI_ERR_VERSION:
        break;
    }
    return snprintf(text, size, "%s", tutti_status_text(fault->status));
}
