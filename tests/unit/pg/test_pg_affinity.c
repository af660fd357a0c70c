/* SPDX-License-Identifier: MIT */
/* The cores to which the threads of process groups are bound. */
#include "pg/affinity.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

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
            assert_int_equal(affinity_part(&allowed, cases[i].cores, rank, cases[i].size, &part),
                             cases[i].parted);
            if (!cases[i].parted)
                continue;
            int count = CPU_COUNT(&part);
            least = count < least ? count : least;
            most = count > most ? count : most;
            for (int core = 0; core < CPU_SETSIZE; core++)
                if (CPU_ISSET(core, &part)) {
                    assert_true(CPU_ISSET(core, &left)); /* allowed, and no other rank's */
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

static cpu_set_t own_mask(void)
{
    cpu_set_t mask;
    assert_int_equal(sched_getaffinity(0, sizeof mask, &mask), 0);
    return mask;
}

/* Binds this thread. A thread that may not run on all cores is not bound again. */
static void *keep(void *context)
{
    cpu_set_t before = own_mask(), after;
    int cores = CPU_COUNT(&before), size = cores < 2 ? 2 : cores, *failures = context;
    affinity_keep_to_part(cores, 0, size);
    after = own_mask();
    *failures += CPU_COUNT(&after) != 1;
    affinity_keep_to_part(cores, 0, size); /* this thread may not run on all cores any more */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_part),
        cmocka_unit_test(test_keep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
