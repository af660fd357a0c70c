/* SPDX-License-Identifier: MIT */
/* The exchanger over a group's shared page: it stands in for the store, so that these tests see the
 * channel alone. */
#include "group.h"

enum tutti_status tutti_exchanger_all_gather(struct tutti_exchanger *exchanger, const void *value,
                                             size_t bytes, void *all, int64_t timeout_ms)
{
    struct group *group = (struct group *)exchanger->store;
    uint64_t step = exchanger->sequence++;
    if (step >= GROUP_STEPS || bytes > GROUP_VALUE_BYTES)
        abort();
    if (bytes)
        memcpy(group->steps[step].values[exchanger->rank], value, bytes);
    __atomic_store_n(&group->steps[step].written[exchanger->rank], 1, __ATOMIC_RELEASE);
    for (int r = 0; r < group->size; r++) {
        for (int64_t waited = 0; !__atomic_load_n(&group->steps[step].written[r], __ATOMIC_ACQUIRE);
             waited++) {
            if (timeout_ms >= 0 && waited / 10 >= timeout_ms)
                return TUTTI_ERR_TIMEOUT;
            usleep(100);
        }
        if (bytes)
            memcpy((char *)all + (size_t)r * bytes, group->steps[step].values[r], bytes);
    }
    return TUTTI_OK;
}

enum tutti_status tutti_exchanger_barrier(struct tutti_exchanger *exchanger, int64_t timeout_ms)
{
    return tutti_exchanger_all_gather(exchanger, NULL, 0, NULL, timeout_ms);
}
