/* SPDX-License-Identifier: MIT */
/* Fabrics. Part of tutti.h, whose conventions hold. */
#ifndef TUTTI_FABRIC_H
#define TUTTI_FABRIC_H

#include "tutti/tutti.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- engines between hosts ------------------------------------------------------------------- */

/*
 * A fabric is an engine that moves bytes between hosts. Tutti has no transport between hosts of its
 * own: it opens the engine at run time. Open a fabric once, and use it for any number of
 * communicators.
 */
typedef struct tutti_fabric tutti_fabric_t;

/*
 * Opens a fabric by URL. It waits for no rank, except that MPI's initialisation may.
 *
 * - mpi:PATH: MPI, for memory of the host. Without PATH it is the MPI that the program has loaded,
 *   also if it was opened at run time, as Python does. If there is none, it is the MPI of the
 *   launcher that started the process (mpirun, mpiexec, srun). PATH names another file for this
 *   case; a second MPI beside a loaded one is refused. Any MPI serves that has the interface of
 *   MPICH (Intel MPI has), of Open MPI, or of the standard (libmpi_abi.so.1)
 * - nccl:PATH: NVIDIA's NCCL 2.14 or newer, for memory of CUDA devices: communicators of CUDA
 *   ranks, up to 8. PATH is its library; without PATH it is that of TUTTI_NCCL_LIBRARY, or
 *   libnccl.so.2. NCCL only moves bytes: Tutti's own kernels compute the sums. Destroy graphs with
 *   operations that go through the fabric before the communicator: else what NCCL has for it is not
 *   freed. Launch no such graph after a fault: NCCL has freed what it needs. As with NCCL's own
 *   communicators, ranks enqueue operations of two such communicators in the same order
 *
 * *MPI.* If MPI is not initialised, this call does it, asks for MPI_THREAD_MULTIPLE, and the end of
 * the last fabric calls MPI_Finalize(), unless a communicator of the fabric has failed. With less
 * than MPI_THREAD_MULTIPLE only the calling thread may use communicators with the fabric; with less
 * than MPI_THREAD_SERIALIZED it must be MPI's main thread, and a rank that is killed while a
 * communicator is created may leave the others inside MPI, which has no deadline. Else they get
 * PEER_DEAD; a thread of theirs stays inside MPI, so that MPI_Finalize() may wait for ever.
 * When a rank's process ends, Open MPI and MPICH may end those that it had connections with, too.
 *
 * Messages of the program and of Tutti do not meet: each communicator of Tutti has an MPI
 * communicator of its own. Under Open MPI make one of all ranks of MPI_COMM_WORLD before one of
 * some of them: Open MPI makes the latter by messages that a receive of the program with
 * MPI_ANY_SOURCE and MPI_ANY_TAG may take, and would then wait for ever.
 *
 * - [in] url: such as "mpi:"
 * - [out] fabric: close it with tutti_fabric_close()
 *
 * Returns INVALID (the URL is wrong), DECLINED (no such engine was found, it does not belong to the
 * launcher, it was finalized, or it lacks a function; the message says what was looked for),
 * NO_MEMORY, SYSTEM (the engine's error).
 */
TUTTI_API enum tutti_status tutti_fabric_open(const char *url, tutti_fabric_t **fabric);
/* Closes a fabric; takes NULL. The engine is left when the last communicator that uses the fabric
 * is destroyed. */
TUTTI_API void tutti_fabric_close(tutti_fabric_t *fabric);

#ifdef __cplusplus
}
#endif

#endif
