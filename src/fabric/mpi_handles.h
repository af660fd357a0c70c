/* SPDX-License-Identifier: MIT */
/* MPI's predefined handles in the interfaces of mpi_abi.h: types and operations, C's, and Fortran's
 * of the usual sizes. The program tutti includes this header, too. */
#ifndef TUTTI_FABRIC_MPI_HANDLES_H
#define TUTTI_FABRIC_MPI_HANDLES_H

#include "tutti/tutti.h"

enum mpi_kind { MPI_KIND_MPICH, MPI_KIND_STANDARD, MPI_KIND_OPENMPI };
enum { MPI_STATUS_BYTES = 64, MPI_TEXT_BYTES = 8192 }; /* more than any has */

/* MPI_COMM_WORLD: Open MPI's object, MPICH's number, the standard one. */
#define MPI_WORLD_OBJECT   "ompi_mpi_comm_world"
#define MPI_WORLD_MPICH    0x44000000
#define MPI_WORLD_STANDARD 0x101

/* Of Tutti's operations those that MPI has for a type: a bit 1 << tutti_op_t for each. WRAP: all
 * that are equal for signed and unsigned; REAL: those of floats; LOGIC: on truth values, which MPI
 * has for C's integers and for bool alone. */
#define MPI_OP_BIT(name) (1u << (uintptr_t)TUTTI_##name)
enum {
    MPI_OPS_NONE = 0,
    MPI_OPS_BITS = MPI_OP_BIT(BAND) | MPI_OP_BIT(BOR) | MPI_OP_BIT(BXOR),
    MPI_OPS_SUMS = MPI_OP_BIT(SUM),
    MPI_OPS_REAL = MPI_OP_BIT(SUM) | MPI_OP_BIT(PROD) | MPI_OP_BIT(MIN) | MPI_OP_BIT(MAX),
    MPI_OPS_WRAP = MPI_OPS_BITS | MPI_OP_BIT(SUM) | MPI_OP_BIT(PROD),
    MPI_OPS_ALL = MPI_OPS_BITS | MPI_OPS_REAL,
    MPI_OPS_LOGIC = 1 << 30,
    MPI_OPS_C_WRAP = MPI_OPS_WRAP | MPI_OPS_LOGIC,
    MPI_OPS_C_ALL = MPI_OPS_ALL | MPI_OPS_LOGIC,
};

/* X(Open MPI's object behind "ompi_mpi_", MPICH's, standard, dtype, operations): the dtype whose
 * bytes are the type's, and the name behind MPI_OPS_. */
