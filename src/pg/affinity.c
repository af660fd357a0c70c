/* SPDX-License-Identifier: MIT */
#include "pg/affinity.h"

enum { PLENTY = 4 }; /* cores a rank */

bool affinity_part(const cpu_set_t *allowed, int cores, int rank, int size, cpu_set_t *part)
{
    if (CPU_COUNT(allowed) != cores || size < 2 || cores < size || cores >= PLENTY * size)
        return false;
    CPU_ZERO(part);
    for (int core = 0, i = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, allowed) && i++ * size / cores == rank)
            CPU_SET(core, part);
    return true;
}

void affinity_keep_to_part(int cores, int rank, int size)
{
    cpu_set_t allowed, part;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0 &&
        affinity_part(&allowed, cores, rank, size, &part))
        (void)sched_setaffinity(0, sizeof part, &part); /* if it fails: all cores, as before */
}
