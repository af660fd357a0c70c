/* SPDX-License-Identifier: MIT */
/*
 * Created operations are elements of one array. So a check of a tutti_op_t only compares its
 * address and never dereferences a garbage value. The search for a free element begins after the
 * last one that was taken, so the library refuses a destroyed operation until all others have been
 * used.
 */
#include "base/op.h"

#include "base/error.h"
#include "base/numeric.h"
#include "base/order.h"

#include <string.h>

static struct tutti_op ops[OPS_MOST];
enum { FREE, FILLING, LIVE };
static uint32_t states[OPS_MOST];
static uint32_t created; /* where the next search begins */

/* ---- creation -------------------------------------------------------------------------------- */

static enum tutti_status create(const struct tutti_op *made, const char *call, tutti_op_t *op)
{
    uint32_t first = order_fetch_add_relaxed_u32(&created, 1);
    for (uint32_t i = 0; i < OPS_MOST; i++) {
        uint32_t index = (first + i) % OPS_MOST;
        /* O1a pairs O1 */
        if (!order_compare_exchange_u32(&states[index], FREE, FILLING))
            continue;
        ops[index] = *made;
        order_store_relaxed_u32(&states[index], LIVE);
        *op = &ops[index];
        return TUTTI_OK;
    }
    return error_set(TUTTI_ERR_NO_MEMORY,
                     "%s: %d created operations exist, the most that can: destroy those that no "
                     "call uses (tutti_op_destroy())",
                     call, OPS_MOST);
}

enum tutti_status tutti_op_create_premul_sum(double scalar, tutti_op_t *op)
{
    static const char call[] = "tutti_op_create_premul_sum";
    const bool in_range = scalar >= -0x1p63 && scalar < 0x1p64;
    struct tutti_op made = {
        .kind = OP_PREMUL_SUM, .dtype = (enum tutti_dtype)OP_ANY_DTYPE, .real = scalar};
    if (!op)
        return error_set(TUTTI_ERR_INVALID, "%s: op is NULL", call);
    *op = NULL;
    if (in_range)
        made.whole = scalar < 0 ? (uint64_t)(int64_t)scalar : (uint64_t)scalar;
    made.is_whole =
        in_range && scalar == (scalar < 0 ? (double)(int64_t)made.whole : (double)made.whole);
    return create(&made, call, op);
}

/* Checks what both functions take that are given the scalar's address. */
static enum tutti_status typed_check(const void *scalar, enum tutti_dtype dtype, const char *call,
                                     tutti_op_t *op)
{
    const size_t bytes = dtype_bytes(dtype) >> dtype_is_complex(dtype);
    if (!op)
        return error_set(TUTTI_ERR_INVALID, "%s: op is NULL", call);
    *op = NULL;
    if (!bytes)
        return error_set(TUTTI_ERR_INVALID, "%s: dtype %d: expected a value of enum tutti_dtype",
                         call, (int)dtype);
    if (!op_serves(OP_PREMUL_SUM, dtype))
        return error_set(TUTTI_ERR_INVALID, "%s: premul_sum is not defined for %s", call,
                         tutti_dtype_name(dtype));
    if (!scalar || (uintptr_t)scalar % bytes)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: scalar %p: expected the address of a scalar of %s, aligned to %zu "
                         "bytes",
                         call, scalar, tutti_dtype_name(dtype), bytes);
    return TUTTI_OK;
}

enum tutti_status tutti_op_create_premul_sum_typed(const void *scalar, enum tutti_dtype dtype,
                                                   tutti_op_t *op)
{
    static const char call[] = "tutti_op_create_premul_sum_typed";
    struct tutti_op made = {.kind = OP_PREMUL_SUM, .dtype = dtype};
    const enum tutti_status status = typed_check(scalar, dtype, call, op);
    if (status != TUTTI_OK)
        return status;
    const union op_scalar value = op_scalar_load(scalar, dtype_component(dtype));
    if (dtype_is_float(dtype))
        made.real = value.real;
    else
        made.whole = value.whole;
    return create(&made, call, op);
}

