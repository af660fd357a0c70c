/* SPDX-License-Identifier: MIT */
/*
 * Reads recorders, and trusts no byte of them. It finds those of another process through that
 * process' descriptors in /proc. The kernel allows this to a process that may trace the other one,
 * usually one of the same user. The other process takes no part.
 */
#include "base/ticks.h"
#include "dump.h"
#include "tool.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* ---- pages ----------------------------------------------------------------------------------- */

bool dump_is_raw(const void *bytes, size_t size)
{
    static const uint64_t magic = RECORD_MAGIC;
    return size >= sizeof magic && memcmp(bytes, &magic, sizeof magic) == 0;
}

static bool page_check(const struct record_page *page, size_t size, char *problem,
                       size_t problem_size)
{
    const unsigned other = page->library;
    const size_t head = offsetof(struct record_page, pid);
    if (!dump_is_raw(page, size) || size < head)
        snprintf(problem, problem_size,
                 "a recorder without its magic number: its process had just begun it, or it is not "
                 "Tutti's");
    else if (page->version != RECORD_VERSION)
        snprintf(problem, problem_size,
                 "a recorder of version %u, by Tutti %u.%u.%u; this program is Tutti %u.%u.%u and "
                 "reads version %d: use the program of the other Tutti",
                 (unsigned)page->version, other / 10000, other / 100 % 100, other % 100,
                 TUTTI_VERSION / 10000u, TUTTI_VERSION / 100u % 100, TUTTI_VERSION % 100u,
                 RECORD_VERSION);
    else if (size != sizeof *page)
        snprintf(problem, problem_size, "a recorder of %zu bytes instead of %zu: it is damaged",
                 size, sizeof *page);
    else if (page->world_size < 1 || page->world_size > WORLD_RANKS || page->rank < 0 ||
             page->rank >= page->world_size)
        snprintf(problem, problem_size, "a recorder of rank %d of %d: it is damaged",
                 (int)page->rank, (int)page->world_size);
    else
        return true;
    return false;
}

static int compare(uint64_t left, uint64_t right)
{
    return (left > right) - (left < right);
}

static int compare_entries(const void *left, const void *right)
{
    return compare(((const struct record_entry *)left)->number,
                   ((const struct record_entry *)right)->number);
}

static int compare_marks(const void *left, const void *right)
{
    return compare(((const struct device_trace_mark *)left)->sequence,
                   ((const struct device_trace_mark *)right)->sequence);
}

static void entries_sort(struct record_entry *entries)
{
    size_t count = 0;
    for (size_t i = 0; i < RECORD_ENTRIES; i++)
        if (entries[i].number && entries[i].number % RECORD_ENTRIES == i)
            entries[count++] = entries[i];
    memset(&entries[count], 0, (RECORD_ENTRIES - count) * sizeof *entries);
    qsort(entries, count, sizeof *entries, compare_entries);
}

static void marks_sort(struct device_trace_mark *marks)
{
    size_t count = 0;
    for (size_t i = 0; i < DEVICE_TRACE_MARKS; i++)
        if (marks[i].sequence && marks[i].sequence <= INT64_MAX &&
            marks[i].sequence % DEVICE_TRACE_MARKS == i &&
            (uint32_t)marks[i].sequence == marks[i].low)
            marks[count++] = marks[i];
    memset(&marks[count], 0, (DEVICE_TRACE_MARKS - count) * sizeof *marks);
    qsort(marks, count, sizeof *marks, compare_marks);
}

