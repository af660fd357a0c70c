/* SPDX-License-Identifier: MIT */
/* Verdicts of `tutti diagnose`: each kind of evidence, and which goes before which; and files that
 * are no dumps. */
#include "diagnose.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 4, CALLS = DIAGNOSE_CALLS, ANY = -2, MESSAGE = -10 };

struct op {
    int sequence;
    int count; /* of elements, which tells operations apart here */
    const char *state;
    int lane; /* CALLS, or a tag; of a message MESSAGE less its peer */
};

/* A rank's dump in a few words; sequence 0 ends the operations. */
struct story {
    bool absent; /* there is none */
    int awaits;  /* 1 + that rank */
    const char *fault;
    int peer, at;     /* of the fault */
    const char *life; /* that it ascribes to the last rank */
    int entered;      /* likewise */
    struct op operations[8];
};

static json_t *operation_pack(const struct op *op)
{
    json_t *object = json_pack("{s:s, s:i, s:s, s:i, s:s, s:s, s:s, s:i, s:s}", "kind",
                               op->lane == CALLS  ? "call"
                               : op->lane < CALLS ? "message"
                                                  : "group",
                               "sequence", op->sequence, "collective", "all_reduce", "count",
                               op->count, "dtype", "float32", "op", "sum", "algorithm", "one_shot",
                               "parameter", 0, "state", op->state);
    if (op->lane != CALLS)
        json_object_set_new(object, "tag", json_integer(op->lane < CALLS ? 7 : op->lane));
    if (op->lane < CALLS)
        json_object_set_new(object, "peer", json_integer(MESSAGE - op->lane));
    return object;
}

static json_t *fault_pack(const struct story *story, int rank)
{
    if (!story->fault)
        return json_null();
    json_t *expected = operation_pack(&(struct op){1, 4, "", CALLS});
    json_t *seen = operation_pack(&(struct op){1, 5, "", CALLS});
    return json_pack("{s:s, s:s, s:i, s:i, s:i, s:o, s:o}", "status", story->fault, "text", "why",
                     "rank", rank, "peer", story->peer, "sequence", story->at, "expected", expected,
                     "seen", seen);
}

static json_t *dump_pack(const struct story *story, int rank)
{
    json_t *operations = json_array(), *peers = json_array();
    for (const struct op *op = story->operations; op->sequence; op++)
        json_array_append_new(operations, operation_pack(op));
    if (story->life && rank != RANKS - 1)
        json_array_append_new(peers, json_pack("{s:i, s:s, s:i}", "rank", RANKS - 1, "life",
                                               story->life, "entered", story->entered));
    json_t *waits = story->awaits
                        ? json_pack("{s:i, s:i}", "rank", story->awaits - 1, "sequence", 1)
                        : json_null();
    return json_pack("{s:i, s:s, s:i, s:i, s:i, s:i, s:i, s:s, s:o, s:o, s:o, s:o}", "tutti_dump",
                     1, "name", "story", "generation", 1, "rank", rank, "world_size", RANKS, "pid",
                     100 + rank, "taken_ns", 5, "phase", "met", "waits", waits, "fault",
                     fault_pack(story, rank), "peers", peers, "operations", operations);
}

static void judge(const struct story stories[RANKS], struct verdict *verdict)
{
    static struct dump dumps[RANKS];
    struct dump *members[RANKS];
    size_t count = 0;
    for (int rank = 0; rank < RANKS; rank++) {
        char problem[256] = "";
        if (stories[rank].absent)
            continue;
        json_t *root = dump_pack(&stories[rank], rank);
        char *text = json_dumps(root, 0);
        assert_non_null(text);
        if (!dump_parse(text, strlen(text), &dumps[count], problem, sizeof problem))
            fail_msg("%s: %s", problem, text);
        members[count] = &dumps[count];
        count++;
        free(text);
        json_decref(root);
    }
    assert_true(diagnose_judge(members, count, verdict));
    for (size_t i = 0; i < count; i++)
        dump_free(&dumps[i]);
    verdict->first = NULL; /* has gone with its dump */
}

#define DONE(sequence, count)                                                                      \
    {                                                                                              \
        sequence, count, "done", CALLS                                                             \
    }
#define RUNNING(sequence, count)                                                                   \
    {                                                                                              \
        sequence, count, "running", CALLS                                                          \
    }
