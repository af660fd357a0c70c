/* SPDX-License-Identifier: MIT */
/* A fuzzer: libFuzzer's entry. Its inputs begin with those in corpus/NAME: see driver.c. */
#ifndef TUTTI_TESTS_FUZZ_H
#define TUTTI_TESTS_FUZZ_H

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Must return 0; what is wrong ends the process. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* A broken promise of the code under test. */
static inline void fuzz_check(int fine)
{
    if (!fine)
        abort();
}

/* The input as a string, to be freed. */
static inline char *fuzz_text(const uint8_t *bytes, size_t size)
{
    char *text = malloc(size + 1);
    fuzz_check(text != NULL);
    memcpy(text, bytes, size);
    text[size] = 0;
    return text;
}

/* The lowest free descriptor: it moves up when one leaks. */
static inline int fuzz_lowest_free(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    fuzz_check(fd >= 0);
    close(fd);
    return fd;
}

#endif
