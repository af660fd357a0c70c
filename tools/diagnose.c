/* SPDX-License-Identifier: MIT */
/* tutti diagnose: merges the dumps of each communicator's ranks and names the culprit. */
#include "diagnose.h"
#include "tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOBODY = 3 }; /* the exit status if no culprit was found */

struct diagnose {
    bool json;
    char **paths;
    struct dump_set dumps;
    struct verdict *verdicts; /* one for each communicator */
    size_t verdict_count;
    struct crossing *crossings;
    size_t crossing_count;
    bool failed;
};

static const struct argp_option options[] = {
    {"json", 'j', 0, 0, "Print JSON", 0},
    {0},
};

static const char doc[] =
    "Name the rank that made a communicator fail or hang, and the cause, from the dumps of its "
    "ranks.\v"
    "Dumps are raw (TUTTI_DUMP, tutti_comm_dump()) or JSON ('tutti dump'). All files of a "
    "directory are read. Exit status: 0 if a culprit was found, 3 if not, 1 if a file could not be "
    "read or the output not be written, 64 if the command line is wrong.";

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct diagnose *diagnose = state->input;
    (void)text;
    switch (key) {
    case 'j':
        diagnose->json = true;
        return 0;
    case ARGP_KEY_ARGS:
        diagnose->paths = state->argv + state->next;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "the dumps are missing: name their files, or a directory");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- what is said ---------------------------------------------------------------------------- */

static void operation_name(const struct culprit *culprit, char *text, size_t size)
{
    if (culprit->lane == DIAGNOSE_CALLS)
        snprintf(text, size, "operation %lld", (long long)culprit->sequence);
    else
        snprintf(text, size, "operation %lld of tag %lld", (long long)culprit->sequence,
                 (long long)culprit->lane);
}

static void print_culprit(const struct culprit *culprit)
{
    char name[64];
    operation_name(culprit, name, sizeof name);
    printf("  rank %d %s", culprit->rank, culprit_reason_text(culprit->reason));
    if (culprit->sequence)
        printf("%s %s", culprit->reason == CULPRIT_BEHIND ? " to" : ":", name);
    printf("\n");
    if (culprit->reason == CULPRIT_BEHIND && culprit->last >= 0)
        printf("    its last:   operation %lld\n", (long long)culprit->last);
    if (culprit->own[0])
        printf("    its call:   %s\n", culprit->own);
    if (culprit->others[0])
        printf("    the others: %s\n", culprit->others);
}

static void print_verdict(const struct verdict *verdict)
{
    printf("communicator \"%s\", generation %lld: dumps of %d of %d ranks\n", verdict->name,
           (long long)verdict->generation, verdict->dumped, verdict->world_size);
    for (int rank = 0; rank < verdict->world_size; rank++)
        if (!verdict->of[rank])
            printf("  no dump of rank %d\n", rank);
    if (verdict->first)
        printf("  failed first: %s\n", verdict->first->text);
    for (int i = 0; i < verdict->count; i++)
        print_culprit(&verdict->culprits[i]);
    if (verdict->count == 0)
        printf("  the dumps show no rank that is to blame\n");
}

static json_t *culprit_to_json(const struct culprit *culprit)
{
    json_t *object = json_pack("{s:i, s:s, s:s}", "rank", culprit->rank, "reason",
                               culprit_reason_name(culprit->reason), "text",
                               culprit_reason_text(culprit->reason));
    if (culprit->sequence)
        json_object_set_new(object, "sequence", json_integer(culprit->sequence));
    if (culprit->lane != DIAGNOSE_CALLS)
        json_object_set_new(object, "tag", json_integer(culprit->lane));
    if (culprit->last >= 0)
        json_object_set_new(object, "last", json_integer(culprit->last));
    if (culprit->own[0])
        json_object_set_new(object, "own", json_string(culprit->own));
    if (culprit->others[0])
        json_object_set_new(object, "others", json_string(culprit->others));
    return object;
}

static json_t *verdict_to_json(const struct verdict *verdict)
{
    json_t *culprits = json_array(), *missing = json_array();
    for (int i = 0; i < verdict->count && !verdict->crossed; i++)
        json_array_append_new(culprits, culprit_to_json(&verdict->culprits[i]));
    for (int rank = 0; rank < verdict->world_size; rank++)
        if (!verdict->of[rank])
            json_array_append_new(missing, json_integer(rank));
    const struct dump_fault *first = verdict->first;
    json_t *fault = first ? json_pack("{s:s, s:i, s:i, s:I, s:s}", "status", first->status, "rank",
                                      first->rank, "peer", first->peer, "sequence",
                                      (json_int_t)first->sequence, "text", first->text)
                          : json_null();
    return json_pack("{s:s, s:I, s:i, s:o, s:o, s:o}", "name", verdict->name, "generation",
                     (json_int_t)verdict->generation, "world_size", verdict->world_size, "no_dump",
                     missing, "first_fault", fault, "culprits", culprits);
}

/* ---- a crossed order ------------------------------------------------------------------------- */

/* Whether a wait is the first one of its communicator in this crossing. */
static bool is_first_of(const struct crossing *crossing, int i)
{
    for (int other = 0; other < i; other++)
        if (crossing->waits[other].verdict == crossing->waits[i].verdict)
            return false;
    return true;
}

