/* SPDX-License-Identifier: MIT */
/* Symmetric memory among processes: they share it, and they get the right error when a rank dies,
 * stops, does not start or starts again. */
#include "coll/region.h"
#include "group.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { BYTES = 3 << 20 };

static char directory[64]; /* for the sockets */
static char url[128];
static char path[96]; /* of the store */

static int count_entries(const char *folder_path)
{
    DIR *folder = opendir(folder_path);
    int count = 0;
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static int make_directory(void **state)
{
    (void)state;
    strcpy(directory, "/tmp/tutti-test-XXXXXX");
    if (!mkdtemp(directory))
        return -1;
    setenv("TUTTI_DIR", directory, 1);
    snprintf(path, sizeof path, "%s-store", directory);
    snprintf(url, sizeof url, "file:%s", path);
    return 0;
}

static int remove_directory(void **state)
{
    (void)state;
    return rmdir(directory); /* fails if a file is left in it */
}

static void run(int size, group_fn *fn)
{
    struct group *group = group_create(size);
    assert_int_equal(group_run_processes(group, fn), 0);
    group_destroy(group);
    assert_int_equal(count_entries(directory), 2);
}

static void run_alone(int size, group_fn *fn)
{
    run(size, fn);
    assert_int_equal(unlink(path), 0);
}

struct rank {
    tutti_store_t *store;
    tutti_symm_group_t *group;
    void *buffer;
    struct tutti_symm_info info;
};

static enum tutti_status rank_open(int rank, int size, int64_t timeout_ms, struct rank *self)
{
    *self = (struct rank){.info.struct_size = sizeof self->info};
    enum tutti_status status = tutti_store_open(url, GROUP_TIMEOUT_MS, &self->store);
    if (status == TUTTI_OK)
        status = tutti_symm_group("test", rank, size, self->store, &self->group);
    if (status == TUTTI_OK)
        status = tutti_symm_alloc(self->group, TUTTI_DEVICE_CPU, BYTES, &self->buffer);
    if (status == TUTTI_OK)
        status = tutti_symm_rendezvous(self->buffer, timeout_ms, &self->info);
    return status;
}

static void rank_close(struct rank *self)
{
    tutti_symm_group_destroy(self->group);
    tutti_store_close(self->store);
}

/* ---- sharing -------------------------------------------------------------------------------- */

static int share(int rank, int size)
{
    struct rank self;
    const struct region *region;
    GROUP_CHECK(rank_open(rank, size, GROUP_TIMEOUT_MS, &self) == TUTTI_OK);
    GROUP_CHECK((region = region_find(self.buffer, BYTES)) && region->rank == rank);
    *(uint64_t *)self.buffer = region->id;
    for (int round = 1; round <= 3; round++) {
        for (int r = 0; r < size; r++) /* each rank writes one byte to all ranks */
            ((unsigned char *)self.info.buffers[r])[BYTES - 64 + rank] = (unsigned char)round;
        GROUP_CHECK(tutti_symm_barrier(self.buffer, 0, GROUP_TIMEOUT_MS, TUTTI_STREAM_DEFAULT) ==
                    TUTTI_OK);
        for (int r = 0; r < size; r++) {
            GROUP_CHECK(((unsigned char *)self.buffer)[BYTES - 64 + r] == round);
            GROUP_CHECK(*(uint64_t *)self.info.buffers[r] == region->id);
        }
        GROUP_CHECK(tutti_symm_barrier(self.buffer, 1, GROUP_TIMEOUT_MS, TUTTI_STREAM_DEFAULT) ==
                    TUTTI_OK);
    }
    rank_close(&self);
    return 0;
}

static int share_as_processes(struct group *group, int rank)
{
    return share(rank, group->size);
}

static void memory_is_shared(void **state)
{
    (void)state;
    for (int size = 1; size <= 5; size++)
        run_alone(size, share_as_processes);
}

static int share_as_thread(struct group *group, int rank)
{
    return share(group->flags[7] + rank, 6);
}

/* Three processes of two thread ranks each. */
static int share_in_pairs(struct group *group, int process)
{
    (void)group;
    struct group *pair = group_create(2);
    pair->flags[7] = 2 * process;
    int result = group_run_threads(pair, share_as_thread);
    group_destroy(pair);
    return result;
}

static void threads_and_processes_mix(void **state)
{
    (void)state;
    run_alone(3, share_in_pairs);
}

/* ---- death ---------------------------------------------------------------------------------- */

static int die_after_a_barrier(struct group *group, int rank)
{
    struct rank self;
    GROUP_CHECK(rank_open(rank, group->size, GROUP_TIMEOUT_MS, &self) == TUTTI_OK);
    GROUP_CHECK(tutti_symm_barrier(self.buffer, 0, GROUP_TIMEOUT_MS, TUTTI_STREAM_DEFAULT) ==
                TUTTI_OK);
    if (rank == 1)
        raise(SIGKILL);
    GROUP_CHECK(tutti_symm_barrier(self.buffer, 0, GROUP_TIMEOUT_MS, TUTTI_STREAM_DEFAULT) ==
                TUTTI_ERR_PEER_DEAD);
    GROUP_CHECK(strstr(tutti_last_error(), "rank 1"));
    GROUP_CHECK(tutti_symm_wait_signal(self.buffer, 1, 2, GROUP_TIMEOUT_MS, TUTTI_STREAM_DEFAULT) ==
                TUTTI_ERR_PEER_DEAD);
    /* The other ranks continue without it. Its memory stays mapped. */
    memset(self.info.buffers[1], 0, BYTES);
    if (rank != 0)
        GROUP_CHECK(tutti_symm_put_signal(self.buffer, 0, 3, GROUP_TIMEOUT_MS,
                                          TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    for (int r = 2; rank == 0 && r < group->size; r++)
        GROUP_CHECK(tutti_symm_wait_signal(self.buffer, r, 3, GROUP_TIMEOUT_MS,
                                           TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    rank_close(&self);
    return 0;
}

static void death_is_named(void **state)
{
    (void)state;
    run_alone(2, die_after_a_barrier);
    run_alone(4, die_after_a_barrier);
}

/* The rendezvous ends before its time-out, which would be a failure here. */
static int die_before_another_meeting(struct group *group, int rank)
{
    struct rank self;
    void *buffer;
    GROUP_CHECK(rank_open(rank, group->size, GROUP_TIMEOUT_MS, &self) == TUTTI_OK);
    if (rank == 1)
        raise(SIGKILL);
    GROUP_CHECK(tutti_symm_alloc(self.group, TUTTI_DEVICE_CPU, 1, &buffer) == TUTTI_OK);
    GROUP_CHECK(tutti_symm_rendezvous(buffer, GROUP_TIMEOUT_MS, NULL) == TUTTI_ERR_PEER_DEAD);
    GROUP_CHECK(strstr(tutti_last_error(), "rank 1: the process ended"));
    GROUP_CHECK(tutti_symm_rendezvous(buffer, GROUP_TIMEOUT_MS, NULL) == TUTTI_ERR_PEER_DEAD);
    GROUP_CHECK(strstr(tutti_last_error(), "failed before") &&
                strstr(tutti_last_error(), "rank 1: the process ended"));
    rank_close(&self);
    return 0;
}

static void death_ends_a_meeting(void **state)
{
    (void)state;
    run_alone(2, die_before_another_meeting);
    run_alone(4, die_before_another_meeting);
}

static int stop(struct group *group, int rank)
{
    struct rank self;
    GROUP_CHECK(rank_open(rank, group->size, GROUP_TIMEOUT_MS, &self) == TUTTI_OK);
    if (rank == 1) {
        __atomic_store_n(&group->flags[1], getpid(), __ATOMIC_RELEASE);
        GROUP_CHECK(group_await(group, 2, 1));
        GROUP_CHECK(tutti_symm_barrier(self.buffer, 0, GROUP_TIMEOUT_MS, TUTTI_STREAM_DEFAULT) ==
                    TUTTI_OK);
    } else {
        GROUP_CHECK(group_await(group, 1, 1));
        GROUP_CHECK(kill(group->flags[1], SIGSTOP) == 0);
        GROUP_CHECK(tutti_symm_barrier(self.buffer, 0, 100, TUTTI_STREAM_DEFAULT) ==
                    TUTTI_ERR_TIMEOUT);
        GROUP_CHECK(strstr(tutti_last_error(), "rank 1"));
        group_raise(group, 2);
        GROUP_CHECK(kill(group->flags[1], SIGCONT) == 0);
        /* The failed barrier has raised a signal for rank 1, and rank 1 still takes it. */
        GROUP_CHECK(tutti_symm_wait_signal(self.buffer, 1, 0, GROUP_TIMEOUT_MS,
                                           TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    }
    rank_close(&self);
    return 0;
}

static void a_stopped_rank_is_late_not_dead(void **state)
{
    (void)state;
    run_alone(2, stop);
}

/* ---- starting again ------------------------------------------------------------------------- */

static int stay_away(struct group *group, int rank)
{
    struct rank self;
    if (rank == 1)
        raise(SIGKILL);
    GROUP_CHECK(rank_open(rank, group->size, 200, &self) == TUTTI_ERR_TIMEOUT);
    rank_close(&self);
    return 0;
}

static int stay_away_as_leader(struct group *group, int rank)
{
    struct rank self;
    if (rank == 0)
        raise(SIGKILL);
    GROUP_CHECK(rank_open(rank, group->size, 200, &self) == TUTTI_ERR_TIMEOUT);
    GROUP_CHECK(strstr(tutti_last_error(), "rank 0"));
    rank_close(&self);
    return 0;
}

static void a_restart_meets_no_stale_keys(void **state)
{
    (void)state;
    run(3, stay_away); /* all these runs use one store */
    run(3, share_as_processes);
    run(3, stay_away_as_leader);
    run(3, share_as_processes);
    run(3, die_after_a_barrier);
    run(3, share_as_processes);
    assert_int_equal(unlink(path), 0);
}

/* Rank 0 has world size 2, rank 1 has 3. */
static int disagree_about_the_world(struct group *group, int rank)
{
    struct rank self;
    (void)group;
    enum tutti_status status = rank_open(rank, rank == 0 ? 2 : 3, GROUP_TIMEOUT_MS, &self);
    GROUP_CHECK(status == TUTTI_ERR_MISMATCH);
    GROUP_CHECK(strstr(tutti_last_error(), "rank 1 has 3"));
    rank_close(&self);
    return 0;
}

static void different_world_sizes_are_a_mismatch(void **state)
{
    (void)state;
    run_alone(2, disagree_about_the_world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_shared),
        cmocka_unit_test(threads_and_processes_mix),
        cmocka_unit_test(death_is_named),
        cmocka_unit_test(death_ends_a_meeting),
        cmocka_unit_test(a_stopped_rank_is_late_not_dead),
        cmocka_unit_test(a_restart_meets_no_stale_keys),
        cmocka_unit_test(different_world_sizes_are_a_mismatch),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
