/* SPDX-License-Identifier: MIT */
/* A recorder's life, and copies of its page. */
#include "record/recorder.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/record_path.h"

#include <stdlib.h>
#include <unistd.h>

static int64_t realtime_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static enum tutti_status pattern_read(struct recorder *recorder)
{
    const char *pattern = getenv("TUTTI_DUMP");
    if (!pattern || !*pattern)
        return TUTTI_OK;
    enum tutti_status status = recorder_pattern_check(pattern, recorder->page);
    if (status != TUTTI_OK)
        return error_context(status, "TUTTI_DUMP");
    recorder->pattern = strdup(pattern);
    return recorder->pattern ? TUTTI_OK : error_errno("strdup of TUTTI_DUMP");
}

enum tutti_status recorder_open(struct recorder *recorder, const char *name, int rank,
                                int world_size, int32_t device)
{
    struct record_page *page;
    if (segment_create(RECORD_LABEL, sizeof *page, &recorder->segment, &recorder->fd) == TUTTI_OK) {
        page = recorder->segment.base;
    } else {
        log_write(TUTTI_LOG_WARN, rank, "tutti dump will not find communicator \"%s\": %s", name,
                  tutti_last_error());
        page = aligned_alloc(LAYOUT_LINE, sizeof *page);
        if (!page)
            return error_set(TUTTI_ERR_NO_MEMORY, "no memory for %zu bytes", sizeof *page);
        memset(page, 0, sizeof *page);
    }
    recorder->page = page;
    page->version = RECORD_VERSION;
    page->library = TUTTI_VERSION;
    page->pid = getpid();
    page->rank = rank;
    page->world_size = world_size;
    page->device = device;
    page->realtime_ns = realtime_now();
    page->monotonic_ns = deadline_now();
    page->ticks = ticks_now();
    snprintf(page->name, sizeof page->name, "%s", name);
    gethostname(page->host, sizeof page->host - 1);
    page->phase = RECORD_MEETING;
    page->magic = RECORD_MAGIC;
    return pattern_read(recorder);
}

void recorder_close(struct recorder *recorder)
{
    if (recorder->page && !recorder->segment.base)
        free(recorder->page);
    segment_unmap(&recorder->segment);
    fd_drop(&recorder->fd);
    free(recorder->pattern);
    *recorder = (struct recorder){.fd = -1};
}

void recorder_forget(struct recorder *recorder)
{
    if (recorder->fd < 0)
        return;
    fd_drop(&recorder->fd);
    recorder->segment.base = NULL;
    recorder->page = NULL;
}

void recorder_end_later(struct recorder *recorder, uint64_t number, enum tutti_status status)
{
    struct record_entry *entry = &recorder->page->entries[number % RECORD_ENTRIES];
    if (number && order_load_relaxed_u64(&entry->number) == number)
        recorder_end(entry, status == TUTTI_OK ? RECORD_DONE : RECORD_FAILED, status,
                     (enum record_kind)(entry->outcome >> 16 & 0xff), ticks_now());
}

/* ---- dumps ----------------------------------------------------------------------------------- */

/* Copies words in ascending order. */
static void words_copy(const void *from, void *to, size_t bytes)
{
    const uint64_t *words = from;
    uint64_t *copies = to;
    for (size_t i = 0; i < bytes / sizeof *words; i++)
        copies[i] = order_load_acquire_u64(&words[i]); /* R2a pairs R2, R3a pairs R3 */
}

/* Copies a page while other threads may write to it. `copy` is zeroed. */
static void page_copy(const struct record_page *page, struct record_page *copy)
{
    enum {
        META = offsetof(struct record_page, phase),
        MEETING = offsetof(struct record_page, declined),
        FAULT = offsetof(struct record_page, fault),
        LOOK = offsetof(struct record_page, looked),
        TRACE = offsetof(struct record_page, device_trace),
        WAIT = offsetof(struct record_page, device_trace.wait),
    };
    const char *from = (const char *)page;
    char *to = (char *)copy;
    memcpy(to, from, META);
    copy->phase = order_load_acquire_u32(&page->phase); /* R1a pairs R1 */
    if (copy->phase != RECORD_MEETING)
        memcpy(to + MEETING, from + MEETING, FAULT - MEETING);
    if (order_load_acquire_u32(&page->fault.set)) /* A1 pairs F1 */
        copy->fault = page->fault;
    words_copy(from + LOOK, to + LOOK, TRACE - LOOK);
    words_copy(from + WAIT, to + WAIT, sizeof *page - WAIT);
}

enum tutti_status recorder_dump(const struct recorder *recorder, enum record_cause cause,
                                const char *pattern)
{
    char path[RECORD_PATH_BYTES];
    struct record_page *copies = calloc(2, sizeof *copies);
    enum tutti_status status = TUTTI_OK;
    if (!copies)
        return error_errno("calloc of a dump");
    page_copy(recorder->page, &copies[0]);
    page_copy(recorder->page, &copies[1]);
    record_keep_stable(&copies[1], &copies[0]);
    copies[1].taken_realtime_ns = realtime_now();
    copies[1].taken_ns = deadline_now();
    copies[1].taken_ticks = ticks_now();
    copies[1].cause = cause;
    if (!record_path(pattern, ".raw", &copies[1], path, sizeof path))
        status = error_set(TUTTI_ERR_INVALID, RECORD_PATH_WRONG, pattern);
    if (status == TUTTI_OK)
        status = recorder_save(path, &copies[1], sizeof copies[1]);
    if (status == TUTTI_OK)
        log_write(TUTTI_LOG_INFO, copies[1].rank, "communicator \"%s\": dumped to %s",
                  copies[1].name, path);
    free(copies);
    return status;
}
