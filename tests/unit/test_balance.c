/* SPDX-License-Identifier: MIT */
/* Where ranks that outnumber the cores go, and that nothing else about their threads changes. */
#include "cpu/balance.h"
#include "order.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { RANKS = 4, MS = 1000000, TRIES = 1000 };

static cpu_set_t cores_to(int count)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int core = 0; core < count; core++)
        CPU_SET(core, &set);
    return set;
}

static void test_target(void **state)
{
    (void)state;
    static const struct {
        int cores[RANKS];
        int rank, target;
    } cases[] = {
        {{0, 0, 0, 1}, 2, 1},   /* three and one: the last of the three goes */
        {{0, 0, 0, 1}, 1, -1},  /* and nobody else */
        {{0, 0, 0, 1}, 0, -1},  /* */
        {{0, 0, 0, 1}, 3, -1},  /* */
        {{1, 0, 1, 1}, 3, 0},   /* from whichever core */
        {{0, 0, 1, 1}, 1, -1},  /* even */
        {{0, 0, 1, -1}, 1, -1}, /* two and one: as good as one and two */
        {{0, 0, -1, -1}, 1, 1}, /* two and none */
        {{0, -1, -1, -1}, 0, -1} /* alone */,
        {{-1, 0, 0, 0}, 0, -1},  /* own core not known */
        {{0, 0, 0, 5000}, 2, 1}, /* a core that no mask can name */
        {{5000, 5000, 5000, 1}, 2, -1},
    };
    cpu_set_t two = cores_to(2), one = cores_to(1), four = cores_to(4);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(balance_target(cases[i].cores, RANKS, cases[i].rank, &two),
                         cases[i].target);
    /* Not where the mask does not allow, and where the fewest are. */
    assert_int_equal(balance_target(cases[0].cores, RANKS, 2, &one), -1);
    assert_int_equal(balance_target(cases[0].cores, RANKS, 2, &four), 2);
}

static void test_part(void **state)
{
    (void)state;
    static const struct {
        int allowed, cores, size;
        bool parted;
    } cases[] = {
        {2, 2, 2, true},    {3, 3, 2, true},    {15, 15, 4, true}, {5, 5, 5, true},
        {64, 64, 64, true}, {1, 1, 1, false},   {4, 4, 1, false},  {1, 1, 2, false},
        {2, 4, 2, false},   {16, 16, 4, false}, {3, 3, 4, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cpu_set_t allowed, left, part;
        int least = CPU_SETSIZE, most = 0;
        CPU_ZERO(&allowed);
        for (int core = 0; core < cases[i].allowed; core++)
            CPU_SET(3 * core + 1, &allowed);
        left = allowed;
        for (int rank = 0; rank < cases[i].size; rank++) {
            assert_int_equal(balance_part(&allowed, cases[i].cores, rank, cases[i].size, &part),
                             cases[i].parted);
            if (!cases[i].parted)
                continue;
            int count = CPU_COUNT(&part);
            least = count < least ? count : least;
            most = count > most ? count : most;
            for (int core = 0; core < CPU_SETSIZE; core++)
                if (CPU_ISSET(core, &part)) {
                    assert_true(CPU_ISSET(core, &left)); /* allowed, and nobody else's */
                    CPU_CLR(core, &left);
                }
        }
        if (cases[i].parted) {
            assert_int_equal(CPU_COUNT(&left), 0);
            assert_in_range(least, 1, most);
            assert_in_range(most, least, least + 1);
        }
    }
}

/* Of ranks 0 and 2 on one core and 1 and 3 elsewhere, as rank 0 sees it, who waits for rank 1. */
static void test_wanted(void **state)
{
    (void)state;
    enum { VALUE = 7 };
    static struct layout_arena arenas[RANKS];
    struct cpu_group group = {.size = RANKS, .oversubscribed = true, .mates = UINT64_C(1) << 2};
    uint32_t *words[RANKS];
    for (int r = 0; r < RANKS; r++) {
        group.arenas[r] = &arenas[r];
        words[r] = &group.arenas[r]->mails[1].header.turn;
        *words[r] = VALUE - 1;
    }
    static const struct {
        uint32_t mate, elsewhere;
        bool wanted;
    } cases[] = {
        {VALUE - 1, VALUE - 1, true},  /* nobody has come */
        {VALUE - 1, VALUE, true},      /* the mate has not */
        {VALUE, VALUE - 1, false},     /* it has: rank 3 has a core of its own */
        {VALUE + 1, VALUE - 1, false}, /* and is ahead */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        *words[2] = cases[i].mate;
        *words[3] = cases[i].elsewhere;
        assert_int_equal(balance_core_is_wanted(&group, 1, words[1], VALUE), cases[i].wanted);
    }
    *words[2] = 0; /* of the next turn, where numbers begin anew */
    assert_false(balance_core_is_wanted(&group, 1, words[1], UINT32_MAX));
    *words[2] = UINT32_MAX;
    assert_true(balance_core_is_wanted(&group, 1, words[1], 0));
    *words[2] = VALUE;
    group.mates = 0; /* alone */
    assert_false(balance_core_is_wanted(&group, 1, words[1], VALUE));
    group.mates = 0xe; /* not known: all others */
    assert_true(balance_core_is_wanted(&group, 1, words[1], VALUE));
    group.mates = UINT64_C(1) << 2;
    group.oversubscribed = false;
    assert_true(balance_core_is_wanted(&group, 1, words[1], VALUE));
    group.oversubscribed = true;
    group.sparse = true; /* not all arenas are mapped whole */
    assert_true(balance_core_is_wanted(&group, 1, words[1], VALUE));
}

static cpu_set_t own_mask(void)
{
    cpu_set_t mask;
    assert_int_equal(sched_getaffinity(0, sizeof mask, &mask), 0);
    return mask;
}

static void test_move(void **state)
{
    (void)state;
    cpu_set_t before = own_mask();
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &before))
            continue;
        assert_true(balance_move(core));
        cpu_set_t after = own_mask();
        assert_true(CPU_EQUAL(&before, &after));
    }
    /* A core that this machine has not: no thread is moved and no mask changed. */
    if (!CPU_ISSET(CPU_SETSIZE - 1, &before)) {
        assert_false(balance_move(CPU_SETSIZE - 1));
        cpu_set_t after = own_mask();
        assert_true(CPU_EQUAL(&before, &after));
    }
}