enum tutti_status tutti_op_create_premul_sum_device(const void *scalar, enum tutti_dtype dtype,
                                                    tutti_op_t *op)
{
    static const char call[] = "tutti_op_create_premul_sum_device";
    const struct tutti_op made = {.kind = OP_PREMUL_SUM, .dtype = dtype, .memory = scalar};
    const enum tutti_status status = typed_check(scalar, dtype, call, op);
    return status == TUTTI_OK ? create(&made, call, op) : status;
}

/* ---- the scalar ------------------------------------------------------------------------------ */

bool op_has_scalar(tutti_op_t op, enum tutti_dtype dtype)
{
    return (int)op->dtype == OP_ANY_DTYPE ? op->is_whole || dtype_is_float(dtype)
                                          : op->dtype == dtype;
}

union op_scalar op_scalar_load(const void *memory, enum tutti_dtype dtype)
{
    union op_scalar scalar = {.whole = 0};
#define LOAD_REAL(name, T, element, A, accumulator)                                                \
    if (dtype == TUTTI_##name) {                                                                   \
        element value;                                                                             \
        memcpy(&value, memory, sizeof value);                                                      \
        scalar.real = (double)numeric_##T##_load(value);                                           \
    }
#define LOAD_WHOLE(name, element)                                                                  \
    if (dtype == TUTTI_##name) {                                                                   \
        element value;                                                                             \
        memcpy(&value, memory, sizeof value);                                                      \
        scalar.whole = (uint64_t)value;                                                            \
    }
    NUMERIC_FLOAT_MAP(LOAD_REAL)
    LOAD_WHOLE(INT8, int8_t)
    LOAD_WHOLE(UINT8, uint8_t)
    LOAD_WHOLE(INT16, int16_t)
    LOAD_WHOLE(INT32, int32_t)
    LOAD_WHOLE(INT64, int64_t)
    LOAD_WHOLE(UINT32, uint32_t)
    LOAD_WHOLE(UINT64, uint64_t)
#undef LOAD_REAL
#undef LOAD_WHOLE
    return scalar;
}

union op_scalar op_scalar_of(tutti_op_t op, enum tutti_dtype dtype)
{
    if (op->memory)
        return op_scalar_load(op->memory, dtype);
    return dtype_is_float(dtype) ? (union op_scalar){.real = op->real}
                                 : (union op_scalar){.whole = op->whole};
}

/* ---- handles --------------------------------------------------------------------------------- */

/* The element of a created operation, destroyed or not; -1 if the value is not the address of an
 * element. */
static int index_of(tutti_op_t op)
{
    uintptr_t offset = (uintptr_t)op - (uintptr_t)ops;
    return offset < sizeof ops && offset % sizeof *ops == 0 ? (int)(offset / sizeof *ops) : -1;
}

/* Relaxed: a caller receives an operation only after its creation. */
tutti_op_t op_find_created(tutti_op_t op)
{
    int index = index_of(op);
    return index >= 0 && order_load_relaxed_u32(&states[index]) == LIVE ? op : NULL;
}

void tutti_op_destroy(tutti_op_t op)
{
    int index = index_of(op);
    if (index >= 0)
        (void)order_compare_exchange_u32(&states[index], LIVE, FREE); /* O1 */
}

const char *tutti_op_name(tutti_op_t op)
{
#define TEXT(name, value, text) [value] = text,
    static const char *const texts[OP_COUNT] = {TUTTI_OP_MAP(TEXT)};
#undef TEXT
    tutti_op_t known = op_known(op);
    uintptr_t kind = (uintptr_t)known < OP_COUNT ? (uintptr_t)known : op_kind(known);
    return texts[kind] ? texts[kind] : "unknown";
}
