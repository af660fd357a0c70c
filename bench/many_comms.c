/* SPDX-License-Identifier: MIT */
/* What many communicators cost each process: memory, descriptors, threads, and the time to create
 * one after the first: on the store, or, with `dup`, as a copy of the first. The ranks are
 * processes; rank 0 serves the store. */
#include "now.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tutti/tutti.h>

static int entries(const char *path)
{
    DIR *folder = opendir(path);
    int count = -2; /* "." and ".." */

    while (folder && readdir(folder))
        count++;
    if (folder)
        closedir(folder);
    return count;
}

/* A value of /proc/self/smaps_rollup in KiB. */
static long memory_kib(const char *name)
{
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    char line[128];
    long value = -1;

    while (file && fgets(line, sizeof(line), file))
        if (strncmp(line, name, strlen(name)) == 0)
            value = atol(line + strlen(name));
    if (file)
        fclose(file);
    return value;
}

/* The processor time of this process. */
static double cpu_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static int be_rank(const char *url, int rank, int ranks, int count, bool dup)
{
    tutti_comm_t **comms = calloc((size_t)count, sizeof(*comms));
    tutti_store_t *store;
    int64_t begun = 0;
    double cpu = 0;
    int made = 0;

    if (comms == NULL || tutti_store_open(url, 0, &store) != TUTTI_OK)
        return EXIT_FAILURE;
    for (; made < count; made++) {
        if ((dup && made ? tutti_comm_dup(comms[0], NULL, &comms[made])
                         : tutti_comm_create(store, rank, ranks, NULL, &comms[made])) != TUTTI_OK)
            break;
        if (made > 0)
            continue;
        begun = now_ns();
        cpu = cpu_ms();
    }
    if (made < count)
        fprintf(stderr, "rank %d, communicator %d: %s\n", rank, made, tutti_last_error());
    else
        printf("rank %d: %.2f ms each after the first (%.2f ms of a core), RSS %ld MiB, "
               "descriptors %d, threads %d\n",
               rank, (double)(now_ns() - begun) * 1e-6 / (count > 1 ? count - 1 : 1),
               (cpu_ms() - cpu) / (count > 1 ? count - 1 : 1), memory_kib("Rss:") / 1024,
               entries("/proc/self/fd"), entries("/proc/self/task"));
    fflush(stdout);
    if (made == count && tutti_barrier(comms[0], NULL, 0, TUTTI_STREAM_DEFAULT) != TUTTI_OK)
        made = 0;
    for (int i = 0; i < made; i++)
        tutti_comm_destroy(comms[i]);
    free(comms);
    if (rank == 0) /* it serves the others */
        sleep(1);
    tutti_store_close(store);
    return made == count ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    int count = argc > 1 ? atoi(argv[1]) : 1000;
    int ranks = argc > 2 ? atoi(argv[2]) : 4;
    int failed = 0;
    int status;
    char url[64];
    bool dup = argc > 3 && strcmp(argv[3], "dup") == 0;

    if (argc > 4 || (argc > 3 && !dup) || count < 1 || ranks < 1 || ranks > TUTTI_MAX_RANKS) {
        fprintf(stderr, "usage: many_comms [COMMUNICATORS (1000)] [RANKS (4)] [dup]\n");
        return EXIT_FAILURE;
    }
    for (int rank = 0; rank < ranks; rank++) {
        snprintf(url, sizeof(url), "tcp://127.0.0.1:%d%s", 20000 + (int)getpid() % 10000,
                 rank == 0 ? "?server=1" : "");
        if (fork() == 0)
            _exit(be_rank(url, rank, ranks, count, dup));
    }
    while (wait(&status) > 0)
        failed |= status;
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
