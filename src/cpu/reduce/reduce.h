/* SPDX-License-Identifier: MIT */
/*
 * The reductions: one source, compiled for each instruction set. The set is chosen at run time. All
 * sets give the same bits.
 *
 * out[i] = round(tree(in[0][i], ..., in[n-1][i])): the balanced tree with the largest power of two
 * on the left, in the accumulation type (float32 for floats of 8, 16 and 32 bits, float64 for
 * float64, the integer itself, wrapping), rounded once at the end. The caller orders `in` by
 * leaves.
 *
 * A reduction may end with a partial result in the accumulation type, and another may begin with
 * partial results: these are the first `partials` inputs, which combine from left to right with the
 * tree of the other inputs.
 */
#ifndef TUTTI_CPU_REDUCE_H
#define TUTTI_CPU_REDUCE_H

#include "base/op.h"
#include "base/reduction.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* A copy of any alignment, without overlap. copy_stream uses non-temporal stores to `to` (the
 * caller drains them). Use it instead of memcpy() for more than a few KiB: memcpy()'s `rep movsb`
 * is very slow at some offsets on some processors. */
typedef void copy_fn(void *to, const void *from, size_t bytes);

/* Does what tutti_all_reduce_rms_norm() does behind the sum. `sums`: the sum, [tokens, hidden]; may
 * be norm_out. The strides of scales by group are not 0. */
typedef void rms_norm_fn(const struct tutti_rms_norm *norm, const void *sums);

struct reduce_isa {
    const char *name; /* "baseline", "avx2", "avx512", "neon" */
    /* The reductions that are compiled for this instruction set; NULL elsewhere: see
     * reduce_function(). */
    reduce_fn *fn[DTYPE_REALS][OP_COUNT];
    const struct reduce_isa *rest; /* the set with the other reductions; NULL if this set has all */
    copy_fn *copy;
    copy_fn *copy_stream;
    rms_norm_fn *rms_norm;
};

#if defined(__x86_64__)
extern const struct reduce_isa reduce_isa_baseline, reduce_isa_avx2, reduce_isa_avx512;
#elif defined(__aarch64__)
extern const struct reduce_isa reduce_isa_neon;
#endif

/* The reduction of a dtype and an operation. NULL where the operation does not exist for the dtype
 * (tutti.h: avg of bool, bitwise of floats, premul_sum of bool). The dtype is not complex. */
static inline reduce_fn *reduce_function(const struct reduce_isa *isa, enum tutti_dtype dtype,
                                         enum op_kind op)
{
    return isa->fn[dtype][op] || !isa->rest ? isa->fn[dtype][op] : isa->rest->fn[dtype][op];
}

/* The best set that this processor has, or the one that TUTTI_ISA names. The name of a set that the
 * processor lacks is ignored with a warning. */
const struct reduce_isa *reduce_isa_best(void);
/* For tests: the set of that name; NULL if this build or processor lacks it. */
const struct reduce_isa *reduce_isa_named(const char *name);
/* The fastest copy of at least REDUCE_LONG_BYTES into lines that another core has used. */
copy_fn *reduce_copy_long(const struct reduce_isa *isa);
enum { REDUCE_LONG_BYTES = 8 * 1024 };
/* The size of the last cache of a core; SIZE_MAX if it is not known. */
size_t reduce_cache_bytes(void);

/*
 * Floating-point environment of a reduction: round to nearest, subnormals kept. begin() sets it and
 * returns the caller's environment; end() restores the latter.
 */
#if defined(__x86_64__)

/* MXCSR: control bits above six exception flags, which stay as they are. */
enum { MXCSR_FLAGS = 0x3f, MXCSR_CONTROL = 0xffc0, MXCSR_DEFAULT = 0x1f80 };

static inline uint64_t reduce_env_begin(void)
{
    const unsigned saved = _mm_getcsr();
    if ((saved & MXCSR_CONTROL) != MXCSR_DEFAULT)
        _mm_setcsr(MXCSR_DEFAULT | (saved & MXCSR_FLAGS));
    return saved;
}

static inline void reduce_env_end(uint64_t saved)
{
    if ((saved & MXCSR_CONTROL) != MXCSR_DEFAULT)
        _mm_setcsr((unsigned)saved);
}

#elif defined(__aarch64__)

/* FPCR holds control bits only; all zero is round to nearest, subnormals kept, nothing trapped. */
static inline void fpcr_set(uint64_t value)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(value) : "memory");
}

static inline uint64_t reduce_env_begin(void)
{
    uint64_t saved;
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved) : : "memory");
    if (saved != 0)
        fpcr_set(0);
    return saved;
}

static inline void reduce_env_end(uint64_t saved)
{
    if (saved != 0)
        fpcr_set(saved);
}

#else
#error "reduce_env_begin() needs this architecture's floating-point control register"
#endif

/* The size of an element of a partial result. */
static inline size_t reduce_partial_bytes(enum tutti_dtype dtype)
{
    const size_t bytes = tutti_dtype_size(dtype);
    return dtype <= TUTTI_FLOAT8_E5M2 && bytes < sizeof(float) ? sizeof(float) : bytes;
}

#endif
