/* SPDX-License-Identifier: MIT */
/*
 * Ranks on several "hosts" of one machine, joined by the fabric of the tests. TUTTI_TEST_HOSTS
 * names the host of each rank by a letter: AAB has ranks 0 and 1 on one and rank 2 on another. It
 * begins again where it ends. Ranks must be processes. Without the variable there is one host.
 * TUTTI_TEST_FABRIC=nccl: NCCL joins the ranks' devices.
 */
#include "../ranks.h"
#include "loopback_fabric.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct loopback *loopback;
static const char *hosts;

static bool by_nccl(void)
{
    const char *fabric = getenv("TUTTI_TEST_FABRIC");
    return fabric && strcmp(fabric, "nccl") == 0;
}

void hosts_prepare(void)
{
    hosts = getenv("TUTTI_TEST_HOSTS");
    if (hosts && !by_nccl() && !loopback)
        loopback = loopback_create();
}

void hosts_enter(int rank)
{
    if (hosts)
        setenv("TUTTI_HOST_ID", (char[]){hosts[(size_t)rank % strlen(hosts)], 0}, 1);
}

/* The fabric lives as long as the process. */
struct tutti_fabric *hosts_fabric(int rank)
{
    static tutti_fabric_t *fabric;
    if (hosts && !fabric &&
        (by_nccl() ? tutti_fabric_open("nccl:", &fabric)
                   : loopback_open(loopback, rank, &fabric)) != TUTTI_OK) {
        fprintf(stderr, "hosts: %s\n", tutti_last_error());
        exit(1);
    }
    return fabric;
}
