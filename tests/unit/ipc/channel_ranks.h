/* SPDX-License-Identifier: MIT */
/* Ranks of a group that open channels in a directory of the test. */
#ifndef TESTS_CHANNEL_RANKS_H
#define TESTS_CHANNEL_RANKS_H

#include "base/deadline.h"
#include "group.h"
#include "ipc/channel.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static char directory[64]; /* of the sockets */
static bool threads;       /* the ranks are threads, and pose as processes */

/* All ranks but this one. */
static inline struct channel_config config_of(struct group *group, int rank)
{
    struct channel_config config = {
        .rank = rank,
        .size = group->size,
        .peers = rank_set_minus(rank_set_all(group->size), rank_set_of(rank)),
        .timeout_ms = GROUP_TIMEOUT_MS,
    };
    memcpy(config.nonce, "0123456789abcdef", CHANNEL_NONCE_BYTES);
    return config;
}

static inline enum tutti_status listen_as(int rank, struct channel **channel,
                                          struct channel_address *address)
{
    enum tutti_status status = channel_listen(directory, channel, address);
    if (threads)
        address->id[0] ^= (uint8_t)(rank + 1);
    return status;
}

static inline enum tutti_status exchange(struct group *group, int rank,
                                         const struct channel_address *address,
                                         struct channel_address *all)
{
    struct tutti_exchanger exchanger = group_exchanger(group, rank);
    return tutti_exchanger_all_gather(&exchanger, address, sizeof *address, all, GROUP_TIMEOUT_MS);
}

static inline enum tutti_status open_with(struct group *group, struct channel_config *config,
                                          struct channel **channel)
{
    struct channel_address address, all[TUTTI_MAX_RANKS];
    enum tutti_status status = listen_as(config->rank, channel, &address);
    if (status == TUTTI_OK)
        status = exchange(group, config->rank, &address, all);
    config->addresses = all;
    if (status == TUTTI_OK)
        status = channel_open(channel, config);
    config->addresses = NULL;
    return status;
}

static inline enum tutti_status open_channel(struct group *group, int rank,
                                             struct channel **channel)
{
    struct channel_config config = config_of(group, rank);
    return open_with(group, &config, channel);
}

static inline int count_entries(const char *path)
{
    DIR *folder = opendir(path);
    int count = 0;
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

/* A memfd that says whose it is. */
static inline int make_note(int rank)
{
    int fd = memfd_create("note", MFD_CLOEXEC);
    if (write(fd, &rank, sizeof rank) != sizeof rank)
        abort();
    return fd;
}

static inline int read_note(int fd)
{
    int rank = -1;
    if (pread(fd, &rank, sizeof rank, 0) != sizeof rank || !(fcntl(fd, F_GETFD) & FD_CLOEXEC))
        return -1;
    close(fd);
    return rank;
}

/* Every rank sends its note to all others. Whether each rank gets those of the others. */
static inline bool notes_pass(struct channel *channel, int rank, int size)
{
    int fd, note = make_note(rank);
    bool right = true;
    for (int r = 0; r < size; r++)
        right &= r == rank || channel_send_fd(channel, r, note, GROUP_TIMEOUT_MS) == TUTTI_OK;
    for (int r = 0; r < size; r++)
        right &= r == rank || (channel_recv_fd(channel, r, &fd, GROUP_TIMEOUT_MS) == TUTTI_OK &&
                               fd != note && read_note(fd) == r);
    right &= fcntl(note, F_GETFD) >= 0;
    close(note);
    return right;
}

static inline void run_both(int size, group_fn *fn)
{
    int before = count_entries("/proc/self/fd");
    struct group *group = group_create(size);
    threads = true;
    assert_int_equal(group_run_threads(group, fn), 0);
    threads = false;
    group_destroy(group);
    assert_int_equal(count_entries("/proc/self/fd"), before);
    assert_int_equal(count_entries(directory), 2);
    group = group_create(size);
    assert_int_equal(group_run_processes(group, fn), 0);
    group_destroy(group);
    assert_int_equal(count_entries(directory), 2);
}

static inline bool dies_within(struct channel *channel, int peer, int64_t timeout_ms)
{
    int64_t deadline = deadline_after(timeout_ms);
    while (channel_peer_alive(channel, peer)) {
        if (deadline_passed(deadline))
            return false;
        usleep(1000);
    }
    return true;
}

static inline int make_directory(void **state)
{
    (void)state;
    strcpy(directory, "/tmp/tutti-test-XXXXXX");
    return mkdtemp(directory) ? 0 : -1;
}

static inline int remove_directory(void **state)
{
    (void)state;
    return rmdir(directory); /* fails if anything is left */
}

#endif
