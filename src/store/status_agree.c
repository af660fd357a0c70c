/* SPDX-License-Identifier: MIT */
#include "store/status_agree.h"

#include "base/error.h"

#include <stdio.h>

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
    if (report->rank == own_rank && *report->text)
        return error_set(status, "%.*s", bytes, report->text);
    return error_set(status, "rank %d: %.*s", report->rank, bytes,
                     *report->text ? report->text : "no reason given");
}

enum tutti_status status_reports_read(struct status_report *all, int size)
{
    enum tutti_status status = TUTTI_OK;
    for (int r = 0; status == TUTTI_OK && r < size; r++) {
        all[r].rank = r;
        if (all[r].status != TUTTI_OK)
            status = status_report_error(&all[r], -1);
    }
    return status;
}

static enum tutti_status store_gather(void *exchanger, const void *own, size_t bytes, void *all,
                                      int64_t timeout_ms)
{
    return tutti_exchanger_all_gather(exchanger, own, bytes, all, timeout_ms);
}

struct gather gather_by_store(struct tutti_exchanger *exchanger)
{
    return (struct gather){store_gather, exchanger, exchanger->rank, exchanger->size};
}

enum tutti_status status_agree(const struct gather *gather, enum tutti_status mine,
                               int64_t timeout_ms)
{
    const struct status_report own = status_report_make(mine, gather->rank);
    struct status_report all[TUTTI_MAX_RANKS];
    if (mine == TUTTI_ERR_PEER_DEAD) /* a dead rank writes no report */
        timeout_ms = 1;
    enum tutti_status status = gather->run(gather->context, &own, sizeof own, all, timeout_ms);
    if (mine != TUTTI_OK)
        return status_report_error(&own, gather->rank);
    return status == TUTTI_OK ? status_reports_read(all, gather->size) : status;
}
