/* SPDX-License-Identifier: MIT */
/*
 * How long a communicator takes to set up: from the moment that fresh processes may start until the
 * slowest of them has one, store included. Prints the median and the worst of some rounds.
 */
#include "now.h"
#include "stats.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tutti/tutti.h>

#define MAX_RANKS 64
#define LIMIT_S   30

/* One rank: waits until `start` is closed, then writes to `ends` when it has its communicator. */
static int be_rank(const char *path, int rank, int ranks, int start, int ends)
{
    char url[128];
    char byte;
    int64_t end;
    tutti_store_t *store;
    tutti_comm_t *comm;
    int status = EXIT_FAILURE;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(LIMIT_S);
    snprintf(url, sizeof(url), "file:%s", path);
    if (read(start, &byte, 1) != 0)
        return EXIT_FAILURE;
    if (tutti_store_open(url, 0, &store) != TUTTI_OK)
        goto err_report;
    if (tutti_comm_create(store, rank, ranks, NULL, &comm) != TUTTI_OK)
        goto err_store;
    end = now_ns();
    /* Ends only when all have met, since a rank that leaves early looks dead to the others. */
    if (tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK &&
        write(ends, &end, sizeof(end)) == (ssize_t)sizeof(end))
        status = EXIT_SUCCESS;
    tutti_comm_destroy(comm);
err_store:
    tutti_store_close(store);
err_report:
    if (status != EXIT_SUCCESS)
        fprintf(stderr, "rank %d: %s\n", rank, tutti_last_error());
    return status;
}

/* One round; returns the milliseconds of the slowest rank, or a negative number. */
static double measure(const char *path, int ranks)
{
    int start[2];
    int ends[2];
    int64_t begun;
    int64_t last = 0;
    int met = 0;
    int status;

    if (pipe(start) != 0 || pipe(ends) != 0) {
        fprintf(stderr, "setup: pipe: %s\n", strerror(errno));
        return -1;
    }
    for (int rank = 0; rank < ranks; rank++) {
        if (fork() == 0) {
            close(start[1]);
            close(ends[0]);
            _exit(be_rank(path, rank, ranks, start[0], ends[1]));
        }
    }
    close(start[0]);
    close(ends[1]);
    usleep(20000); /* let them all reach their read() */
    begun = now_ns();
    close(start[1]);
    for (int64_t end; read(ends[0], &end, sizeof(end)) == (ssize_t)sizeof(end); met++) {
        if (end > last)
            last = end;
    }
    close(ends[0]);
    while (wait(&status) > 0) {
        if (WIFSIGNALED(status))
            fprintf(stderr, "setup: a rank was ended by signal %d\n", WTERMSIG(status));
    }
    unlink(path);
    return met == ranks ? (double)(last - begun) * 1e-6 : -1;
}

int main(int argc, char **argv)
{
    int ranks = argc > 1 ? atoi(argv[1]) : 4;
    int rounds = argc > 2 ? atoi(argv[2]) : 21;
    char directory[] = "/tmp/tutti-setup-XXXXXX";
    struct samples samples = {0};
    double worst = 0;
    char path[64];

    if (argc > 3 || ranks < 1 || ranks > MAX_RANKS || rounds < 1) {
        fprintf(stderr, "usage: setup [RANKS (4)] [ROUNDS (21)]\n");
        return EXIT_FAILURE;
    }
    if (mkdtemp(directory) == NULL) {
        fprintf(stderr, "setup: %s: %s\n", directory, strerror(errno));
        return EXIT_FAILURE;
    }
    snprintf(path, sizeof(path), "%s/store", directory);
    for (int round = 0; round < rounds; round++) {
        double ms = measure(path, ranks);

        if (ms < 0 || samples_add(&samples, ms) != 0)
            break;
        worst = ms > worst ? ms : worst;
    }
    if (samples.count == (size_t)rounds)
        printf("communicator set-up, %d process ranks: median %.2f ms, worst %.2f ms of %d\n",
               ranks, samples_median(&samples), worst, rounds);
    rmdir(directory);
    rounds -= (int)samples.count;
    samples_fini(&samples);
    return rounds == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
