/* SPDX-License-Identifier: MIT */
/* The engine's hash map, also with more objects than it has buckets at first, and its lines:
 * compared with a plain list under random changes. */
#include "pg/map.h"
#include "random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { OBJECTS = 20000, KEYS = 40, MEMBERS = 300, CHANGES = 200000 };

static void many_objects(void **state)
{
    static struct pg_map map;
    static struct pg_key keys[OBJECTS];
    size_t seen = 0;
    (void)state;
    for (uint32_t i = 0; i < OBJECTS; i++) {
        keys[i] = (struct pg_key){.tag = i % 97, .sequence = i};
        pg_map_insert(&map, &keys[i]);
    }
    assert_true(map.size > OBJECTS / 4); /* few objects share a bucket */
    for (uint32_t i = 0; i < OBJECTS; i++)
        assert_ptr_equal(pg_map_find(&map, i % 97, i), &keys[i]);
    assert_null(pg_map_find(&map, 1, 0));
    for (uint32_t i = 0; i < OBJECTS; i += 2)
        assert_ptr_equal(pg_map_take(&map, i % 97, i), &keys[i]);
    assert_null(pg_map_take(&map, 0, 0));
    while (pg_map_take_any(&map))
        seen++;
    assert_int_equal(seen, OBJECTS / 2);
    assert_int_equal(map.count, 0);
    pg_map_insert(&map, &keys[0]); /* below the last bucket that was looked at */
    assert_ptr_equal(pg_map_take_any(&map), &keys[0]);
    pg_map_clear(&map);
    assert_null(pg_map_find(&map, 0, 0));
}

/* order[i]: when member i came to its line; 0: it is in none. */
static int first_of(const struct pg_member *members, const uint64_t *order, uint32_t tag)
{
    int first = -1;
    for (int i = 0; i < MEMBERS; i++)
        if (order[i] && members[i].key.tag == tag && (first < 0 || order[i] < order[first]))
            first = i;
    return first;
}

static void lines(void **state)
{
    static struct pg_map map;
    static struct pg_member members[MEMBERS];
    static uint64_t order[MEMBERS];
    uint64_t random = 7;
    (void)state;
    for (uint64_t change = 1; change <= CHANGES; change++) {
        const int i = random_below(&random, MEMBERS);
        if (order[i]) {
            pg_line_remove(&map, &members[i]);
            order[i] = 0;
        } else {
            members[i].key = (struct pg_key){.tag = (uint32_t)random_below(&random, KEYS)};
            pg_line_append(&map, &members[i]);
            order[i] = change;
        }
        const uint32_t tag = members[i].key.tag;
        const int first = first_of(members, order, tag);
        assert_ptr_equal(pg_line_first(&map, tag, 0), first < 0 ? NULL : &members[first]);
        assert_null(pg_line_first(&map, tag, 1));
    }
    pg_map_clear(&map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_objects),
        cmocka_unit_test(lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
