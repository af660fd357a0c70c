/* SPDX-License-Identifier: MIT */
/* The JSON of a page: one object, whose members tutti-dump(1) describes. */
#include "base/signature.h"
#include "dump.h"
#include "results.h"
#include "tool.h"

#include <inttypes.h>
#include <stdlib.h>

#define NAME_ROW(name, value, text) [value] = text,
static const char *const states[] = {RECORD_STATE_MAP(NAME_ROW)};
static const char *const kinds[] = {RECORD_KIND_MAP(NAME_ROW)};
static const char *const lives[] = {RECORD_LIFE_MAP(NAME_ROW)};
static const char *const phases[] = {RECORD_PHASE_MAP(NAME_ROW)};
static const char *const causes[] = {RECORD_CAUSE_MAP(NAME_ROW)};
#undef NAME_ROW

static json_t *name_of(const char *const *names, size_t count, uint64_t value)
{
    return json_string(value < count && names[value] ? names[value] : "unknown");
}

#define NAME_OF(names, value) name_of(names, sizeof(names) / sizeof *(names), value)

static void add(json_t *object, const char *key, json_t *value)
{
    json_object_set_new(object, key, value);
}

static void add_number(json_t *object, const char *key, uint64_t value)
{
    add(object, key, json_integer((json_int_t)value));
}

/* Ticks in nanoseconds of CLOCK_MONOTONIC, on the line through both readings of the two clocks.
 * Ticks 0 are null. */
static void add_time(json_t *object, const char *key, const struct record_page *page,
                     uint64_t ticks)
{
    double passed = (double)(int64_t)(page->taken_ticks - page->ticks);
    double lasted = (double)(int64_t)((uint64_t)page->taken_ns - (uint64_t)page->monotonic_ns);
    double rate = passed > 0 ? lasted / passed : 0;
    double ns = (double)page->monotonic_ns + (double)(int64_t)(ticks - page->ticks) * rate;
    if (ticks)
        add(object, key, json_integer(ns > -9e18 && ns < 9e18 ? (json_int_t)ns : 0));
    else
        add(object, key, json_null());
}

/* The same for a time of the device's clock. */
static void add_device_time(json_t *object, const char *key, const struct record_page *page,
                            uint64_t device_ns)
{
    if (device_ns)
        add_number(object, key, device_ns - (uint64_t)page->device_ahead_ns);
    else
        add(object, key, json_null());
}

/* ---- operations ------------------------------------------------------------------------------ */

static void add_signature(json_t *object, uint64_t word, uint32_t parameter)
{
    const struct tutti_signature signature = signature_unpack(word, parameter);
    add(object, "collective", json_string(tutti_collective_name(signature.collective)));
    if (signature.collective != TUTTI_COLLECTIVE_BARRIER) {
        if (signature.count != SIGNATURE_COUNT_VARIES) {
            add_number(object, "count", signature.count);
            add_number(object, "bytes", signature.count * tutti_dtype_size(signature.dtype));
        }
        add(object, "dtype", json_string(tutti_dtype_name(signature.dtype)));
        if (signature.op)
            add(object, "op", json_string(tutti_op_name(signature.op)));
        add(object, "algorithm", json_string(tutti_algo_name(signature.algo)));
    }
    add_number(object, "parameter", parameter);
}

static enum record_state state_of(const struct record_entry *entry)
{
    return (enum record_state)(entry->outcome & 0xff);
}

static enum record_kind kind_of(const struct record_entry *entry)
{
    return (enum record_kind)(entry->outcome >> 16 & 0xff);
}

