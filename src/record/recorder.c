/* SPDX-License-Identifier: MIT */
/* A recorder's life, and its dumps by the process itself. */
#include "record/recorder.h"

#include "base/deadline.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/comm.h"
#include "ipc/fork.h"
#include "record/recorder_internal.h"
#include "tutti/recorder.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* All that never changes. */
static void page_begin(struct record_page *page, const struct tutti_comm *comm)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    page->version = RECORD_VERSION;
    page->library = TUTTI_VERSION;
    page->pid = getpid();
    page->rank = comm->rank;
    page->world_size = comm->world_size;
    page->device = comm->config.device;
    page->realtime_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    page->monotonic_ns = deadline_now();
    page->ticks = ticks_now();
    memcpy(page->name, comm->name, sizeof page->name);
    gethostname(page->host, sizeof page->host - 1);
    page->phase = RECORD_MEETING;
    page->magic = RECORD_MAGIC;
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

enum tutti_status recorder_open(struct tutti_comm *comm)
{
    struct recorder *recorder = &comm->recorder;
    const size_t bytes = sizeof *recorder->page;
    static_assert((int)RECORD_NAME_BYTES == (int)COMM_NAME_BYTES, "a name fits");
    if (segment_create(RECORD_LABEL, bytes, &recorder->segment, &recorder->fd) == TUTTI_OK) {
        recorder->page = recorder->segment.base;
    } else {
        log_write(TUTTI_LOG_WARN, comm->rank, "tutti dump will not find communicator \"%s\": %s",
                  comm->name, tutti_last_error());
        recorder->page = aligned_alloc(LAYOUT_LINE, bytes);
        if (!recorder->page)
            return error_set(TUTTI_ERR_NO_MEMORY, "no memory for %zu bytes", bytes);
        memset(recorder->page, 0, bytes);
    }
    page_begin(recorder->page, comm);
    return pattern_read(recorder);
}

void recorder_close(struct tutti_comm *comm)
{
    struct recorder *recorder = &comm->recorder;
    if (recorder->page && !recorder->segment.base)
        free(recorder->page);
    segment_unmap(&recorder->segment);
    if (recorder->fd >= 0)
        close(recorder->fd);
    free(recorder->pattern);
    *recorder = (struct recorder){.fd = -1};
}

void recorder_forget(struct recorder *recorder)
{
    if (recorder->fd < 0)
        return;
    close(recorder->fd);
    recorder->fd = -1;
    recorder->segment.base = NULL; /* a child does not inherit it */
    recorder->page = NULL;
}

/* What tells communicators apart, and does not tell the nonce, which is a secret. */
static uint64_t meeting_of(const struct tutti_comm *comm)
{
    uint64_t halves[2];
    memcpy(halves, comm->nonce, sizeof halves);
    return halves[0] ^ halves[1];
}

void recorder_describe(struct tutti_comm *comm)
{
    struct record_page *page = comm->recorder.page;
    page->declined = (int32_t)comm->declined;
    page->generation = comm->generation;
    page->table_hash = comm->table_hash;
    page->meeting = meeting_of(comm);
    tutti_comm_describe(comm, page->text, sizeof page->text);
    /* R1 pairs R1a */
    order_store_release_u32(&page->phase, comm->ready ? RECORD_MET : RECORD_NOT_MET);
}

void recorder_end_later(struct recorder *recorder, uint64_t number, enum tutti_status status)
{
    struct record_entry *entry = &recorder->page->entries[number % RECORD_ENTRIES];
    if (number && order_load_relaxed_u64(&entry->number) == number)
        recorder_end(entry, status == TUTTI_OK ? RECORD_DONE : RECORD_FAILED, status, RECORD_GROUP,
                     ticks_now());
}

/* ---- dumps ----------------------------------------------------------------------------------- */

static enum tutti_status dump(struct tutti_comm *comm, const char *cause, const char *pattern)
{
    char path[RECORDER_PATH_BYTES];
    cpu_group_survey(&comm->cpu);
    enum tutti_status status =
        recorder_dump(comm->recorder.page, cause, pattern, NULL, path, sizeof path);
    if (status == TUTTI_OK)
        log_write(TUTTI_LOG_INFO, comm->rank, "communicator \"%s\": dumped to %s", comm->name,
                  path);
    return status;
}

void recorder_failed(void *context)
{
    struct tutti_comm *comm = context;
    const char *pattern = comm->recorder.pattern;
    if (pattern && dump(comm, "failure", pattern) != TUTTI_OK)
        log_write(TUTTI_LOG_WARN, comm->rank, "communicator \"%s\": no dump: %s", comm->name,
                  tutti_last_error());
}

enum tutti_status tutti_comm_dump(tutti_comm_t *comm, const char *pattern)
{
    static const char call[] = "tutti_comm_dump";
    if (!comm)
        return error_set(TUTTI_ERR_INVALID, "%s: comm is NULL", call);
    if (fork_detected(comm->epoch))
        return comm_refuse_child(comm, call);
    if (!pattern)
        pattern = comm->recorder.pattern;
    if (!pattern)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: no pattern, and TUTTI_DUMP was not set when the communicator was "
                         "created: name a file or a directory",
                         call);
    enum tutti_status status = dump(comm, "call", pattern);
    return status == TUTTI_OK ? TUTTI_OK : error_context(status, "%s", call);
}
