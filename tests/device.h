/* SPDX-License-Identifier: MIT */
/*
 * The device of the tests' communicators: the CPU, or, with TUTTI_TEST_DEVICE=cuda, one GPU a rank.
 *
 * Tests stay as they are. The linker turns their calls of tutti_comm_create(), tutti_all_reduce(),
 * tutti_barrier() and so on to device_wrap.c, which makes CUDA communicators, copies host operands
 * to the rank's GPU and back, and returns what the operation came to once its stream is empty: a
 * fault of the kernel is then the status of the call that met it. With TUTTI_TEST_GRAPH=N each call
 * is captured and its graph launched N times: more than once only from operands that are apart.
 * With TUTTI_TEST_STREAMS=2 a communicator's calls come on two streams in turn.
 */
#ifndef TESTS_DEVICE_H
#define TESTS_DEVICE_H

#include "tutti/tutti.h"

/* Whether communicators are CUDA ones. */
bool device_is_cuda(void);
/* The same, and it is GPUs, not a stand-in for libcuda. */
bool device_is_gpu(void);
/* How many ranks GPUs can be had for, as a child process finds them: this one may still fork. 0,
 * and why in *reason (may be NULL), where there are none. With TUTTI_ALLOW_OVERLAPPING_DEVICES in
 * the environment ranks share them, and it is the most that a communicator has. */
int device_count(const char **reason);
/* Whether ranks may share GPUs and no algorithm is forced. A host thread then stages the operations
 * of ranks that are processes; those of threads go through the host's memory. Also true for ranks
 * on several hosts (fabric/hosts.c), which are processes. */
bool device_is_shared(void);
/* Whether some of `size` ranks that are threads share a GPU. */
bool device_threads_share(int size);
/* The same. A call of such a rank returns only after the other ranks on the GPU have called too. So
 * a test in which one rank calls after it has seen another rank's call return would stand still,
 * and is skipped: this says so on stdout. */
bool device_skips_threads(int size);
/* The rank's GPU is the calling thread's from now on; its first call counts. */
bool device_bind(int rank);
/* The calling thread's GPU; -1: it has none yet. */
int device_bound(void);

/* How many graphs of calls this process has launched, each counted once. */
uint64_t device_graphs(void);

/* Between the enqueueing of a call and the wait for its end; for the fault tests. */
extern void (*device_enqueued)(void);

/* Lets the communicator's next operation be the first one after `sequence`: on every rank, before
 * any has begun. */
bool device_sequence_set(tutti_comm_t *comm, uint64_t sequence);

/* The library's own functions, for tests that have device operands. */
enum tutti_status device_all_reduce(const void *send, void *recv, size_t count,
                                    enum tutti_dtype dtype, tutti_op_t op, tutti_comm_t *comm,
                                    tutti_stream_t stream,
                                    const struct tutti_call_options *options);
enum tutti_status device_all_reduce_rms_norm(const struct tutti_rms_norm *norm, tutti_comm_t *comm,
                                             tutti_stream_t stream,
                                             const struct tutti_call_options *options);
enum tutti_status device_barrier(tutti_comm_t *comm, tutti_stream_t stream);
/* What came of such a call, once its stream is empty. status: what the call has returned. */
enum tutti_status device_wait(enum tutti_status status, tutti_comm_t *comm, tutti_stream_t stream);

#endif
