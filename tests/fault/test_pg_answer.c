/* SPDX-License-Identifier: MIT */
/*
 * When a leader counts as not answering. The last rank withdraws an operation after the leader has
 * begun another one, which takes all ranks longer than the leader's time to answer. The group goes
 * on, since the leader was busy. No time passes in this test: the last rank's clock is put forward.
 */
#include "base/point.h"
#include "pg.h"

#include <time.h>

enum { SOON_MS = 50, LONG_S = 6 };
enum { LATE = 1, BEGUN, LOOKED }; /* flags */

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);

void (*point_hook)(const char *name);

/* One rank of this process. */
static struct ranks *ours;
static bool leads;
static int forward_s; /* atomic */
static int looks;

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = __real_clock_gettime(clock, now);
    now->tv_sec += __atomic_load_n(&forward_s, __ATOMIC_RELAXED);
    return failed;
}

/* Runs on the groups' threads. */
static void hook(const char *name)
{
    if (ours && leads && strcmp(name, "small.written") == 0)
        ranks_raise(ours, BEGUN);
    if (!ours || leads || strcmp(name, "group.overdue") != 0)
        return;
    looks++;
    if (looks == 1) { /* the withdrawal may be sent to the leader from now on */
        ranks_raise(ours, LATE);
        ranks_await(ours, BEGUN, 1);
    } else if (looks == 3) { /* the second check came after the other operation */
        ranks_raise(ours, LOOKED);
    }
}

/* After the operation that kept all ranks busy: its end is late, and the leader has not read the
 * withdrawal yet. */
static void end_late(void *context, tutti_work_t *work, enum tutti_status status)
{
    (void)context;
    (void)work;
    (void)status;
    if (leads)
        ranks_await(ours, LOOKED, 1);
    else
        __atomic_store_n(&forward_s, LONG_S, __ATOMIC_RELAXED);
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const int64_t one = 1;
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    tutti_work_t *withdrawn, *busy;
    float x = 1, y = 1;
    const struct tutti_tensor tensor = pg_vector(&y, &one);
    const struct tutti_pg_call_options options = {
        .struct_size = sizeof options, .tag = 2, .callback = end_late};
    RANKS_CHECK(pg_join(ranks, rank, store, &comm, &pg) == TUTTI_OK);
    RANKS_CHECK(pg_goes_on(pg, 0, ranks->size));
    ours = ranks;
    leads = rank == 0;
    if (leads)
        RANKS_CHECK(ranks_await(ranks, LATE, 1));
    RANKS_CHECK(tutti_pg_all_reduce(pg, &tensor, 1, TUTTI_SUM, &options, &busy) == TUTTI_OK);
    if (!leads) {
        RANKS_CHECK(pg_sum(pg, &x, 1, SOON_MS, &withdrawn) == TUTTI_OK);
        RANKS_CHECK(pg_end(withdrawn) == TUTTI_ERR_TIMEOUT);
        ranks_raise(ranks, LOOKED);
    }
    RANKS_CHECK(pg_end(busy) == TUTTI_OK && y == (float)ranks->size);
    ours = NULL;
    RANKS_CHECK(pg_goes_on(pg, 0, ranks->size));
    pg_part(comm, pg);
    return 0;
}

int main(void)
{
    int skip = ranks_skip_cuda("this test's tensors are the host's");
    if (skip)
        return skip;
    point_hook = hook;
    struct ranks *ranks = ranks_create(2, 2, 0);
    int failures = ranks_run(ranks, live);
    ranks_destroy(ranks);
    return failures ? 1 : 0;
}
