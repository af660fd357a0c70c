/* SPDX-License-Identifier: MIT */
/* Reads a dump, raw or JSON. Files may come from anywhere, so nothing in them is trusted. */
#include "diagnose.h"
#include "dump.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 21 };

/* The first problem, if any. */
struct reader {
    char *problem;
    size_t size;
    bool failed;
};

static void complain(struct reader *reader, const char *key, const char *expected)
{
    if (!reader->failed)
        snprintf(reader->problem, reader->size, "\"%s\": expected %s", key, expected);
    reader->failed = true;
}

static int64_t get_integer(struct reader *reader, const json_t *object, const char *key,
                           int64_t low, int64_t high)
{
    const json_t *value = json_object_get(object, key);
    if (json_is_integer(value) && json_integer_value(value) >= low &&
        json_integer_value(value) <= high)
        return json_integer_value(value);
    complain(reader, key, "a whole number in its range");
    return low;
}

static const char *get_string(struct reader *reader, const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (text)
        return text;
    complain(reader, key, "a text");
    return "";
}

/* Copies a name, at most 20 bytes of it, and whole characters only. */
static const char *get_name(struct reader *reader, const json_t *object, const char *key,
                            char name[NAME_BYTES])
{
    const char *text = get_string(reader, object, key);
    size_t bytes = strnlen(text, NAME_BYTES - 1);
    while (bytes > 0 && ((unsigned char)text[bytes] & 0xc0) == 0x80)
        bytes--;
    memcpy(name, text, bytes);
    name[bytes] = 0;
    return name;
}

/* Writes what ranks must agree on as a text. */
static void what_read(struct reader *reader, const json_t *object, char what[DIAGNOSE_TEXT_BYTES])
{
    char collective[NAME_BYTES], dtype[NAME_BYTES], op[NAME_BYTES], algorithm[NAME_BYTES];
    int64_t parameter = get_integer(reader, object, "parameter", 0, UINT32_MAX);
    int length;
    const bool reduces = json_object_get(object, "op");
    get_name(reader, object, "collective", collective);
    char count[24] = ""; /* a v-form has none */
    if (json_object_get(object, "count"))
        snprintf(count, sizeof count, "%lld ",
                 (long long)get_integer(reader, object, "count", 0, INT64_MAX));
    if (json_object_get(object, "dtype"))
        length = snprintf(what, DIAGNOSE_TEXT_BYTES, "%s of %s%s, %s%s%s", collective, count,
                          get_name(reader, object, "dtype", dtype),
                          reduces ? get_name(reader, object, "op", op) : "", reduces ? ", " : "",
                          get_name(reader, object, "algorithm", algorithm));
    else
        length = snprintf(what, DIAGNOSE_TEXT_BYTES, "%s", collective);
    if (parameter && length > 0 && length < DIAGNOSE_TEXT_BYTES)
        snprintf(what + length, DIAGNOSE_TEXT_BYTES - (size_t)length, " (hash %08llx)",
                 (unsigned long long)parameter);
}

static bool is_one_of(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (strcmp(text, *words) == 0)
            return true;
    return false;
}

/* Reads an operation of all ranks, as the host or the device recorded it. */
static void call_read(struct reader *reader, const json_t *object, struct dump_operation *operation)
{
    static const char *const pending[] = {"running", "submitted", "failed", NULL};
    const char *state = get_string(reader, object, "state");
    operation->sequence = get_integer(reader, object, "sequence", 0, INT64_MAX);
    operation->lane = DIAGNOSE_CALLS;
    operation->pending = is_one_of(state, pending);
    operation->inside = strcmp(state, "running") == 0;
    what_read(reader, object, operation->what);
}

/* Returns false for a message that does not wait. */
static bool message_read(struct reader *reader, const json_t *object,
                         struct dump_operation *operation)
{
    char *what = operation->what;
    const size_t length = strlen(what);
    const int64_t tag = get_integer(reader, object, "tag", 0, UINT32_MAX);
    operation->lane = DIAGNOSE_MESSAGE;
    operation->peer = (int)get_integer(reader, object, "peer", -1, WORLD_RANKS - 1);
    snprintf(what + length, DIAGNOSE_TEXT_BYTES - length, ", tag %lld, peer %d", (long long)tag,
             operation->peer);
    return operation->pending;
}

/* Returns false for an operation that does not count. Calls do not count if the device recorded
 * them. */
static bool operation_read(struct reader *reader, const json_t *object, bool device,
                           struct dump_operation *operation)
{
    const char *kind = get_string(reader, object, "kind");
    call_read(reader, object, operation);
    if (strcmp(kind, "message") == 0)
        return message_read(reader, object, operation);
    if (strcmp(kind, "group") == 0)
        operation->lane = get_integer(reader, object, "tag", 0, UINT32_MAX);
    else if (strcmp(kind, "call") != 0 || device)
        return false;
    return strcmp(get_string(reader, object, "state"), "refused") != 0;
}

/* The size of an array, -1 after a complaint. */
static int64_t array_size(struct reader *reader, const json_t *array, const char *key)
{
    size_t size = json_array_size(array);
    if (json_is_array(array) && size <= DIAGNOSE_OPERATIONS_MOST)
        return (int64_t)size;
    complain(reader, key, "an array of at most 65536 operations");
    return -1;
}

