/* SPDX-License-Identifier: MIT */
/* Copies of a page that its process writes to meanwhile, or another process has filled with
 * anything. */
#include "record/recorder_internal.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/order.h"
#include "base/signature.h"
#include "base/ticks.h"

#include <stdlib.h>
#include <string.h>

static enum tutti_status page_check(const struct record_page *page)
{
    if (page->magic != RECORD_MAGIC)
        return error_set(TUTTI_ERR_INVALID, "a recorder without its magic number: its process had "
                                            "just begun, or it is none of Tutti's");
    if (page->version != RECORD_VERSION)
        return error_set(TUTTI_ERR_VERSION,
                         "a recorder of version %u, this library has %d: dump it with the library "
                         "that the process runs, %u.%u.%u",
                         (unsigned)page->version, RECORD_VERSION, (unsigned)page->library / 10000,
                         (unsigned)page->library / 100 % 100, (unsigned)page->library % 100);
    if (page->world_size < 1 || page->world_size > LAYOUT_RANKS || page->rank < 0 ||
        page->rank >= page->world_size)
        return error_set(TUTTI_ERR_INVALID, "a recorder of rank %d of %d: it is damaged",
                         (int)page->rank, (int)page->world_size);
    return TUTTI_OK;
}

/* A kind of operation that there is not would be taken for the address of one. */
static uint64_t signature_sane(uint64_t signature)
{
    const uint64_t kind = UINT64_C(15) << 52;
    return (signature & kind) >> 52 < OP_COUNT ? signature : signature & ~kind;
}

/* The fields of one entry that belong together; false if there is none, or it was replaced. */
static bool entry_read(const struct record_entry *from, size_t index, struct record_entry *to)
{
    uint64_t number = order_load_acquire_u64(&from->number); /* R2a pairs R2 */
    if (number == 0 || number % RECORD_ENTRIES != index)
        return false;
    to->number = number;
    to->sequence = order_load_acquire_u64(&from->sequence);
    to->signature = signature_sane(order_load_acquire_u64(&from->signature));
    to->detail = order_load_acquire_u64(&from->detail);
    to->started = order_load_acquire_u64(&from->started);
    to->outcome = order_load_acquire_u64(&from->outcome); /* R3a pairs R3 */
    to->ended = order_load_acquire_u64(&from->ended);
    return order_load_relaxed_u64(&from->number) == number;
}

static int compare(const void *a, const void *b)
{
    const struct record_entry *left = a, *right = b;
    return (left->number > right->number) - (left->number < right->number);
}

static void entries_read(const struct record_page *page, struct recorder_snapshot *snapshot)
{
    for (size_t i = 0; i < RECORD_ENTRIES; i++)
        snapshot->count +=
            entry_read(&page->entries[i], i, &snapshot->page.entries[snapshot->count]);
    qsort(snapshot->page.entries, (size_t)snapshot->count, sizeof *snapshot->page.entries, compare);
}

/* ---- the device trace ------------------------------------------------------------------------ */

enum { MARK_WORDS = sizeof(struct device_trace_mark) / sizeof(uint64_t) };

/* One operation's mark; false if there is none, or it was replaced. The device stores its two lines
 * in any order, and comes to a place again a thousand operations later: what is the same twice is
 * not being written. */
static bool mark_read(const struct device_trace_mark *from, size_t index,
                      struct device_trace_mark *to)
{
    const uint64_t *words = (const uint64_t *)(const void *)from;
    uint64_t first[MARK_WORDS], again[MARK_WORDS];
    for (int i = 0; i < MARK_WORDS; i++)
        first[i] = order_load_acquire_u64(&words[i]);
    for (int i = 0; i < MARK_WORDS; i++)
        again[i] = order_load_acquire_u64(&words[i]);
    if (memcmp(first, again, sizeof first) != 0)
        return false;
    memcpy(to, first, sizeof *to);
    to->signature = signature_sane(to->signature);
    return to->sequence && to->sequence <= INT64_MAX &&
           to->sequence % DEVICE_TRACE_MARKS == index && (uint32_t)to->sequence == to->low;
}

