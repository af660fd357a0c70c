/* SPDX-License-Identifier: MIT */
/* A fuzzer: libFuzzer's entry, and the seeds from which driver.c makes its inputs. */
#ifndef TUTTI_TESTS_FUZZ_H
#define TUTTI_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

struct fuzz_seed {
    const void *bytes;
    size_t size;
};

extern const struct fuzz_seed fuzz_seeds[];
extern const size_t fuzz_seed_count;

#define FUZZ_SEED(text)                                                                            \
    {                                                                                              \
        text, sizeof(text) - 1                                                                     \
    }

/* Must return 0; what is wrong ends the process. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* A broken promise of the code under test. */
static inline void fuzz_check(int fine)
{
    if (!fine)
        abort();
}

#endif
