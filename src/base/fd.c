/* SPDX-License-Identifier: MIT */
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int fd_lift(int fd)
{
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    const int lifted = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    fd_drop(&fd);
    return lifted;
}

FILE *fd_open_stream(const char *path)
{
    int fd = fd_lift(open(path, O_RDONLY | O_CLOEXEC));
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    if (!file)
        fd_drop(&fd);
    return file;
}

void fd_drop(int *fd)
{
    const int old = *fd, code = errno;
    *fd = -1;
    if (old >= 0)
        close(old);
    errno = code;
}