static json_t *operation_to_json(const struct record_page *page, const struct record_entry *entry)
{
    const enum tutti_status status = (enum tutti_status)(entry->outcome >> 8 & 0xff);
    json_t *object = json_object();
    add_number(object, "number", entry->number);
    add(object, "kind", NAME_OF(kinds, kind_of(entry)));
    add_number(object, "sequence", entry->sequence);
    const bool is_message = kind_of(entry) == RECORD_MESSAGE;
    if (kind_of(entry) == RECORD_GROUP || is_message)
        add_number(object, "tag", entry->detail >> 32);
    if (is_message)
        add(object, "peer", json_integer((json_int_t)(uint32_t)entry->detail - 1));
    add_signature(object, entry->signature, is_message ? 0 : (uint32_t)entry->detail);
    add_time(object, "started_ns", page, entry->started);
    add_time(object, "ended_ns", page, entry->ended);
    add(object, "state", NAME_OF(states, state_of(entry)));
    add(object, "status", json_string(tutti_status_name(status)));
    return object;
}

static json_t *operations_to_json(const struct record_page *page)
{
    json_t *array = json_array();
    for (int i = 0; i < RECORD_ENTRIES && page->entries[i].number; i++)
        json_array_append_new(array, operation_to_json(page, &page->entries[i]));
    return array;
}

/* ---- operations of the device ---------------------------------------------------------------- */

/* Whether a kernel waits, or waited when the communicator failed. */
static bool device_waits(const struct record_page *page)
{
    return page->device_ahead_ns && page->awaits;
}

static uint64_t waits_in(const struct record_page *page)
{
    return page->device_trace.wait.of >> 8;
}

/* The device's operations follow each other: one that has a successor is done. */
static enum record_state mark_state(const struct record_page *page, uint64_t sequence, bool last)
{
    const bool failed = page->fault.set;
    if (!last)
        return RECORD_DONE;
    if (device_waits(page) && waits_in(page) == sequence)
        return failed ? RECORD_FAILED : RECORD_RUNNING;
    return failed && page->fault.sequence == sequence ? RECORD_FAILED : RECORD_BEGUN;
}

static json_t *marks_to_json(const struct record_page *page)
{
    const struct device_trace_mark *marks = page->device_trace.marks;
    if (!marks[0].sequence)
        return json_null();
    json_t *array = json_array();
    for (int i = 0; i < DEVICE_TRACE_MARKS && marks[i].sequence; i++) {
        const bool last = i == DEVICE_TRACE_MARKS - 1 || !marks[i + 1].sequence;
        json_t *object = json_object();
        add_number(object, "sequence", marks[i].sequence);
        add_signature(object, marks[i].signature, marks[i].parameter);
        add_device_time(object, "begun_ns", page, marks[i].begun_ns);
        add_device_time(object, "ended_by_ns", page, last ? 0 : marks[i + 1].begun_ns);
        add(object, "state", NAME_OF(states, mark_state(page, marks[i].sequence, last)));
        json_array_append_new(array, object);
    }
    return array;
}

/* ---- waits, fault, peers --------------------------------------------------------------------- */

/* The operation of all ranks that the caller is inside, NULL if none. */
static const struct record_entry *running(const struct record_page *page)
{
    const struct record_entry *last = NULL;
    for (int i = 0; i < RECORD_ENTRIES && page->entries[i].number; i++)
        if (state_of(&page->entries[i]) == RECORD_RUNNING &&
            kind_of(&page->entries[i]) != RECORD_GROUP)
            last = &page->entries[i];
    return last;
}

static json_t *wait_to_json(const struct record_page *page)
{
    const struct record_entry *entry = running(page);
    const bool device = device_waits(page) && !page->fault.set;
    const int rank = (int)page->awaits - 1;
    if (!page->awaits || !(entry || device))
        return json_null();
    const uint64_t sequence = device ? waits_in(page) : entry->sequence;
    json_t *object = json_object(), *absent = json_array();
    add_number(object, "sequence", sequence);
    add(object, "rank", json_integer(rank));
    add_time(object, "since_ns", page, page->awaited_since);
    /* A kernel knows only the rank for which it waits. */
    if (device && sequence)
        json_array_append_new(absent, json_integer(rank));
    for (int r = 0; !device && kind_of(entry) == RECORD_CALL && r < page->world_size; r++)
        if (r != page->rank && page->peers[r].entered < sequence)
            json_array_append_new(absent, json_integer(r));
    add(object, "absent", absent);
    return object;
}

