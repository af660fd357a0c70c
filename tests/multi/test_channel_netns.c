/* SPDX-License-Identifier: MIT */
/* Ranks in network namespaces of their own reach each other through the directory that they share:
 * as containers do that mount one. Skipped where namespaces are not permitted. */
#include "group.h"
#include "ipc/channel.h"

#include <sched.h>
#include <sys/mman.h>

static char directory[64];

static int meet(struct group *group, int rank)
{
    GROUP_CHECK(unshare(CLONE_NEWNET) == 0);
    struct tutti_exchanger exchanger = group_exchanger(group, rank);
    struct channel_address address, all[TUTTI_MAX_RANKS];
    struct channel_config config = {
        .rank = rank,
        .size = group->size,
        .peers = rank_set_minus(rank_set_all(group->size), rank_set_of(rank)),
        .addresses = all,
        .timeout_ms = GROUP_TIMEOUT_MS,
    };
    struct channel *channel;
    GROUP_CHECK(channel_listen(directory, &channel, &address) == TUTTI_OK);
    GROUP_CHECK(tutti_exchanger_all_gather(&exchanger, &address, sizeof address, all,
                                           GROUP_TIMEOUT_MS) == TUTTI_OK);
    GROUP_CHECK(channel_open(&channel, &config) == TUTTI_OK);
    int note = memfd_create("note", MFD_CLOEXEC);
    GROUP_CHECK(write(note, &rank, sizeof rank) == sizeof rank);
    for (int r = 0; r < group->size; r++)
        GROUP_CHECK(r == rank || channel_send_fd(channel, r, note, GROUP_TIMEOUT_MS) == TUTTI_OK);
    for (int r = 0; r < group->size; r++) {
        int fd, from = -1;
        if (r == rank)
            continue;
        GROUP_CHECK(channel_recv_fd(channel, r, &fd, GROUP_TIMEOUT_MS) == TUTTI_OK);
        GROUP_CHECK(pread(fd, &from, sizeof from, 0) == sizeof from && from == r);
        GROUP_CHECK(channel_peer_alive(channel, r));
    }
    group_raise(group, 0);
    GROUP_CHECK(group_await(group, 0, group->size));
    channel_close(channel);
    return 0;
}

int main(void)
{
    pid_t child = fork();
    if (child == 0)
        _exit(unshare(CLONE_NEWNET) == 0 ? 0 : 77);
    int how;
    if (waitpid(child, &how, 0) != child || !WIFEXITED(how) || WEXITSTATUS(how) != 0) {
        puts("skipped: network namespaces are not permitted here");
        return 77;
    }
    strcpy(directory, "/tmp/tutti-test-XXXXXX");
    if (!mkdtemp(directory))
        return 1;
    struct group *group = group_create(3);
    int result = group_run_processes(group, meet);
    group_destroy(group);
    if (rmdir(directory) != 0) {
        perror(directory);
        return 1;
    }
    return result;
}
