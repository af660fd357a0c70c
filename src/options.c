/* SPDX-License-Identifier: MIT */
#include "options.h"

#include "error.h"

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
                             "%s: options hold a field at byte %zu that this library, %d.%d.%d, "
                             "does not know",
                             call, i, TUTTI_VERSION_MAJOR, TUTTI_VERSION_MINOR,
                             TUTTI_VERSION_PATCH);
    memset(to, 0, size);
    memcpy(to, from, known);
    return TUTTI_OK;
}

enum tutti_status options_algo_check(enum tutti_algo algo, bool cuda)
{
    bool transport = (algo >= TUTTI_ALGO_ONE_SHOT_LL && algo <= TUTTI_ALGO_TWO_SHOT_PIPELINED) ||
                     algo == TUTTI_ALGO_HOST_STAGED;
    if ((unsigned)algo <= TUTTI_ALGO_HOST_STAGED && (cuda || !transport))
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID,
                     "algorithm %d (%s) does not serve %s ranks: expected none, one_shot, "
                     "two_shot, hybrid_cube_mesh%s",
                     (int)algo, tutti_algo_name(algo), cuda ? "CUDA" : "CPU",
                     cuda ? ", ring, one from one_shot_ll (4) to two_shot_pipelined (7), or "
                            "host_staged"
                          : " or ring");
}
