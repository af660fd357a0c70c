/* SPDX-License-Identifier: MIT */
/* All channels between two processes share one link, also while threads open and close them. */
#include "channel_ranks.h"

enum { CHANNELS = 12, ROUNDS = 30 };

/* One of several channels; NULL if it does not open. */
static struct channel *open_numbered(struct group *group, int rank, int number)
{
    struct channel_address address, all[TUTTI_MAX_RANKS];
    struct tutti_exchanger exchanger = group_exchanger(group, rank);
    struct channel_config config = config_of(group, rank);
    struct channel *channel = NULL;
    exchanger.sequence = (uint64_t)number;
    config.nonce[0] = (uint8_t)number;
    config.addresses = all;
    if (listen_as(rank, &channel, &address) == TUTTI_OK &&
        tutti_exchanger_all_gather(&exchanger, &address, sizeof address, all, GROUP_TIMEOUT_MS) ==
            TUTTI_OK)
        (void)channel_open(&channel, &config);
    return channel;
}

/* All channels have one socket and one pidfd for each peer. The end of one is not the end of
 * another. */
static int share_links(struct group *group, int rank)
{
    struct channel *channels[CHANNELS];
    const int size = group->size, before = count_entries("/proc/self/fd");
    for (int i = 0; i < CHANNELS; i++) {
        GROUP_CHECK((channels[i] = open_numbered(group, rank, i)) != NULL);
        GROUP_CHECK(notes_pass(channels[i], rank, size));
        GROUP_CHECK(count_entries("/proc/self/fd") == before + 2 * (size - 1));
    }
    group_raise(group, 0);
    GROUP_CHECK(group_await(group, 0, size));
    if (rank == 0)
        channel_close(channels[0]);
    else
        GROUP_CHECK(dies_within(channels[0], 0, GROUP_TIMEOUT_MS));
    for (int i = 1; i < CHANNELS; i++)
        for (int r = 0; r < size; r++)
            GROUP_CHECK(channel_peer_alive(channels[i], r));
    GROUP_CHECK(notes_pass(channels[1], rank, size));
    group_raise(group, 1);
    GROUP_CHECK(group_await(group, 1, size));
    for (int i = rank == 0; i < CHANNELS; i++)
        channel_close(channels[i]);
    GROUP_CHECK(count_entries("/proc/self/fd") == before);
    return 0;
}

static void channels_share_links(void **state)
{
    (void)state;
    struct group *group = group_create(3);
    assert_int_equal(group_run_processes(group, share_links), 0);
    group_destroy(group);
}

/* The death of a process is seen on all its channels, though one was closed before. */
static int lose_peer(struct group *group, int rank)
{
    struct channel *channels[CHANNELS];
    for (int i = 0; i < CHANNELS; i++)
        GROUP_CHECK((channels[i] = open_numbered(group, rank, i)) != NULL);
    group_raise(group, 0);
    GROUP_CHECK(group_await(group, 0, group->size));
    if (rank == 1)
        raise(SIGKILL);
    channel_close(channels[0]);
    for (int i = 1; i < CHANNELS; i++) {
        GROUP_CHECK(dies_within(channels[i], 1, GROUP_TIMEOUT_MS));
        channel_close(channels[i]);
    }
    return 0;
}

static void a_death_ends_all_channels(void **state)
{
    (void)state;
    struct group *group = group_create(2);
    assert_int_equal(group_run_processes(group, lose_peer), 0);
    group_destroy(group);
}

/* Opens and closes channels one after the other. */
struct series {
    struct group *group;
    int rank;
    int first; /* number of the first channel */
    bool right;
};

static void *run_series(void *argument)
{
    struct series *series = argument;
    series->right = true;
    for (int i = 0; i < ROUNDS && series->right; i++) {
        struct channel *channel = open_numbered(series->group, series->rank, series->first + i);
        series->right = channel && notes_pass(channel, series->rank, 2);
        channel_close(channel);
    }
    return NULL;
}

/* Two threads of each process at the same time. Each process connects in one thread and accepts in
 * the other, often while the other thread closes the last channel of a link. */
static int cross_over(struct group *group, int rank)
{
    struct series one = {.group = group, .rank = rank};
    struct series other = {.group = group, .rank = 1 - rank, .first = ROUNDS};
    const int before = count_entries("/proc/self/fd");
    pthread_t thread;
    GROUP_CHECK(pthread_create(&thread, NULL, run_series, &other) == 0);
    run_series(&one);
    GROUP_CHECK(pthread_join(thread, NULL) == 0);
    GROUP_CHECK(one.right && other.right);
    GROUP_CHECK(count_entries("/proc/self/fd") == before);
    return 0;
}

static void two_threads_open_in_both_directions(void **state)
{
    (void)state;
    struct group *group = group_create(2);
    assert_int_equal(group_run_processes(group, cross_over), 0);
    group_destroy(group);
    assert_int_equal(count_entries(directory), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(channels_share_links),
        cmocka_unit_test(a_death_ends_all_channels),
        cmocka_unit_test(two_threads_open_in_both_directions),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