#define TAGGED(tag, sequence, count, state)                                                        \
    {                                                                                              \
        sequence, count, state, tag                                                                \
    }

/* The number means nothing to other ranks, so it differs. */
#define MESSAGE_WITH(peer, state)                                                                  \
    {                                                                                              \
        20 + (peer), 4, state, MESSAGE - (peer)                                                    \
    }

static const struct row {
    const char *title;
    struct story stories[RANKS];
    struct {
        uint64_t culprits; /* bit r */
        enum culprit_reason reason;
        int lane, sequence, last;
    } expected;
} rows[] = {
    {"all is well",
     {{.operations = {DONE(1, 4)}},
      {.operations = {DONE(1, 4)}},
      {.operations = {DONE(1, 4)}},
      {.operations = {DONE(1, 4)}}},
     {0, CULPRIT_MISSING, CALLS, 0, 0}},
    {"dumps taken one after the other, while all goes on",
     {{.operations = {DONE(1, 4)}},
      {.operations = {DONE(1, 4), DONE(2, 4)}},
      {.operations = {DONE(1, 4)}},
      {.operations = {DONE(1, 4), DONE(2, 4)}}},
     {0, CULPRIT_MISSING, CALLS, 0, 0}},
    {"one against three; later ones do not count",
     {{.operations = {DONE(1, 4), RUNNING(2, 5)}},
      {.operations = {DONE(1, 4), RUNNING(2, 5)}},
      {.operations = {DONE(1, 4), RUNNING(2, 6), RUNNING(3, 7)}},
      {.operations = {DONE(1, 4), RUNNING(2, 5), RUNNING(3, 8)}}},
     {1 << 2, CULPRIT_MISMATCH, CALLS, 2, 3}},
    {"two against two",
     {{.operations = {RUNNING(2, 5)}},
      {.operations = {RUNNING(2, 6)}},
      {.operations = {RUNNING(2, 6)}},
      {.operations = {RUNNING(2, 5)}}},
     {15, CULPRIT_DISAGREE, CALLS, 2, 2}},
    {"a disagreement goes before the death that came of it",
     {{.fault = "TUTTI_ERR_PEER_DEAD", .peer = 3, .at = 2, .operations = {RUNNING(2, 5)}},
      {.operations = {RUNNING(2, 6)}},
      {.operations = {RUNNING(2, 5)}},
      {.absent = true}},
     {1 << 1, CULPRIT_MISMATCH, CALLS, 2, 2}},
    {"a mismatch that only the fault knows of: both sides",
     {{.fault = "TUTTI_ERR_MISMATCH", .peer = 3, .at = 9},
      {.absent = true},
      {.absent = true},
      {.absent = true}},
     {9, CULPRIT_DISAGREE, CALLS, 9, ANY}},
    {"the first fault, not a later one",
     {{.fault = "TUTTI_ERR_TIMEOUT", .peer = 1, .at = 7, .operations = {RUNNING(7, 4)}},
      {.fault = "TUTTI_ERR_PEER_DEAD", .peer = 3, .at = 6, .operations = {RUNNING(6, 4)}},
      {.operations = {RUNNING(6, 4)}},
      {.absent = true}},
     {1 << 3, CULPRIT_GONE, CALLS, 6, -1}},
    {"an abort",
     {{.fault = "TUTTI_ERR_ABORTED", .peer = 2, .at = 6, .operations = {RUNNING(6, 4)}},
      {.operations = {RUNNING(6, 4)}},
      {.operations = {RUNNING(6, 4)}},
      {.operations = {RUNNING(6, 4)}}},
     {1 << 2, CULPRIT_ABORTED, CALLS, 6, 6}},
    {"awaited, and its process has ended",
     {{.awaits = 4, .life = "dead", .entered = 1, .operations = {RUNNING(2, 4)}},
      {.operations = {RUNNING(2, 4)}},
      {.operations = {RUNNING(2, 4)}},
      {.absent = true}},
     {1 << 3, CULPRIT_GONE, CALLS, 0, 1}},
    {"two have not come, one of them without a dump",
     {{.awaits = 2, .life = "alive", .entered = 1, .operations = {DONE(1, 4), RUNNING(2, 4)}},
      {.operations = {DONE(1, 4)}},
      {.operations = {DONE(1, 4), RUNNING(2, 4)}},
      {.absent = true}},
     {1 << 1 | 1 << 3, CULPRIT_BEHIND, CALLS, 2, 1}},
    {"has not come under one tag; calls go on",
     {{.operations = {DONE(1, 4), TAGGED(7, 3, 8, "submitted")}},
      {.operations = {DONE(1, 4), TAGGED(7, 3, 8, "submitted")}},
      {.operations = {DONE(1, 4), TAGGED(7, 2, 8, "done"), TAGGED(8, 9, 8, "done")}},
      {.operations = {DONE(1, 4), TAGGED(7, 3, 8, "submitted")}}},
     {1 << 2, CULPRIT_BEHIND, 7, 3, 2}},
    {"messages in a chain: 0 waits for 1, 1 for 2; 3 for any rank",
     {{.operations = {MESSAGE_WITH(1, "submitted")}},
      {.operations = {MESSAGE_WITH(0, "done"), MESSAGE_WITH(2, "submitted")}},
      {.operations = {MESSAGE_WITH(3, "done")}},
      {.operations = {MESSAGE_WITH(-1, "submitted")}}},
     {1 << 2, CULPRIT_UNMATCHED, CALLS, 0, 0}},
    {"messages in a circle",
     {{.operations = {MESSAGE_WITH(1, "submitted")}},
      {.operations = {MESSAGE_WITH(0, "submitted")}},
      {.operations = {DONE(1, 4)}},
      {.operations = {DONE(1, 4)}}},
     {1 << 0 | 1 << 1, CULPRIT_UNMATCHED, CALLS, 0, 0}},
    {"another tensor under a tag",
     {{.operations = {TAGGED(7, 3, 8, "failed")}},
      {.operations = {TAGGED(7, 3, 8, "failed")}},
      {.operations = {TAGGED(7, 3, 9, "failed")}},
      {.operations = {TAGGED(7, 3, 8, "failed")}}},
     {1 << 2, CULPRIT_MISMATCH, 7, 3, 3}},
    {"all are amid it; one waits for nobody, the others for each other",
     {{.awaits = 2, .operations = {RUNNING(2, 4)}},
      {.awaits = 4, .operations = {RUNNING(2, 4)}},
      {.awaits = 1, .operations = {RUNNING(2, 4)}},
      {.operations = {RUNNING(2, 4)}}},
     {1 << 3, CULPRIT_STUCK, CALLS, 2, 2}},
    {"all wait in a circle",
     {{.awaits = 2, .operations = {RUNNING(2, 4)}},
      {.awaits = 3, .operations = {RUNNING(2, 4)}},
      {.awaits = 4, .operations = {RUNNING(2, 4)}},
      {.awaits = 1, .operations = {RUNNING(2, 4)}}},
     {0, CULPRIT_MISSING, CALLS, 0, 0}},
    {"was late, and has come since",
     {{.fault = "TUTTI_ERR_TIMEOUT", .peer = 3, .at = 2, .operations = {RUNNING(2, 4)}},
      {.operations = {RUNNING(2, 4)}},
      {.operations = {RUNNING(2, 4)}},
      {.operations = {RUNNING(2, 4)}}},
     {1 << 3, CULPRIT_LATE, CALLS, 2, 2}},
    {"nothing but dumps that lack",
     {{.operations = {DONE(1, 4)}},
      {.absent = true},
      {.operations = {DONE(1, 4)}},
      {.absent = true}},
     {1 << 1 | 1 << 3, CULPRIT_MISSING, CALLS, 0, -1}},
};

