/* SPDX-License-Identifier: MIT */
/*
 * Created operations are elements of one array. So a check of a tutti_op_t only compares its
 * address and never dereferences a garbage value. The search for a free element begins after the
 * last one that was taken, so the library refuses a destroyed operation until all others have been
 * used.
 */
#include "base/op.h"

#include "base/error.h"
#include "base/order.h"

static struct tutti_op ops[OPS_MOST];
enum { FREE, FILLING, LIVE };
static uint32_t states[OPS_MOST];
static uint32_t created; /* where the next search begins */

enum tutti_status tutti_op_create_premul_sum(double scalar, tutti_op_t *op)
{
    if (!op)
        return error_set(TUTTI_ERR_INVALID, "tutti_op_create_premul_sum: op is NULL");
    *op = NULL;
    uint32_t first = order_fetch_add_relaxed_u32(&created, 1);
    for (uint32_t i = 0; i < OPS_MOST; i++) {
        uint32_t index = (first + i) % OPS_MOST;
        /* O1a pairs O1 */
        if (!order_compare_exchange_u32(&states[index], FREE, FILLING))
            continue;
        ops[index] = (struct tutti_op){.kind = OP_PREMUL_SUM, .scalar = scalar};
        order_store_relaxed_u32(&states[index], LIVE);
        *op = &ops[index];
        return TUTTI_OK;
    }
    return error_set(TUTTI_ERR_NO_MEMORY,
                     "tutti_op_create_premul_sum: %d created operations exist, the most that can: "
                     "destroy those that no call uses (tutti_op_destroy())",
                     OPS_MOST);
}

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