#define MPI_TYPE_MAP(X)                                                                            \
    X(char, 0x4c000101, 0x243, INT8, NONE)                                                         \
    X(signed_char, 0x4c000118, 0x244, INT8, C_ALL)                                                 \
    X(unsigned_char, 0x4c000102, 0x245, UINT8, C_ALL)                                              \
    X(byte, 0x4c00010d, 0x247, UINT8, BITS)                                                        \
    X(short, 0x4c000203, 0x208, INT16, C_ALL)                                                      \
    X(unsigned_short, 0x4c000204, 0x20c, INT16, C_WRAP)                                            \
    X(int, 0x4c000405, 0x209, INT32, C_ALL)                                                        \
    X(unsigned, 0x4c000406, 0x20d, UINT32, C_ALL)                                                  \
    X(long, 0x4c000807, 0x20a, INT64, C_ALL)                                                       \
    X(unsigned_long, 0x4c000808, 0x20e, UINT64, C_ALL)                                             \
    X(long_long_int, 0x4c000809, 0x20b, INT64, C_ALL)                                              \
    X(unsigned_long_long, 0x4c000819, 0x20f, UINT64, C_ALL)                                        \
    X(float, 0x4c00040a, 0x210, FLOAT32, REAL)                                                     \
    X(double, 0x4c00080b, 0x214, FLOAT64, REAL)                                                    \
    X(wchar, 0x4c00040e, 0x23c, INT32, NONE)                                                       \
    X(c_bool, 0x4c00013f, 0x238, UINT8, LOGIC)                                                     \
    X(int8_t, 0x4c000137, 0x240, INT8, C_ALL)                                                      \
    X(int16_t, 0x4c000238, 0x248, INT16, C_ALL)                                                    \
    X(int32_t, 0x4c000439, 0x250, INT32, C_ALL)                                                    \
    X(int64_t, 0x4c00083a, 0x258, INT64, C_ALL)                                                    \
    X(uint8_t, 0x4c00013b, 0x241, UINT8, C_ALL)                                                    \
    X(uint16_t, 0x4c00023c, 0x249, INT16, C_WRAP)                                                  \
    X(uint32_t, 0x4c00043d, 0x251, UINT32, C_ALL)                                                  \
    X(uint64_t, 0x4c00083e, 0x259, UINT64, C_ALL)                                                  \
    X(aint, 0x4c000843, 0x201, INT64, ALL)                                                         \
    X(count, 0x4c000845, 0x202, INT64, ALL)                                                        \
    X(offset, 0x4c000844, 0x203, INT64, ALL)                                                       \
    X(c_float_complex, 0x4c000840, 0x212, COMPLEX64, SUMS)                                         \
    X(c_double_complex, 0x4c001041, 0x216, COMPLEX128, SUMS)                                       \
    X(cxx_bool, 0x4c000133, 0x239, UINT8, LOGIC)                                                   \
    X(cxx_cplex, 0x4c000834, 0x213, COMPLEX64, SUMS)                                               \
    X(cxx_dblcplex, 0x4c001035, 0x217, COMPLEX128, SUMS)                                           \
    X(character, 0x4c00011a, 0x21e, INT8, NONE)                                                    \
    X(logical, 0x4c00041d, 0x218, INT32, NONE)                                                     \
    X(integer, 0x4c00041b, 0x219, INT32, ALL)                                                      \
    X(real, 0x4c00041c, 0x21a, FLOAT32, REAL)                                                      \
    X(dblprec, 0x4c00081f, 0x21c, FLOAT64, REAL)                                                   \
    X(cplex, 0x4c00081e, 0x21b, COMPLEX64, SUMS)                                                   \
    X(dblcplex, 0x4c001022, 0x21d, COMPLEX128, SUMS)                                               \
    X(integer1, 0x4c00012d, 0x2c1, INT8, ALL)                                                      \
    X(integer2, 0x4c00022f, 0x2c9, INT16, ALL)                                                     \
    X(integer4, 0x4c000430, 0x2d1, INT32, ALL)                                                     \
    X(integer8, 0x4c000831, 0x2d9, INT64, ALL)                                                     \
    X(real4, 0x4c000427, 0x2d2, FLOAT32, REAL)                                                     \
    X(real8, 0x4c000829, 0x2da, FLOAT64, REAL)

/* X(Open MPI's object behind "ompi_mpi_op_", MPICH's, standard, operation, whether an element that
 * is not 0 counts as 1) */
#define MPI_OP_MAP(X)                                                                              \
    X(sum, 0x58000003, 0x21, SUM, false)                                                           \
    X(prod, 0x58000004, 0x24, PROD, false)                                                         \
    X(min, 0x58000002, 0x22, MIN, false)                                                           \
    X(max, 0x58000001, 0x23, MAX, false)                                                           \
    X(band, 0x58000006, 0x28, BAND, false)                                                         \
    X(bor, 0x58000008, 0x29, BOR, false)                                                           \
    X(bxor, 0x5800000a, 0x2a, BXOR, false)                                                         \
    X(land, 0x58000005, 0x30, BAND, true)                                                          \
    X(lor, 0x58000007, 0x31, BOR, true)                                                            \
    X(lxor, 0x58000009, 0x32, BXOR, true)

#endif
