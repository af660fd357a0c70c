/* SPDX-License-Identifier: MIT */
/*
 * Recorders of another process, through its table of descriptors. The kernel lets in who could
 * trace that process, its own user as a rule, and needs nothing from it: it may be stopped, or
 * stuck inside a system call.
 */
#include "record/recorder_internal.h"

#include "base/error.h"
#include "base/text.h"
#include "tutti/recorder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether a descriptor of that name in the directory is a recorder's. */
static bool is_recorder(int directory, const char *name)
{
    static const char link[] = "/memfd:" RECORD_LABEL " (deleted)";
    char target[sizeof link + 1] = "";
    ssize_t length = readlinkat(directory, name, target, sizeof target - 1);
    return length == sizeof link - 1 && memcmp(target, link, sizeof link - 1) == 0;
}

/* Maps a recorder to read it. What cannot shrink does not fault: it is none before. NULL with
 * errno, ENOENT if it is none, or is none any more. */
static struct record_page *page_map(int directory, const char *name)
{
    struct stat info;
    void *page = MAP_FAILED;
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals >= 0 && (seals & F_SEAL_SHRINK) && fstat(fd, &info) == 0 &&
        info.st_size >= (off_t)sizeof(struct record_page))
        page = mmap(NULL, sizeof(struct record_page), PROT_READ, MAP_SHARED, fd, 0);
    else
        errno = ENOENT;
    int code = errno;
    close(fd);
    errno = code;
    return page == MAP_FAILED ? NULL : page;
}

static enum tutti_status process_open(int pid, DIR **fds)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    *fds = opendir(path);
    if (*fds)
        return TUTTI_OK;
    if (errno == ENOENT)
        return error_set(TUTTI_ERR_INVALID, "there is no process %d", pid);
    return error_errno("process %d cannot be looked into: it has ended, or is not yours, or has "
                       "made itself undumpable",
                       pid);
}

/* NULL at the end, and, with another *status than OK, where the directory cannot be read on. */
static const struct dirent *entry_next(DIR *fds, enum tutti_status *status)
{
    errno = 0;
    const struct dirent *entry = readdir(fds);
    if (!entry && errno)
        *status = error_errno("its descriptors cannot be read to the end, so that recorders may be "
                              "missing: dump it again");
    return entry;
}

/* Recorders of which nothing came, and why of the first. */
struct failures {
    enum tutti_status status;
    char why[512];
    char descriptors[128];
    int length; /* of `descriptors` */
};

static void failure_note(struct failures *failures, enum tutti_status status, const char *name)
{
    if (failures->status == TUTTI_OK) {
        failures->status = status;
        snprintf(failures->why, sizeof failures->why, "%s", tutti_last_error());
    }
    text_append(failures->descriptors, sizeof failures->descriptors, &failures->length, "%s%s",
                failures->length ? ", " : "", name);
}

enum tutti_status tutti_dump_process(int pid, const char *pattern, tutti_dump_fn *fn, void *context,
                                     int *count)
{
    static const char call[] = "tutti_dump_process";
    struct failures failures = {.status = TUTTI_OK};
    const struct dirent *entry;
    struct recorder_paths written = {0};
    char path[RECORDER_PATH_BYTES];
    DIR *fds;
    if (!pattern || !count)
        return error_set(TUTTI_ERR_INVALID, "%s: %s is NULL", call, pattern ? "count" : "pattern");
    *count = 0;
    enum tutti_status status = process_open(pid, &fds);
    if (status != TUTTI_OK)
        return error_context(status, "%s", call);
    enum tutti_status end = TUTTI_OK;
    while ((entry = entry_next(fds, &end)) != NULL) {
        if (!is_recorder(dirfd(fds), entry->d_name))
            continue;
        struct record_page *page = page_map(dirfd(fds), entry->d_name);
        if (!page && errno == ENOENT)
            continue;
        status = page ? recorder_dump(page, "outside", pattern, &written, path, sizeof path)
                      : error_errno("a recorder cannot be mapped");
        if (page)
            munmap(page, sizeof *page);
        *count += status == TUTTI_OK;
        if (status != TUTTI_OK)
            failure_note(&failures, status, entry->d_name);
        else if (fn)
            fn(context, path);
    }
    closedir(fds);
    recorder_paths_fini(&written);
    if (failures.status == TUTTI_OK)
        return end == TUTTI_OK ? end : error_context(end, "%s: process %d", call, pid);
    return error_set(failures.status, "%s: process %d, descriptor %s: %s", call, pid,
                     failures.descriptors, failures.why);
}
