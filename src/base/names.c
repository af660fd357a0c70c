/* SPDX-License-Identifier: MIT */
/* The texts of the public enumerations, from their X-macro maps. */
#include "base/dtype.h"

#define ROW(name, value, text) [value] = text,
#define LOOKUP(table, index, other)                                                                \
    ((size_t)(index) < sizeof(table) / sizeof *(table) && (table)[index] ? (table)[index] : (other))

int tutti_version(void)
{
    return TUTTI_VERSION;
}

#define DIGITS(number)              #number
#define DOTTED(major, minor, patch) DIGITS(major) "." DIGITS(minor) "." DIGITS(patch)

const char *tutti_version_string(void)
{
    return DOTTED(TUTTI_VERSION_MAJOR, TUTTI_VERSION_MINOR, TUTTI_VERSION_PATCH);
}

const char *tutti_status_name(enum tutti_status status)
{
#define NAME(name, value, text) [value] = "TUTTI_" #name,
    static const char *const names[] = {TUTTI_STATUS_MAP(NAME)};
#undef NAME
    return LOOKUP(names, status, "TUTTI_UNKNOWN");
}

const char *tutti_status_text(enum tutti_status status)
{
    static const char *const texts[] = {TUTTI_STATUS_MAP(ROW)};
    return LOOKUP(texts, status, "unknown status");
}

size_t tutti_dtype_size(enum tutti_dtype dtype)
{
    return dtype_bytes(dtype);
}

const char *tutti_dtype_name(enum tutti_dtype dtype)
{
#define TEXT(name, value, size, text) [value] = text,
    static const char *const texts[] = {TUTTI_DTYPE_MAP(TEXT)};
#undef TEXT
    return LOOKUP(texts, dtype, "unknown");
}

const char *tutti_collective_name(enum tutti_collective collective)
{
    static const char *const texts[] = {TUTTI_COLLECTIVE_MAP(ROW)};
    return LOOKUP(texts, collective, "unknown");
}

const char *tutti_quant_name(enum tutti_quant quant)
{
    static const char *const texts[] = {TUTTI_QUANT_MAP(ROW)};
    return LOOKUP(texts, quant, "unknown");
}

const char *tutti_algo_name(enum tutti_algo algo)
{
    static const char *const texts[] = {TUTTI_ALGO_MAP(ROW)};
    return LOOKUP(texts, algo, "unknown");
}
