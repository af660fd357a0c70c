/* SPDX-License-Identifier: MIT */
/*
 * Ranks on several hosts. All of them are refused, at once and without a time-out, and learn which
 * ranks run on which host.
 */
#include "ranks.h"

#include "ipc/process.h"

#include <stdio.h>
#include <string.h>

static int host; /* where this rank's process says that it runs */

bool __wrap_process_boot_id(char *text, size_t size);
bool __wrap_process_boot_id(char *text, size_t size)
{
    return snprintf(text, size, "boot%d", host) > 0;
}

int __wrap_gethostname(char *name, size_t size);
int __wrap_gethostname(char *name, size_t size)
{
    return snprintf(name, size, "host%d", host) > 0 ? 0 : -1;
}

static int join(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    host = rank == 1 ? 5 : 4;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_ERR_DECLINED);
    RANKS_CHECK(strstr(tutti_last_error(),
                       "Tutti joins the ranks of one host, and these run on 2: rank 0, rank 2, "
                       "rank 3 on host4 (boot boot4), rank 1 on host5 (boot boot5)"));
    return 0;
}

/* More hosts than the error has room for. */
static int join_many(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    host = rank;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_ERR_DECLINED);
    RANKS_CHECK(strstr(tutti_last_error(), "these run on 20: rank 0 on host0 (boot boot0), "));
    RANKS_CHECK(!strcmp(tutti_last_error() + strlen(tutti_last_error()) - 3, "..."));
    return 0;
}

static int run(int size, ranks_fn *fn)
{
    struct ranks *ranks = ranks_create(size, size, 0);
    const int failures = ranks_run(ranks, fn);
    ranks_destroy(ranks);
    return failures;
}

int main(void)
{
    const int skip = ranks_skip_cuda("hosts are compared before devices");
    if (skip)
        return skip;
    return run(4, join) + run(20, join_many) ? 1 : 0;
}
