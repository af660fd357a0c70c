/* SPDX-License-Identifier: MIT */
/* Chooses the compilation of the reductions that this processor runs. */
#include "base/log.h"
#include "base/order.h"
#include "cpu/reduce/reduce.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>

enum { ASKED = 1, F16C = 2, STRINGS = 4 };

/* clang's __builtin_cpu_supports() does not know this conversion of float16. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

enum { LEAF_FAMILY = 1, LEAF_CACHES = 4, LEAF_FEATURES = 7, AMD_LEAF_CACHES = 0x8000001d };

static bool vendor_is(unsigned b_wanted, unsigned c_wanted, unsigned d_wanted)
{
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(0, &a, &b, &c, &d) && b == b_wanted && c == c_wanted && d == d_wanted;
}

static bool is_amd(void)
{
    return vendor_is(signature_AMD_ebx, signature_AMD_ecx, signature_AMD_edx);
}

/*
 * `rep movsb` takes cache lines from another core without reading them. On Zen 5 it is 10 to 60 %
 * faster than a loop from 8 KiB up, and on Xeons 30 % among 16 ranks. On Zen 4 it is fifteen times
 * slower at some offsets between source and target.
 */
static bool moves_strings(void)
{
    enum { ZEN5_FAMILY = 26, FAST_SHORT_STRINGS = 1 << 4 };
    unsigned a, b, c, d;
    if (is_amd())
        return __get_cpuid(LEAF_FAMILY, &a, &b, &c, &d) &&
               (a >> 8 & 15) + (a >> 20 & 255) >= ZEN5_FAMILY;
    return vendor_is(signature_INTEL_ebx, signature_INTEL_ecx, signature_INTEL_edx) &&
           __get_cpuid_count(LEAF_FEATURES, 0, &a, &b, &c, &d) && (d & FAST_SHORT_STRINGS);
}

/* The largest of the caches that cpuid describes; SIZE_MAX if it describes none. */
static size_t largest_cache(void)
{
    const unsigned leaf = is_amd() ? AMD_LEAF_CACHES : LEAF_CACHES;
    size_t most = 0;
    unsigned a, b, c, d;
    for (unsigned i = 0; __get_cpuid_count(leaf, i, &a, &b, &c, &d) && (a & 31); i++) {
        const size_t line = (b & 0xfff) + 1, partitions = (b >> 12 & 0x3ff) + 1;
        const size_t bytes = line * partitions * ((b >> 22) + 1) * ((size_t)c + 1);
        most = bytes > most ? bytes : most;
    }
    return most ? most : SIZE_MAX;
}

/* cpuid takes microseconds in a virtual machine, so a process asks once. */
static uint32_t features(void)
{
    static uint32_t known;
    uint32_t found = order_load_relaxed_u32(&known);
    if (!found) {
        found = ASKED | (has_f16c() ? F16C : 0) | (moves_strings() ? STRINGS : 0);
        order_store_relaxed_u32(&known, found);
    }
    return found;
}

static bool runs_avx2(void)
{
    return (features() & F16C) && __builtin_cpu_supports("avx2");
}

static bool runs_avx512(void)
{
    return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

static void copy_string(void *to, const void *from, size_t bytes)
{
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}
#endif

static bool runs_always(void)
{
    return true;
}

/* Best first. Every processor has the last one. */
static const struct {
    const struct reduce_isa *isa;
    bool (*runs)(void);
} choices[] = {
#if defined(__x86_64__)
    {&reduce_isa_avx512, runs_avx512},
    {&reduce_isa_avx2, runs_avx2},
    {&reduce_isa_baseline, runs_always},
#elif defined(__aarch64__)
    {&reduce_isa_neon, runs_always},
#endif
};

enum { CHOICES = sizeof choices / sizeof *choices };

const struct reduce_isa *reduce_isa_named(const char *name)
{
    for (int i = 0; i < CHOICES; i++)
        if (strcmp(choices[i].isa->name, name) == 0)
            return choices[i].runs() ? choices[i].isa : NULL;
    return NULL;
}

const struct reduce_isa *reduce_isa_best(void)
{
    const char *name = getenv("TUTTI_ISA");
    const struct reduce_isa *wanted = name && *name ? reduce_isa_named(name) : NULL;
    if (wanted)
        return wanted;
    int best = 0;
    while (!choices[best].runs())
        best++;
    if (name && *name)
        log_write(TUTTI_LOG_WARN, -1,
                  "TUTTI_ISA=%s names no instruction set that this processor and build have; "
                  "using %s",
                  name, choices[best].isa->name);
    return choices[best].isa;
}

copy_fn *reduce_copy_long(const struct reduce_isa *isa)
{
#if defined(__x86_64__)
    if (features() & STRINGS)
        return copy_string;
#endif
    return isa->copy;
}

size_t reduce_cache_bytes(void)
{
#if defined(__x86_64__)
    static uint64_t known;
    uint64_t found = order_load_relaxed_u64(&known);
    if (!found) {
        found = largest_cache();
        order_store_relaxed_u64(&known, found);
    }
    return found;
#else
    return SIZE_MAX;
#endif
}