static int compare_marks(const void *a, const void *b)
{
    const struct device_trace_mark *left = a, *right = b;
    return (left->sequence > right->sequence) - (left->sequence < right->sequence);
}

static void device_trace_read(const struct record_page *page, struct recorder_snapshot *snapshot)
{
    struct record_page *copy = &snapshot->page;
    const struct device_trace *device_trace = &page->device_trace;
    copy->device_ahead_ns =
        (int64_t)order_load_relaxed_u64((const uint64_t *)&page->device_ahead_ns);
    copy->device_trace.wait.of = order_load_relaxed_u64(&device_trace->wait.of);
    for (size_t i = 0; i < DEVICE_TRACE_MARKS && copy->device_ahead_ns; i++)
        snapshot->marks +=
            mark_read(&device_trace->marks[i], i, &copy->device_trace.marks[snapshot->marks]);
    qsort(copy->device_trace.marks, (size_t)snapshot->marks, sizeof *copy->device_trace.marks,
          compare_marks);
}

/* ---- the rest -------------------------------------------------------------------------------- */

/* What the meeting gave, once it is over. */
static void meeting_read(const struct record_page *page, struct record_page *copy)
{
    copy->phase = order_load_acquire_u32(&page->phase); /* R1a pairs R1 */
    if (copy->phase == RECORD_MEETING)
        return;
    copy->declined = page->declined;
    copy->generation = page->generation;
    copy->table_hash = page->table_hash;
    copy->meeting = page->meeting;
    memcpy(copy->text, page->text, sizeof copy->text - 1);
}

static void fault_read(const struct layout_fault *in, struct tutti_fault *fault)
{
    *fault = (struct tutti_fault){.struct_size = sizeof *fault, .peer = -1};
    if (!order_load_acquire_u32(&in->set)) /* A1 pairs F1 */
        return;
    fault->status = (enum tutti_status)in->status;
    fault->rank = in->rank;
    fault->peer = in->peer;
    fault->sequence = in->sequence;
    fault->expected = signature_unpack(signature_sane(in->expected), in->expected_parameter);
    fault->seen = signature_unpack(signature_sane(in->seen), in->seen_parameter);
}

static void look_read(const struct record_page *page, struct record_page *copy)
{
    copy->looked = order_load_relaxed_u64(&page->looked);
    copy->awaited_since = order_load_relaxed_u64(&page->awaited_since);
    copy->awaits = order_load_relaxed_u32(&page->awaits);
    if (copy->awaits > (uint32_t)copy->world_size)
        copy->awaits = 0;
    for (int r = 0; r < copy->world_size; r++) {
        copy->peers[r].entered = order_load_relaxed_u64(&page->peers[r].entered);
        copy->peers[r].life = order_load_relaxed_u32(&page->peers[r].life);
    }
}

enum tutti_status recorder_read(const struct record_page *page, const char *cause,
                                struct recorder_snapshot **snapshot)
{
    *snapshot = NULL;
    struct recorder_snapshot *taken = calloc(1, sizeof *taken);
    if (!taken)
        return error_errno("calloc of a dump");
    struct record_page *copy = &taken->page;
    memcpy(copy, page, offsetof(struct record_page, phase));
    enum tutti_status status = page_check(copy);
    if (status != TUTTI_OK) {
        free(taken);
        return status;
    }
    copy->name[sizeof copy->name - 1] = copy->host[sizeof copy->host - 1] = 0;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    taken->cause = cause;
    taken->realtime_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    taken->monotonic_ns = deadline_now();
    taken->ticks = ticks_now();
    meeting_read(page, copy);
    fault_read(&page->fault, &taken->fault);
    look_read(page, copy);
    entries_read(page, taken);
    device_trace_read(page, taken);
    *snapshot = taken;
    return TUTTI_OK;
}
