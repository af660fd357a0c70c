/* SPDX-License-Identifier: MIT */
/* A dump's text: one JSON object, whose members tutti_comm_dump(3) describes. */
#include "record/recorder_internal.h"

#include "base/dtype.h"
#include "base/error.h"
#include "base/signature.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of the UTF-8 sequence that the text begins with, 0 if it is none. */
static size_t utf8_length(const unsigned char *text)
{
    static const struct {
        unsigned char mask, lead;
        uint32_t least;
    } forms[] = {{0x80, 0, 0}, {0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};
    for (size_t more = 0; more < sizeof forms / sizeof *forms; more++) {
        if ((text[0] & forms[more].mask) != forms[more].lead)
            continue;
        uint32_t code = text[0] & (unsigned char)~forms[more].mask;
        for (size_t i = 1; i <= more; i++) {
            if ((text[i] & 0xc0) != 0x80)
                return 0;
            code = code << 6 | (text[i] & 0x3f);
        }
        bool fine =
            code >= forms[more].least && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
        return fine ? more + 1 : 0;
    }
    return 0;
}

/* At most `bytes` bytes of a text that ends with a zero behind them, if not before. */
static void put_string(FILE *out, const char *text, size_t bytes)
{
    const unsigned char *at = (const unsigned char *)text, *end = at + bytes;
    fputc('"', out);
    while (at < end && *at) {
        size_t length = utf8_length(at);
        if (length == 0 || *at < 0x20 || *at == 0x7f) {
            fprintf(out, "\\u%04x", *at); /* another encoding's byte, by its number */
            length = 1;
        } else {
            if (*at == '"' || *at == '\\')
                fputc('\\', out);
            fwrite(at, 1, length, out);
        }
        at += length;
    }
    fputc('"', out);
}

/* ---- names ----------------------------------------------------------------------------------- */

#define NAME_ROW(name, value, text) [value] = text,
static const char *const states[] = {RECORD_STATE_MAP(NAME_ROW)};
static const char *const kinds[] = {RECORD_KIND_MAP(NAME_ROW)};
static const char *const lives[] = {RECORD_LIFE_MAP(NAME_ROW)};
static const char *const phases[] = {RECORD_PHASE_MAP(NAME_ROW)};
#undef NAME_ROW

static const char *name_of(const char *const *names, size_t count, uint64_t value)
{
    return value < count && names[value] ? names[value] : "unknown";
}

#define NAME_OF(names, value) name_of(names, sizeof(names) / sizeof *(names), value)

/* ---- time ------------------------------------------------------------------------------------ */

/* Ticks as CLOCK_MONOTONIC had it: on the line through both readings of the two clocks. */
static int64_t ns_of(const struct recorder_snapshot *snapshot, uint64_t ticks)
{
    const struct record_page *page = &snapshot->page;
    double passed = (double)(int64_t)(snapshot->ticks - page->ticks);
    double lasted =
        (double)(int64_t)((uint64_t)snapshot->monotonic_ns - (uint64_t)page->monotonic_ns);
    double rate = passed > 0 ? lasted / passed : 0;
    double ns = (double)page->monotonic_ns + (double)(int64_t)(ticks - page->ticks) * rate;
    return ns > -9e18 && ns < 9e18 ? (int64_t)ns : 0;
}

static void put_time(FILE *out, const char *name, const struct recorder_snapshot *snapshot,
                     uint64_t ticks)
{
    if (ticks)
        fprintf(out, ", \"%s\": %" PRId64, name, ns_of(snapshot, ticks));
    else
        fprintf(out, ", \"%s\": null", name);
}

/* The same of a device's clock. */
static void put_device_time(FILE *out, const char *name, const struct recorder_snapshot *snapshot,
                            uint64_t device_ns)
{
    if (device_ns)
        fprintf(out, ", \"%s\": %" PRId64, name,
                (int64_t)(device_ns - (uint64_t)snapshot->page.device_ahead_ns));
    else
        fprintf(out, ", \"%s\": null", name);
}

/* ---- operations ------------------------------------------------------------------------------ */

static void put_signature(FILE *out, const struct tutti_signature *signature)
{
    fprintf(out, "\"collective\": \"%s\"", tutti_collective_name(signature->collective));
    if (signature->collective == TUTTI_COLLECTIVE_ALL_REDUCE)
        fprintf(out,
                ", \"count\": %" PRIu64 ", \"bytes\": %" PRIu64
                ", \"dtype\": \"%s\", \"op\": \"%s\", \"algorithm\": \"%s\"",
                signature->count, signature->count * tutti_dtype_size(signature->dtype),
                tutti_dtype_name(signature->dtype), tutti_op_name(signature->op),
                tutti_algo_name(signature->algo));
    fprintf(out, ", \"parameter\": %" PRIu32, signature->parameter);
}

static enum record_state state_of(const struct record_entry *entry)
{
    return (enum record_state)(entry->outcome & 0xff);
}

static enum record_kind kind_of(const struct record_entry *entry)
{
    return (enum record_kind)(entry->outcome >> 16 & 0xff);
}

static void put_operation(FILE *out, const struct recorder_snapshot *snapshot,
                          const struct record_entry *entry)
{
    const struct tutti_signature signature =
        signature_unpack(entry->signature, (uint32_t)entry->detail);
    fprintf(out, "    {\"number\": %" PRIu64 ", \"kind\": \"%s\", \"sequence\": %" PRIu64,
            entry->number, NAME_OF(kinds, kind_of(entry)), entry->sequence);
    if (kind_of(entry) == RECORD_GROUP)
        fprintf(out, ", \"tag\": %" PRIu64, entry->detail >> 32);
    fprintf(out, ", ");
    put_signature(out, &signature);
    put_time(out, "started_ns", snapshot, entry->started);
    put_time(out, "ended_ns", snapshot, entry->ended);
    fprintf(out, ", \"state\": \"%s\", \"status\": \"%s\"}", NAME_OF(states, state_of(entry)),
            tutti_status_name((enum tutti_status)(entry->outcome >> 8 & 0xff)));
}

static void put_operations(FILE *out, const struct recorder_snapshot *snapshot)
{
    fprintf(out, "  \"operations\": [");
    for (int i = 0; i < snapshot->count; i++) {
        fprintf(out, "%s\n", i ? "," : "");
        put_operation(out, snapshot, &snapshot->page.entries[i]);
    }
    fprintf(out, "\n  ]\n");
}

/* ---- operations, as a device saw them -------------------------------------------------------- */

static bool has_device_trace(const struct recorder_snapshot *snapshot)
{
    return snapshot->page.device_ahead_ns != 0;
}

/* Whether a kernel waits, as the watcher saw it last; for good, once a fault stands. */
static bool device_waits(const struct recorder_snapshot *snapshot)
{
    return has_device_trace(snapshot) && snapshot->page.awaits;
}

static uint64_t waits_in(const struct recorder_snapshot *snapshot)
{
    return snapshot->page.device_trace.wait.of >> 8;
}

/* Operations follow each other: whatever has a successor is done. */
static enum record_state mark_state(const struct recorder_snapshot *snapshot, int i)
{
    const uint64_t sequence = snapshot->page.device_trace.marks[i].sequence;
    const bool failed = snapshot->fault.status != TUTTI_OK;
    if (i < snapshot->marks - 1)
        return RECORD_DONE;
    if (device_waits(snapshot) && waits_in(snapshot) == sequence)
        return failed ? RECORD_FAILED : RECORD_RUNNING;
    return failed && snapshot->fault.sequence == sequence ? RECORD_FAILED : RECORD_BEGUN;
}

static void put_mark(FILE *out, const struct recorder_snapshot *snapshot, int i)
{
    const struct device_trace_mark *mark = &snapshot->page.device_trace.marks[i];
    const struct tutti_signature signature = signature_unpack(mark->signature, mark->parameter);
    fprintf(out, "    {\"sequence\": %" PRIu64 ", ", mark->sequence);
    put_signature(out, &signature);
    put_device_time(out, "begun_ns", snapshot, mark->begun_ns);
    put_device_time(out, "ended_by_ns", snapshot, i < snapshot->marks - 1 ? mark[1].begun_ns : 0);
    fprintf(out, ", \"state\": \"%s\"}", NAME_OF(states, mark_state(snapshot, i)));
}

static void put_marks(FILE *out, const struct recorder_snapshot *snapshot)
{
    if (snapshot->marks == 0) {
        fprintf(out, "  \"device_operations\": null,\n");
        return;
    }
    fprintf(out, "  \"device_operations\": [");
    for (int i = 0; i < snapshot->marks; i++) {
        fprintf(out, "%s\n", i ? "," : "");
        put_mark(out, snapshot, i);
    }
    fprintf(out, "\n  ],\n");
}

/* ---- what it waits for ----------------------------------------------------------------------- */

/* The operation of all ranks that the caller is inside, NULL if none. */
static const struct record_entry *running(const struct recorder_snapshot *snapshot)
{
    for (int i = snapshot->count - 1; i >= 0; i--) {
        const struct record_entry *entry = &snapshot->page.entries[i];
        if (state_of(entry) == RECORD_RUNNING && kind_of(entry) != RECORD_GROUP)
            return entry;
    }
    return NULL;
}

/* Those that have not announced the operation of all ranks that the caller is inside. */
static void put_absent(FILE *out, const struct record_page *page, const struct record_entry *entry)
{
    const char *comma = "";
    fprintf(out, ", \"absent\": [");
    for (int r = 0; r < page->world_size && kind_of(entry) == RECORD_CALL; r++) {
        if (r == page->rank || page->peers[r].entered >= entry->sequence)
            continue;
        fprintf(out, "%s%d", comma, r);
        comma = ", ";
    }
    fprintf(out, "]},\n");
}

/* A kernel sees of the others what it waits for, and no more. */
static void put_device_wait(FILE *out, const struct recorder_snapshot *snapshot)
{
    const uint64_t sequence = waits_in(snapshot);
    const int rank = (int)snapshot->page.awaits - 1;
    fprintf(out, "  \"waits\": {\"sequence\": %" PRIu64 ", \"rank\": %d", sequence, rank);
    put_time(out, "since_ns", snapshot, snapshot->page.awaited_since);
    if (sequence)
        fprintf(out, ", \"absent\": [%d]},\n", rank);
    else
        fprintf(out, ", \"absent\": []},\n");
}

static void put_wait(FILE *out, const struct recorder_snapshot *snapshot)
{
    const struct record_page *page = &snapshot->page;
    const struct record_entry *entry = running(snapshot);
    if (device_waits(snapshot) && snapshot->fault.status == TUTTI_OK) {
        put_device_wait(out, snapshot);
        return;
    }
    if (!page->awaits || !entry) {
        fprintf(out, "  \"waits\": null,\n");
        return;
    }
    fprintf(out, "  \"waits\": {\"sequence\": %" PRIu64 ", \"rank\": %d", entry->sequence,
            (int)page->awaits - 1);
    put_time(out, "since_ns", snapshot, page->awaited_since);
    put_absent(out, page, entry);
}

static void put_peers(FILE *out, const struct recorder_snapshot *snapshot)
{
    const struct record_page *page = &snapshot->page;
    fprintf(out, "  \"peers\": [");
    const char *comma = "";
    for (int r = 0; r < page->world_size; r++) {
        if (r == page->rank)
            continue;
        fprintf(out, "%s\n    {\"rank\": %d, \"life\": \"%s\", \"entered\": %" PRIu64 "}", comma, r,
                NAME_OF(lives, page->peers[r].life), page->peers[r].entered);
        comma = ",";
    }
    fprintf(out, "\n  ]");
    put_time(out, "looked_ns", snapshot, page->looked);
    fprintf(out, ",\n");
}

static void put_fault(FILE *out, const struct tutti_fault *fault)
{
    char text[512];
    if (fault->status == TUTTI_OK) {
        fprintf(out, "  \"fault\": null,\n");
        return;
    }
    tutti_fault_format(fault, text, sizeof text);
    fprintf(out,
            "  \"fault\": {\"status\": \"%s\", \"rank\": %d, \"peer\": %d, \"sequence\": %" PRIu64
            ", \"text\": ",
            tutti_status_name(fault->status), fault->rank, fault->peer, fault->sequence);
    put_string(out, text, strlen(text));
    if (fault->status == TUTTI_ERR_MISMATCH) {
        fprintf(out, ",\n    \"expected\": {");
        put_signature(out, &fault->expected);
        fprintf(out, "},\n    \"seen\": {");
        put_signature(out, &fault->seen);
        fprintf(out, "}");
    }
    fprintf(out, "},\n");
}

/* ---- who ------------------------------------------------------------------------------------- */

/* Lines of "key: value". */
static void put_description(FILE *out, const char *text)
{
    fprintf(out, "  \"description\": [");
    for (const char *comma = ""; *text; comma = ",") {
        size_t length = strcspn(text, "\n");
        fprintf(out, "%s\n    ", comma);
        put_string(out, text, length);
        text += length + (text[length] == '\n');
    }
    fprintf(out, "\n  ],\n");
}

/* Quoted; 0 is null. */
static void put_number(FILE *out, const char *key, uint64_t number)
{
    if (number)
        fprintf(out, "  \"%s\": \"%016" PRIx64 "\",\n", key, number);
    else
        fprintf(out, "  \"%s\": null,\n", key);
}

static void put_identity(FILE *out, const struct recorder_snapshot *snapshot)
{
    const struct record_page *page = &snapshot->page;
    fprintf(out, "  \"tutti_dump\": 1,\n  \"version\": \"%u.%u.%u\",\n  \"cause\": \"%s\",\n",
            (unsigned)page->library / 10000, (unsigned)page->library / 100 % 100,
            (unsigned)page->library % 100, snapshot->cause);
    fprintf(out, "  \"host\": ");
    put_string(out, page->host, sizeof page->host);
    fprintf(out, ",\n  \"pid\": %d,\n  \"name\": ", (int)page->pid);
    put_string(out, page->name, sizeof page->name);
    fprintf(out,
            ",\n  \"generation\": %" PRId64 ",\n  \"rank\": %d,\n  \"world_size\": %d,\n"
            "  \"device\": \"%s\",\n  \"phase\": \"%s\",\n  \"declined\": \"%s\",\n",
            page->generation, (int)page->rank, (int)page->world_size,
            page->device == TUTTI_DEVICE_CUDA ? "cuda" : "cpu", NAME_OF(phases, page->phase),
            tutti_status_name((enum tutti_status)page->declined));
    put_number(out, "meeting", page->meeting);
    put_number(out, "table_hash", page->table_hash);
    fprintf(out,
            "  \"taken_realtime_ns\": %" PRId64 ",\n  \"taken_ns\": %" PRId64
            ",\n  \"created_ns\": %" PRId64 ",\n",
            snapshot->realtime_ns, snapshot->monotonic_ns, page->monotonic_ns);
}

enum tutti_status recorder_json(const struct recorder_snapshot *snapshot, char **text,
                                size_t *bytes)
{
    FILE *out = open_memstream(text, bytes);
    if (!out)
        return error_errno("open_memstream");
    fprintf(out, "{\n");
    put_identity(out, snapshot);
    put_description(out, snapshot->page.text);
    put_wait(out, snapshot);
    put_fault(out, &snapshot->fault);
    put_peers(out, snapshot);
    put_marks(out, snapshot);
    put_operations(out, snapshot);
    fprintf(out, "}\n");
    bool failed = ferror(out);
    if (fclose(out) == 0 && !failed)
        return TUTTI_OK;
    free(*text);
    *text = NULL;
    return error_set(TUTTI_ERR_NO_MEMORY, "no memory for the text of a dump");
}
