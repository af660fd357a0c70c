/* SPDX-License-Identifier: MIT */
#include "store/verdict.h"

#include "base/error.h"

#include <stdio.h>

enum tutti_status verdict_exchange(struct tutti_exchanger *exchanger, enum tutti_status mine,
                                   int64_t timeout_ms)
{
    struct {
        int32_t status;
        char text[380];
    } own = {.status = (int32_t)mine}, all[TUTTI_MAX_RANKS];
    if (mine != TUTTI_OK)
        snprintf(own.text, sizeof own.text, "%s", tutti_last_error());
    /* The word of a rank that is gone is not waited for; this one's is left for the others. */
    if (mine == TUTTI_ERR_PEER_DEAD)
        timeout_ms = 1;
    enum tutti_status status =
        tutti_exchanger_all_gather(exchanger, &own, sizeof own, all, timeout_ms);
    if (mine != TUTTI_OK)
        return error_set(mine, "%s", own.text);
    for (int r = 0; status == TUTTI_OK && r < exchanger->size; r++) {
        if (all[r].status != TUTTI_OK)
            status = error_set((enum tutti_status)all[r].status, "rank %d: %.*s", r,
                               (int)sizeof all[r].text - 1, all[r].text);
    }
    return status;
}
