/* SPDX-License-Identifier: MIT */
/* MPI's types and operations as Tutti's. A type that is not in the table is packed; an operation
 * that is not is MPI's. A type of another size in this MPI (Fortran's may have 8 bytes) is left
 * out. */
#include "shim.h"

#include <limits.h>

static const struct type_row {
    const char *openmpi;
    uint32_t mpich, standard;
    enum tutti_dtype dtype;
    uint32_t ops;
} type_rows[] = {
#define TYPE_ROW(openmpi, mpich, standard, dtype, ops)                                             \
    {"ompi_mpi_" #openmpi, mpich, standard, TUTTI_##dtype, MPI_OPS_##ops},
    MPI_TYPE_MAP(TYPE_ROW)
#undef TYPE_ROW
};

static const struct op_row {
    const char *openmpi;
    uint32_t mpich, standard;
    tutti_op_t op;
    bool is_logical;
} op_rows[] = {
#define OP_ROW(openmpi, mpich, standard, op, is_logical)                                           \
    {"ompi_mpi_op_" #openmpi, mpich, standard, TUTTI_##op, is_logical},
    MPI_OP_MAP(OP_ROW)
#undef OP_ROW
};

enum {
    TYPES = sizeof type_rows / sizeof *type_rows,
    OPS = sizeof op_rows / sizeof *op_rows,
    PLACES = 256, /* of a hash table: a power of two, more than twice as many as types */
};

static struct type types[PLACES]; /* handle 0: free */
static uintptr_t ops[OPS];        /* as in op_rows */

static unsigned place_of(uintptr_t handle)
{
    return (unsigned)((handle * 0x9e3779b97f4a7c15u) >> 56) % PLACES;
}

static void type_add(const struct real *real, const struct type_row *row)
{
    const uintptr_t handle =
        mpi_abi_handle(&real->abi, real->library, row->openmpi, row->mpich, row->standard);
    const size_t bytes = tutti_dtype_size(row->dtype);
    int64_t size = 0;
    if (!handle || real->Type_size_x(handle, &size) != 0 || (size_t)size != bytes)
        return;
    unsigned place = place_of(handle);
    while (types[place].handle && types[place].handle != handle)
        place = (place + 1) % PLACES;
    types[place] = (struct type){.handle = handle,
                                 .bytes = bytes,
                                 .extent = (intptr_t)bytes,
                                 .is_plain = true,
                                 .dtype = row->dtype,
                                 .ops = row->ops};
}

void types_start(const struct real *real)
{
    for (int i = 0; i < TYPES; i++)
        type_add(real, &type_rows[i]);
    for (int i = 0; i < OPS; i++)
        ops[i] = mpi_abi_handle(&real->abi, real->library, op_rows[i].openmpi, op_rows[i].mpich,
                                op_rows[i].standard);
}

const struct type *type_plain(const struct real *real, uintptr_t handle)
{
    handle &= real->abi.handle_bits;
    for (unsigned place = place_of(handle); types[place].handle; place = (place + 1) % PLACES)
        if (types[place].handle == handle)
            return &types[place];
    return NULL;
}

bool type_find(const struct real *real, uintptr_t handle, struct type *type)
{
    int64_t size;
    intptr_t bound, extent;
    const struct type *plain = type_plain(real, handle);
    if (plain) {
        *type = *plain;
        return true;
    }
    if (real->Type_size_x(handle, &size) != 0 || size < 0 ||
        real->Type_get_extent(handle, &bound, &extent) != 0)
        return false;
    *type = (struct type){.handle = handle, .bytes = (size_t)size, .extent = extent};
    return true;
}

tutti_op_t op_find(const struct real *real, uintptr_t handle, const struct type *type,
                   bool *is_logical)
{
    handle &= real->abi.handle_bits;
    for (int i = 0; i < OPS; i++)
        if (ops[i] == handle) {
            const struct op_row *row = &op_rows[i];
            *is_logical = row->is_logical;
            return type->ops & (row->is_logical ? MPI_OPS_LOGIC : 1u << (uintptr_t)row->op)
                       ? row->op
                       : NULL;
        }
    return NULL;
}
