/* SPDX-License-Identifier: MIT */
/*
 * The exact result of a reduction, for the tests and for `tutti bench`. The code is scalar,
 * recursive and slow, and follows only the promises of the public header. It shares nothing with
 * the library, so an error in one does not hide an error in the other. Call it with the default
 * floating-point environment.
 */
#ifndef TUTTI_TOOL_REFERENCE_H
#define TUTTI_TOOL_REFERENCE_H

#include "tutti/tutti.h"

/* One past the value of the last operation. */
#define REFERENCE_OP(name, value, text) +1
#define REFERENCE_OPS                   (1 TUTTI_OP_MAP(REFERENCE_OP))

/* The floats that a complex element consists of; else the dtype itself. */
enum tutti_dtype reference_component(enum tutti_dtype dtype);
bool reference_is_float(enum tutti_dtype dtype);
bool reference_is_signed(enum tutti_dtype dtype); /* an integer with a sign */
/* Whether the operation exists for the dtype. */
bool reference_has(enum tutti_dtype dtype, tutti_op_t op);

/* Whether the bits of its result depend on the order of the inputs. */
bool reference_has_order(enum tutti_dtype dtype, tutti_op_t op);

/* out[i] = the reduction of in[0][i] to in[n - 1][i], in leaf order. AVG divides by n. out may
 * equal an input. */
void reference_reduce(void *out, const void *const *in, int n, size_t count, enum tutti_dtype dtype,
                      tutti_op_t op, double scalar);

/* One element: the inputs from left to right, (((0 1) 2) 3), rounded once at the end, as a ring of
 * ranks does it. AVG divides by n. */
void reference_chain(void *out, const void *const *in, int n, enum tutti_dtype dtype, tutti_op_t op,
                     double scalar);

/* The value of element `code` of a float dtype of at most 16 bits. */
double reference_decode(enum tutti_dtype dtype, uint32_t code);
/* The element of such a dtype that is nearest to value, ties to even. */
uint32_t reference_encode(enum tutti_dtype dtype, double value);
/* The same for any float dtype. */
uint64_t reference_bits(enum tutti_dtype dtype, double value);

#endif
