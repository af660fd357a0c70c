/* SPDX-License-Identifier: MIT */
/* What the comparison writes: medians, the best rival, ratios, in JSON and as columns. */
#include "report.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

static const struct setting ours = {.name = "tutti", .library = "tutti"};
static const struct setting symmetric = {.name = "tutti symmetric", .library = "tutti"};
static const struct setting slow = {.name = "openmpi", .library = "openmpi"};
static const struct setting fast = {.name = "openmpi ucx", .library = "openmpi"};
static const struct setting other = {.name = "gloo", .library = "gloo"};

static struct comparison comparison;

static void add(struct samples *samples, double us, int count)
{
    for (int i = 0; i < count; i++)
        assert_int_equal(samples_add(samples, us * 1000), 0);
}

/* One size, near: ours 2 us, symmetric 1, Open MPI 5 and 4, Gloo too few samples; far: Gloo 50. */
static int set_up(void **state)
{
    static const struct setting *const list[] = {&ours, &symmetric, &slow, &fast, &other};
    struct cell *cells = comparison.cells[0];

    (void)state;
    memset(&comparison, 0, sizeof(comparison));
    comparison.place.ranks = 2;
    comparison.sizes[0] = 65536;
    comparison.size_count = 1;
    comparison.instance_count = 5;
    for (int i = 0; i < 5; i++)
        comparison.instances[i].setting = list[i];
    strcpy(cells[0].algo, "two_shot");
    strcpy(cells[1].algo, "one_shot");
    add(&cells[0].samples[PLACEMENT_NEAR], 2, 5);
    add(&cells[1].samples[PLACEMENT_NEAR], 1, 5);
    add(&cells[2].samples[PLACEMENT_NEAR], 5, 5);
    add(&cells[3].samples[PLACEMENT_NEAR], 4, 5);
    add(&cells[4].samples[PLACEMENT_NEAR], 0.1, 2);
    add(&cells[4].samples[PLACEMENT_FAR], 50, 5);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < comparison.instance_count; i++) {
        for (int placement = 0; placement < PLACEMENT_COUNT; placement++) {
            samples_fini(&comparison.cells[0][i].samples[placement]);
            samples_fini(&comparison.cells[0][i].quiet[placement]);
        }
    }
    return 0;
}

/* Writes the report to a file and reads it back. [out] path  to be unlinked. */
static json_t *report(char *path)
{
    int fd = mkstemp(path);
    json_t *json;

    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(report_json(&comparison, "compare --it", path), 0);
    json = json_load_file(path, 0, NULL);
    assert_non_null(json);
    return json;
}

static double number(const json_t *row, const char *name)
{
    return json_number_value(json_object_get(row, name));
}

static const char *string(const json_t *row, const char *name)
{
    const char *text = json_string_value(json_object_get(row, name));

    return text != NULL ? text : "";
}

static void json_has_the_format_of_all_benchmarks(void **state)
{
    char path[] = "/tmp/tutti-report-XXXXXX";
    json_t *json = report(path);
    json_t *row = json_array_get(json_object_get(json, "rows"), 0);

    (void)state;
    assert_string_equal(string(json, "command"), "compare --it");
    assert_true(*string(json, "machine") != '\0' && *string(json, "commit") != '\0');
    assert_int_equal(strlen(string(json, "date")), strlen("2026-01-01T00:00:00Z"));
    assert_string_equal(string(row, "collective"), "all_reduce");
    assert_string_equal(string(row, "dtype"), "float32");
    assert_string_equal(string(row, "op"), "sum");
    assert_string_equal(string(row, "placement"), "near");
    assert_string_equal(string(row, "algo"), "two_shot");
    assert_true(number(row, "ranks") == 2 && number(row, "bytes") == 65536);
    assert_true(number(row, "tutti_us") == 2 && number(row, "ratio") == 0.5);
    row = json_object_get(row, "rivals");
    assert_int_equal(json_object_size(row), 2);
    assert_true(number(row, "openmpi") == 5 && number(row, "openmpi ucx") == 4);
    json_decref(json);
    unlink(path);
}

static void absent_figures_are_null(void **state)
{
    char path[] = "/tmp/tutti-report-XXXXXX";
    json_t *json = report(path);
    json_t *row = json_array_get(json_object_get(json, "rows"), 1);

    (void)state;
    assert_string_equal(string(row, "placement"), "far");
    assert_true(json_is_null(json_object_get(row, "tutti_us")));
    assert_true(json_is_null(json_object_get(row, "ratio")));
    assert_true(number(json_object_get(row, "rivals"), "gloo") == 50);
    json_decref(json);
    unlink(path);
}