static void evidence_names_the_culprit(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *row = &rows[i];
        struct verdict verdict;
        uint64_t found = 0;
        judge(row->stories, &verdict);
        for (int c = 0; c < verdict.count; c++) {
            const struct culprit *culprit = &verdict.culprits[c];
            found |= UINT64_C(1) << culprit->rank;
            if (culprit->reason != row->expected.reason || culprit->lane != row->expected.lane ||
                culprit->sequence != row->expected.sequence ||
                (row->expected.last != ANY && culprit->last != row->expected.last))
                fail_msg("%s: rank %d %s, operation %d of lane %d, last %d", row->title,
                         culprit->rank, culprit_reason_text(culprit->reason),
                         (int)culprit->sequence, (int)culprit->lane, (int)culprit->last);
        }
        if (found != row->expected.culprits)
            fail_msg("%s: culprits %#x instead of %#x", row->title, (unsigned)found,
                     (unsigned)row->expected.culprits);
    }
}

static void both_sides_are_told(void **state)
{
    (void)state;
    struct verdict verdict;
    judge(rows[2].stories, &verdict);
    assert_string_equal(verdict.culprits[0].own, "all_reduce of 6 float32, sum, one_shot");
    assert_string_equal(verdict.culprits[0].others, "all_reduce of 5 float32, sum, one_shot");
}

