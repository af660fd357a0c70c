/* SPDX-License-Identifier: MIT */
/*
 * fork() in a process that has communicators: the child owns nothing of them, its calls are errors,
 * it can make communicators of its own, and the parent's go on.
 */
#include "ranks.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* A descriptor or a mapping of this process that is the library's. */
static bool holds_any(void)
{
    char line[512], path[64], target[256];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && fgets(line, sizeof line, maps))
        found |= strstr(line, "tutti-arena") != NULL;
    if (maps)
        fclose(maps);
    DIR *fds = opendir("/proc/self/fd");
    for (struct dirent *entry; fds && (entry = readdir(fds));) {
        snprintf(path, sizeof path, "/proc/self/fd/%.16s", entry->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        target[length > 0 ? length : 0] = 0;
        /* The sockets of the harness' store are tcp; pidfds and Unix sockets are the library's. */
        found |= strstr(target, "memfd:tutti-") || strstr(target, "pidfd");
    }
    if (fds)
        closedir(fds);
    return found;
}

/* Whether it was refused because of the fork, in the call's name. */
static bool is_refused(const char *call, enum tutti_status status)
{
    return status == TUTTI_ERR_INVALID && strstr(tutti_last_error(), "fork") &&
           strncmp(tutti_last_error(), call, strlen(call)) == 0;
}

#define REFUSES(call, ...) is_refused(#call ":", call(__VA_ARGS__))

/* Returns the line that failed. */
static int child(tutti_comm_t *comm, tutti_work_t *work, tutti_store_t *parents)
{
    struct tutti_comm_options later = {.struct_size = sizeof later, .defer = true};
    float one = 1, sum = 0;
    enum tutti_algo algo;
    tutti_store_t *store;
    tutti_comm_t *own;
    tutti_work_t *recorded;
    bool done;
    if (holds_any())
        return __LINE__;
    if (!REFUSES(tutti_all_reduce, &one, &sum, 1, TUTTI_FLOAT32, TUTTI_SUM, comm, 0) ||
        !REFUSES(tutti_barrier, comm, NULL, 0, 0) || !REFUSES(tutti_comm_rendezvous, comm) ||
        !REFUSES(tutti_comm_status, comm, NULL) ||
        !REFUSES(tutti_comm_algorithm, comm, 1, TUTTI_FLOAT32, TUTTI_SUM, NULL, &algo, NULL))
        return __LINE__;
    if (!REFUSES(tutti_work_record, comm, 0, &recorded) || recorded ||
        !REFUSES(tutti_work_test, work, &done) || done ||
        !REFUSES(tutti_work_wait_stream, work, 0) || !REFUSES(tutti_work_wait_host, work, 0))
        return __LINE__;
    tutti_comm_abort(comm); /* nothing to the parent */
    if (!REFUSES(tutti_comm_create, parents, 0, 1, &later, &own) || own)
        return __LINE__;
    if (tutti_store_open("memory:child", 1000, &store) != TUTTI_OK)
        return __LINE__;
    if (tutti_comm_create(store, 0, 1, NULL, &own) != TUTTI_OK)
        return __LINE__;
    if (tutti_all_reduce(&one, &sum, 1, TUTTI_FLOAT32, TUTTI_SUM, own, 0) != TUTTI_OK || sum != 1)
        return __LINE__;
    tutti_comm_destroy(comm);
    tutti_work_destroy(work);
    tutti_comm_destroy(own);
    tutti_store_close(store);
    return holds_any() ? __LINE__ : 0;
}

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    tutti_work_t *work;
    float one = 1, sum;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    RANKS_CHECK(tutti_work_record(comm, 0, &work) == TUTTI_OK);
    RANKS_CHECK(holds_any());
    for (int i = 0; i < 3; i++) {
        pid_t pid = fork();
        RANKS_CHECK(pid >= 0);
        if (pid == 0) {
            int line = child(comm, work, store);
            if (line)
                fprintf(stderr, "child: line %d: %s\n", line, tutti_last_error());
            _exit(line ? 1 : 0);
        }
        /* With the child, and after it. */
        for (int k = 0; k < 2; k++) {
            RANKS_CHECK(tutti_all_reduce(&one, &sum, 1, TUTTI_FLOAT32, TUTTI_SUM, comm, 0) ==
                        TUTTI_OK);
            RANKS_CHECK(sum == (float)ranks->size);
            int how = 0;
            RANKS_CHECK(k == 1 || (waitpid(pid, &how, 0) == pid && how == 0));
        }
        RANKS_CHECK(tutti_comm_status(comm, NULL) == TUTTI_OK);
    }
    RANKS_CHECK(tutti_barrier(comm, NULL, 0, 0) == TUTTI_OK);
    RANKS_CHECK(tutti_work_wait_host(work, 0) == TUTTI_OK);
    tutti_work_destroy(work);
    tutti_comm_destroy(comm);
    return 0;
}

int main(void)
{
    int failures = 0, skip = ranks_skip_cuda("CUDA survives no fork()");
    if (skip)
        return skip;
    for (int size = 1; size <= 3; size++) {
        struct ranks *ranks = ranks_create(size, size, 0);
        failures += ranks_run(ranks, live);
        ranks_destroy(ranks);
    }
    return failures ? 1 : 0;
}
