/* SPDX-License-Identifier: MIT */
/*
 * Sizes, numbers and names in the arguments of `tutti bench` and of other commands: an accepted
 * argument has the value that its text says.
 */
#include "../../tools/collective.h"
#include "fuzz.h"
#include "tool.h"

#include <string.h>

/* "2.5" and so many bytes each: the number times that is whole. */
static void check_size(const char *text)
{
    size_t bytes = 0;
    char again[64];
    if (!parse_size(text, &bytes))
        return;
    fuzz_check(*text >= '0' && *text <= '9');
    fuzz_check(bytes < (size_t)1 << 62);
    size_t plain = strspn(text, "0123456789");
    if (!text[plain] && plain < 16) /* no unit: the bytes are the number */
        fuzz_check(bytes == strtoull(text, NULL, 10));
    snprintf(again, sizeof again, "%zu", bytes);
    if (bytes < (size_t)1 << 53) { /* what is printed is read as the same */
        size_t same = 0;
        fuzz_check(parse_size(again, &same) && same == bytes);
    }
}

static void check_integer(const char *text)
{
    long value = -1;
    if (!parse_integer(text, 2, 64, &value))
        return;
    fuzz_check(value >= 2 && value <= 64);
    fuzz_check(value == strtol(text, NULL, 10));
}

static void check_names(const char *text)
{
    enum tutti_dtype dtype;
    tutti_op_t op;
    enum tutti_algo algo;
    enum tutti_collective collective;
    if (parse_dtype(text, &dtype))
        fuzz_check(tutti_dtype_size(dtype) > 0);
    if (parse_op(text, &op))
        fuzz_check(strcmp(tutti_op_name(op), text) == 0);
    if (parse_algo(text, &algo))
        fuzz_check(strcmp(tutti_algo_name(algo), text) == 0);
    if (parse_collective(text, &collective))
        fuzz_check(strcmp(collective_name(collective), text) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    char *text = fuzz_text(bytes, size);
    check_size(text);
    check_integer(text);
    check_names(text);
    free(text);
    return 0;
}
