/* SPDX-License-Identifier: MIT */
/* Reductions behind tutti_op_t: small integers for the constants, pointers for created ones. */
#ifndef TUTTI_OP_H
#define TUTTI_OP_H

#include "tutti/tutti.h"

struct tutti_op {
    enum tutti_op_kind kind;
    double scalar;
};

/* The kind of an operation, 0 if op is none; the scalar of a created one. */
static inline enum tutti_op_kind op_kind(tutti_op_t op)
{
    uintptr_t value = (uintptr_t)op;
    if (__builtin_expect(value < TUTTI_OP_COUNT, 1))
        return value == TUTTI_OP_PREMUL_SUM ? (enum tutti_op_kind)0 : (enum tutti_op_kind)value;
    return op->kind;
}

#endif
