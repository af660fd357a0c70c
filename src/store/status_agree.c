/* SPDX-License-Identifier: MIT */
#include "store/status_agree.h"

#include "base/error.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { KEY_BYTES = 256, TEXT_MS = 1000 };

struct status_report status_report_make(enum tutti_status status, int rank)
{
    struct status_report report = {.status = (int32_t)status, .rank = rank};
    if (status != TUTTI_OK)
        snprintf(report.text, sizeof report.text, "%s", tutti_last_error());
    return report;
}

enum tutti_status status_report_error(const struct status_report *report, int own_rank)
{
    const enum tutti_status status = error_told(report->status);
    const int bytes = sizeof report->text - 1;
    if (!*report->text)
        return error_set(status, "rank %d failed (%s): look at its own error", report->rank,
                         tutti_status_text(status));
    if (report->rank == own_rank)
        return error_set(status, "%.*s", bytes, report->text);
    return error_set(status, "rank %d: %.*s", report->rank, bytes, report->text);
}

static enum tutti_status store_gather(void *exchanger, const void *own, size_t bytes, void *all,
                                      int64_t timeout_ms)
{
    return tutti_exchanger_all_gather(exchanger, own, bytes, all, timeout_ms);
}

struct gather gather_by_store(struct tutti_exchanger *exchanger, void *rows)
{
    return (struct gather){.run = store_gather,
                           .context = exchanger,
                           .rank = exchanger->rank,
                           .size = exchanger->size,
                           .rows = rows,
                           .blind = true,
                           .terse = true,
                           .texts = exchanger};
}

static void text_key(const struct gather *gather, uint64_t round, int rank, char key[KEY_BYTES])
{
    snprintf(key, KEY_BYTES, "%s/%" PRIu64 "/text/%d", gather->texts->prefix, round, rank);
}

/* Before the rank's row, so that the text is there for those that read the row. */
static void text_tell(const struct gather *gather, uint64_t round,
                      const struct status_report *report)
{
    char key[KEY_BYTES];
    if (!gather->texts || report->status == TUTTI_OK)
        return;
    text_key(gather, round, gather->rank, key);
    (void)tutti_store_set(gather->texts->store, key, report->text, sizeof report->text);
}

/* Bytes of a row before the value. */
static size_t head_bytes(const struct gather *gather)
{
    return gather->terse ? offsetof(struct status_report, text) : sizeof(struct status_report);
}

static unsigned char *row_of(const struct gather *gather, int rank)
{
    return (unsigned char *)gather->rows + (size_t)rank * gather->row_bytes;
}

/* Replaces *blamed, this rank's report, by another rank's: gather_agree() says when. */
static void reports_read(struct gather *gather, struct status_report *blamed)
{
    for (int r = 0; r < gather->size; r++) {
        struct status_report report;
        memcpy(&report.status, row_of(gather, r), sizeof report.status);
        if (report.status == TUTTI_OK || r == gather->rank)
            continue;
        *report.text = 0;
        memcpy(&report, row_of(gather, r), head_bytes(gather));
        report.rank = r;
        if (blamed->status != TUTTI_OK && blamed->status != report.status)
            gather->alike = false;
        if (blamed->status == TUTTI_OK ||
            (blamed->status == TUTTI_ERR_PEER_DEAD && report.status != TUTTI_ERR_PEER_DEAD))
            *blamed = report;
    }
    gather->blamed = blamed->status == TUTTI_OK ? -1 : blamed->rank;
}

/* Without its text a report names the rank. */
static void text_read(const struct gather *gather, uint64_t round, struct status_report *report)
{
    char key[KEY_BYTES];
    size_t size = 0;
    if (!gather->texts || report->status == TUTTI_OK || report->rank == gather->rank)
        return;
    text_key(gather, round, report->rank, key);
    if (tutti_store_get(gather->texts->store, key, TEXT_MS, report->text, sizeof report->text,
                        &size) != TUTTI_OK)
        *report->text = 0;
}

/* Whether a failure of run() is the reason of a rank's own: a dead rank, or an abort. */
static bool explains(enum tutti_status ran, int32_t mine)
{
    return ran != TUTTI_OK && ran != TUTTI_ERR_TIMEOUT &&
           (mine == TUTTI_ERR_PEER_DEAD || mine == TUTTI_ERR_DECLINED);
}

enum tutti_status gather_agree(struct gather *gather, enum tutti_status mine, const void *value,
                               size_t bytes, int64_t timeout_ms)
{
    struct status_report blamed = status_report_make(mine, gather->rank);
    const size_t head = head_bytes(gather);
    const uint64_t round = gather->texts ? gather->texts->sequence : 0;
    gather->row_bytes = head + (bytes > gather->least_bytes ? bytes : gather->least_bytes);
    unsigned char *own = row_of(gather, gather->rank);
    memset(own, 0, gather->row_bytes);
    memcpy(own, &blamed, head);
    if (bytes)
        memcpy(own + head, value, bytes);
    if (mine == TUTTI_ERR_PEER_DEAD && gather->blind)
        timeout_ms = 1; /* a dead rank writes no row */
    text_tell(gather, round, &blamed);
    enum tutti_status status =
        gather->run(gather->context, own, gather->row_bytes, gather->rows, timeout_ms);
    gather->alike = status == TUTTI_OK;
    gather->blamed = -1;
    if (status == TUTTI_OK)
        reports_read(gather, &blamed);
    text_read(gather, round, &blamed);
    if (blamed.status != TUTTI_OK && !explains(status, blamed.status))
        status = status_report_error(&blamed, gather->rank);
    gather->failed = status != TUTTI_OK;
    return status;
}

void gather_value(const struct gather *gather, int rank, void *value, size_t bytes)
{
    const int row = gather->members ? gather->members[rank] : rank;
    memcpy(value, row_of(gather, row) + head_bytes(gather), bytes);
}
