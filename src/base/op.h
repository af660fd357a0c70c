/* SPDX-License-Identifier: MIT */
/* Reductions behind tutti_op_t: small integers for the constants, addresses for created ones. */
#ifndef TUTTI_OP_H
#define TUTTI_OP_H

#include "tutti/tutti.h"

enum { OPS_MOST = 4096 }; /* created operations that live at once */

struct tutti_op {
    enum tutti_op_kind kind;
    double scalar;
};

/* The operation that a caller gave, if it is a constant or a live created one; else NULL. Never
 * reads memory at an address that tutti_op_create_premul_sum() did not give out. */
tutti_op_t op_find_created(tutti_op_t op);
static inline tutti_op_t op_known(tutti_op_t op)
{
    return __builtin_expect((uintptr_t)op < TUTTI_OP_COUNT, 1) ? op : op_find_created(op);
}

/* The kind of an operation that op_known() gave, 0 if it is none. */
static inline enum tutti_op_kind op_kind(tutti_op_t op)
{
    uintptr_t value = (uintptr_t)op;
    if (__builtin_expect(value < TUTTI_OP_COUNT, 1))
        return value == TUTTI_OP_PREMUL_SUM ? (enum tutti_op_kind)0 : (enum tutti_op_kind)value;
    return op->kind;
}

#endif