/* Names are cut where they are long, but no character is. */
static void what_is_told_is_utf8(void **state)
{
    (void)state;
    static const char *const names[] = {"\xe2\x82\xac", "\xc3\xa9", "\xf0\x9f\x98\x80", "x"};
    static const size_t lengths[] = {18, 20, 20, 20};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        char name[64] = "";
        struct dump dump;
        char problem[256] = "";
        for (int i = 0; i < 12; i++)
            strcat(name, names[n]);
        strcat(name, "xxxxxxxxxxxx");
        const struct story story = {.operations = {DONE(1, 4)}};
        json_t *root = dump_pack(&story, 0);
        json_t *operation = json_array_get(json_object_get(root, "operations"), 0);
        json_object_set_new(operation, "collective", json_string(name));
        char *text = json_dumps(root, 0);
        assert_true(dump_parse(text, strlen(text), &dump, problem, sizeof problem));
        json_t *what = json_string(dump.operations[0].what);
        assert_non_null(what);
        assert_int_equal(strspn(json_string_value(what), names[n]), lengths[n]);
        assert_int_equal(strncmp(json_string_value(what) + lengths[n], " of 4", 5), 0);
        json_decref(what);
        dump_free(&dump);
        free(text);
        json_decref(root);
    }
}

/* A dump with one member changed, or, with NULL, taken away. */
static bool parses_with(const char *key, json_t *value)
{
    const struct story story = {.operations = {DONE(1, 4)}};
    struct dump dump;
    char problem[256] = "";
    json_t *root = dump_pack(&story, 0);
    if (value)
        json_object_set_new(root, key, value);
    else
        json_object_del(root, key);
    char *text = json_dumps(root, 0);
    bool parses = dump_parse(text, strlen(text), &dump, problem, sizeof problem);
    if (parses)
        dump_free(&dump);
    else if (!strstr(problem, key))
        fail_msg("\"%s\" does not name %s", problem, key);
    free(text);
    json_decref(root);
    return parses;
}

static void what_is_no_dump_is_refused(void **state)
{
    (void)state;
    static const char *const keys[] = {"tutti_dump", "name",  "generation", "rank",
                                       "world_size", "phase", "peers",      "operations"};
    assert_true(parses_with("more", json_true()));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        assert_false(parses_with(keys[i], NULL));
        assert_false(parses_with(keys[i], json_real(1.5)));
    }
    assert_false(parses_with("tutti_dump", json_integer(2)));
    assert_false(parses_with("rank", json_integer(RANKS)));
    assert_false(parses_with("world_size", json_integer(WORLD_RANKS + 1)));
    static const char *const texts[] = {"", "[]", "{", "null", "{\"tutti_dump\": 1}", "\xff"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct dump dump;
        char problem[256] = "";
        assert_false(dump_parse(texts[i], strlen(texts[i]), &dump, problem, sizeof problem));
        assert_true(problem[0]);
    }
}

/* Restarts count their generations anew. */
static void jobs_of_one_name_are_told_apart(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b;
        bool same;
    } cases[] = {{"0123456789abcdef", "0123456789abcdef", true},
                 {"0123456789abcdef", "0123456789abcdee", false},
                 {"0123456789abcdef", NULL, false},
                 {NULL, NULL, true}}; /* of a library that did not say */
    const struct story story = {.operations = {{0}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const meetings[2] = {cases[i].a, cases[i].b};
        struct dump dumps[2];
        for (int rank = 0; rank < 2; rank++) {
            char problem[256] = "";
            json_t *root = dump_pack(&story, rank);
            if (meetings[rank])
                json_object_set_new(root, "meeting", json_string(meetings[rank]));
            char *text = json_dumps(root, 0);
            assert_true(dump_parse(text, strlen(text), &dumps[rank], problem, sizeof problem));
            free(text);
            json_decref(root);
        }
        assert_int_equal(same_communicator(&dumps[0], &dumps[1]), cases[i].same);
        dump_free(&dumps[0]);
        dump_free(&dumps[1]);
    }
    assert_true(parses_with("meeting", json_null())); /* before the ranks have met */
    assert_false(parses_with("meeting", json_integer(1)));
}

