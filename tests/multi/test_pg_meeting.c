/* SPDX-License-Identifier: MIT */
/*
 * Groups whose members do not meet: bad lists, lists that differ, a rank that stays away, gives up,
 * aborts or has exited. All members get an error that names the rank at fault, numbered as in the
 * communicator, and may try again.
 *
 * usage: test_pg_meeting processes|threads|mixed
 */
#include "pg.h"

#include "pg_members.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    SHORT_MS = 200,
    FLAG_WAITS = 0,
    FLAG_GONE = 1,
    FLAG_HEARD = 2,
    FLAG_TURNS = 3,
    FLAG_ABORTED = 4,
    FLAG_JOINED = 5,
};

/* Refused on this rank only; the other ranks do not call. */
static int live_bad_lists(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const int size = ranks->size, other = (rank + 1) % size;
    const int twice[] = {rank, other, rank}, outside[] = {rank, size}, negative[] = {-1, rank};
    const struct {
        const int *list;
        int count;
        const char *text;
    } bad[] = {
        {twice, 0, "a list of 0 ranks"},
        {twice, -1, "a list of -1 ranks"},
        {twice, size + 1, "members"},
        {NULL, 2, "a list of 2 ranks"},
        {twice, 2 + (size > 2), size > 2 ? "ranks[2] is " : "options->store"},
        {outside, 2, "ranks[1] is "},
        {negative, 2, "ranks[0] is -1"},
        {&other, 1, "the caller, rank "},
    };
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        pg = (tutti_pg_t *)comm;
        RANKS_CHECK(pg_of(comm, NULL, bad[i].list, bad[i].count, 0, &pg) == TUTTI_ERR_INVALID);
        RANKS_CHECK(!pg && strstr(tutti_last_error(), bad[i].text));
    }
    RANKS_CHECK(pg_of(comm, NULL, &rank, 1, 0, &pg) == TUTTI_ERR_INVALID && !pg);
    RANKS_CHECK(strstr(tutti_last_error(), "options->store is NULL"));
    RANKS_CHECK(tutti_comm_status(comm, NULL) == TUTTI_OK);
    tutti_comm_destroy(comm);
    return 0;
}

static bool names(const char *a, const char *b)
{
    return strstr(tutti_last_error(), a) && strstr(tutti_last_error(), b);
}

static int agree_at_last(struct ranks *ranks, int rank, tutti_store_t *store, tutti_comm_t *comm,
                         const int *list)
{
    tutti_pg_t *pg;
    RANKS_CHECK(pg_of(comm, store, list, ranks->size, 0, &pg) == TUTTI_OK);
    RANKS_CHECK(pg_goes_on(pg, 0, ranks->size));
    tutti_pg_destroy(pg);
    tutti_comm_destroy(comm);
    return 0;
}

/* The first two ranks wait for each other with lists that differ in order or in members. Both get
 * the error at once. Then they agree. */
static int live_disagreement(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const int all[] = {0, 1, 2, 3}, swapped[] = {1, 0, 2, 3};
    const int size = ranks->size;
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    for (int turn = 0; turn < 3; turn++) {
        const int *mine = turn == 0 && rank == 1 ? swapped : all;
        int count = turn == 0 ? 2 : size - (turn == 2 && rank == 1 && size > 2);
        if (rank < count && (turn != 2 || size == 2 || rank < 2)) {
            enum tutti_status status = pg_of(comm, store, mine, count, RANKS_TIMEOUT_MS, &pg);
            bool good = turn == 1 || (turn == 2 && size == 2);
            RANKS_CHECK(status == (good ? TUTTI_OK : TUTTI_ERR_MISMATCH));
            RANKS_CHECK(!good || pg_goes_on(pg, 0, count));
            RANKS_CHECK(!good == !pg);
            RANKS_CHECK(good || (names("rank 0", "rank 1") &&
                                 names("[0,1", turn == 0 ? "[1,0]" : ", has [0,1")));
            tutti_pg_destroy(pg);
        }
        /* No rank tries again before all have got the error. */
        ranks_raise(ranks, FLAG_TURNS);
        RANKS_CHECK(ranks_await(ranks, FLAG_TURNS, (uint32_t)(size * (turn + 1))));
    }
    return agree_at_last(ranks, rank, store, comm, all);
}