static json_t *fault_to_json(const struct layout_fault *in)
{
    const struct tutti_fault fault = signature_unpack_fault(in);
    char text[512];
    if (!in->set)
        return json_null();
    tutti_fault_format(&fault, text, sizeof text);
    json_t *object = json_object();
    add(object, "status", json_string(tutti_status_name(fault.status)));
    add(object, "rank", json_integer(fault.rank));
    add(object, "peer", json_integer(fault.peer));
    add_number(object, "sequence", fault.sequence);
    add(object, "text", json_text(text));
    if (fault.status == TUTTI_ERR_MISMATCH) {
        json_t *expected = json_object(), *seen = json_object();
        add_signature(expected, in->expected, in->expected_parameter);
        add_signature(seen, in->seen, in->seen_parameter);
        add(object, "expected", expected);
        add(object, "seen", seen);
    }
    return object;
}

static json_t *peers_to_json(const struct record_page *page)
{
    json_t *array = json_array();
    for (int r = 0; r < page->world_size; r++) {
        if (r == page->rank)
            continue;
        json_t *object = json_object();
        add(object, "rank", json_integer(r));
        add(object, "life", NAME_OF(lives, page->peers[r].life));
        const uint64_t entered = page->peers[r].entered;
        add_number(object, "entered", entered == RECORD_UNKNOWN ? 0 : entered);
        json_array_append_new(array, object);
    }
    return array;
}

/* ---- identity -------------------------------------------------------------------------------- */

static json_t *lines_to_json(const char *text)
{
    json_t *array = json_array();
    char *copy = strdup(text), *rest = copy, *line;
    while ((line = strsep(&rest, "\n")) != NULL)
        if (*line || rest) /* behind the last newline there is no line */
            json_array_append_new(array, json_text(line));
    free(copy);
    return array;
}

/* In hexadecimal. 0 is null. */
static void add_hash(json_t *object, const char *key, uint64_t number)
{
    add(object, key, number ? json_sprintf("%016" PRIx64, number) : json_null());
}

static void add_identity(json_t *object, const struct record_page *page)
{
    const unsigned library = page->library;
    add(object, "tutti_dump", json_integer(1));
    add(object, "version",
        json_sprintf("%u.%u.%u", library / 10000, library / 100 % 100, library % 100));
    add(object, "cause", NAME_OF(causes, page->cause));
    add(object, "host", json_text(page->host));
    add(object, "pid", json_integer(page->pid));
    add(object, "name", json_text(page->name));
    add(object, "generation", json_integer(page->generation));
    add(object, "rank", json_integer(page->rank));
    add(object, "world_size", json_integer(page->world_size));
    add(object, "device", json_string(page->device == TUTTI_DEVICE_CUDA ? "cuda" : "cpu"));
    add(object, "phase", NAME_OF(phases, page->phase));
    add(object, "declined", json_string(tutti_status_name((enum tutti_status)page->declined)));
    add_hash(object, "meeting", page->meeting);
    add_hash(object, "table_hash", page->table_hash);
    add(object, "taken_realtime_ns", json_integer(page->taken_realtime_ns));
    add(object, "taken_ns", json_integer(page->taken_ns));
    add(object, "created_ns", json_integer(page->monotonic_ns));
}

json_t *dump_page_to_json(const struct record_page *page)
{
    json_t *object = json_object();
    add_identity(object, page);
    add(object, "description", lines_to_json(page->text));
    add(object, "waits", wait_to_json(page));
    add(object, "fault", fault_to_json(&page->fault));
    add(object, "peers", peers_to_json(page));
    add_time(object, "looked_ns", page, page->looked);
    add(object, "device_operations", marks_to_json(page));
    add(object, "operations", operations_to_json(page));
    return object;
}
