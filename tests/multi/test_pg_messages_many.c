/* SPDX-License-Identifier: MIT */
/*
 * The work for a message of a process group does not grow with the number of messages under way.
 * The ranks are threads, and the processor time of the process is the work. Work that grows with
 * the square of the number takes 64 times for each message.
 */
#include "pg.h"

#include <stdio.h>
#include <time.h>

enum { FEW = 500, MANY = 32000, MOST_TIMES = 16, FEW_RUNS = 10, MANY_RUNS = 2, ELEMENTS = 300 };
enum { SUBMITTED = 0 }; /* a flag */

static const struct part {
    const char *name;
    bool own_tags;    /* each message has another tag; the receives come in the opposite order */
    bool sends_first; /* all sends have been submitted before the first receive */
} parts[] = {
    {"one tag, receives first", false, false},
    {"one tag, sends first", false, true},
    {"many tags, receives first", true, false},
    {"many tags, sends first", true, true},
};

static double processor_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* Rank 0 sends messages to rank 1. `number`: of this run. [out] ns: for each message. */
static int run(struct ranks *ranks, int rank, tutti_pg_t *pg, const struct part *part, int count,
               uint32_t number, double *ns)
{
    static const int64_t size = ELEMENTS;
    static tutti_work_t *works[2][MANY];
    static float data[2][ELEMENTS];
    const bool sends = rank == 0;
    RANKS_CHECK(pg_goes_on(pg, 0, ranks->size));
    const double begun = processor_ns();
    if (sends != part->sends_first)
        RANKS_CHECK(ranks_await(ranks, SUBMITTED, number));
    for (int i = 0; i < count; i++) {
        const struct tutti_tensor tensor = pg_vector(data[rank], &size);
        const int tag = part->own_tags ? 1 + (sends ? i : count - 1 - i) : 1;
        const struct tutti_pg_call_options options = {.struct_size = sizeof options,
                                                      .tag = (uint32_t)tag};
        RANKS_CHECK((sends ? tutti_pg_send : tutti_pg_recv)(pg, &tensor, !rank, &options,
                                                            &works[rank][i]) == TUTTI_OK);
    }
    if (sends == part->sends_first)
        ranks_raise(ranks, SUBMITTED);
    for (int i = 0; i < count; i++)
        RANKS_CHECK(pg_end(works[rank][i]) == TUTTI_OK);
    RANKS_CHECK(pg_goes_on(pg, 0, ranks->size));
    *ns = (processor_ns() - begun) / count;
    return 0;
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const int counts[] = {FEW, 8 * FEW, MANY}; /* bad code is not run with the most */
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    uint32_t runs = 0;
    RANKS_CHECK(pg_join(ranks, rank, store, &comm, &pg) == TUTTI_OK);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        double few = 0;
        for (int k = 0; k < 3; k++) {
            double least = 0, ns = 0;
            for (int t = 0; t < (k ? MANY_RUNS : FEW_RUNS); t++) {
                const int failed = run(ranks, rank, pg, &parts[i], counts[k], ++runs, &ns);
                if (failed)
                    return failed;
                least = t && least < ns ? least : ns;
            }
            few = k ? few : least;
            if (rank == 0)
                printf("%s: %5d messages %6.0f ns each, %.1f times\n", parts[i].name, counts[k],
                       least, least / few);
            RANKS_CHECK(rank == 1 || least <= MOST_TIMES * few);
        }
    }
    pg_part(comm, pg);
    return 0;
}

int main(void)
{
    int failures, skip = ranks_skip_cuda("this test's tensors are the host's");
    if (skip)
        return skip;
    struct ranks *ranks = ranks_create(2, 0, 0);
    failures = ranks_run(ranks, live);
    ranks_destroy(ranks);
    return failures ? 1 : 0;
}
