/* SPDX-License-Identifier: MIT */
#include "base/options.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>

/* The size of every version of a struct is a multiple of the size of its first field. */
static enum tutti_status size_check(const char *what, const char *type, size_t given, size_t size)
{
    if (given >= sizeof given && given <= OPTIONS_STRUCT_BYTES && given % sizeof given == 0)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID, "%s: struct_size is %zu: set it to sizeof(struct %s), %zu",
                     what, given, type, size);
}

enum tutti_status options_check(const char *what, const char *type, const void *from, size_t size)
{
    size_t given;
    memcpy(&given, from, sizeof given);
    enum tutti_status status = size_check(what, type, given, size);
    for (size_t i = size; status == TUTTI_OK && i < given; i++)
        if (((const unsigned char *)from)[i])
            status = error_set(TUTTI_ERR_VERSION,
                               "%s: struct %s has %zu bytes, this library (%s) knows the first "
                               "%zu, and byte %zu is not 0: leave newer fields 0, or load a newer "
                               "library",
                               what, type, given, tutti_version_string(), size, i);
    return status;
}

enum tutti_status options_copy(const char *what, const char *type, const void *from, void *to,
                               size_t size)
{
    enum tutti_status status = options_check(what, type, from, size);
    if (status == TUTTI_OK) {
        size_t given;
        memcpy(&given, from, sizeof given);
        memset(to, 0, size);
        memcpy(to, from, given < size ? given : size);
        memcpy(to, &size, sizeof size);
    }
    return status;
}

enum tutti_status options_list(const char *call, const char *type, const void **list, int count,
                               void *room, size_t size)
{
    const char *from = *list;
    char *to = room;
    size_t stride, given;
    memcpy(&stride, from, sizeof stride);
    if (stride != size)
        *list = room;
    for (int i = 0; i < count; i++, from += stride, to += size) {
        enum tutti_status status = TUTTI_OK;
        char what[64];
        memcpy(&given, from, sizeof given);
        if (given == size && stride == size)
            continue;
        snprintf(what, sizeof what, "%s: tensors[%d]", call, i);
        if (given != stride)
            return error_set(TUTTI_ERR_INVALID,
                             "%s: struct_size is %zu, that of tensors[0] is %zu: set each to "
                             "sizeof(struct %s), %zu",
                             what, given, stride, type, size);
        status = options_copy(what, type, from, to, size);
        if (status != TUTTI_OK)
            return status;
    }
    return TUTTI_OK;
}

enum tutti_status options_check_out(const char *what, const char *type, const void *to, size_t size)
{
    size_t given = sizeof given;
    if (to)
        memcpy(&given, to, sizeof given);
    return size_check(what, type, given, size);
}

void options_copy_out(void *to, const void *from, size_t size)
{
    size_t given;
    memcpy(&given, to, sizeof given);
    size_t known = given < size ? given : size;
    memset(to, 0, given);
    memcpy(to, from, known);
    memcpy(to, &given, sizeof given);
}

static bool is_known(enum tutti_algo algo)
{
#define BIT(name, value, text) | 1u << (value)
    enum { KNOWN = 0 TUTTI_ALGO_MAP(BIT) };
#undef BIT
    return (unsigned)algo <= TUTTI_ALGO_HOST_STAGED && KNOWN >> algo & 1;
}

void options_algo_text(const char *variable, enum tutti_algo algo, char *text, size_t size)
{
    if (variable)
        snprintf(text, size, "%s=%s", variable, tutti_algo_name(algo));
    else if (is_known(algo))
        snprintf(text, size, "options->algo %d (%s)", (int)algo, tutti_algo_name(algo));
    else
        snprintf(text, size, "options->algo %d", (int)algo);
}

enum tutti_status options_algo_check(const char *variable, enum tutti_algo algo, bool cuda)
{
    if (is_known(algo) && (cuda || algo <= TUTTI_ALGO_HYBRID_CUBE_MESH))
        return TUTTI_OK;
    char text[OPTIONS_ALGO_BYTES];
    options_algo_text(variable, algo, text, sizeof text);
    if (!is_known(algo))
        return error_set(TUTTI_ERR_INVALID,
                         "%s: expected a value of enum tutti_algo, 0 (none) to %d (%s)", text,
                         (int)TUTTI_ALGO_HOST_STAGED, tutti_algo_name(TUTTI_ALGO_HOST_STAGED));
    return error_set(TUTTI_ERR_INVALID,
                     "%s: it is for CUDA communicators, a CPU communicator has one_shot, two_shot "
                     "and hybrid_cube_mesh: name one of these, or %s",
                     text, variable ? "unset it" : "none");
}
