/* SPDX-License-Identifier: MIT */
/* Symmetric memory among threads of this process. */
#include "coll/region.h"

#include "group.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { BYTES = 10000 };

/* Each test has a store of its own. */
static char url[64];

static void new_store(void)
{
    static int count;
    snprintf(url, sizeof url, "memory:test-symm-%d", count++);
}

static tutti_store_t *open_store(void)
{
    tutti_store_t *store = NULL;
    if (tutti_store_open(url, GROUP_TIMEOUT_MS, &store) != TUTTI_OK)
        abort();
    return store;
}

static void run_threads(int size, group_fn *fn)
{
    new_store();
    tutti_store_t *keep = open_store(); /* a memory store lives while a handle to it is open */
    struct group *group = group_create(size);
    assert_int_equal(group_run_threads(group, fn), 0);
    group_destroy(group);
    tutti_store_close(keep);
}

/* One rank's store, group and a buffer after its rendezvous. */
struct rank {
    tutti_store_t *store;
    tutti_symm_group_t *group;
    void *buffer;
    struct tutti_symm_info info;
};

static enum tutti_status rank_open(struct group *group, int rank, size_t bytes, struct rank *self)
{
    *self = (struct rank){.store = open_store(), .info.struct_size = sizeof self->info};
    enum tutti_status status =
        tutti_symm_group("test", rank, group->size, self->store, &self->group);
    if (status == TUTTI_OK)
        status = tutti_symm_alloc(self->group, TUTTI_DEVICE_CPU, bytes, &self->buffer);
    if (status == TUTTI_OK)
        status = tutti_symm_rendezvous(self->buffer, GROUP_TIMEOUT_MS, &self->info);
    return status;
}

static void rank_close(struct rank *self)
{
    tutti_symm_group_destroy(self->group);
    tutti_store_close(self->store);
}

/* ---- rendezvous ----------------------------------------------------------------------------- */

static int see_each_other(struct group *group, int rank)
{
    struct rank self;
    GROUP_CHECK(rank_open(group, rank, BYTES, &self) == TUTTI_OK);
    const struct tutti_symm_info *info = &self.info;
    GROUP_CHECK(info->rank == rank && info->world_size == group->size);
    GROUP_CHECK(info->buffer_bytes == BYTES && info->signal_pad_bytes >= 2048);
    GROUP_CHECK(info->channels > 0 && info->buffers[rank] == self.buffer);
    GROUP_CHECK((uintptr_t)self.buffer % 4096 == 0);
    for (int i = 0; i < BYTES; i++)
        GROUP_CHECK(((char *)self.buffer)[i] == 0);
    memset(self.buffer, rank + 1, BYTES);
    GROUP_CHECK(tutti_symm_barrier(self.buffer, 0, GROUP_TIMEOUT_MS, TUTTI_STREAM_DEFAULT) ==
                TUTTI_OK);
    for (int r = 0; r < group->size; r++) {
        const unsigned char *theirs = info->buffers[r];
        GROUP_CHECK(theirs[0] == r + 1 && theirs[BYTES - 1] == r + 1);
    }
    struct tutti_symm_info again = {.struct_size = sizeof again};
    GROUP_CHECK(tutti_symm_rendezvous(self.buffer, GROUP_TIMEOUT_MS, &again) == TUTTI_OK);
    GROUP_CHECK(again.buffers == info->buffers && again.signal_pads == info->signal_pads);
    GROUP_CHECK(again.buffer_bytes == BYTES && again.rank == rank);
    GROUP_CHECK(tutti_symm_rendezvous(self.buffer, GROUP_TIMEOUT_MS, NULL) == TUTTI_OK);
    GROUP_CHECK(tutti_symm_barrier(self.buffer, 1, GROUP_TIMEOUT_MS, TUTTI_STREAM_DEFAULT) ==
                TUTTI_OK);
    rank_close(&self);
    return 0;
}

static void every_rank_sees_every_buffer(void **state)
{
    (void)state;
    for (int size = 1; size <= 5; size++)
        run_threads(size, see_each_other);
    run_threads(64, see_each_other);
}

/* A group has a communicator, to which the settings of the application's communicators do not
 * apply. */
