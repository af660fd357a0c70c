/* SPDX-License-Identifier: MIT */
/* Which settings take part in a run, and that the table of them is sound. */
#include "comparison.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct comparison comparison;

/* How many of a library's settings take part at one size. */
static int taking_part(const char *library, size_t bytes, bool pinned)
{
    int count = 0;

    comparison.place.pinned = pinned;
    comparison.sizes[0] = bytes;
    comparison.size_count = 1;
    for (int i = 0; i < setting_count; i++)
        count += strcmp(settings[i].library, library) == 0 &&
                 comparison_wants(&comparison, &settings[i]);
    return count;
}

static int reset(void **state)
{
    (void)state;
    memset(&comparison, 0, sizeof(comparison));
    return 0;
}

static void every_library_takes_part_at_every_size(void **state)
{
    static const char *const libraries[] = {"tutti", "openmpi", "mpich", "gloo"};

    (void)state;
    for (int i = 0; i < 4; i++) {
        for (size_t bytes = 4; bytes <= (size_t)1 << 30; bytes *= 2) {
            assert_true(taking_part(libraries[i], bytes, true) > 0);
            assert_true(taking_part(libraries[i], bytes, false) > 0);
        }
    }
}

static void a_setting_takes_part_in_its_range_only(void **state)
{
    int few = taking_part("openmpi", 8, true);
    int more = taking_part("openmpi", 8192, true);

    (void)state;
    assert_true(few < more);
    comparison.thorough = true;
    assert_true(taking_part("openmpi", 8, true) > more);
}

static void engines_are_chosen_by_whole_names(void **state)
{
    (void)state;
    comparison.engines = "openmpi,tutti";
    assert_true(taking_part("openmpi", 8, true) > 0);
    assert_true(taking_part("tutti", 8, true) > 0);
    assert_int_equal(taking_part("mpich", 8, true), 0);
    comparison.engines = "open,mpich2";
    assert_int_equal(taking_part("openmpi", 8, true), 0);
    assert_int_equal(taking_part("mpich", 8, true), 0);
}

static void the_table_is_sound(void **state)
{
    (void)state;
    assert_true(setting_count <= COMPARISON_MAX_INSTANCES);
    for (int i = 0; i < setting_count; i++) {
        size_t length = strlen(settings[i].library);

        /* The columns of results rely on it. */
        assert_int_equal(strncmp(settings[i].name, settings[i].library, length), 0);
        assert_true(settings[i].name[length] == '\0' || settings[i].name[length] == ' ');
        assert_true(settings[i].uses != 0 && settings[i].from <= settings[i].to);
        for (int j = 0; j < SETTING_MAX_WORDS && settings[i].environment[j] != NULL; j++)
            assert_non_null(strchr(settings[i].environment[j], '='));
        for (int j = 0; j < i; j++)
            assert_string_not_equal(settings[i].name, settings[j].name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(every_library_takes_part_at_every_size, reset),
        cmocka_unit_test_setup(a_setting_takes_part_in_its_range_only, reset),
        cmocka_unit_test_setup(engines_are_chosen_by_whole_names, reset),
        cmocka_unit_test_setup(the_table_is_sound, reset),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
