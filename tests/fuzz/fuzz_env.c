/* SPDX-License-Identifier: MIT */
/* The input is the value of a variable, read as each kind of value that variables have. What is
 * accepted is what it says: worked out here in another way. */
#include "base/env.h"
#include "fuzz.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

static const char name[] = "A_VARIABLE";

/* Decimal digits and a unit; false if that is not all, or it is too much for 64 bits. */
static bool digits(const char *text, const char *units, unsigned __int128 *value)
{
    const char *start = text;
    for (*value = 0; isdigit((unsigned char)*text) && *value <= UINT64_MAX; text++)
        *value = 10 * *value + (unsigned)(*text - '0');
    if (text == start || *value > UINT64_MAX)
        return false;
    for (int i = 0; *text && units[i]; i++) {
        if (toupper((unsigned char)*text) == units[i] && !text[1]) {
            *value <<= 10 * (i + 1);
            text++;
        }
    }
    return !*text && *value <= UINT64_MAX;
}

static void check_int64(const char *text)
{
    unsigned __int128 expected;
    int64_t value = 42;
    const bool negative = *text == '-';
    bool sound = digits(text + negative, "", &expected) &&
                 expected <= (unsigned __int128)INT64_MAX + negative;
    enum tutti_status status = env_int64(name, &value);
    fuzz_check((status == TUTTI_OK) == sound);
    fuzz_check(value == (!sound     ? 42
                         : negative ? (int64_t) - (__int128)expected
                                    : (int64_t)expected));
}

static void check_bytes(const char *text)
{
    unsigned __int128 expected;
    size_t value = 42;
    bool sound = digits(text, "KMG", &expected);
    enum tutti_status status = env_bytes(name, &value);
    fuzz_check((status == TUTTI_OK) == sound);
    fuzz_check(value == (sound ? (size_t)expected : 42));
}

static void check_words(const char *text)
{
    bool yes = false;
    enum tutti_algo algo = TUTTI_ALGO_HOST_STAGED;
    if (env_bool(name, &yes) == TUTTI_OK)
        fuzz_check(yes == (strcasecmp(text, "1") == 0 || strcasecmp(text, "on") == 0 ||
                           strcasecmp(text, "true") == 0 || strcasecmp(text, "yes") == 0));
    if (env_algo(name, &algo) == TUTTI_OK)
        fuzz_check(strcasecmp(text, tutti_algo_name(algo)) == 0);
}

/* By names that the library reads. */
static void check_readers(const char *text)
{
    char backend[32], enabled[32];
    setenv("TUTTI_SYMM_BACKEND", text, 1);
    if (tutti_info("symm.backend", backend, sizeof backend) == TUTTI_OK)
        fuzz_check(strcmp(backend, "cpu") == 0 || strcmp(backend, "cuda") == 0);
    unsetenv("TUTTI_SYMM_BACKEND");
    setenv("TUTTI_DISABLE", text, 1);
    fuzz_check(tutti_info("enabled", enabled, sizeof enabled) == TUTTI_OK);
    fuzz_check(strcmp(enabled, "yes") == 0 || strcmp(enabled, "no") == 0);
    unsetenv("TUTTI_DISABLE");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    char *text = fuzz_text(bytes, size);
    if (*text) { /* else it counts as unset */
        setenv(name, text, 1);
        check_int64(text);
        check_bytes(text);
        check_words(text);
        check_readers(text);
    }
    free(text);
    return 0;
}
