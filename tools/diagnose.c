/* SPDX-License-Identifier: MIT */
/* tutti diagnose: merges the dumps of ranks, communicator by communicator, and names the culprit.
 */
#include "diagnose.h"
#include "tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NOBODY = 3,                 /* the exit status where no culprit was found */
    FILE_BYTES_MOST = 64 << 20, /* dumps have less than 1 MiB */
};

struct diagnose {
    bool json;
    char **paths;
    struct dump *dumps; /* that could be read */
    size_t count;
    bool failed;
};

static const struct argp_option options[] = {
    {"json", 'j', 0, 0, "Print JSON", 0},
    {0},
};

static const char doc[] =
    "Say from the dumps of a communicator's ranks which of them is to blame, and for what.\v"
    "Dumps come of TUTTI_DUMP, tutti_comm_dump() or 'tutti dump'. Exit status: 0 if a culprit was "
    "found, 3 if not, 1 if a file could not be read or the output not be written, 64 if the "
    "command line is wrong.";

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
        argp_error(state, "the dumps are missing: name their files");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- files ----------------------------------------------------------------------------------- */

/* The whole file, NULL after a message. */
static char *file_read(const char *path, size_t *bytes)
{
    size_t capacity = 1 << 16;
    char *text = malloc(capacity);
    FILE *file = fopen(path, "re");
    bool read = file && text;
    for (*bytes = 0; read;) {
        *bytes += fread(text + *bytes, 1, capacity - *bytes, file);
        if (*bytes < capacity)
            break;
        char *larger = capacity < FILE_BYTES_MOST ? realloc(text, capacity *= 2) : NULL;
        text = larger ? larger : text;
        read = larger != NULL;
    }
    if (!file || (read && ferror(file)))
        read = tool_fail_errno("%s", path);
    else if (!read)
        tool_fail("%s: more than %d MiB, or than there is memory", path, FILE_BYTES_MOST >> 20);
    if (file)
        fclose(file);
    if (!read)
        free(text);
    return read ? text : NULL;
}

/* Of several dumps of one rank the latest counts. */
static void keep(struct diagnose *diagnose, struct dump *dump)
{
    for (size_t i = 0; i < diagnose->count; i++) {
        struct dump *other = &diagnose->dumps[i];
        if (!same_communicator(other, dump) || other->rank != dump->rank)
            continue;
        if (other->taken_ns < dump->taken_ns) {
            struct dump older = *other;
            *other = *dump;
            *dump = older;
        }
        dump_free(dump);
        return;
    }
    diagnose->dumps[diagnose->count++] = *dump;
}

static bool files_read(struct diagnose *diagnose)
{
    size_t files = 0;
    while (diagnose->paths[files])
        files++;
    diagnose->dumps = calloc(files, sizeof *diagnose->dumps);
    if (!diagnose->dumps)
        return tool_fail_errno("%zu dumps", files);
    for (size_t i = 0; i < files; i++) {
        char problem[256] = "";
        struct dump dump;
        size_t bytes;
        char *text = file_read(diagnose->paths[i], &bytes);
        if (text && dump_parse(text, bytes, &dump, problem, sizeof problem))
            keep(diagnose, &dump);
        else if (text)
            tool_fail("%s is no dump of Tutti: %s", diagnose->paths[i], problem);
        diagnose->failed |= !text || problem[0];
        free(text);
    }
    return true;
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
           (long long)verdict->generation, __builtin_popcountll(verdict->dumped),
           verdict->world_size);
    for (int rank = 0; rank < verdict->world_size; rank++)
        if (!(verdict->dumped >> rank & 1))
            printf("  no dump of rank %d\n", rank);
    if (verdict->first)
        printf("  failed first: %s\n", verdict->first->text);
    for (int i = 0; i < verdict->count; i++)
        print_culprit(&verdict->culprits[i]);
    if (verdict->count == 0)
        printf("  nobody is to blame, as far as the dumps tell\n");
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
    for (int i = 0; i < verdict->count; i++)
        json_array_append_new(culprits, culprit_to_json(&verdict->culprits[i]));
    for (int rank = 0; rank < verdict->world_size; rank++)
        if (!(verdict->dumped >> rank & 1))
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

/* The dumps of the communicator that dump `first` is of; none if an earlier dump is of it, too. */
static size_t members_of(struct diagnose *diagnose, size_t first,
                         struct dump *members[TUTTI_MAX_RANKS])
{
    size_t count = 0;
    for (size_t i = 0; i < diagnose->count; i++) {
        if (!same_communicator(&diagnose->dumps[first], &diagnose->dumps[i]))
            continue;
        if (i < first)
            return 0;
        members[count++] = &diagnose->dumps[i];
    }
    return count;
}

/* One verdict a communicator. Returns how many culprits there are, -1 if there is no memory. */
static int judge_all(struct diagnose *diagnose, json_t *all)
{
    struct dump *members[TUTTI_MAX_RANKS];
    int culprits = 0;
    for (size_t i = 0; i < diagnose->count; i++) {
        struct verdict verdict;
        size_t count = members_of(diagnose, i, members);
        if (count == 0)
            continue;
        if (!diagnose_judge(members, count, &verdict))
            return -1;
        culprits += verdict.count;
        if (all)
            json_array_append_new(all, verdict_to_json(&verdict));
        else
            print_verdict(&verdict);
    }
    return culprits;
}

int command_diagnose(int argc, char **argv)
{
    static const struct argp argp = {.options = options,
                                     .parser = parse_option,
                                     .args_doc = "FILE...",
                                     .doc = doc,
                                     .children = help_children};
    struct diagnose diagnose = {0};
    if (argp_parse(&argp, argc, argv, 0, NULL, &diagnose) || !files_read(&diagnose))
        return TOOL_FAILED;
    json_t *all = diagnose.json ? json_array() : NULL;
    int culprits = judge_all(&diagnose, all);
    if (culprits < 0)
        diagnose.failed = !tool_fail("no memory for a verdict");
    if (all) {
        json_t *root = json_pack("{s:o}", "communicators", all);
        json_dumpf(root, stdout, JSON_INDENT(2));
        printf("\n");
        json_decref(root);
    }
    for (size_t i = 0; i < diagnose.count; i++)
        dump_free(&diagnose.dumps[i]);
    free(diagnose.dumps);
    if (!tool_output_arrived()) /* the tool's end makes a failure of a 0 alone: a 3 may be a rank's
                                 */
        diagnose.failed = true;
    return diagnose.failed ? TOOL_FAILED : culprits > 0 ? TOOL_OK : NOBODY;
}