static void operations_read(struct reader *reader, struct dump *dump)
{
    const json_t *calls = json_object_get(dump->root, "operations"), *object;
    const json_t *marks = json_object_get(dump->root, "device_operations");
    const bool device = marks && !json_is_null(marks); /* older dumps do not have it */
    const int64_t size = array_size(reader, calls, "operations");
    const int64_t more = device ? array_size(reader, marks, "device_operations") : 0;
    size_t index;
    if (size < 0 || more < 0)
        return;
    dump->operations = calloc((size_t)(size + more) + 1, sizeof *dump->operations);
    if (!dump->operations) {
        complain(reader, "operations", "less than fills the memory");
        return;
    }
    json_array_foreach(calls, index, object)
    {
        if (operation_read(reader, object, device, &dump->operations[dump->count]) &&
            !reader->failed)
            dump->count++;
    }
    for (index = 0; index < (size_t)more; index++) {
        call_read(reader, json_array_get(marks, index), &dump->operations[dump->count]);
        dump->count += !reader->failed;
    }
}

static void peers_read(struct reader *reader, struct dump *dump)
{
    const json_t *array = json_object_get(dump->root, "peers"), *object;
    size_t index;
    if (!json_is_array(array))
        complain(reader, "peers", "an array");
    json_array_foreach(array, index, object)
    {
        int64_t rank = get_integer(reader, object, "rank", 0, dump->world_size - 1);
        dump->lives[rank] = get_string(reader, object, "life");
        dump->entered[rank] = get_integer(reader, object, "entered", 0, INT64_MAX);
    }
}

static void fault_read(struct reader *reader, struct dump *dump)
{
    const json_t *object = json_object_get(dump->root, "fault");
    const json_t *expected = json_object_get(object, "expected");
    const json_t *seen = json_object_get(object, "seen");
    struct dump_fault *fault = &dump->fault;
    fault->rank = fault->peer = -1;
    if (json_is_null(object))
        return;
    fault->status = get_string(reader, object, "status");
    fault->text = get_string(reader, object, "text");
    fault->rank = (int)get_integer(reader, object, "rank", -1, dump->world_size - 1);
    fault->peer = (int)get_integer(reader, object, "peer", -1, dump->world_size - 1);
    fault->sequence = get_integer(reader, object, "sequence", 0, INT64_MAX);
    if (expected && seen) {
        what_read(reader, expected, fault->expected);
        what_read(reader, seen, fault->seen);
    }
}

static void dump_read(struct reader *reader, struct dump *dump)
{
    const json_t *root = dump->root;
    get_integer(reader, root, "tutti_dump", 1, 1);
    dump->world_size = (int)get_integer(reader, root, "world_size", 1, WORLD_RANKS);
    dump->rank = (int)get_integer(reader, root, "rank", 0, dump->world_size - 1);
    dump->pid = (int)get_integer(reader, root, "pid", 0, INT32_MAX);
    dump->name = get_string(reader, root, "name");
    dump->host = json_object_get(root, "host") ? get_string(reader, root, "host") : "";
    dump->taken_ns = get_integer(reader, root, "taken_ns", INT64_MIN, INT64_MAX);
    dump->generation = get_integer(reader, root, "generation", INT64_MIN, INT64_MAX);
    const json_t *meeting = json_object_get(root, "meeting");
    dump->meeting = meeting && !json_is_null(meeting) ? get_string(reader, root, "meeting") : "";
    if (strcmp(get_string(reader, root, "phase"), "met") != 0) {
        dump->generation = 0;
        dump->meeting = "";
    }
    dump->awaits = -1;
    const json_t *waits = json_object_get(root, "waits");
    if (json_is_object(waits))
        dump->awaits = (int)get_integer(reader, waits, "rank", 0, dump->world_size - 1);
    if (reader->failed)
        return;
    peers_read(reader, dump);
    fault_read(reader, dump);
    operations_read(reader, dump);
}

/* The JSON of a dump, NULL if there is none. */
static json_t *dump_load(const char *text, size_t bytes, char *problem, size_t size)
{
    json_error_t error;
    if (dump_is_raw(text, bytes)) {
        struct record_page *page = dump_page_parse(text, bytes, problem, size);
        json_t *root = page ? dump_page_to_json(page) : NULL;
        free(page);
        return root;
    }
    json_t *root = json_loadb(text, bytes, 0, &error);
    if (!root)
        snprintf(problem, size, "line %d, column %d: %s", error.line, error.column, error.text);
    return root;
}

bool dump_parse(const char *text, size_t bytes, struct dump *dump, char *problem, size_t size)
{
    struct reader reader = {.problem = problem, .size = size};
    *dump = (struct dump){.root = dump_load(text, bytes, problem, size)};
    if (!dump->root)
        return false;
    dump_read(&reader, dump);
    if (reader.failed)
        dump_free(dump);
    return !reader.failed;
}

void dump_free(struct dump *dump)
{
    json_decref(dump->root);
    free(dump->operations);
    *dump = (struct dump){0};
}
