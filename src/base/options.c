/* SPDX-License-Identifier: MIT */
#include "base/options.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>

enum tutti_status options_copy(const char *call, const char *type, const void *from, void *to,
                               size_t size)
{
    size_t given;
    memcpy(&given, from, sizeof given);
    if (given < sizeof given)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: options->struct_size is %zu: set it to sizeof(struct %s), %zu", call,
                         given, type, size);
    size_t known = given < size ? given : size;
    for (size_t i = known; i < given; i++)
        if (((const unsigned char *)from)[i])
            return error_set(TUTTI_ERR_VERSION,
                             "%s: options hold a field at byte %zu that this library, %s, "
                             "does not know",
                             call, i, tutti_version_string());
    memset(to, 0, size);
    memcpy(to, from, known);
    return TUTTI_OK;
}

enum tutti_status options_check_out(const char *what, const char *type, const void *to, size_t size)
{
    size_t given = sizeof given;
    if (to)
        memcpy(&given, to, sizeof given);
    if (given < sizeof given)
        return error_set(TUTTI_ERR_INVALID,
                         "%s->struct_size is %zu: set it to sizeof(struct %s), %zu", what, given,
                         type, size);
    return TUTTI_OK;
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
    return (unsigned)algo <= TUTTI_ALGO_HOST_STAGED;
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
