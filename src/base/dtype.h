/* SPDX-License-Identifier: MIT */
/* tutti_dtype_size() as an inline function, for the hot path. */
#ifndef TUTTI_DTYPE_H
#define TUTTI_DTYPE_H

#include "tutti/tutti.h"

static inline size_t dtype_bytes(enum tutti_dtype dtype)
{
#define DTYPE_BYTES(name, value, size, text) [value] = size,
    static const uint8_t bytes[] = {TUTTI_DTYPE_MAP(DTYPE_BYTES)};
#undef DTYPE_BYTES
    return (size_t)dtype < sizeof bytes ? bytes[dtype] : 0;
}

#endif