static void settings_of_communicators_do_not_matter(void **state)
{
    static const char *const settings[][2] = {
        {"TUTTI_ALGO", "hybrid_cube_mesh"},
        {"TUTTI_STRICT", "1"},
        {"TUTTI_DISABLE", "1"},
        {"TUTTI_TOPOLOGY_FILE", "/tmp/absent"},
        {"TUTTI_ARENA_BYTES", "few"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        setenv(settings[i][0], settings[i][1], 1);
    run_threads(2, see_each_other);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        unsetenv(settings[i][0]);
}

/* Groups are created and destroyed under one name on one store. */
static int recreate(struct group *group, int rank)
{
    for (int round = 0; round < 10; round++) {
        struct rank self;
        GROUP_CHECK(rank_open(group, rank, BYTES, &self) == TUTTI_OK);
        *(int *)self.buffer = round;
        GROUP_CHECK(tutti_symm_barrier(self.buffer, 0, GROUP_TIMEOUT_MS, TUTTI_STREAM_DEFAULT) ==
                    TUTTI_OK);
        for (int r = 0; r < group->size; r++)
            GROUP_CHECK(*(int *)self.info.buffers[r] == round);
        GROUP_CHECK(tutti_symm_barrier(self.buffer, 0, GROUP_TIMEOUT_MS, TUTTI_STREAM_DEFAULT) ==
                    TUTTI_OK);
        rank_close(&self);
    }
    return 0;
}

static void a_name_serves_again(void **state)
{
    (void)state;
    run_threads(3, recreate);
}

static int several_buffers(struct group *group, int rank)
{
    enum { COUNT = 5 };
    struct rank self;
    void *buffers[COUNT];
    struct tutti_symm_info infos[COUNT];
    GROUP_CHECK(rank_open(group, rank, 1, &self) == TUTTI_OK);
    tutti_store_close(self.store); /* only the first rendezvous needs the store */
    self.store = NULL;
    for (int i = 0; i < COUNT; i++) {
        infos[i].struct_size = sizeof *infos;
        GROUP_CHECK(tutti_symm_alloc(self.group, TUTTI_DEVICE_CPU, 100 * (size_t)(i + 1),
                                     &buffers[i]) == TUTTI_OK);
    }
    for (int i = COUNT - 1; i >= 0;
         i--) { /* the order of the rendezvous matters, not that of the allocations */
        GROUP_CHECK(tutti_symm_rendezvous(buffers[i], GROUP_TIMEOUT_MS, &infos[i]) == TUTTI_OK);
        *(int *)buffers[i] = 10 * rank + i;
    }
    GROUP_CHECK(tutti_symm_barrier(buffers[0], 0, GROUP_TIMEOUT_MS, TUTTI_STREAM_DEFAULT) ==
                TUTTI_OK);
    for (int i = 0; i < COUNT; i++)
        for (int r = 0; r < group->size; r++)
            GROUP_CHECK(*(int *)infos[i].buffers[r] == 10 * r + i);
    GROUP_CHECK(tutti_symm_barrier(buffers[1], 0, GROUP_TIMEOUT_MS, TUTTI_STREAM_DEFAULT) ==
                TUTTI_OK);
    GROUP_CHECK(tutti_symm_free(buffers[2]) == TUTTI_OK);
    /* The other buffers stay valid, also where the peer has freed its own. */
    GROUP_CHECK(*(int *)infos[3].buffers[0] == 3);
    rank_close(&self);
    return 0;
}

static void buffers_are_independent(void **state)
{
    (void)state;
    run_threads(3, several_buffers);
}

static int disagree_about_bytes(struct group *group, int rank)
{
    struct rank self;
    enum tutti_status status = rank_open(group, rank, rank == 1 ? 5000 : 4000, &self);
    GROUP_CHECK(status == TUTTI_ERR_MISMATCH);
    GROUP_CHECK(strstr(tutti_last_error(), "4000") && strstr(tutti_last_error(), "5000"));
    /* The group is still usable. */
    void *buffer;
    GROUP_CHECK(tutti_symm_alloc(self.group, TUTTI_DEVICE_CPU, 8, &buffer) == TUTTI_OK);
    GROUP_CHECK(tutti_symm_rendezvous(buffer, GROUP_TIMEOUT_MS, NULL) == TUTTI_OK);
    GROUP_CHECK(tutti_symm_barrier(buffer, 0, GROUP_TIMEOUT_MS, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    rank_close(&self);
    return 0;
}

static void different_sizes_are_a_mismatch(void **state)
{
    (void)state;
    run_threads(3, disagree_about_bytes);
}

static int wait_alone(struct group *group, int rank)
{
    struct rank self = {.store = open_store()};
    (void)rank;
    GROUP_CHECK(tutti_symm_group("lonely", 0, 2, self.store, &self.group) == TUTTI_OK);
    GROUP_CHECK(tutti_symm_alloc(self.group, TUTTI_DEVICE_CPU, 8, &self.buffer) == TUTTI_OK);
    GROUP_CHECK(tutti_symm_rendezvous(self.buffer, 50, NULL) == TUTTI_ERR_TIMEOUT);
    GROUP_CHECK(strstr(tutti_last_error(), "rank 1"));
    GROUP_CHECK(tutti_symm_rendezvous(self.buffer, 50, NULL) == TUTTI_ERR_TIMEOUT);
    GROUP_CHECK(strstr(tutti_last_error(), "failed before"));
    GROUP_CHECK(tutti_symm_barrier(self.buffer, 0, 50, TUTTI_STREAM_DEFAULT) == TUTTI_ERR_INVALID);
    GROUP_CHECK(strstr(tutti_last_error(), "tutti_symm_rendezvous"));
    rank_close(&self);
    (void)group;
    return 0;
}

static void absent_rank_is_a_timeout(void **state)
{
    (void)state;
    run_threads(1, wait_alone);
}

/* ---- signals -------------------------------------------------------------------------------- */

static int ping_pong(struct group *group, int rank)
{
    enum { ROUNDS = 200 };
    struct rank self;
    GROUP_CHECK(rank_open(group, rank, 8, &self) == TUTTI_OK);
    int next = (rank + 1) % group->size, previous = (rank + group->size - 1) % group->size;
    uint64_t *ball = self.buffer;
    for (int i = 0; i < ROUNDS; i++) {
        int channel = i % self.info.channels;
        if (rank != 0 || i > 0)
            GROUP_CHECK(tutti_symm_wait_signal(ball, previous, channel, GROUP_TIMEOUT_MS,
                                               TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        *(uint64_t *)self.info.buffers[next] = *ball + 1; /* a plain store: the signals order it */
        GROUP_CHECK(
            tutti_symm_put_signal(ball, next,
                                  rank == group->size - 1 ? (i + 1) % self.info.channels : channel,
                                  GROUP_TIMEOUT_MS, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    }
    if (rank == 0) {
        GROUP_CHECK(tutti_symm_wait_signal(ball, previous, ROUNDS % self.info.channels,
                                           GROUP_TIMEOUT_MS, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        GROUP_CHECK(*ball == (uint64_t)ROUNDS * (uint64_t)group->size);
    }
    GROUP_CHECK(tutti_symm_barrier(ball, 0, GROUP_TIMEOUT_MS, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    rank_close(&self);
    return 0;
}

static void signals_order_plain_memory(void **state)
{
    (void)state;
    run_threads(2, ping_pong);
    run_threads(4, ping_pong);
}

/* In host memory tutti_symm_status() is OK after any error. */
static bool status_is_ok(void *buffer, int rank)
{
    struct tutti_fault fault = {.struct_size = sizeof fault, .status = TUTTI_ERR_TIMEOUT};
    struct tutti_fault small = {.struct_size = 1};
    return tutti_symm_status(buffer, NULL) == TUTTI_OK &&
           tutti_symm_status(buffer, &fault) == TUTTI_OK && fault.status == TUTTI_OK &&
           fault.struct_size == sizeof fault && fault.rank == rank && fault.peer == -1 &&
           tutti_symm_status(buffer, &small) == TUTTI_ERR_INVALID &&
           tutti_symm_status((char *)buffer + 1, &fault) == TUTTI_ERR_INVALID;
}

static int signal_limits(struct group *group, int rank)
{
    struct rank self;
    GROUP_CHECK(rank_open(group, rank, 8, &self) == TUTTI_OK);
    if (rank == 0) {
        void *buffer = self.buffer;
        GROUP_CHECK(tutti_symm_wait_signal(buffer, 1, 0, 20, TUTTI_STREAM_DEFAULT) ==
                    TUTTI_ERR_TIMEOUT);
        GROUP_CHECK(strstr(tutti_last_error(), "rank 1") && strstr(tutti_last_error(), "raised"));
        GROUP_CHECK(tutti_symm_put_signal(buffer, 1, 7, 20, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        GROUP_CHECK(tutti_symm_put_signal(buffer, 1, 7, 20, TUTTI_STREAM_DEFAULT) ==
                    TUTTI_ERR_TIMEOUT);
        GROUP_CHECK(strstr(tutti_last_error(), "rank 1") && strstr(tutti_last_error(), "taken"));
        GROUP_CHECK(tutti_symm_barrier(buffer, 3, 20, TUTTI_STREAM_DEFAULT) == TUTTI_ERR_TIMEOUT);
        GROUP_CHECK(strstr(tutti_last_error(), "rank 1"));
        /* with itself */
        GROUP_CHECK(tutti_symm_put_signal(buffer, 0, 1, 20, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        GROUP_CHECK(tutti_symm_wait_signal(buffer, 0, 1, 20, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        GROUP_CHECK(tutti_symm_put_signal(buffer, 2, 0, 20, TUTTI_STREAM_DEFAULT) ==
                    TUTTI_ERR_INVALID);
        GROUP_CHECK(tutti_symm_put_signal(buffer, -1, 0, 20, TUTTI_STREAM_DEFAULT) ==
                    TUTTI_ERR_INVALID);
        GROUP_CHECK(tutti_symm_put_signal(buffer, 1, -1, 20, TUTTI_STREAM_DEFAULT) ==
                    TUTTI_ERR_INVALID);
        GROUP_CHECK(tutti_symm_wait_signal(buffer, 1, self.info.channels, 20,
                                           TUTTI_STREAM_DEFAULT) == TUTTI_ERR_INVALID);
        GROUP_CHECK(tutti_symm_barrier(buffer, self.info.channels, 20, TUTTI_STREAM_DEFAULT) ==
                    TUTTI_ERR_INVALID);
        GROUP_CHECK(tutti_symm_barrier((char *)buffer + 1, 0, 20, TUTTI_STREAM_DEFAULT) ==
                    TUTTI_ERR_INVALID);
        GROUP_CHECK(tutti_symm_barrier(NULL, 0, 20, TUTTI_STREAM_DEFAULT) == TUTTI_ERR_INVALID);
        GROUP_CHECK(tutti_symm_barrier(buffer, 0, 20, TUTTI_STREAM_LEGACY) == TUTTI_ERR_INVALID);
        GROUP_CHECK(strstr(tutti_last_error(), "TUTTI_STREAM_DEFAULT"));
        GROUP_CHECK(status_is_ok(buffer, rank));
    }
    group_raise(group, 0);
    GROUP_CHECK(group_await(group, 0, 2));
    rank_close(&self);
    return 0;
}

static void late_and_wrong_signals_are_named(void **state)
{
    (void)state;
    run_threads(2, signal_limits);
}

static int leave_early(struct group *group, int rank)
{
    struct rank self;
    GROUP_CHECK(rank_open(group, rank, 8, &self) == TUTTI_OK);
    if (rank == 1) {
        GROUP_CHECK(tutti_symm_put_signal(self.buffer, 0, 0, GROUP_TIMEOUT_MS,
                                          TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        GROUP_CHECK(tutti_symm_free(self.buffer) == TUTTI_OK);
    } else {
        GROUP_CHECK(tutti_symm_wait_signal(self.buffer, 1, 1, GROUP_TIMEOUT_MS,
                                           TUTTI_STREAM_DEFAULT) == TUTTI_ERR_PEER_DEAD);
        GROUP_CHECK(strstr(tutti_last_error(), "rank 1"));
        /* The signal that rank 1 raised before the free is still there, and so is its memory. */
        GROUP_CHECK(tutti_symm_wait_signal(self.buffer, 1, 0, GROUP_TIMEOUT_MS,
                                           TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        memset(self.info.buffers[1], 1, 8);
    }
    rank_close(&self);
    return 0;
}

static void a_freed_buffer_ends_waits(void **state)
{
    (void)state;
    run_threads(2, leave_early);
}

/* ---- views ---------------------------------------------------------------------------------- */

static int take_views(struct group *group, int rank)
{
    struct rank self;
    GROUP_CHECK(rank_open(group, rank, 1002, &self) == TUTTI_OK); /* 250.5 float32 */
    void *buffer = self.buffer, *view;
    char *base = self.info.buffers[1];
#define VIEW(dtype, offset, dims, ...)                                                             \
    tutti_symm_buffer(buffer, 1, (const int64_t[]){__VA_ARGS__}, dims, TUTTI_##dtype, offset, &view)
    GROUP_CHECK(VIEW(FLOAT32, 0, 2, 25, 10) == TUTTI_OK && view == base);
    GROUP_CHECK(VIEW(FLOAT32, 240, 2, 5, 2) == TUTTI_OK && view == base + 960);
    GROUP_CHECK(VIEW(FLOAT32, 249, 0, 0) == TUTTI_OK && view == base + 996); /* a scalar */
    GROUP_CHECK(VIEW(UINT8, 1001, 1, 1) == TUTTI_OK && view == base + 1001);
    GROUP_CHECK(VIEW(FLOAT64, 125, 3, 5, 0, INT64_MAX) == TUTTI_OK && view == base + 1000);

    GROUP_CHECK(VIEW(FLOAT32, 250, 0, 0) == TUTTI_ERR_INVALID && !view);
    GROUP_CHECK(strstr(tutti_last_error(), "rank 1's buffer, which holds 250"));
    GROUP_CHECK(VIEW(FLOAT32, 1, 2, 25, 10) == TUTTI_ERR_INVALID && !view);
    GROUP_CHECK(VIEW(FLOAT64, 126, 1, 0) == TUTTI_ERR_INVALID);
    GROUP_CHECK(VIEW(UINT8, -1, 1, 1) == TUTTI_ERR_INVALID);
    GROUP_CHECK(strstr(tutti_last_error(), "offset -1 is negative"));
    GROUP_CHECK(VIEW(UINT8, 0, 2, 1, -7) == TUTTI_ERR_INVALID);
    GROUP_CHECK(strstr(tutti_last_error(), "sizes[1] is -7"));
    GROUP_CHECK(VIEW(UINT8, 0, 2, INT64_C(1) << 32, INT64_C(1) << 31) == TUTTI_ERR_INVALID);
    GROUP_CHECK(strstr(tutti_last_error(), "extend past the end"));
    GROUP_CHECK(VIEW(FLOAT64, 0, 1, INT64_MAX) == TUTTI_ERR_INVALID);
    GROUP_CHECK(VIEW(FLOAT64, INT64_MAX, 1, INT64_MAX) == TUTTI_ERR_INVALID);
    GROUP_CHECK(VIEW(FLOAT64, 0, -1, 1) == TUTTI_ERR_INVALID);
#undef VIEW
    int64_t one = 1;
    GROUP_CHECK(tutti_symm_buffer(buffer, 2, &one, 1, TUTTI_INT8, 0, &view) == TUTTI_ERR_INVALID);
    GROUP_CHECK(tutti_symm_buffer(buffer, -1, &one, 1, TUTTI_INT8, 0, &view) == TUTTI_ERR_INVALID);
    GROUP_CHECK(tutti_symm_buffer(buffer, 0, NULL, 1, TUTTI_INT8, 0, &view) == TUTTI_ERR_INVALID);
    GROUP_CHECK(tutti_symm_buffer(buffer, 0, NULL, 0, TUTTI_INT8, 0, NULL) == TUTTI_ERR_INVALID);
    GROUP_CHECK(tutti_symm_buffer(buffer, 0, &one, 1, (enum tutti_dtype)99, 0, &view) ==
                TUTTI_ERR_INVALID);

    uint32_t *words;
    int64_t limit = (int64_t)self.info.signal_pad_bytes / 4;
    GROUP_CHECK(tutti_symm_signal_pad(buffer, 1, limit - 3, 3, &words) == TUTTI_OK);
    GROUP_CHECK(words == self.info.signal_pads[1] + limit - 3);
    GROUP_CHECK(tutti_symm_signal_pad(buffer, 1, limit, 0, &words) == TUTTI_OK);
    GROUP_CHECK(tutti_symm_signal_pad(buffer, 1, limit - 3, 4, &words) == TUTTI_ERR_INVALID);
    GROUP_CHECK(!words && strstr(tutti_last_error(), "signal pad"));
    GROUP_CHECK(tutti_symm_signal_pad(buffer, 1, 0, -1, &words) == TUTTI_ERR_INVALID);
    GROUP_CHECK(tutti_symm_signal_pad(buffer, 1, -1, 1, &words) == TUTTI_ERR_INVALID);
    GROUP_CHECK(tutti_symm_signal_pad(buffer, 2, 0, 1, &words) == TUTTI_ERR_INVALID);
    GROUP_CHECK(tutti_symm_signal_pad(buffer, 1, INT64_MAX, INT64_MAX, &words) ==
                TUTTI_ERR_INVALID);
    group_raise(group, 0);
    GROUP_CHECK(group_await(group, 0, 2));
    rank_close(&self);
    return 0;
}

static void views_are_checked(void **state)
{
    (void)state;
    run_threads(2, take_views);
}

static uint64_t ids[4];

static int find(struct group *group, int rank)
{
    struct rank self;
    const struct region *region;
    char *alone;
    GROUP_CHECK(rank_open(group, rank, BYTES, &self) == TUTTI_OK);
    char *base = self.buffer;
    GROUP_CHECK(tutti_symm_alloc(self.group, TUTTI_DEVICE_CPU, 100, (void **)&alone) == TUTTI_OK);
    GROUP_CHECK(!region_find(alone, 1)); /* before its rendezvous */
    GROUP_CHECK((region = region_find(base, BYTES)) && region->base == base);
    GROUP_CHECK(region->rank == rank && region->world_size == group->size && region->id > 2);
    GROUP_CHECK(region->buffers == self.info.buffers && region->bytes == BYTES);
    ids[rank] = region->id;
    GROUP_CHECK(region_find(base + 77, BYTES - 77) == region);
    GROUP_CHECK(region_find(base + BYTES, 0));
    GROUP_CHECK(!region_find(base + 77, BYTES - 76));
    GROUP_CHECK(!region_find(base + 1, SIZE_MAX));
    GROUP_CHECK(!region_find(base - 1, 2));
    GROUP_CHECK(!region_find(&self, 8) && !region_find(NULL, 0));
    GROUP_CHECK(tutti_symm_barrier(base, 0, GROUP_TIMEOUT_MS, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    GROUP_CHECK(ids[0] == region->id && ids[1] == region->id && ids[2] == region->id);
    GROUP_CHECK(tutti_symm_barrier(base, 0, GROUP_TIMEOUT_MS, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    GROUP_CHECK(tutti_symm_free(base) == TUTTI_OK && !region_find(base, 1));
    rank_close(&self);
    return 0;
}

static void operands_are_found(void **state)
{
    (void)state;
    int outside = 0;
    assert_null(region_find(&outside, 1));
    run_threads(3, find);
    assert_null(region_find(&outside, 1));
}

/* ---- arguments and processes ---------------------------------------------------------------- */

static void arguments_are_checked(void **state)
{
    (void)state;
    tutti_symm_group_t *group, *other;
    char long_name[100];
    void *buffer;
    new_store();
    tutti_store_t *store = open_store();
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = 0;
    assert_int_equal(tutti_symm_group(NULL, 0, 1, store, &group), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_symm_group("", 0, 1, store, &group), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_symm_group(long_name, 0, 1, store, &group), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_symm_group("a", 0, 0, store, &group), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_symm_group("a", 0, 65, store, &group), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_symm_group("a", 2, 2, store, &group), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_symm_group("a", -1, 2, store, &group), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_symm_group("a", 0, 1, NULL, &group), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_symm_group("a", 0, 1, store, NULL), TUTTI_ERR_INVALID);
    setenv("TUTTI_TIMEOUT_MS", "soon", 1);
    assert_int_equal(tutti_symm_group("a", 0, 1, store, &group), TUTTI_ERR_INVALID);
    setenv("TUTTI_TIMEOUT_MS", "-2", 1); /* negative is never, as in communicators */
    assert_int_equal(tutti_symm_group("a", 0, 1, store, &group), TUTTI_OK);
    tutti_symm_group_destroy(group);
    unsetenv("TUTTI_TIMEOUT_MS");

    assert_int_equal(tutti_symm_group("a", 0, 2, store, &group), TUTTI_OK);
    assert_int_equal(tutti_symm_group("a", 0, 2, store, &other), TUTTI_ERR_INVALID);
    assert_null(other);
    assert_non_null(strstr(tutti_last_error(), "registered"));
    assert_int_equal(tutti_symm_group("a", 1, 2, store, &other), TUTTI_OK);
    tutti_symm_group_destroy(other);

    assert_int_equal(tutti_symm_alloc(NULL, TUTTI_DEVICE_CPU, 1, &buffer), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_symm_alloc(group, TUTTI_DEVICE_CPU, 1, NULL), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_symm_alloc(group, TUTTI_DEVICE_CPU, 0, &buffer), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_symm_alloc(group, TUTTI_DEVICE_CPU, SIZE_MAX, &buffer),
                     TUTTI_ERR_NO_MEMORY);
    assert_int_equal(tutti_symm_alloc(group, TUTTI_DEVICE_CPU, (size_t)1 << 50, &buffer),
                     TUTTI_ERR_NO_MEMORY);
    assert_null(buffer);
    assert_int_equal(tutti_symm_free(NULL), TUTTI_OK);
    assert_int_equal(tutti_symm_free(&buffer), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_symm_alloc(group, TUTTI_DEVICE_CPU, 1, &buffer), TUTTI_OK);
    assert_int_equal(tutti_symm_rendezvous(buffer, 50, &(struct tutti_symm_info){.struct_size = 1}),
                     TUTTI_ERR_INVALID);
    assert_int_equal(tutti_symm_free(buffer), TUTTI_OK);
    assert_int_equal(tutti_symm_free(buffer), TUTTI_ERR_INVALID);
    tutti_symm_group_destroy(group);
    tutti_symm_group_destroy(NULL);
    tutti_store_close(store);
}

static void a_process_has_limited_buffers(void **state)
{
    (void)state;
    tutti_symm_group_t *group;
    void *buffers[1025];
    int count = 0;
    new_store();
    tutti_store_t *store = open_store();
    assert_int_equal(tutti_symm_group("many", 0, 1, store, &group), TUTTI_OK);
    enum tutti_status status = TUTTI_OK;
    while (count < 1025 &&
           (status = tutti_symm_alloc(group, TUTTI_DEVICE_CPU, 1, &buffers[count])) == TUTTI_OK)
        count++;
    if (count < 1024 && strstr(tutti_last_error(), "EMFILE")) {
        tutti_symm_group_destroy(group);
        tutti_store_close(store);
        skip();
    }
    assert_int_equal(count, 1024);
    assert_int_equal(status, TUTTI_ERR_NO_MEMORY);
    assert_int_equal(tutti_symm_free(buffers[500]), TUTTI_OK);
    assert_int_equal(tutti_symm_alloc(group, TUTTI_DEVICE_CPU, 1, &buffers[500]), TUTTI_OK);
    tutti_symm_group_destroy(group);
    assert_int_equal(tutti_symm_free(buffers[0]), TUTTI_ERR_INVALID);
    tutti_store_close(store);
}

static void a_child_owns_nothing(void **state)
{
    (void)state;
    struct rank self;
    struct group *one = group_create(1);
    new_store();
    assert_int_equal(rank_open(one, 0, 100, &self), TUTTI_OK);
    pid_t child = fork();
    if (child == 0) {
        void *buffer;
        int result = 0;
        if (region_find(self.buffer, 1))
            result = 1;
        if (tutti_symm_barrier(self.buffer, 0, 10, TUTTI_STREAM_DEFAULT) != TUTTI_ERR_INVALID)
            result = 2;
        if (tutti_symm_alloc(self.group, TUTTI_DEVICE_CPU, 1, &buffer) != TUTTI_ERR_INVALID)
            result = 3;
        if (tutti_symm_free(self.buffer) != TUTTI_ERR_INVALID)
            result = 4;
        tutti_symm_group_destroy(self.group);
        /* It may register a group of the same name, possibly at the same address, but not on its
         * parent's store. */
        tutti_symm_group_t *own;
        if (tutti_symm_group("test", 0, 1, self.store, &own) != TUTTI_ERR_INVALID || own)
            result = 8;
        else if (tutti_store_open("memory:child", 1000, &self.store) != TUTTI_OK ||
                 tutti_symm_group("test", 0, 1, self.store, &own) != TUTTI_OK)
            result = 5;
        else if (tutti_symm_alloc(own, TUTTI_DEVICE_CPU, 100, &buffer) != TUTTI_OK)
            result = 6;
        else if (tutti_symm_free(buffer) != TUTTI_OK)
            result = 7;
        _exit(result);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), 0);
    assert_int_equal(tutti_symm_barrier(self.buffer, 0, GROUP_TIMEOUT_MS, TUTTI_STREAM_DEFAULT),
                     TUTTI_OK);
    rank_close(&self);
    group_destroy(one);
}

static void back_ends_have_names(void **state)
{
    static const char *const names[] = {"cpu", "cuda"};
    char text[32] = "";
    (void)state;
    for (int i = 0; i < 2; i++) {
        setenv("TUTTI_SYMM_BACKEND", names[i], 1);
        assert_int_equal(tutti_info("symm.backend", text, sizeof text), TUTTI_OK);
        assert_string_equal(text, names[i]);
    }
    setenv("TUTTI_SYMM_BACKEND", "nvshmem", 1);
    assert_int_equal(tutti_info("symm.backend", text, sizeof text), TUTTI_ERR_INVALID);
    assert_non_null(strstr(tutti_last_error(), "expected cpu or cuda"));
    setenv("TUTTI_SYMM_BACKEND", "", 1);
    assert_int_equal(tutti_info("symm.backend", text, sizeof text), TUTTI_OK);
    assert_string_equal(text, "cpu");
    unsetenv("TUTTI_SYMM_BACKEND");
}

static void info_has_keys(void **state)
{
    char text[4] = "";
    (void)state;
    assert_int_equal(tutti_info("cuda.multicast", text, 3), TUTTI_OK);
    assert_string_equal(text, "no");
    assert_int_equal(tutti_info("cuda.device", text, 3), TUTTI_OK);
    assert_string_equal(text, "-1");
    assert_int_equal(tutti_info("symm.backend", text, 3), TUTTI_ERR_INVALID);
    assert_non_null(strstr(tutti_last_error(), "text has 3 bytes, it needs 4"));
    assert_int_equal(tutti_info("symm.backend", NULL, 0), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_info("symm.backend", NULL, 3), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_info("symm", text, sizeof text), TUTTI_ERR_INVALID);
    assert_non_null(strstr(tutti_last_error(), "expected calls, cuda.device"));
    assert_int_equal(tutti_info(NULL, text, sizeof text), TUTTI_ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(back_ends_have_names),
        cmocka_unit_test(info_has_keys),
        cmocka_unit_test(every_rank_sees_every_buffer),
        cmocka_unit_test(settings_of_communicators_do_not_matter),
        cmocka_unit_test(a_name_serves_again),
        cmocka_unit_test(buffers_are_independent),
        cmocka_unit_test(different_sizes_are_a_mismatch),
        cmocka_unit_test(absent_rank_is_a_timeout),
        cmocka_unit_test(signals_order_plain_memory),
        cmocka_unit_test(late_and_wrong_signals_are_named),
        cmocka_unit_test(a_freed_buffer_ends_waits),
        cmocka_unit_test(views_are_checked),
        cmocka_unit_test(operands_are_found),
        cmocka_unit_test(arguments_are_checked),
        cmocka_unit_test(a_process_has_limited_buffers),
        cmocka_unit_test(a_child_owns_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
