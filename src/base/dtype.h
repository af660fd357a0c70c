/* SPDX-License-Identifier: MIT */
/* The properties of a dtype. Inline functions, for the hot path. */
#ifndef TUTTI_DTYPE_H
#define TUTTI_DTYPE_H

#include "tutti/tutti.h"

#include <assert.h>

/* The dtypes before the complex ones have reductions of their own. */
enum { DTYPE_REALS = TUTTI_COMPLEX64 };

static inline size_t dtype_bytes(enum tutti_dtype dtype)
{
#define DTYPE_BYTES(name, value, size, text) [value] = size,
    static const uint8_t bytes[] = {TUTTI_DTYPE_MAP(DTYPE_BYTES)};
#undef DTYPE_BYTES
    return (size_t)dtype < sizeof bytes ? bytes[dtype] : 0;
}

static inline bool dtype_is_complex(enum tutti_dtype dtype)
{
    return __builtin_expect(dtype >= TUTTI_COMPLEX64, 0);
}

/* A complex element is two components: floats that are aligned, moved and reduced by themselves.
 * Another element is its own component. */
static inline enum tutti_dtype dtype_component(enum tutti_dtype dtype)
{
    static_assert(TUTTI_FLOAT32 == 0 && TUTTI_FLOAT64 == 1 && TUTTI_COMPLEX128 == DTYPE_REALS + 1,
                  "the complex dtypes stand in the order of their components");
    return dtype_is_complex(dtype) ? (enum tutti_dtype)(dtype - DTYPE_REALS) : dtype;
}

static inline bool dtype_is_float(enum tutti_dtype dtype)
{
    return dtype_component(dtype) <= TUTTI_FLOAT8_E5M2;
}

#endif
