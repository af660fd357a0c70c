/* SPDX-License-Identifier: MIT */
/* Reductions. A tutti_op_t is a small integer for a constant, an address for a created reduction.
 */
#ifndef TUTTI_OP_H
#define TUTTI_OP_H

#include "base/dtype.h"
#include "tutti/tutti.h"

enum op_kind {
#define OP_ENUM(name, value, text) OP_##name = value,
    TUTTI_OP_MAP(OP_ENUM)
#undef OP_ENUM
};
enum { OP_COUNT = 10 }; /* one past the last kind; 0 is none */

enum { OPS_MOST = 4096 }; /* created operations that may exist at once */

/* The scalar of a premultiplied sum. The dtype says which member holds. */
union op_scalar {
    double real;        /* of floats; rounded to the accumulation type before the first product */
    uint64_t whole;     /* of integers: extended to 64 bits; the products wrap */
    const void *memory; /* an element of the dtype, which a kernel reads */
};

enum { OP_ANY_DTYPE = TUTTI_DTYPE_COUNT };

struct tutti_op {
    enum op_kind kind;
    enum tutti_dtype dtype; /* the one that it serves, or OP_ANY_DTYPE */
    bool is_whole;          /* of any dtype: it serves integers, too */
    double real;
    uint64_t whole;
    const void *memory; /* NULL: the scalar is `real` and `whole` */
};

/* What ranks compare instead of a scalar that is in memory. */
#define OP_SCALAR_IN_MEMORY UINT64_C(0x6d656d6f7279)

/* Returns `op` if it is a constant or an operation that was created and not destroyed; else NULL.
 * Reads no memory at an address that no tutti_op_create_*() returned. */
tutti_op_t op_find_created(tutti_op_t op);
static inline tutti_op_t op_known(tutti_op_t op)
{
    return __builtin_expect((uintptr_t)op < OP_COUNT, 1) ? op : op_find_created(op);
}

/* Returns the kind of an operation that op_known() returned, 0 if it is none. */
static inline enum op_kind op_kind(tutti_op_t op)
{
    uintptr_t value = (uintptr_t)op;
    if (__builtin_expect(value < OP_COUNT, 1))
        return value == OP_PREMUL_SUM ? (enum op_kind)0 : (enum op_kind)value;
    return op->kind;
}

/* Returns whether the operation is defined for the dtype. */
static inline bool op_serves(enum op_kind op, enum tutti_dtype dtype)
{
    switch (op) {
    case OP_AVG:
        return dtype != TUTTI_BOOL;
    case OP_BAND:
    case OP_BOR:
    case OP_BXOR:
        return !dtype_is_float(dtype);
    case OP_PREMUL_SUM:
        return dtype != TUTTI_BOOL;
    case OP_PROD:
    case OP_MIN:
    case OP_MAX:
        return !dtype_is_complex(dtype);
    case OP_SUM:
        return true;
    }
    return false;
}

/* Returns whether the scalar of a created operation has a value in the dtype, for which
 * op_serves(). */
bool op_has_scalar(tutti_op_t op, enum tutti_dtype dtype);
/* Reads an element of a dtype that is not complex. */
union op_scalar op_scalar_load(const void *memory, enum tutti_dtype dtype);
/* Returns the scalar for a dtype that is not complex. Reads it now if it is in memory, which is the
 * host's. */
union op_scalar op_scalar_of(tutti_op_t op, enum tutti_dtype dtype);

#endif
