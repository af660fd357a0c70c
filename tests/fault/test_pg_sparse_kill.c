/* SPDX-License-Identifier: MIT */
/* SIGKILL of a rank of a process group at named points inside a sparse all-reduce, or its abort of
 * the communicator where the others wait for its descriptor. The others' works end: well if the
 * rank had done its part, otherwise with PEER_DEAD or ABORTED, which names it. The others can
 * destroy everything. */
#include "pg.h"

#include "base/point.h"

#include <signal.h>
#include <stdio.h>

enum { AT = 3, MANY = 20, FEW = 20, ENTRIES = 500 };

struct scenario {
    const char *point;
    int victim;
    bool given; /* the others need nothing more from it */
    bool aborts;
};

/* The point at which this process dies, or aborts and stays, at its AT-th passage. */
static const char *deadly;
static struct ranks *others; /* NULL: it dies */
static tutti_comm_t *aborted;

static void hook(const char *name)
{
    static int passages;
    if (!deadly || strcmp(name, deadly) != 0 || ++passages != AT)
        return;
    if (!others)
        raise(SIGKILL);
    tutti_comm_abort(aborted);
    if (!ranks_await(others, 1, (uint32_t)others->size - 1))
        raise(SIGKILL);
}

void (*point_hook)(const char *name) = hook;

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct scenario *scenario = ranks->context;
    int64_t indices[ENTRIES];
    float values[ENTRIES];
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    tutti_work_t *work;
    char name[32];
    enum tutti_status status = TUTTI_OK;
    snprintf(name, sizeof name, "rank %d", scenario->victim);
    deadly = rank == scenario->victim ? scenario->point : NULL;
    for (int i = 0; i < ENTRIES; i++) {
        indices[i] = (i * 7 + rank) % PG_ROWS;
        values[i] = 1;
    }
    RANKS_CHECK(pg_join(ranks, rank, store, &comm, &pg) == TUTTI_OK);
    others = scenario->aborts ? ranks : NULL;
    aborted = comm;
    for (int i = 1; status == TUTTI_OK; i++) {
        RANKS_CHECK(i < MANY);
        /* The segments grow in that operation. */
        status = pg_sparse_sum(pg, indices, values, i < AT ? FEW : ENTRIES, 0, -1, &work);
        if (status == TUTTI_OK)
            status = pg_end(work);
        RANKS_CHECK(status == TUTTI_OK || i >= AT);
        RANKS_CHECK(i != AT || scenario->given == (status == TUTTI_OK));
    }
    RANKS_CHECK(status == (scenario->aborts ? TUTTI_ERR_ABORTED : TUTTI_ERR_PEER_DEAD));
    RANKS_CHECK(strstr(tutti_last_error(), name));
    ranks_raise(ranks, 1);
    pg_part(comm, pg);
    return 0;
}

int main(void)
{
    static const struct scenario points[] = {{.point = "sparse.coalesced", .given = false},
                                             {.point = "sparse.shown", .given = true},
                                             {.point = "sparse.united", .given = true},
                                             {.point = "share.headers", .aborts = true}};
    int failures = 0, skip = ranks_skip_cuda("this test's tensors are the host's");
    if (skip)
        return skip;
    for (int size = 2; size <= 3; size++)
        for (int i = 0; i < 2 * (int)(sizeof points / sizeof *points); i++) {
            struct scenario scenario = points[i / 2];
            scenario.victim = i % 2 ? size - 1 : 0;
            struct ranks *ranks = ranks_create(size, size, 0);
            ranks->context = &scenario;
            ranks->expendable = scenario.aborts ? 0 : UINT64_C(1) << scenario.victim;
            failures += ranks_run(ranks, live);
            for (int r = 0; r < size; r++)
                if (r == scenario.victim && !scenario.aborts &&
                    ranks->results[r].signal != SIGKILL) {
                    fprintf(stderr, "rank %d did not come to %s\n", r, scenario.point);
                    failures++;
                }
            ranks_destroy(ranks);
        }
    return failures ? 1 : 0;
}