static void symmetric_buffers_have_rows_of_their_own(void **state)
{
    char path[] = "/tmp/tutti-report-XXXXXX";
    json_t *json = report(path);
    json_t *rows = json_object_get(json, "rows");
    json_t *row = json_array_get(rows, 2);

    (void)state;
    assert_int_equal(json_array_size(rows), 3);
    assert_null(json_object_get(json_array_get(rows, 0), "buffers"));
    assert_string_equal(string(row, "buffers"), "symmetric");
    assert_string_equal(string(row, "algo"), "one_shot");
    assert_true(number(row, "tutti_us") == 1 && number(row, "ratio") == 0.25);
    json_decref(json);
    unlink(path);
}

static void quiet_blocks_are_preferred_unless_cores_are_shared(void **state)
{
    char path[] = "/tmp/tutti-report-XXXXXX";
    struct cell *cell = &comparison.cells[0][0];
    json_t *json;
    json_t *rows;

    (void)state;
    add(&cell->quiet[PLACEMENT_NEAR], 1.5, 3);
    add(&cell->quiet[PLACEMENT_OVERSUBSCRIBED], 1.5, 3);
    add(&cell->samples[PLACEMENT_OVERSUBSCRIBED], 9, 3);
    json = report(path);
    rows = json_object_get(json, "rows");
    assert_true(number(json_array_get(rows, 0), "tutti_us") == 1.5);
    assert_string_equal(string(json_array_get(rows, 2), "placement"), "oversubscribed");
    assert_true(number(json_array_get(rows, 2), "tutti_us") == 9);
    json_decref(json);
    unlink(path);
}

static void columns_have_each_librarys_best(void **state)
{
    char path[] = "/tmp/tutti-report-XXXXXX";
    char *paths[] = {path};
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    (void)state;
    json_decref(report(path));
    assert_int_equal(report_columns(paths, 1, out), 0);
    fclose(out);
    assert_string_equal(text, "# ranks\tplacement\tbuffers\tbytes\ttutti\topenmpi\tmpich\tgloo\n"
                              "2\tnear\tany\t65536\t2.0000\t4.0000\t?\t?\n"
                              "2\tfar\tany\t65536\t?\t?\t?\t50.0000\n"
                              "2\tnear\tsymmetric\t65536\t1.0000\t4.0000\t?\t?\n");
    free(text);
    unlink(path);
}

static void the_table_names_the_best_rival(void **state)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    (void)state;
    report_table(&comparison, out);
    fclose(out);
    assert_non_null(strstr(text, "openmpi ucx\n"));
    assert_non_null(strstr(text, "0.500   0.250  openmpi ucx\n"));
    free(text);
}

static void wrong_results_are_named_and_do_not_count(void **state)
{
    char path[] = "/tmp/tutti-report-XXXXXX";
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    json_t *json, *row;

    (void)state;
    comparison.cells[0][3].wrong = true;
    comparison.cells[0][4].wrong = true;
    report_table(&comparison, out);
    fclose(out);
    assert_non_null(strstr(text, "0.400   0.200  openmpi; wrong: openmpi ucx, gloo\n"));
    free(text);
    json = report(path);
    row = json_array_get(json_object_get(json, "rows"), 0);
    assert_true(number(row, "ratio") == 0.4);
    assert_int_equal(json_array_size(json_object_get(row, "wrong_settings")), 2);
    assert_string_equal(
        json_string_value(json_array_get(json_object_get(row, "wrong_settings"), 0)),
        "openmpi ucx");
    row = json_object_get(row, "rivals");
    assert_int_equal(json_object_size(row), 1);
    assert_true(number(row, "openmpi") == 5);
    json_decref(json);
    unlink(path);
}

/* Where nothing has been sampled. */
static void a_wrong_result_has_a_row_even_if_alone(void **state)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    (void)state;
    comparison.cells[0][4].wrong = true;
    comparison.place.pinned = false;
    report_table(&comparison, out);
    fclose(out);
    assert_non_null(strstr(text, "    65536  oversubscribed"));
    assert_non_null(strstr(text, "  -; wrong: gloo\n"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(json_has_the_format_of_all_benchmarks, set_up, tear_down),
        cmocka_unit_test_setup_teardown(absent_figures_are_null, set_up, tear_down),
        cmocka_unit_test_setup_teardown(symmetric_buffers_have_rows_of_their_own, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(quiet_blocks_are_preferred_unless_cores_are_shared, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(columns_have_each_librarys_best, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_table_names_the_best_rival, set_up, tear_down),
        cmocka_unit_test_setup_teardown(wrong_results_are_named_and_do_not_count, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_wrong_result_has_a_row_even_if_alone, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