static void print_crossing(const struct crossing *crossing)
{
    const char *between = "communicators ";
    for (int i = 0; i < crossing->count; i++) {
        const struct verdict *verdict = crossing->waits[i].verdict;
        if (!is_first_of(crossing, i))
            continue;
        printf("%s\"%s\", generation %lld", between, verdict->name, (long long)verdict->generation);
        between = ", and ";
    }
    printf(": ranks call them in different orders, and wait for each other\n");
    for (int i = 0; i < crossing->count; i++) {
        const struct crossing_wait *wait = &crossing->waits[i];
        const struct culprit *culprit = &wait->verdict->culprits[0];
        char name[64];
        operation_name(culprit, name, sizeof name);
        printf("  rank %d of \"%s\" (process %d) waits in %s for rank %d: %s\n", wait->rank,
               wait->verdict->name, wait->verdict->of[wait->rank]->pid, name, wait->absent,
               wait->operation->what);
    }
    printf("  call operations on these communicators in one order on all ranks\n");
}

static json_t *crossing_to_json(const struct crossing *crossing)
{
    json_t *communicators = json_array(), *waits = json_array();
    for (int i = 0; i < crossing->count; i++) {
        const struct crossing_wait *wait = &crossing->waits[i];
        const struct verdict *verdict = wait->verdict;
        json_t *object = json_pack("{s:s, s:I, s:i, s:i, s:I, s:i, s:s}", "name", verdict->name,
                                   "generation", (json_int_t)verdict->generation, "rank",
                                   wait->rank, "pid", verdict->of[wait->rank]->pid, "sequence",
                                   (json_int_t)wait->operation->sequence, "absent", wait->absent,
                                   "what", wait->operation->what);
        if (wait->operation->lane != DIAGNOSE_CALLS)
            json_object_set_new(object, "tag", json_integer(wait->operation->lane));
        json_array_append_new(waits, object);
        if (is_first_of(crossing, i))
            json_array_append_new(communicators,
                                  json_pack("{s:s, s:I}", "name", verdict->name, "generation",
                                            (json_int_t)verdict->generation));
    }
    return json_pack("{s:o, s:o}", "communicators", communicators, "waits", waits);
}

/* ---- all together ---------------------------------------------------------------------------- */

/* Finds the dumps of the communicator of dump `first`; none if an earlier dump is of the same
 * communicator. */
static size_t members_of(struct dump_set *dumps, size_t first, struct dump *members[WORLD_RANKS])
{
    size_t count = 0;
    for (size_t i = 0; i < dumps->count; i++) {
        if (!same_communicator(&dumps->all[first], &dumps->all[i]))
            continue;
        if (i < first)
            return 0;
        members[count++] = &dumps->all[i];
    }
    return count;
}

/* Makes one verdict for each communicator, then looks for crossings between them. */
static bool judge_all(struct diagnose *diagnose)
{
    struct dump *members[WORLD_RANKS];
    struct dump_set *dumps = &diagnose->dumps;
    int found = 1;
    diagnose->verdicts = calloc(dumps->count + 1, sizeof *diagnose->verdicts);
    diagnose->crossings = calloc(dumps->count + 1, sizeof *diagnose->crossings);
    if (!diagnose->verdicts || !diagnose->crossings)
        return false;
    for (size_t i = 0; i < dumps->count; i++) {
        size_t count = members_of(dumps, i, members);
        if (count == 0)
            continue;
        if (!diagnose_judge(members, count, &diagnose->verdicts[diagnose->verdict_count]))
            return false;
        diagnose->verdict_count++;
    }
    while (found > 0) {
        found = diagnose_crossed(diagnose->verdicts, diagnose->verdict_count,
                                 &diagnose->crossings[diagnose->crossing_count]);
        diagnose->crossing_count += found > 0;
    }
    return found == 0;
}

static void print_all(const struct diagnose *diagnose)
{
    for (size_t i = 0; i < diagnose->crossing_count; i++)
        print_crossing(&diagnose->crossings[i]);
    for (size_t i = 0; i < diagnose->verdict_count; i++)
        if (!diagnose->verdicts[i].crossed)
            print_verdict(&diagnose->verdicts[i]);
}

static void print_json(const struct diagnose *diagnose)
{
    json_t *communicators = json_array(), *crossed = json_array();
    for (size_t i = 0; i < diagnose->verdict_count; i++)
        json_array_append_new(communicators, verdict_to_json(&diagnose->verdicts[i]));
    for (size_t i = 0; i < diagnose->crossing_count; i++)
        json_array_append_new(crossed, crossing_to_json(&diagnose->crossings[i]));
    json_t *root = json_pack("{s:o, s:o}", "communicators", communicators, "crossed", crossed);
    json_dumpf(root, stdout, JSON_INDENT(2));
    printf("\n");
    json_decref(root);
}

int command_diagnose(int argc, char **argv)
{
    static const struct argp argp = {.options = options,
                                     .parser = parse_option,
                                     .args_doc = "FILE|DIRECTORY...",
                                     .doc = doc,
                                     .children = help_children};
    struct diagnose diagnose = {0};
    int culprits = 0;
    if (argp_parse(&argp, argc, argv, 0, NULL, &diagnose))
        return TOOL_FAILED;
    diagnose.failed = !dump_set_read(diagnose.paths, &diagnose.dumps);
    if (!judge_all(&diagnose))
        diagnose.failed = !tool_fail("no memory for a verdict");
    for (size_t i = 0; i < diagnose.verdict_count; i++)
        culprits += diagnose.verdicts[i].count;
    if (diagnose.json)
        print_json(&diagnose);
    else
        print_all(&diagnose);
    dump_set_free(&diagnose.dumps);
    free(diagnose.verdicts);
    free(diagnose.crossings);
    /* check_output() in main.c turns only exit status 0 into a failure, because another value may
     * be a rank's. */
    if (!tool_output_arrived())
        diagnose.failed = true;
    return diagnose.failed ? TOOL_FAILED : culprits > 0 ? TOOL_OK : NOBODY;
}
