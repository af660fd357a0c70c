/* SPDX-License-Identifier: MIT */
/* What an agreement returns, and whom it blames. */
#include "store/status_agree.h"

#include "base/error.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { SIZE = 4, OWN = 1, ROOM = 64 };

/* What the other ranks and the all-gather do. */
struct scene {
    enum tutti_status ran;
    struct status_report reports[SIZE];
    size_t bytes; /* [out] of the own row */
    int64_t timeout_ms;
    int64_t values[SIZE];
    unsigned char rows[SIZE][sizeof(struct status_report) + ROOM];
    struct gather gather;
};

static enum tutti_status run(void *context, const void *own, size_t bytes, void *all,
                             int64_t timeout_ms)
{
    struct scene *scene = context;
    const size_t head = scene->gather.terse ? 8 : sizeof(struct status_report);
    scene->bytes = bytes;
    scene->timeout_ms = timeout_ms;
    assert_ptr_equal(own, (char *)all + OWN * bytes);
    for (int r = 0; r < SIZE; r++) {
        char *row = (char *)all + (size_t)r * bytes;
        if (r == OWN)
            continue;
        memcpy(row, &scene->reports[r], head);
        if (bytes >= head + sizeof *scene->values)
            memcpy(row + head, &scene->values[r], sizeof *scene->values);
    }
    return scene->ran == TUTTI_OK ? TUTTI_OK : error_set(scene->ran, "the exchange failed");
}

static struct scene scene_of(void)
{
    return (struct scene){.values = {100, 101, 102, 103},
                          .gather = {.run = run, .rank = OWN, .size = SIZE}};
}

static void fails(struct scene *scene, int rank, enum tutti_status status, const char *text)
{
    scene->reports[rank].status = (int32_t)status;
    scene->reports[rank].rank = 77; /* it may lie */
    snprintf(scene->reports[rank].text, sizeof scene->reports[rank].text, "%s", text);
}

static enum tutti_status agree(struct scene *scene, enum tutti_status mine)
{
    scene->gather.context = scene;
    scene->gather.rows = scene->rows;
    if (mine != TUTTI_OK)
        error_set(mine, "my reason");
    return gather_agree(&scene->gather, mine, &scene->values[OWN], sizeof *scene->values, 5000);
}

/* The status, the message, and whom the agreement blames. */
static void expect(struct scene *scene, enum tutti_status mine, enum tutti_status expected,
                   const char *text, int blamed)
{
    assert_int_equal(agree(scene, mine), expected);
    assert_string_equal(tutti_last_error(), text);
    assert_int_equal(scene->gather.blamed, blamed);
    assert_true(scene->gather.failed);
}

static void success_brings_the_values(void **state)
{
    struct scene scene = scene_of();
    const int members[] = {3, 1};
    int64_t value;
    (void)state;
    assert_int_equal(agree(&scene, TUTTI_OK), TUTTI_OK);
    assert_false(scene.gather.failed);
    assert_int_equal(scene.gather.blamed, -1);
    for (int r = 0; r < SIZE; r++) {
        gather_value(&scene.gather, r, &value, sizeof value);
        assert_int_equal(value, 100 + r);
    }
    scene.gather.members = members;
    gather_value(&scene.gather, 0, &value, sizeof value);
    assert_int_equal(value, 103);
    scene.gather.least_bytes = 48;
    assert_int_equal(agree(&scene, TUTTI_OK), TUTTI_OK);
    assert_int_equal(scene.bytes, sizeof(struct status_report) + 48);
    assert_int_equal(scene.timeout_ms, 5000);
}

static void a_rank_says_why_it_fails_and_the_others_name_it(void **state)
{
    struct scene scene = scene_of();
    (void)state;
    fails(&scene, 2, TUTTI_ERR_NO_MEMORY, "no memory");
    expect(&scene, TUTTI_OK, TUTTI_ERR_NO_MEMORY, "rank 2: no memory", 2);
    assert_true(scene.gather.alike);
    expect(&scene, TUTTI_ERR_NO_MEMORY, TUTTI_ERR_NO_MEMORY, "my reason", OWN);
    assert_true(scene.gather.alike);
    fails(&scene, 3, TUTTI_ERR_CUDA, "no device");
    expect(&scene, TUTTI_OK, TUTTI_ERR_NO_MEMORY, "rank 2: no memory", 2);
    assert_false(scene.gather.alike);
    fails(&scene, 2, TUTTI_OK, "");
    expect(&scene, TUTTI_ERR_DECLINED, TUTTI_ERR_DECLINED, "my reason", OWN);
    assert_false(scene.gather.alike);
}

static void a_dead_peer_is_the_last_reason(void **state)
{
    struct scene scene = scene_of();
    (void)state;
    fails(&scene, 0, TUTTI_ERR_PEER_DEAD, "rank 3 is gone");
    expect(&scene, TUTTI_OK, TUTTI_ERR_PEER_DEAD, "rank 0: rank 3 is gone", 0);
    expect(&scene, TUTTI_ERR_PEER_DEAD, TUTTI_ERR_PEER_DEAD, "my reason", OWN);
    fails(&scene, 3, TUTTI_ERR_NO_MEMORY, "no memory");
    expect(&scene, TUTTI_OK, TUTTI_ERR_NO_MEMORY, "rank 3: no memory", 3);
    expect(&scene, TUTTI_ERR_PEER_DEAD, TUTTI_ERR_NO_MEMORY, "rank 3: no memory", 3);
    assert_false(scene.gather.alike);
    assert_int_equal(scene.timeout_ms, 5000);
    scene.gather.blind = true;
    expect(&scene, TUTTI_ERR_PEER_DEAD, TUTTI_ERR_NO_MEMORY, "rank 3: no memory", 3);
    assert_int_equal(scene.timeout_ms, 1);
}

