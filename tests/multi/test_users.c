/* SPDX-License-Identifier: MIT */
/*
 * A rank that runs as another user: all ranks learn who runs as whom and what to do, at once and
 * without a time-out. Skipped unless it runs as root, who alone can become somebody else.
 */
#include "ranks.h"

#include "ipc/directory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 3, NOBODY = 65534 };

static bool become_nobody(void)
{
    return setresgid(NOBODY, NOBODY, NOBODY) == 0 && setresuid(NOBODY, NOBODY, NOBODY) == 0;
}

static int join(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    char users[64];
    if (rank == SIZE - 1)
        RANKS_CHECK(become_nobody());
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_ERR_DECLINED);
    if (rank == SIZE - 1)
        snprintf(users, sizeof users, "rank 2 runs as user %d, rank 0 as user 0", NOBODY);
    else
        snprintf(users, sizeof users, "rank %d runs as user 0, rank 2 as user %d", rank, NOBODY);
    RANKS_CHECK(strstr(tutti_last_error(), users));
    RANKS_CHECK(strstr(tutti_last_error(), "start all ranks as one user"));
    return 0;
}

/* Where numbers of users do not compare, a rank finds out at the socket of another user. */
static int connect_to_other(void)
{
    char directory[] = "/tmp/tutti-users-XXXXXX";
    struct socket_path path;
    int listener, how = -1;
    if (!mkdtemp(directory) || directory_listen(directory, &path, &listener) != TUTTI_OK)
        return 1;
    pid_t child = fork();
    if (child == 0) {
        int fd;
        bool right = become_nobody() && directory_connect(&path, &fd) == TUTTI_ERR_SYSTEM &&
                     strstr(tutti_last_error(), "start all ranks as one user") &&
                     strstr(tutti_last_error(), path.text);
        if (!right)
            fprintf(stderr, "connecting as another user: %s\n", tutti_last_error());
        _exit(right ? 0 : 1);
    }
    waitpid(child, &how, 0);
    close(listener);
    unlink(path.text);
    rmdir(directory);
    return how != 0;
}

int main(void)
{
    int skip = ranks_skip_cuda("users are the same on devices");
    if (skip)
        return skip;
    if (geteuid() != 0) {
        puts("skipped: needs root, to become another user");
        return 77;
    }
    struct ranks *ranks = ranks_create(SIZE, SIZE, 0);
    int failures = ranks_run(ranks, join);
    ranks_destroy(ranks);
    failures += connect_to_other();
    return failures ? 1 : 0;
}
