/* SPDX-License-Identifier: MIT */
/* SIGKILL of a rank of a process group while operations are in flight. The other ranks' works, also
 * those submitted later, end with PEER_DEAD, which names the rank. Destroying works as usual. */
#include "pg.h"

#include <signal.h>
#include <string.h>

enum { MANY = 50, BUSY_TAG = 1, LONELY_TAG = 2 };

struct scenario {
    int victim;
};

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct scenario *scenario = ranks->context;
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    tutti_work_t *works[MANY], *busy;
    float data[MANY] = {0}, x = 0;
    char name[32] = "rank ";
    name[5] = (char)('0' + scenario->victim);
    RANKS_CHECK(pg_join(ranks, rank, store, &comm, &pg) == TUTTI_OK);
    RANKS_CHECK(pg_goes_on(pg, 0, ranks->size));
    for (int i = 0; i < MANY && rank != scenario->victim; i++)
        RANKS_CHECK(pg_sum(pg, &data[i], LONELY_TAG, 0, &works[i]) == TUTTI_OK);
    for (int i = 0; i < MANY; i++) {
        RANKS_CHECK(pg_sum(pg, &x, BUSY_TAG, 0, &busy) == TUTTI_OK);
        RANKS_CHECK(pg_end(busy) == TUTTI_OK);
    }
    if (rank == scenario->victim) {
        /* The other operations are in the table or, with some luck, exchanging data. */
        (void)pg_sum(pg, &x, BUSY_TAG, 0, &busy);
        raise(SIGKILL);
    }
    enum tutti_status status = TUTTI_OK;
    while (status == TUTTI_OK) {
        status = pg_sum(pg, &x, BUSY_TAG, 0, &busy);
        enum tutti_status end = status == TUTTI_OK ? pg_end(busy) : status;
        RANKS_CHECK(end == TUTTI_OK || end == TUTTI_ERR_PEER_DEAD);
    }
    RANKS_CHECK(status == TUTTI_ERR_PEER_DEAD && strstr(tutti_last_error(), name));
    for (int i = 0; i < MANY; i++) {
        RANKS_CHECK(tutti_work_wait_host(works[i], RANKS_TIMEOUT_MS) == TUTTI_ERR_PEER_DEAD);
        RANKS_CHECK(strstr(tutti_last_error(), name));
        tutti_work_destroy(works[i]);
    }
    pg_part(comm, pg);
    return 0;
}

int main(void)
{
    int failures = 0, skip = ranks_skip_cuda("this test's tensors are the host's");
    if (skip)
        return skip;
    for (int size = 2; size <= 4; size++)
        for (int last = 0; last < 2; last++) {
            const struct scenario scenario = {.victim = last ? size - 1 : 0};
            struct ranks *ranks = ranks_create(size, size, 0);
            ranks->context = &scenario;
            ranks->expendable = UINT64_C(1) << scenario.victim;
            failures += ranks_run(ranks, live);
            ranks_destroy(ranks);
        }
    return failures ? 1 : 0;
}