/* A rank of a communicator: its process, and whether it is in the communicator's operation 2. */
struct place {
    int pid; /* 0: there is no dump */
    bool waits;
};

/* Communicators of two ranks, and how many waits the circle through them has; 0: there is none. */
static const struct crossed_row {
    const char *title;
    struct place places[3][2];
    int waits;
} crossed_rows[] = {
    {"a waits for b, and b for a", {{{1, true}, {2, false}}, {{1, false}, {2, true}}}, 2},
    {"the same with other numbers", {{{1, true}, {2, false}}, {{2, true}, {1, false}}}, 2},
    {"a process is late twice", {{{1, true}, {2, false}}, {{1, true}, {2, false}}}, 0},
    {"one process of two waits", {{{1, true}, {2, false}}, {{3, true}, {1, false}}}, 0},
    {"three in a circle",
     {{{1, true}, {2, false}}, {{2, true}, {3, false}}, {{3, true}, {1, false}}},
     3},
    {"a chain that ends",
     {{{1, true}, {2, false}}, {{2, true}, {3, false}}, {{3, true}, {4, false}}},
     0},
    {"threads of one process", {{{1, true}, {1, false}}, {{1, false}, {1, true}}}, 2},
    {"a thread is late twice", {{{1, true}, {1, false}}, {{1, true}, {1, false}}}, 0},
    {"nobody knows the other", {{{1, true}, {0, false}}, {{0, false}, {2, true}}}, 0},
};

static void crossed_judge(const struct crossed_row *row, struct crossing *crossing, int *found)
{
    struct dump dumps[3][2] = {{{0}}};
    struct dump_operation operations[3][2][2] = {{{{0}}}};
    struct verdict verdicts[3];
    size_t communicators = 0;
    for (int c = 0; c < 3; c++) {
        struct dump *members[2];
        size_t count = 0;
        for (int rank = 0; rank < 2; rank++) {
            const struct place *place = &row->places[c][rank];
            struct dump_operation *own = operations[c][rank];
            if (!place->pid)
                continue;
            own[0] = (struct dump_operation){.lane = CALLS, .sequence = 1, .what = "sum"};
            own[1] = own[0];
            own[1].sequence = 2, own[1].pending = true;
            dumps[c][rank] = (struct dump){.name = "pair",
                                           .host = "here",
                                           .meeting = "",
                                           .pid = place->pid,
                                           .rank = rank,
                                           .world_size = 2,
                                           .awaits = -1,
                                           .operations = own,
                                           .count = 1 + place->waits};
            members[count++] = &dumps[c][rank];
        }
        if (count == 0)
            break;
        assert_true(diagnose_judge(members, count, &verdicts[communicators++]));
    }
    *found = diagnose_crossed(verdicts, communicators, crossing);
    for (int i = 0; i<crossing->count && * found> 0; i++)
        crossing->waits[i].verdict = NULL; /* goes */
    if (*found > 0)
        assert_int_equal(diagnose_crossed(verdicts, communicators, &(struct crossing){.count = 0}),
                         0);
}

static void crossed_orders_are_one_verdict(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof crossed_rows / sizeof *crossed_rows; i++) {
        struct crossing crossing = {.count = 0};
        int found;
        crossed_judge(&crossed_rows[i], &crossing, &found);
        if (found != (crossed_rows[i].waits > 0) || crossing.count != crossed_rows[i].waits)
            fail_msg("%s: %d found, of %d waits", crossed_rows[i].title, found, crossing.count);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crossed_orders_are_one_verdict),
        cmocka_unit_test(jobs_of_one_name_are_told_apart),
        cmocka_unit_test(evidence_names_the_culprit),
        cmocka_unit_test(both_sides_are_told),
        cmocka_unit_test(what_is_told_is_utf8),
        cmocka_unit_test(what_is_no_dump_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
