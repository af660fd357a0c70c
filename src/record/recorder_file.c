/* SPDX-License-Identifier: MIT */
/* The files of dumps. A dump tells what a program computes, so its file is private. */
#include "base/error.h"
#include "base/fd.h"
#include "base/record_path.h"
#include "record/recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

/* Whether the pattern has %r or %p. "%%r" is a percent sign and a letter. */
static bool names_rank(const char *pattern)
{
    for (const char *at = strchr(pattern, '%'); at && at[1]; at = strchr(at + 2, '%'))
        if (at[1] == 'r' || at[1] == 'p')
            return true;
    return false;
}

enum tutti_status recorder_pattern_check(const char *pattern, const struct record_page *page)
{
    char path[RECORD_PATH_BYTES];
    struct stat info;
    if (!record_path(pattern, ".raw", page, path, sizeof path))
        return error_set(TUTTI_ERR_INVALID, RECORD_PATH_WRONG, pattern);
    if (!names_rank(pattern) && (stat(pattern, &info) != 0 || !S_ISDIR(info.st_mode)))
        return error_set(TUTTI_ERR_INVALID,
                         "\"%s\": all ranks would write to one file: name a directory that "
                         "exists, or a path with %%r (rank) or %%p (process) in it",
                         pattern);
    char *slash = strrchr(path, '/');
    if (slash)
        slash[slash == path] = 0;
    if (access(slash ? path : ".", W_OK | X_OK) == 0)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID, "\"%s\": directory %s cannot be written to: %s", pattern,
                     slash ? path : ".", strerror(errno));
}

static bool write_all(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t written = write(fd, bytes, size);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return false;
        bytes += written;
        size -= (size_t)written;
    }
    return true;
}

enum tutti_status recorder_save(const char *path, const void *bytes, size_t size)
{
    char draft[RECORD_PATH_BYTES + 8];
    enum tutti_status status;
    /* Past this limit the kernel sends SIGXFSZ instead of an error. */
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < size)
        return error_set(TUTTI_ERR_SYSTEM,
                         "cannot write %zu bytes to %s: the file size limit (ulimit -f) is %" PRIu64
                         " bytes",
                         size, path, (uint64_t)limit.rlim_cur);
    /* rename() would replace a device such as /dev/null by a file. It replaces a link itself, not
     * the link's target. */
    struct stat there;
    if (lstat(path, &there) == 0 && !S_ISREG(there.st_mode) && !S_ISLNK(there.st_mode))
        return error_set(TUTTI_ERR_INVALID,
                         "%s is there and no ordinary file: name a directory or a file", path);
    snprintf(draft, sizeof draft, "%s.XXXXXX", path);
    int fd = fd_lift(mkostemp(draft, O_CLOEXEC));
    if (fd < 0)
        return error_errno("cannot create a file beside %s%sname another directory", path,
                           error_full());
    bool written = write_all(fd, bytes, size);
    if (close(fd) != 0 || !written) {
        status = error_errno("cannot write %zu bytes to %s%sname another directory", size, draft,
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