struct record_page *dump_page_parse(const void *bytes, size_t size, char *problem,
                                    size_t problem_size)
{
    struct record_page *page = calloc(1, sizeof *page);
    if (!page) {
        snprintf(problem, problem_size, "there is no memory for it");
        return NULL;
    }
    memcpy(page, bytes, size < sizeof *page ? size : sizeof *page);
    if (!page_check(page, size, problem, problem_size)) {
        free(page);
        return NULL;
    }
    if (!page->fault.set || page->fault.status == TUTTI_OK)
        page->fault = (struct layout_fault){0};
    if (page->phase == RECORD_MEETING) {
        page->declined = 0;
        page->generation = 0;
        page->table_hash = page->meeting = 0;
        page->text[0] = 0;
    }
    page->name[sizeof page->name - 1] = page->host[sizeof page->host - 1] = 0;
    page->text[sizeof page->text - 1] = 0;
    if (page->awaits > (uint32_t)page->world_size)
        page->awaits = 0;
    if (!page->device_ahead_ns)
        memset(page->device_trace.marks, 0, sizeof page->device_trace.marks);
    entries_sort(page->entries);
    marks_sort(page->device_trace.marks);
    return page;
}

/* ---- processes ------------------------------------------------------------------------------- */

/* Whether the descriptor of that name is a recorder's. */
static bool is_recorder(int directory, const char *name)
{
    static const char link[] = "/memfd:" RECORD_LABEL " (deleted)";
    char target[sizeof link + 1] = "";
    ssize_t length = readlinkat(directory, name, target, sizeof target - 1);
    return length == sizeof link - 1 && memcmp(target, link, sizeof link - 1) == 0;
}

/* Reads a page twice and keeps what is stable. The second reading gives *size. False with errno. */
static bool page_read(int fd, struct record_page *pages, ssize_t *size)
{
    struct timespec now;
    if (pread(fd, &pages[0], sizeof *pages, 0) < 0)
        return false;
    *size = pread(fd, &pages[1], sizeof *pages, 0);
    if (*size < 0)
        return false;
    record_keep_stable(&pages[1], &pages[0]);
    clock_gettime(CLOCK_REALTIME, &now);
    pages[1].taken_realtime_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    clock_gettime(CLOCK_MONOTONIC, &now);
    pages[1].taken_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    pages[1].taken_ticks = ticks_now();
    pages[1].cause = RECORD_CAUSE_OUTSIDE;
    return true;
}

/* Gives fn the page behind a descriptor of the process. */
static bool recorder_read(int pid, const char *name, int fd, dump_page_fn *fn, void *context)
{
    char problem[256];
    ssize_t size;
    struct record_page *pages = calloc(2, sizeof *pages), *page = NULL;
    bool read = pages && page_read(fd, pages, &size);
    if (!read)
        tool_fail_errno("process %d, descriptor %s: a recorder cannot be read", pid, name);
    if (read) {
        page = dump_page_parse(&pages[1], (size_t)size, problem, sizeof problem);
        read = page ? fn(context, page)
                    : tool_fail("process %d, descriptor %s: %s", pid, name, problem);
    }
    free(page);
    free(pages);
    return read;
}

bool dump_read_process(int pid, dump_page_fn *fn, void *context)
{
    const struct dirent *entry;
    char path[32];
    int recorders = 0;
    bool read = true;
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *fds = opendir(path);
    if (!fds && errno == ENOENT)
        return tool_fail("there is no process %d", pid);
    if (!fds)
        return tool_fail_errno("process %d cannot be read: it has ended, belongs to another user, "
                               "or has made itself undumpable",
                               pid);
    while (errno = 0, (entry = readdir(fds)) != NULL) {
        if (!is_recorder(dirfd(fds), entry->d_name))
            continue;
        int fd = openat(dirfd(fds), entry->d_name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0 && errno == ENOENT) /* closed meanwhile */
            continue;
        recorders++;
        if (fd < 0)
            read = tool_fail_errno("process %d, descriptor %s", pid, entry->d_name);
        else
            read &= recorder_read(pid, entry->d_name, fd, fn, context);
        if (fd >= 0)
            close(fd);
    }
    if (errno)
        read = tool_fail_errno("process %d: its descriptors cannot be read to the end, so that "
                               "recorders may be missing: dump it again",
                               pid);
    else if (recorders == 0)
        read = tool_fail("process %d has no communicator", pid);
    closedir(fds);
    return read;
}
