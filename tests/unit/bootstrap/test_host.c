/* SPDX-License-Identifier: MIT */
/* The records that ranks exchange first: each difference is named, with both sides' values. */
#include "bootstrap/host.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 3, ODD = 2 };

static struct host_record records[RANKS];
static struct hosts hosts;

static int records_make(void **state)
{
    struct comm_config config = {.buffer_size = 1 << 20};
    const struct channel_address address = {.id = "a process"};
    const struct host_threads alone = {.parallel = NULL};
    (void)state;
    for (int leaf = 0; leaf < RANKS; leaf++)
        config.leaf_order[leaf] = (uint8_t)leaf;
    for (int r = 0; r < RANKS; r++)
        if (host_record_make(&config, RANKS, &address, &alone, &records[r]) != TUTTI_OK)
            return -1;
    return 0;
}

/* The last rank's record differs: every rank refuses, and says so in these words. */
static void assert_refused(enum tutti_status expected, const char *what, const char *even,
                           const char *odd)
{
    char text[256];
    assert_int_equal(host_records_compare(records, 0, RANKS, &hosts), expected);
    snprintf(text, sizeof text, "rank 0 %s, rank %d %s", even, ODD, odd);
    if (!strstr(tutti_last_error(), what) || !strstr(tutti_last_error(), text))
        fail_msg("\"%s\" lacks \"%s\" or \"%s\"", tutti_last_error(), what, text);
    assert_int_equal(host_records_compare(records, ODD, RANKS, &hosts), expected);
    snprintf(text, sizeof text, "rank %d %s, rank 0 %s", ODD, odd, even);
    if (!strstr(tutti_last_error(), text))
        fail_msg("\"%s\" lacks \"%s\"", tutti_last_error(), text);
}

static void equal_records_pass(void **state)
{
    (void)state;
    assert_int_equal(host_records_compare(records, 0, RANKS, &hosts), TUTTI_OK);
    assert_int_equal(host_records_compare(records, ODD, RANKS, &hosts), TUTTI_OK);
}

