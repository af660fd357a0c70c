/* SPDX-License-Identifier: MIT */
/* What an operation is, in one 64-bit word that travels with it. Ranks compare it, so that
 * different calls give MISMATCH instead of wrong numbers. */
#ifndef TUTTI_SIGNATURE_H
#define TUTTI_SIGNATURE_H

#include "base/layout.h"
#include "base/op.h"

/* bits: collective 60-63, dtype 56-59, op 52-55, algorithm 48-51, count 0-47 */
#define SIGNATURE_COUNT_MAX ((UINT64_C(1) << 48) - 1)

static inline uint64_t signature_pack(enum tutti_collective collective, enum tutti_dtype dtype,
                                      enum op_kind op, enum tutti_algo algo, uint64_t count)
{
    return (uint64_t)collective << 60 | (uint64_t)dtype << 56 | (uint64_t)op << 52 |
           (uint64_t)algo << 48 | count;
}

/* Sets the algorithm of a word that was packed with TUTTI_ALGO_NONE. */
static inline uint64_t signature_set_algo(uint64_t word, enum tutti_algo algo)
{
    return word | (uint64_t)algo << 48;
}

static inline struct tutti_signature signature_unpack(uint64_t word, uint32_t parameter)
{
    return (struct tutti_signature){
        .collective = (enum tutti_collective)(word >> 60),
        .dtype = (enum tutti_dtype)(word >> 56 & 15),
        .op = (tutti_op_t)(uintptr_t)(word >> 52 & 15),
        .algo = (enum tutti_algo)(word >> 48 & 15),
        .count = word & SIGNATURE_COUNT_MAX,
        .parameter = parameter,
    };
}

/* The fault that a rank wrote into its arena or its recorder. */
static inline struct tutti_fault signature_unpack_fault(const struct layout_fault *in)
{
    return (struct tutti_fault){
        .struct_size = sizeof(struct tutti_fault),
        .status = (enum tutti_status)in->status,
        .rank = in->rank,
        .peer = in->peer,
        .sequence = in->sequence,
        .expected = signature_unpack(in->expected, in->expected_parameter),
        .seen = signature_unpack(in->seen, in->seen_parameter),
    };
}

/* Returns a hash that is not 0, because parameter 0 means none. */
static inline uint32_t signature_hash(uint64_t bits)
{
    bits = (bits ^ bits >> 31) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(bits >> 32) | 1;
}

#endif
