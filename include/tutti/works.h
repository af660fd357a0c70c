/* SPDX-License-Identifier: MIT */
/* Works. Part of tutti.h, whose conventions hold. */
#ifndef TUTTI_WORKS_H
#define TUTTI_WORKS_H

#include "tutti/tutti.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- completion on a stream, or of an operation of a process group --------------------------- */

/*
 * A work is a point on a stream, after all that was on the stream when the work was recorded: it
 * says when the stream has passed the point, and whether the operations before it succeeded. Or it
 * is an operation of a process group (tutti_pg_create(); differences are noted). Several threads
 * may use one work at once. The caller keeps operands valid until the work is done. A work may be
 * used and destroyed after its communicator or group. docs/streams.md says what works order.
 *
 * A work that is recorded on a stream under capture stands for edges of the graph: streams of the
 * same capture can wait for it, and all else is refused. Such a stream waits for no other works.
 */
typedef struct tutti_work tutti_work_t;

/*
 * Records a work on a stream of comm's device. Costs about as much as an event; a communicator
 * keeps up to 32 destroyed works for reuse. On CPU the work is done at once. Several threads may
 * call this for one communicator at once, also while another thread is inside a call on it.
 *
 * - [out] work: destroy it with tutti_work_destroy()
 *
 * Returns INVALID, CUDA, NO_MEMORY. Or the fault with which the communicator has failed: nothing is
 * recorded.
 *
 * Example:
 *
 *     tutti_work_t *work;
 *
 *     if (tutti_all_reduce(x, x, count, TUTTI_FLOAT32, TUTTI_SUM, comm, a) ||
 *         tutti_work_record(comm, a, &work) || tutti_work_wait_stream(work, b))
 *         errx(1, "%s", tutti_last_error());
 *     // Kernels launched on b from now on find the sum in x.
 *     if (tutti_work_wait_host(work, 0))
 *         errx(1, "%s", tutti_last_error());
 *     tutti_work_destroy(work);
 */
TUTTI_API enum tutti_status tutti_work_record(tutti_comm_t *comm, tutti_stream_t stream,
                                              tutti_work_t **work);
/*
 * Sets *done to whether the stream has passed the work; does not wait. If it has, the status is
 * that of the operations before the work: OK, or the communicator's fault. A kernel whose peer does
 * not come ends too, and the stream goes on; so check the status before using the result. A fault
 * that came before the first call that finds the work done counts, whether its operation came
 * before the work or after it; after that call the status stays. If the communicator was destroyed
 * while these operations were under way, the status is ABORTED or an earlier fault.
 *
 * Returns INVALID (also for a work of a capture; *done is then false), CUDA (a call of the driver
 * failed; *done is then false), TIMEOUT, PEER_DEAD, MISMATCH, ABORTED.
 */
TUTTI_API enum tutti_status tutti_work_test(tutti_work_t *work, bool *done);
/*
 * Makes the stream wait until the work is done. The host does not wait. The wait has no time-out of
 * its own; the operations before the work have theirs. tutti_work_wait_host() returns how they
 * ended. For an operation of a process group on CPU tensors the host waits and gets its status.
 *
 * - [in] stream: of any device. TUTTI_STREAM_DEFAULT, TUTTI_STREAM_LEGACY and
 *   TUTTI_STREAM_PER_THREAD are those of the communicator's device. A work of a CPU communicator or
 *   group accepts TUTTI_STREAM_DEFAULT only
 *
 * Returns INVALID (also for a stream under another capture than the work's), CUDA.
 */
TUTTI_API enum tutti_status tutti_work_wait_stream(tutti_work_t *work, tutti_stream_t stream);
/*
 * Waits on the host until the work is done.
 *
 * - [in] timeout_ms: 0 is the communicator's or group's time-out. If it expires, TIMEOUT is
 *   returned and the operations go on: tutti_work_test() sets *done to false. Call again
 *
 * Returns what tutti_work_test() then returns.
 */
TUTTI_API enum tutti_status tutti_work_wait_host(tutti_work_t *work, int64_t timeout_ms);
/* Destroys a work, done or not, also after its communicator. Streams that wait for it still wait.
 * Takes NULL. In a child of fork() it frees the copied handle. */
TUTTI_API void tutti_work_destroy(tutti_work_t *work);

#ifdef __cplusplus
}
#endif

#endif