static void options_differ_by_name(void **state)
{
    struct comm_config *odd = &records[ODD].config;
    const struct {
        int32_t *field;
        int32_t value;
        const char *what, *even_text, *odd_text;
    } rows[] = {
        {&records[ODD].identity.world_size, 4, "world size", "has 3", "has 4"},
        {&odd->device, TUTTI_DEVICE_CUDA, "device (options->device)", "has CPU", "has CUDA"},
        {&odd->strict, true, "TUTTI_STRICT", "has off", "has on"},
        {&odd->algo, TUTTI_ALGO_RING, "TUTTI_ALGO", "has none", "has ring"},
        {&odd->direct, TUTTI_DIRECT_OFF, "TUTTI_DIRECT", "has auto", "has off"},
        {&odd->fully_connected, true, "TUTTI_FORCE_FULLY_CONNECTED", "has off", "has on"},
        {&odd->topology_size, 8, "TUTTI_TOPOLOGY_FILE", "has no matrix", "has 8 rows"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        *rows[i].field = rows[i].value;
        assert_refused(TUTTI_ERR_MISMATCH, rows[i].what, rows[i].even_text, rows[i].odd_text);
        *rows[i].field = rows[i].field == &records[ODD].identity.world_size ? RANKS : 0;
    }
    odd->buffer_size = 4096;
    assert_refused(TUTTI_ERR_MISMATCH, "TUTTI_BUFFER_SIZE", "has 1048576 bytes", "has 4096 bytes");
    odd->buffer_size = 1 << 20;
    odd->arena_bytes = 65536;
    assert_refused(TUTTI_ERR_MISMATCH, "TUTTI_ARENA_BYTES", "has 0 bytes", "has 65536 bytes");
    odd->arena_bytes = 0;
    /* A record may come from anybody. */
    odd->algo = -3;
    assert_refused(TUTTI_ERR_MISMATCH, "forced algorithm", "has none", "has unknown");
}

/* Their sockets would refuse each other. Numbers of users compare in one user namespace only. */
static void users_differ(void **state)
{
    struct host_identity *even = &records[0].identity, *odd = &records[ODD].identity;
    (void)state;
    odd->user = even->user + 1;
    char even_text[64], odd_text[64];
    snprintf(even_text, sizeof even_text, "runs as user %u", (unsigned)even->user);
    snprintf(odd_text, sizeof odd_text, "as user %u", (unsigned)odd->user);
    assert_int_equal(host_records_compare(records, 0, RANKS, &hosts), TUTTI_ERR_DECLINED);
    assert_non_null(strstr(tutti_last_error(), even_text));
    assert_non_null(strstr(tutti_last_error(), odd_text));
    assert_non_null(strstr(tutti_last_error(), "start all ranks as one user"));
    odd->user_namespace++;
    assert_int_equal(host_records_compare(records, 0, RANKS, &hosts), TUTTI_OK);
    odd->user_namespace = even->user_namespace = 0; /* unknown */
    assert_int_equal(host_records_compare(records, 0, RANKS, &hosts), TUTTI_OK);
}

/* Users of different hosts need not be the same. */
static void ranks_of_one_boot_id_share_a_host(void **state)
{
    enum { MOST = 6 };
    static const struct {
        const char *boots; /* a letter for each rank's boot id */
        int count, of[MOST];
    } rows[] = {
        {"aaaa", 1, {0, 0, 0, 0}},
        {"bbaa", 2, {0, 0, 1, 1}},
        {"bbba", 2, {0, 0, 0, 1}},
        {"abbb", 2, {0, 1, 1, 1}},
        {"cacbac", 3, {0, 1, 0, 2, 1, 0}},
        {"dcba", 4, {0, 1, 2, 3}},
        {"a", 1, {0}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct host_record of_all[MOST];
        const int size = (int)strlen(rows[i].boots);
        for (int r = 0; r < size; r++) {
            of_all[r] = records[0];
            of_all[r].identity.world_size = size;
            memset(of_all[r].identity.boot_id, rows[i].boots[r], sizeof of_all[r].identity.boot_id);
            of_all[r].identity.user = (uint32_t)rows[i].boots[r];
        }
        for (int r = 0; r < size; r++) {
            memset(&hosts, 0xff, sizeof hosts);
            assert_int_equal(host_records_compare(of_all, r, size, &hosts), TUTTI_OK);
            assert_int_equal(hosts.count, rows[i].count);
            assert_memory_equal(hosts.of, rows[i].of, (size_t)size * sizeof *hosts.of);
        }
    }
}

/* A rank that does not listen matters if ranks are of several processes. */
static void a_rank_does_not_listen(void **state)
{
    int processes[TUTTI_MAX_RANKS];
    (void)state;
    records[ODD].identity.address.status = TUTTI_ERR_SYSTEM;
    assert_false(rank_set_has(host_remote_ranks(records, 0, RANKS), ODD));
    assert_int_equal(host_channels_check(records, 0, RANKS, ""), TUTTI_OK);
    records[ODD].identity.address.id[0]++;
    assert_true(rank_set_equal(host_remote_ranks(records, 0, RANKS), rank_set_of(ODD)));
    assert_true(host_processes(records, RANKS, processes));
    assert_int_equal(processes[1], 0);
    assert_int_equal(processes[ODD], ODD);
    assert_int_equal(host_channels_check(records, 0, RANKS, ""), TUTTI_ERR_SYSTEM);
    assert_non_null(strstr(tutti_last_error(), "rank 2 could not take part"));
    assert_int_equal(host_channels_check(records, ODD, RANKS, "no directory"), TUTTI_ERR_SYSTEM);
    assert_string_equal(tutti_last_error(), "no directory");
    records[1].identity.address.id[0] += 2;
    assert_false(host_processes(records, RANKS, processes));
}

/* Runs each task on a processor of its own, of those that `context` has. */
static void bound_tasks(void *context, int tasks, void (*task)(void *argument, int i),
                        void *argument)
{
    const cpu_set_t *all = context;
    int cpu = -1;
    for (int i = 0; i < tasks; i++) {
        do
            cpu = (cpu + 1) % CPU_SETSIZE;
        while (!CPU_ISSET(cpu, all));
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        assert_return_code(sched_setaffinity(0, sizeof one, &one), errno);
        task(argument, i);
    }
}

/* As OMP_PROC_BIND makes them: the calling thread, too, may run on one processor only. */
static void bound_threads_count_all_their_cores(void **state)
{
    const struct comm_config config = {.buffer_size = 1 << 20};
    const struct channel_address address = {.id = "a process"};
    cpu_set_t all;
    (void)state;
    assert_return_code(sched_getaffinity(0, sizeof all, &all), errno);
    const struct host_threads threads = {bound_tasks, &all, CPU_COUNT(&all)};
    assert_int_equal(host_record_make(&config, 1, &address, &threads, &records[0]), TUTTI_OK);
    assert_return_code(sched_setaffinity(0, sizeof all, &all), errno);
    assert_int_equal(host_cores(records, 1), CPU_COUNT(&all));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(equal_records_pass, records_make),
        cmocka_unit_test_setup(options_differ_by_name, records_make),
        cmocka_unit_test_setup(users_differ, records_make),
        cmocka_unit_test_setup(ranks_of_one_boot_id_share_a_host, records_make),
        cmocka_unit_test_setup(a_rank_does_not_listen, records_make),
        cmocka_unit_test(bound_threads_count_all_their_cores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