/* One of two ranks that agree over a store. */
struct part {
    struct tutti_exchanger exchanger;
    unsigned char rows[2][sizeof(struct status_report) + ROOM];
    struct gather gather;
    enum tutti_status status;
    char text[64];
};

/* Rank 1 fails in the second round. */
static void *take_part(void *argument)
{
    struct part *part = argument;
    const int rank = part->exchanger.rank;
    int64_t value = 100 + rank;
    part->gather = gather_by_store(&part->exchanger, part->rows);
    part->status = gather_agree(&part->gather, TUTTI_OK, &value, sizeof value, 5000);
    if (part->status == TUTTI_OK && rank == 1)
        part->status = error_set(TUTTI_ERR_NO_MEMORY, "no memory");
    part->status = gather_agree(&part->gather, part->status, &value, sizeof value, 5000);
    snprintf(part->text, sizeof part->text, "%s", tutti_last_error());
    return NULL;
}

static void over_a_store_only_a_failed_rank_sends_a_text(void **state)
{
    struct part parts[2] = {{.status = TUTTI_OK}};
    pthread_t other;
    tutti_store_t *store;
    (void)state;
    assert_int_equal(tutti_store_open("memory:agree", 0, &store), TUTTI_OK);
    for (int r = 0; r < 2; r++)
        parts[r].exchanger = (struct tutti_exchanger){.struct_size = sizeof parts[r].exchanger,
                                                      .store = store,
                                                      .prefix = "prefix",
                                                      .rank = r,
                                                      .size = 2};
    assert_int_equal(pthread_create(&other, NULL, take_part, &parts[1]), 0);
    take_part(&parts[0]);
    pthread_join(other, NULL);
    assert_int_equal(parts[0].gather.row_bytes, 16); /* status and value */
    assert_int_equal(parts[0].status, TUTTI_ERR_NO_MEMORY);
    assert_string_equal(parts[0].text, "rank 1: no memory");
    assert_int_equal(parts[1].status, TUTTI_ERR_NO_MEMORY);
    assert_string_equal(parts[1].text, "no memory");
    tutti_store_close(store);
}

static void an_exchange_that_fails_is_no_rank_s_fault(void **state)
{
    struct scene scene = scene_of();
    (void)state;
    fails(&scene, 2, TUTTI_ERR_NO_MEMORY, "never read");
    scene.ran = TUTTI_ERR_TIMEOUT;
    expect(&scene, TUTTI_OK, TUTTI_ERR_TIMEOUT, "the exchange failed", -1);
    expect(&scene, TUTTI_ERR_CUDA, TUTTI_ERR_CUDA, "my reason", -1);
    expect(&scene, TUTTI_ERR_PEER_DEAD, TUTTI_ERR_PEER_DEAD, "my reason", -1);
    assert_false(scene.gather.alike);
    scene.ran = TUTTI_ERR_ABORTED;
    expect(&scene, TUTTI_ERR_CUDA, TUTTI_ERR_CUDA, "my reason", -1);
    expect(&scene, TUTTI_ERR_PEER_DEAD, TUTTI_ERR_ABORTED, "the exchange failed", -1);
    scene.ran = TUTTI_ERR_PEER_DEAD; /* it may know more */
    expect(&scene, TUTTI_ERR_PEER_DEAD, TUTTI_ERR_PEER_DEAD, "the exchange failed", -1);
    expect(&scene, TUTTI_ERR_DECLINED, TUTTI_ERR_PEER_DEAD, "the exchange failed", -1);
}

static void a_terse_rank_sends_no_text(void **state)
{
    struct scene scene = scene_of();
    (void)state;
    scene.gather.terse = true;
    fails(&scene, 2, TUTTI_ERR_NO_MEMORY, "no memory");
    expect(&scene, TUTTI_OK, TUTTI_ERR_NO_MEMORY,
           "rank 2 failed (an allocation failed): look at its own error", 2);
    assert_int_equal(scene.bytes, 8 + sizeof *scene.values);
    expect(&scene, TUTTI_ERR_INVALID, TUTTI_ERR_INVALID, "my reason", OWN);
}

/* A process that misbehaves. */
static void garbage_does_no_harm(void **state)
{
    struct scene scene = scene_of();
    (void)state;
    scene.reports[0].status = 4711;
    memset(scene.reports[0].text, 'x', sizeof scene.reports[0].text);
    assert_int_equal(agree(&scene, TUTTI_OK), TUTTI_ERR_SYSTEM);
    assert_int_equal(scene.gather.blamed, 0);
    assert_memory_equal(tutti_last_error(), "rank 0: xxx", 11);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(success_brings_the_values),
        cmocka_unit_test(a_rank_says_why_it_fails_and_the_others_name_it),
        cmocka_unit_test(a_dead_peer_is_the_last_reason),
        cmocka_unit_test(over_a_store_only_a_failed_rank_sends_a_text),
        cmocka_unit_test(an_exchange_that_fails_is_no_rank_s_fault),
        cmocka_unit_test(a_terse_rank_sends_no_text),
        cmocka_unit_test(garbage_does_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