/* The last rank does not come in time. The members call again, and meet. */
static int live_missing(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const int all[] = {3, 2, 1, 0};
    const int size = ranks->size, last = size - 1, *list = all + 4 - size;
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    if (rank != last) {
        RANKS_CHECK(pg_of(comm, store, list, size, SHORT_MS, &pg) == TUTTI_ERR_TIMEOUT && !pg);
        /* With more ranks another rank may have been too slow, too. */
        RANKS_CHECK(names(size == 2 ? "rank 1 did not come" : "did not come", "[") &&
                    names("of communicator \"default\"", "in time"));
        ranks_raise(ranks, FLAG_WAITS);
    } else {
        RANKS_CHECK(ranks_await(ranks, FLAG_WAITS, (uint32_t)last));
    }
    return agree_at_last(ranks, rank, store, comm, list);
}

struct maker {
    tutti_comm_t *comm;
    tutti_store_t *store;
    const int *list;
    int count;
    enum tutti_status status;
    char text[512];
};

static void *make(void *argument)
{
    struct maker *maker = argument;
    tutti_pg_t *pg;
    do
        maker->status =
            pg_of(maker->comm, maker->store, maker->list, maker->count, RANKS_TIMEOUT_MS, &pg);
    while (maker->status == TUTTI_ERR_CONCURRENT);
    snprintf(maker->text, sizeof maker->text, "%s", tutti_last_error());
    tutti_pg_destroy(pg);
    return NULL;
}

/* A thread of rank 0 waits for rank 1. Another thread's call is refused; an abort ends the wait. */
static int live_abort(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const int list[] = {0, 1};
    struct maker maker = {.list = list, .count = 2};
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    pthread_t thread;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    ranks_raise(ranks, FLAG_JOINED); /* an abort would end a meeting that is under way */
    if (rank == 0) {
        RANKS_CHECK(ranks_await(ranks, FLAG_JOINED, (uint32_t)ranks->size));
        maker.comm = comm;
        maker.store = store;
        RANKS_CHECK(pthread_create(&thread, NULL, make, &maker) == 0);
        while (pg_of(comm, store, &rank, 1, 0, &pg) != TUTTI_ERR_CONCURRENT) {
            tutti_pg_destroy(pg);
            usleep(1000);
        }
        RANKS_CHECK(strstr(tutti_last_error(), "another thread of rank 0"));
        tutti_comm_abort(comm);
        pthread_join(thread, NULL);
        RANKS_CHECK(maker.status == TUTTI_ERR_ABORTED && strstr(maker.text, "rank 0 aborted"));
        ranks_raise(ranks, FLAG_ABORTED);
    }
    RANKS_CHECK(ranks_await(ranks, FLAG_ABORTED, 1));
    tutti_comm_destroy(comm);
    return 0;
}

/* Rank 1 destroys the communicator while rank 0 waits for it; ranks 2 and 3 make theirs. */
static int live_gone(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const int lists[2][2] = {{0, 1}, {2, 3}};
    const int *list = lists[rank / 2];
    const int count = ranks->size - rank / 2 * 2 < 2 ? 1 : 2;
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    if (rank == 0) {
        RANKS_CHECK(pg_of(comm, store, list, count, 0, &pg) == TUTTI_ERR_PEER_DEAD && !pg);
        RANKS_CHECK(names("rank 1", "is gone"));
    } else if (rank > 1) {
        RANKS_CHECK(pg_of(comm, store, list, count, 0, &pg) == TUTTI_OK);
        RANKS_CHECK(pg_goes_on(pg, 0, count));
        tutti_pg_destroy(pg);
        ranks_raise(ranks, FLAG_GONE);
    } else {
        RANKS_CHECK(ranks_await(ranks, FLAG_GONE, (uint32_t)ranks->size - 2));
    }
    tutti_comm_destroy(comm);
    return 0;
}

int main(int argc, char **argv)
{
    ranks_fn *const parts[] = {live_bad_lists, live_disagreement, live_missing, live_abort,
                               live_gone};
    return pg_members_main(argc, argv, parts, (int)(sizeof parts / sizeof *parts));
}