/* The thread and those that it starts. */
static void *keep(void *context)
{
    cpu_set_t before = own_mask(), after;
    int cores = CPU_COUNT(&before), size = cores < 2 ? 2 : cores, *failures = context;
    balance_keep_to_part(cores, 0, size);
    after = own_mask();
    *failures += CPU_COUNT(&after) != 1;
    balance_keep_to_part(cores, 0, size); /* no longer wherever others may */
    before = own_mask();
    *failures += !CPU_EQUAL(&before, &after);
    return NULL;
}

static void test_keep(void **state)
{
    (void)state;
    cpu_set_t before = own_mask(), after;
    pthread_t thread;
    int failures = 0;
    assert_int_equal(pthread_create(&thread, NULL, keep, &failures), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(failures, 0);
    after = own_mask();
    assert_true(CPU_EQUAL(&before, &after));
}

/* A group whose ranks but the last, ours, are words in memory. */
static void group_make(struct cpu_group *group)
{
    *group = (struct cpu_group){.rank = RANKS - 1, .size = RANKS, .oversubscribed = true};
    for (int r = 0; r < RANKS; r++) {
        group->arenas[r] = calloc(1, sizeof *group->arenas[r]);
        assert_non_null(group->arenas[r]);
    }
    group->own = group->arenas[group->rank];
}

static void group_free(struct cpu_group *group)
{
    for (int r = 0; r < RANKS; r++)
        free(group->arenas[r]);
}

/* Looks with all other ranks where we are, until we move; the kernel may move us between two looks,
 * but not for ever. The time afterwards. */
static int64_t move_away(struct cpu_group *group, int64_t now)
{
    const int64_t move_at = group->move_at;
    int core = -1;
    for (int i = 0; i < TRIES && group->move_at == move_at; i++, now += MS) {
        core = group->core;
        for (int r = 0; r < RANKS - 1; r++)
            order_store_relaxed_u32(&group->arenas[r]->core, (uint32_t)sched_getcpu() + 1);
        balance(group, now, 0);
    }
    assert_true(group->move_at > move_at);
    assert_int_equal(group->came_from, core);
    assert_int_not_equal(group->core, core);
    assert_int_equal(order_load_relaxed_u32(&group->own->core), group->core + 1);
    return now;
}

static void test_look(void **state)
{
    (void)state;
    struct cpu_group group;
    cpu_set_t before = own_mask();
    if (CPU_COUNT(&before) < 2)
        skip();
    group_make(&group);
    int64_t now = move_away(&group, 100 * MS), again = group.move_at;
    cpu_set_t after = own_mask();
    assert_true(CPU_EQUAL(&before, &after));
    assert_true(CPU_ISSET(group.core, &before));

    /* Not again at once, however the others lie; then again. */
    for (; now < again; now += MS) {
        for (int r = 0; r < RANKS - 1; r++)
            order_store_relaxed_u32(&group.arenas[r]->core, (uint32_t)sched_getcpu() + 1);
        balance(&group, now, 0);
        assert_int_equal(group.move_at, again);
    }
    move_away(&group, now);
    group_free(&group);
}

/* Another program has the core that we moved to. */
static void test_back(void **state)
{
    (void)state;
    struct cpu_group group;
    cpu_set_t before = own_mask();
    if (CPU_COUNT(&before) < 2)
        skip();
    group_make(&group);
    int64_t now = 100 * MS, rest = 0;
    for (int i = 0; i < 3; i++) {
        now = move_away(&group, now) + 5 * MS;
        balance(&group, now, 5 * MS);
        assert_int_equal(group.core, group.came_from);
        assert_true(group.move_at - now > rest); /* each time for longer */
        rest = group.move_at - now;
        cpu_set_t after = own_mask();
        assert_true(CPU_EQUAL(&before, &after));
        now = group.move_at;
    }

    /* Later it is no fault of the move, which lasted: the next one that does not costs less. */
    now = move_away(&group, now) + 100 * MS;
    balance(&group, now, 5 * MS);
    assert_true(group.move_at <= now);
    now = move_away(&group, now) + 5 * MS;
    balance(&group, now, 5 * MS);
    assert_true(group.move_at > now);
    assert_true(group.move_at - now < rest);
    group_free(&group);
}

static void test_cores_enough(void **state)
{
    (void)state;
    struct cpu_group group;
    group_make(&group);
    group.oversubscribed = false;
    for (int64_t now = MS; now < 20 * MS; now += MS)
        balance(&group, now, 0);
    assert_int_equal(order_load_relaxed_u32(&group.own->core), 0);
    group_free(&group);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_target), cmocka_unit_test(test_part),
        cmocka_unit_test(test_wanted), cmocka_unit_test(test_keep),
        cmocka_unit_test(test_move),   cmocka_unit_test(test_look),
        cmocka_unit_test(test_back),   cmocka_unit_test(test_cores_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
