/* SPDX-License-Identifier: MIT */
/* The regions of a process: which one an address lies in, who sees it when, and how many there can
 * be. */
#include "coll/region.h"
#include "ipc/fork.h"
#include "tutti/tutti.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static unsigned char memory[REGION_MAX + 1];

static struct region make(void *base, size_t bytes)
{
    uint32_t epoch;
    assert_int_equal(fork_epoch(&epoch), TUTTI_OK);
    return (struct region){
        .base = base, .bytes = bytes, .epoch = epoch, .ordinal = -1, .ready = 1, .id = 77};
}

static void an_address_is_found_in_its_region(void **state)
{
    (void)state;
    struct region region = make(memory + 16, 64);
    region_remove(&region); /* it was not added */
    assert_null(region_find(memory + 16, 1));
    assert_true(region_add(&region));
    assert_ptr_equal(region_find(memory + 16, 64), &region);
    assert_ptr_equal(region_find(memory + 79, 1), &region);
    assert_null(region_find(memory + 15, 1));
    assert_null(region_find(memory + 79, 2));
    assert_null(region_find(memory + 17, SIZE_MAX));
    region_remove(&region);
    assert_null(region_find(memory + 16, 1));
}

static void a_region_is_found_when_all_ranks_have_mapped_it(void **state)
{
    (void)state;
    struct region region = make(memory, 64);
    region.ready = 0;
    assert_true(region_add(&region));
    assert_null(region_find(memory, 1));
    assert_ptr_equal(region_lookup(memory, 1), &region);
    order_store_release_u32(&region.ready, 1);
    assert_ptr_equal(region_find(memory, 1), &region);
    region_remove(&region);
}

static void memory_of_a_device_is_told_apart(void **state)
{
    (void)state;
    int ordinal = -1;
    struct region host = make(memory, 64), device = make(memory + 64, 64);
    device.ordinal = 3;
    assert_true(region_add(&host));
    assert_false(region_on_device(memory, &ordinal));
    assert_true(region_add(&device));
    assert_false(region_on_device(memory, &ordinal));
    assert_int_equal(ordinal, -1);
    assert_true(region_on_device(memory + 127, &ordinal));
    assert_int_equal(ordinal, 3);
    assert_null(region_find(memory + 64, 1));
    region_remove(&device);
    assert_false(region_on_device(memory + 127, &ordinal));
    region_remove(&host);
}

static void the_table_has_an_end(void **state)
{
    (void)state;
    static struct region regions[REGION_MAX + 1];
    for (int i = 0; i <= REGION_MAX; i++) {
        regions[i] = make(memory + i, 1);
        assert_int_equal(region_add(&regions[i]), i < REGION_MAX);
    }
    region_remove(&regions[5]);
    assert_null(region_find(memory + 5, 1));
    assert_true(region_add(&regions[REGION_MAX]));
    assert_ptr_equal(region_find(memory + REGION_MAX, 1), &regions[REGION_MAX]);
    for (int i = 0; i <= REGION_MAX; i++)
        region_remove(&regions[i]);
    assert_null(region_lookup(memory, 1));
}

/* A process group's buffer is no symmetric memory of the user. */
static void only_symmetric_memory_is_freed(void **state)
{
    (void)state;
    int group = 0;
    struct region region = make(memory, 64);
    assert_true(region_add(&region));
    assert_int_equal(tutti_symm_free(memory), TUTTI_ERR_INVALID);
    assert_null(region_of_group(&group));
    assert_ptr_equal(region_find(memory, 64), &region);
    region_remove(&region);
    region.symm_group = &group;
    assert_true(region_add(&region));
    assert_ptr_equal(region_of_group(&group), &region);
    region_remove(&region);
}

static void a_child_has_none(void **state)
{
    (void)state;
    struct region region = make(memory, 64);
    assert_true(region_add(&region));
    const pid_t child = fork();
    if (child == 0) {
        struct region own = make(memory, 64);
        const bool good =
            !region_find(memory, 1) && region_add(&own) && region_find(memory, 1) == &own;
        _exit(good ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_ptr_equal(region_find(memory, 64), &region);
    region_remove(&region);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_address_is_found_in_its_region),
        cmocka_unit_test(a_region_is_found_when_all_ranks_have_mapped_it),
        cmocka_unit_test(memory_of_a_device_is_told_apart),
        cmocka_unit_test(the_table_has_an_end),
        cmocka_unit_test(only_symmetric_memory_is_freed),
        cmocka_unit_test(a_child_has_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
