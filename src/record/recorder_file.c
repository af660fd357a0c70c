/* SPDX-License-Identifier: MIT */
/*
 * Where dumps go. A dump tells what a program computes: its file is private, and whatever a name
 * leads to is replaced, never written through.
 */
#include "record/recorder_internal.h"

#include "base/error.h"
#include "base/text.h"
#include "ipc/random.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of a file in a directory. */
static const char own_name[] = "/tutti-%n-%g-r%r-p%p.json";

static bool is_directory(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* A name as part of a path, whatever it holds. */
static void append_name(char *path, size_t size, int *length, const char *name)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.";
    for (; *name; name++)
        text_append(path, size, length, "%c", strchr(plain, *name) ? *name : '_');
}

/* One letter behind a percent sign; false if it means nothing. */
static bool append_field(char *path, size_t size, int *length, char letter,
                         const struct record_page *page)
{
    switch (letter) {
    case 'r':
        text_append(path, size, length, "%d", (int)page->rank);
        return true;
    case 'p':
        text_append(path, size, length, "%d", (int)page->pid);
        return true;
    case 'g':
        text_append(path, size, length, "%" PRId64, page->generation);
        return true;
    case 'n':
        append_name(path, size, length, page->name);
        return true;
    case 'h':
        append_name(path, size, length, page->host);
        return true;
    case '%':
        text_append(path, size, length, "%%");
        return true;
    default:
        return false;
    }
}

enum tutti_status recorder_path(const char *pattern, const struct record_page *page, char *path,
                                size_t size)
{
    int length = 0;
    const char *rest = pattern;
    *path = 0;
    if (is_directory(pattern)) {
        text_append(path, size, &length, "%s", pattern);
        rest = own_name;
    }
    for (; *rest && (size_t)length < size; rest++) {
        if (*rest != '%')
            text_append(path, size, &length, "%c", *rest);
        else if (!append_field(path, size, &length, *++rest, page))
            return error_set(TUTTI_ERR_INVALID,
                             "\"%s\": expected a directory, or a path with %%r (rank), %%p "
                             "(process), %%n (name), %%g (generation), %%h (host) or %%%%",
                             pattern);
    }
    if (length == 0)
        return error_set(TUTTI_ERR_INVALID,
                         "\"%s\" names no file: expected a directory, or a path with %%r (rank)",
                         pattern);
    if ((size_t)length < size)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID, "\"%.200s...\" is longer than a path may be, %zu bytes",
                     pattern, size - 1);
}

/* Whether the rank is in it: "%%r" is a percent sign and a letter. */
static bool names_rank(const char *pattern)
{
    for (const char *at = strchr(pattern, '%'); at && at[1]; at = strchr(at + 2, '%'))
        if (at[1] == 'r')
            return true;
    return false;
}

enum tutti_status recorder_pattern_check(const char *pattern, const struct record_page *page)
{
    char path[RECORDER_PATH_BYTES];
    enum tutti_status status = recorder_path(pattern, page, path, sizeof path);
    if (status != TUTTI_OK)
        return status;
    if (!is_directory(pattern) && !names_rank(pattern))
        return error_set(TUTTI_ERR_INVALID,
                         "\"%s\": all ranks would write to one file: name a directory that "
                         "exists, or a path with %%r, the rank, in it",
                         pattern);
    char *slash = strrchr(path, '/');
    if (slash)
        slash[slash == path] = 0;
    if (access(slash ? path : ".", W_OK | X_OK) == 0)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID, "\"%s\": directory %s cannot be written to: %s", pattern,
                     slash ? path : ".", strerror(errno));
}

static bool write_all(int fd, const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t written = write(fd, text, bytes);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return false;
        text += written;
        bytes -= (size_t)written;
    }
    return true;
}

enum tutti_status recorder_save(const char *path, const char *text, size_t bytes)
{
    char draft[RECORDER_PATH_BYTES + 32];
    uint64_t random;
    enum tutti_status status = random_fill(&random, sizeof random);
    if (status != TUTTI_OK)
        return status;
    /* Past this limit the kernel sends SIGXFSZ instead of an error. */
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes)
        return error_set(TUTTI_ERR_SYSTEM,
                         "cannot write %zu bytes to %s: the file size limit (ulimit -f) is %" PRIu64
                         " bytes",
                         bytes, path, (uint64_t)limit.rlim_cur);
    /* A rename would put a file where /dev/null was; of a link it replaces the link alone. */
    struct stat there;
    if (lstat(path, &there) == 0 && !S_ISREG(there.st_mode) && !S_ISLNK(there.st_mode))
        return error_set(TUTTI_ERR_INVALID,
                         "%s is there and no ordinary file: name a directory or a file", path);
    snprintf(draft, sizeof draft, "%s.%016" PRIx64, path, random);
    int fd = open(draft, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_errno("cannot create a file beside %s%sname another directory", path,
                           error_full());
    bool written = write_all(fd, text, bytes);
    if (close(fd) != 0 || !written) {
        status = error_errno("cannot write %zu bytes to %s%sname another directory", bytes, draft,
                             error_full());
        goto err_unlink;
    }
    if (rename(draft, path) != 0) {
        status = error_errno("cannot give a dump its name, %s", path);
        goto err_unlink;
    }
    return TUTTI_OK;

err_unlink:
    unlink(draft);
    return status;
}

void recorder_paths_fini(struct recorder_paths *paths)
{
    for (size_t i = 0; i < paths->count; i++)
        free(paths->all[i]);
    free(paths->all);
    *paths = (struct recorder_paths){0};
}

static enum tutti_status paths_add(struct recorder_paths *paths, const char *path)
{
    for (size_t i = 0; i < paths->count; i++)
        if (strcmp(paths->all[i], path) == 0)
            return error_set(TUTTI_ERR_INVALID,
                             "%s holds the dump of another communicator of that process: name a "
                             "directory, or a path with %%n (name), %%g (generation) and %%r "
                             "(rank) in it",
                             path);
    char **more = realloc(paths->all, (paths->count + 1) * sizeof *more);
    if (!more)
        return error_errno("realloc of the dumps' names");
    paths->all = more;
    more[paths->count] = strdup(path);
    if (!more[paths->count])
        return error_errno("strdup of a dump's name");
    paths->count++;
    return TUTTI_OK;
}

enum tutti_status recorder_dump(const struct record_page *page, const char *cause,
                                const char *pattern, struct recorder_paths *written, char *path,
                                size_t size)
{
    struct recorder_snapshot *snapshot;
    char *text = NULL;
    size_t bytes;
    enum tutti_status status = recorder_read(page, cause, &snapshot);
    if (status == TUTTI_OK)
        status = recorder_path(pattern, &snapshot->page, path, size);
    if (status == TUTTI_OK && written)
        status = paths_add(written, path);
    if (status == TUTTI_OK)
        status = recorder_json(snapshot, &text, &bytes);
    if (status == TUTTI_OK)
        status = recorder_save(path, text, bytes);
    free(text);
    free(snapshot);
    return status;
}
