/* SPDX-License-Identifier: MIT */
/* Premultiplied sums: reductions that a program creates. <tutti/tutti.h> includes this header. */
#ifndef TUTTI_OPERATIONS_H
#define TUTTI_OPERATIONS_H

#include "tutti/tutti.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- premultiplied sums ---------------------------------------------------------------------- */

/*
 * Creates an operation for all dtypes except bool: multiply each input by one scalar in the
 * accumulation type, then sum. On integers the products wrap. Several communicators and threads may
 * use it at once.
 *
 * - [in] scalar: for floats, rounded to the accumulation type. For integers a whole number from
 *   -2^63 to 2^64 - 1, which wraps to the dtype; a call on integers with another scalar is INVALID.
 *   Equal on all ranks, else the collective returns MISMATCH (a hash of 31 bits is compared)
 * - [out] op: destroy it with tutti_op_destroy() after the last call that uses it
 *
 * Returns INVALID, NO_MEMORY (a process has at most 4096 at once).
 */
TUTTI_API enum tutti_status tutti_op_create_premul_sum(double scalar, tutti_op_t *op);
/*
 * The same for one dtype, with a scalar of that dtype in host memory, which is read now. The result
 * has the same bits.
 *
 * - [in] scalar: aligned to its size. Of a complex dtype: real, a float of the component's size
 * - [in] dtype: of the calls; a call with another one is INVALID
 *
 * Returns as tutti_op_create_premul_sum().
 */
TUTTI_API enum tutti_status
tutti_op_create_premul_sum_typed(const void *scalar, enum tutti_dtype dtype, tutti_op_t *op);
/*
 * The same with a scalar that is read when an operation runs: in the order of its stream, and anew
 * in each replay of a graph. The result has the same bits as with that value in the host's hands.
 *
 * - [in] scalar: not read here. In memory that the communicator's device can use, as the operands;
 *   of a CPU communicator in host memory, where the call reads it. The value, or the memory, must
 *   not change between the call and the end of the operation, except by earlier work on its stream.
 *   Equal on all ranks: each of them may apply its own scalar to the inputs of all ranks. A CPU
 *   communicator compares the values. A CUDA communicator compares only that all ranks have the
 *   scalar in memory; if the values differ, so may the results
 * - [in] dtype: as above
 *
 * Returns as tutti_op_create_premul_sum().
 */
TUTTI_API enum tutti_status
tutti_op_create_premul_sum_device(const void *scalar, enum tutti_dtype dtype, tutti_op_t *op);
/* Destroys a created operation. Ignores any other value. */
TUTTI_API void tutti_op_destroy(tutti_op_t op);
/* Static: "sum"; "unknown" for a value that is no operation. */
TUTTI_API const char *tutti_op_name(tutti_op_t op);

#ifdef __cplusplus
}
#endif

#endif
