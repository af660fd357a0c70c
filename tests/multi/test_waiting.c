/* SPDX-License-Identifier: MIT */
/*
 * A wait of 5 seconds or more is logged at WARN, the default level, with the missing ranks and what
 * the rank waits for: while the ranks meet, in a later step of the set-up, in an operation, in a
 * barrier of some ranks, and in a process group, where the leader logs it. On CUDA kernels wait in
 * operations, and the communicator's watcher writes the log.
 */
#include "device.h"
#include "pg.h"

#include "base/reminder.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 3, LATE = 1, LATE_MS = REMINDER_FIRST_S * 1000 + 1500 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char said[64 * 1024];

static void note(void *context, enum tutti_log_level level, const char *line)
{
    (void)context;
    pthread_mutex_lock(&lock);
    if (level == TUTTI_LOG_WARN && strlen(said) + strlen(line) + 2 < sizeof said)
        strcat(strcat(said, line), "\n");
    pthread_mutex_unlock(&lock);
}

/* What the rank has said since `said` was emptied, with all of these words in one line. */
static bool has_said(int rank, const char *what, const char *whom)
{
    char mark[16];
    snprintf(mark, sizeof mark, " [%d] ", rank);
    pthread_mutex_lock(&lock);
    bool found = false;
    char *copy = strdup(said), *rest = copy;
    for (char *line; !found && (line = strsep(&rest, "\n"));)
        found = strstr(line, mark) && strstr(line, what) && strstr(line, whom);
    free(copy);
    pthread_mutex_unlock(&lock);
    return found;
}

/* The late rank submits once the leader, rank 0, has said that the operation waits for it. */
static int group_waits(struct ranks *ranks, int rank, tutti_comm_t *comm)
{
    enum { TAG = 7 };
    tutti_work_t *work;
    tutti_pg_t *pg;
    float x = 1;
    RANKS_CHECK(tutti_pg_create(comm, NULL, &pg) == TUTTI_OK);
    for (int ms = 0; rank == LATE && ms < RANKS_TIMEOUT_MS; ms++) {
        if (has_said(0, "all_reduce 1 of tag 7", "for rank 1 "))
            break;
        usleep(1000);
    }
    RANKS_CHECK(pg_sum(pg, &x, TAG, 0, &work) == TUTTI_OK);
    RANKS_CHECK(pg_end(work) == TUTTI_OK && x == SIZE);
    const bool heard = has_said(0, "all_reduce 1 of tag 7", "for rank 1 ");
    RANKS_CHECK(pg_goes_on(pg, 0, SIZE));
    tutti_pg_destroy(pg);
    RANKS_CHECK(heard);
    return 0;
}

static int wait_for_late(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const int some[] = {0, LATE};
    const char *operation =
        device_is_cuda() ? "in operation 1 on device" : "in operation 1 (barrier";
    tutti_comm_t *comm;
    struct tutti_exchanger exchanger = {.struct_size = sizeof exchanger,
                                        .store = store,
                                        .prefix = "waiting",
                                        .rank = rank,
                                        .size = SIZE};
    if (rank == LATE)
        usleep(LATE_MS * 1000);
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    RANKS_CHECK(rank == LATE || has_said(rank, "to meet the others", "rank 1 has not come"));

    if (rank == LATE)
        usleep(LATE_MS * 1000);
    RANKS_CHECK(tutti_barrier(comm, NULL, 0, 0) == TUTTI_OK);
    RANKS_CHECK(rank == LATE || has_said(rank, operation, "for rank 1"));

    if (rank == LATE)
        usleep(LATE_MS * 1000);
    RANKS_CHECK(rank == 2 || tutti_barrier(comm, some, 2, 0) == TUTTI_OK);
    RANKS_CHECK(rank != 0 || has_said(rank, "in a barrier of some ranks", "for rank 1"));

    RANKS_CHECK(tutti_barrier(comm, NULL, 0, 0) == TUTTI_OK);
    if (rank == LATE)
        usleep(LATE_MS * 1000);
    RANKS_CHECK(tutti_exchanger_barrier(&exchanger, RANKS_TIMEOUT_MS) == TUTTI_OK);
    RANKS_CHECK(rank == LATE || has_said(rank, "\"waiting\", round 0", "rank 1 (1 of 3)"));
    int failed = device_is_cuda() ? 0 : group_waits(ranks, rank, comm);
    tutti_comm_destroy(comm);
    return failed;
}

int main(void)
{
    int skip = ranks_skip(SIZE);
    if (skip)
        return skip;
    unsetenv("TUTTI_DEBUG");
    tutti_log_set(note, NULL);
    struct ranks *ranks = ranks_create(SIZE, 0, 0);
    int failed = ranks_run(ranks, wait_for_late);
    ranks_destroy(ranks);
    tutti_log_set(NULL, NULL);
    if (failed)
        fputs(said, stdout);
    return failed;
}
