/* SPDX-License-Identifier: MIT */
/* The description of an operation in one 64-bit word, which travels with the operation. Ranks
 * compare it, so that different calls give MISMATCH instead of wrong numbers. */
#ifndef TUTTI_SIGNATURE_H
#define TUTTI_SIGNATURE_H

#include "base/layout.h"
#include "base/op.h"

/* What kernels use, too. */
#ifdef __CUDACC__
#define SIGNATURE_FN static inline __host__ __device__
#else
#define SIGNATURE_FN static inline
#endif

/* bits: collective 59-63, dtype 53-58, op 48-52, algorithm 43-47, count 0-42 */
enum {
    SIGNATURE_COLLECTIVE_AT = 59,
    SIGNATURE_DTYPE_AT = 53,
    SIGNATURE_OP_AT = 48,
    SIGNATURE_ALGO_AT = 43,
    SIGNATURE_NO_DTYPE = 63, /* a value that is none */
};
#define SIGNATURE_COUNT_MAX ((UINT64_C(1) << SIGNATURE_ALGO_AT) - 1)
/* The count in the signature of a v-form. Each message has the count of its block. */
#define SIGNATURE_COUNT_VARIES SIGNATURE_COUNT_MAX

static inline uint64_t signature_pack(enum tutti_collective collective, enum tutti_dtype dtype,
                                      enum op_kind op, enum tutti_algo algo, uint64_t count)
{
    return (uint64_t)collective << SIGNATURE_COLLECTIVE_AT | (uint64_t)dtype << SIGNATURE_DTYPE_AT |
           (uint64_t)op << SIGNATURE_OP_AT | (uint64_t)algo << SIGNATURE_ALGO_AT | count;
}

/* Sets the algorithm of a word that was packed with TUTTI_ALGO_NONE. */
static inline uint64_t signature_set_algo(uint64_t word, enum tutti_algo algo)
{
    return word | (uint64_t)algo << SIGNATURE_ALGO_AT;
}

/* The word of a message of a v-form: with the count of the block. */
static inline uint64_t signature_set_count(uint64_t word, uint64_t count)
{
    return (word & ~SIGNATURE_COUNT_MAX) | count;
}

static inline struct tutti_signature signature_unpack(uint64_t word, uint32_t parameter)
{
    return (struct tutti_signature){
        .collective = (enum tutti_collective)(word >> SIGNATURE_COLLECTIVE_AT),
        .dtype = (enum tutti_dtype)(word >> SIGNATURE_DTYPE_AT & 63),
        .op = (tutti_op_t)(uintptr_t)(word >> SIGNATURE_OP_AT & 31),
        .algo = (enum tutti_algo)(word >> SIGNATURE_ALGO_AT & 31),
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

/* The parameter of a rooted collective: 1 + the root, and the other bits of a scalar's hash. */
enum { SIGNATURE_ROOT_BITS = 16 };
static_assert(TUTTI_MAX_RANKS < 1 << SIGNATURE_ROOT_BITS, "every root");
static inline uint32_t signature_root(uint32_t hash, int root)
{
    return hash >> SIGNATURE_ROOT_BITS << SIGNATURE_ROOT_BITS | ((uint32_t)root + 1);
}

/* Returns a hash that is not 0, because parameter 0 means none. */
SIGNATURE_FN uint32_t signature_hash(uint64_t bits)
{
    bits = (bits ^ bits >> 31) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(bits >> 32) | 1;
}

/* A rank's history: a hash of all collectives of the lane PAIR that it has called, in their order.
 * 0: none. Returns the history after one more of them. */
static inline uint32_t signature_history(uint32_t history, uint64_t signature, uint32_t parameter)
{
    const uint64_t more = ((uint64_t)history << 32 | parameter) * UINT64_C(0x9e3779b97f4a7c15);
    const uint64_t bits = (signature ^ more ^ more >> 29) * UINT64_C(0xd6e8feb86659fd93);
    return (uint32_t)(bits ^ bits >> 32);
}

#endif
