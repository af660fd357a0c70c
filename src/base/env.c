/* SPDX-License-Identifier: MIT */
#include "base/env.h"

#include "base/error.h"
#include "base/parse.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *text_of(const char *name)
{
    const char *text = getenv(name);
    return text && *text ? text : NULL;
}

enum tutti_status env_int64(const char *name, int64_t *value)
{
    const char *text = text_of(name);
    int64_t number;
    if (!text)
        return TUTTI_OK;
    if (!parse_number(text, INT64_MIN, INT64_MAX, &number))
        return error_set(TUTTI_ERR_INVALID, "%s=%s: expected a whole number that fits in 64 bits",
                         name, text);
    *value = number;
    return TUTTI_OK;
}

enum tutti_status env_bool(const char *name, bool *value)
{
    static const struct {
        const char *text;
        bool value;
    } words[] = {{"0", false}, {"off", false}, {"false", false}, {"no", false},
                 {"1", true},  {"on", true},   {"true", true},   {"yes", true}};
    const char *text = text_of(name);
    if (!text)
        return TUTTI_OK;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcasecmp(text, words[i].text) == 0) {
            *value = words[i].value;
            return TUTTI_OK;
        }
    }
    return error_set(TUTTI_ERR_INVALID, "%s=%s: expected 0 or 1", name, text);
}

enum tutti_status env_bytes(const char *name, size_t *value)
{
    const char *text = text_of(name);
    char *end;
    if (!text)
        return TUTTI_OK;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    const char *units = "KMG",
               *unit = isalpha((unsigned char)*end) ? strchr(units, *end & ~32) : NULL;
    int shift = unit ? 10 * (int)(unit - units + 1) : 0;
    /* strtoull() accepts " -1" as the largest number, so check the first character. */
    if (errno || !isdigit((unsigned char)*text) || (*end && (!unit || end[1])) ||
        number > SIZE_MAX >> shift)
        return error_set(TUTTI_ERR_INVALID,
                         "%s=%s: expected a number of bytes such as 10485760 or 10M", name, text);
    *value = (size_t)number << shift;
    return TUTTI_OK;
}

enum tutti_status env_algo(const char *name, enum tutti_algo *value)
{
    const char *text = text_of(name);
    if (!text)
        return TUTTI_OK;
#define MATCH(name, number, text_of_it)                                                            \
    if (strcasecmp(text, text_of_it) == 0) {                                                       \
        *value = TUTTI_ALGO_##name;                                                                \
        return TUTTI_OK;                                                                           \
    }
    TUTTI_ALGO_MAP(MATCH)
#undef MATCH
    return error_set(TUTTI_ERR_INVALID,
                     "%s=%s: expected none, one_shot, two_shot, hybrid_cube_mesh, or on CUDA ring, "
                     "host_staged, or a kernel as tuning files name it",
                     name, text);
}
