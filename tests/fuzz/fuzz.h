/* SPDX-License-Identifier: MIT */
/* A fuzzer: libFuzzer's entry. Its inputs begin with those in corpus/NAME: see driver.c. */
#ifndef TUTTI_TESTS_FUZZ_H
#define TUTTI_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* Must return 0; what is wrong ends the process. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* A broken promise of the code under test. */
static inline void fuzz_check(int fine)
{
    if (!fine)
        abort();
}

#endif
