/* SPDX-License-Identifier: MIT */
/* A matrix product by cuBLAS, opened at run time: the compute of `tutti bench --beside gemm`. A
 * function that returns false, or NULL, leaves the reason in library_error(). */
#ifndef TUTTI_TOOL_PRODUCT_H
#define TUTTI_TOOL_PRODUCT_H

#include "tutti/tutti.h"

enum { PRODUCT_SIZE = 4096 }; /* rows and columns of each matrix, of bfloat16 */

struct product;

/* Opens libcublas.so.13, else libcublas.so.12, or TUTTI_CUBLAS_LIBRARY, and allocates the matrices.
 * Uses the current context. */
struct product *product_create(void);
/* Takes NULL. */
void product_destroy(struct product *product);
/* Enqueues one product. */
bool product_enqueue(struct product *product, tutti_stream_t stream);

#endif
