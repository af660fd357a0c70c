/* SPDX-License-Identifier: MIT */
/*
 * Processes whose descriptors 0 to 2 are closed. The kernel gives these numbers to the next files.
 * If the library kept one, what the program prints would go into it. The ranks are processes, then
 * threads of one process; they use stores, a topology file, a communicator, its recorder and dump,
 * a process group, symmetric memory and fork().
 */
#include "pg.h"

#include "tutti/recorder.h"
#include "tutti/tutti.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 2, ELEMENTS = 1 << 18 };
enum { ARRIVED, CLOSED, USED, PRINTED }; /* flags */

static char folder[] = "/tmp/tutti-closed-XXXXXX";

static bool is_closed(int fd)
{
    return fcntl(fd, F_GETFD) == -1 && errno == EBADF;
}

/* A thread of the library may have such a number for a moment, but keeps none. */
static bool are_closed(void)
{
    for (int tries = 0; tries < RANKS_TIMEOUT_MS; tries++) {
        if (is_closed(STDIN_FILENO) && is_closed(STDOUT_FILENO) && is_closed(STDERR_FILENO))
            return true;
        usleep(1000);
    }
    return false;
}

static bool store_works(const char *url)
{
    char value[8];
    size_t size = 0;
    tutti_store_t *server = NULL, *client = NULL;
    bool good =
        tutti_store_open(url, RANKS_TIMEOUT_MS, &server) == TUTTI_OK &&
        tutti_store_open(tutti_store_url(server), RANKS_TIMEOUT_MS, &client) == TUTTI_OK &&
        tutti_store_set(client, "key", "value", 5) == TUTTI_OK &&
        tutti_store_get(server, "key", RANKS_TIMEOUT_MS, value, sizeof value, &size) == TUTTI_OK &&
        size == 5;
    good = good && are_closed();
    tutti_store_close(client);
    tutti_store_close(server);
    return good;
}

static int use_stores(struct ranks *ranks, int rank)
{
    char url[128];
    snprintf(url, sizeof url, "file:%s/store-%d", folder, rank);
    RANKS_CHECK(store_works("tcp://localhost:0?server=1"));
    RANKS_CHECK(store_works(url));
    return 0;
}

static int use_comm(struct ranks *ranks, int rank, tutti_comm_t *comm, float *data)
{
    char pattern[128];
    for (size_t count = 2; count <= ELEMENTS; count *= 512) {
        for (size_t i = 0; i < count; i++)
            data[i] = (float)rank;
        RANKS_CHECK(tutti_all_reduce(data, data, count, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                     TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        RANKS_CHECK(data[0] == 1 && data[count - 1] == 1);
    }
    snprintf(pattern, sizeof pattern, "%s/dump-%%r", folder);
    RANKS_CHECK(tutti_comm_dump(comm, pattern) == TUTTI_OK);
    return 0;
}

static int use_symm(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_symm_group_t *group;
    void *memory;
    RANKS_CHECK(tutti_symm_group("closed", rank, SIZE, store, &group) == TUTTI_OK);
    RANKS_CHECK(tutti_symm_alloc(group, TUTTI_DEVICE_CPU, 4096, &memory) == TUTTI_OK);
    RANKS_CHECK(tutti_symm_rendezvous(memory, RANKS_TIMEOUT_MS, NULL) == TUTTI_OK);
    RANKS_CHECK(are_closed());
    RANKS_CHECK(tutti_symm_free(memory) == TUTTI_OK);
    tutti_symm_group_destroy(group);
    return 0;
}

/* A child closes what it has inherited, and opens nothing instead. */
static bool child_has_them_closed(tutti_comm_t *comm)
{
    int how = 1;
    const pid_t child = fork();
    if (child == 0)
        _exit(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK || !are_closed());
    return child > 0 && waitpid(child, &how, 0) == child && how == 0;
}

/* The calls of a rank whose process has the descriptors closed. */
static int use_all(struct ranks *ranks, int rank, tutti_store_t *store, float *data)
{
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK && are_closed());
    int failed = use_comm(ranks, rank, comm, data);
    if (!failed)
        failed = use_symm(ranks, rank, store);
    if (failed)
        return failed;
    RANKS_CHECK(tutti_pg_create(comm, NULL, &pg) == TUTTI_OK && are_closed());
    RANKS_CHECK(pg_goes_on(pg, 1, SIZE) && pg_goes_on_sparse(pg, 2, rank, SIZE) && are_closed());
    RANKS_CHECK(ranks->processes < SIZE || child_has_them_closed(comm));
    RANKS_CHECK(ranks_meet(ranks, USED));
    RANKS_CHECK(write(STDERR_FILENO, "lost", 4) < 0);
    RANKS_CHECK(printf("lost\n") < 0 || fflush(stdout) != 0);
    RANKS_CHECK(ranks_meet(ranks, PRINTED));
    pg_part(comm, pg);
    RANKS_CHECK(are_closed());
    return 0;
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    float *data = malloc(ELEMENTS * sizeof *data);
    const bool closes = rank == 0 || ranks->processes == SIZE;
    RANKS_CHECK(data && ranks_meet(ranks, ARRIVED));
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO && closes; fd++)
        close(fd);
    RANKS_CHECK(ranks_meet(ranks, CLOSED) && are_closed());
    int failed = use_stores(ranks, rank);
    if (!failed)
        failed = use_all(ranks, rank, store, data);
    free(data);
    return failed;
}

static bool topology_write(void)
{
    char path[64];
    snprintf(path, sizeof path, "%s/topology", folder);
    FILE *file = fopen(path, "w");
    if (!file || fputs("tutti-topology 1\nranks 2\nX 1\n1 X\n", file) < 0 || fclose(file) != 0)
        return false;
    return setenv("TUTTI_TOPOLOGY_FILE", path, 1) == 0;
}

int main(void)
{
    char command[64];
    int failures = 0;
    if (!mkdtemp(folder) || !topology_write())
        return 1;
    for (int processes = SIZE; processes >= 1; processes--) {
        struct ranks *ranks = ranks_create(SIZE, processes, 0);
        failures += ranks_run(ranks, live);
        ranks_destroy(ranks);
    }
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command) != 0 || failures ? 1 : 0;
}
