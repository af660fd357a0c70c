/* SPDX-License-Identifier: MIT */
#include "op.h"

#include "error.h"

#include <stdlib.h>

enum tutti_status tutti_op_create_premul_sum(double scalar, tutti_op_t *op)
{
    if (!op)
        return error_set(TUTTI_ERR_INVALID, "tutti_op_create_premul_sum: op is NULL");
    *op = NULL;
    struct tutti_op *created = malloc(sizeof *created);
    if (!created)
        return error_set(TUTTI_ERR_NO_MEMORY, "no memory for %zu bytes", sizeof *created);
    *created = (struct tutti_op){.kind = TUTTI_OP_PREMUL_SUM, .scalar = scalar};
    *op = created;
    return TUTTI_OK;
}

void tutti_op_destroy(tutti_op_t op)
{
    if ((uintptr_t)op >= TUTTI_OP_COUNT)
        free((void *)(uintptr_t)op);
}

const char *tutti_op_name(tutti_op_t op)
{
#define TEXT(name, value, text) [value] = text,
    static const char *const texts[TUTTI_OP_COUNT] = {TUTTI_OP_MAP(TEXT)};
#undef TEXT
    uintptr_t kind = (uintptr_t)op < TUTTI_OP_COUNT ? (uintptr_t)op : (uintptr_t)op_kind(op);
    return kind < TUTTI_OP_COUNT && texts[kind] ? texts[kind] : "unknown";
}
