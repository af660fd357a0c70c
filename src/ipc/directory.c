/* SPDX-License-Identifier: MIT */
/*
 * What lies in the directory
 *   so-RANDOM   a listening socket; unlinked once its rank is connected
 *   bd-RANDOM   a socket that is bound and does not listen yet
 *   job-...     small files of the store
 * Other files are left alone.
 *
 * A process that was killed leaves its files behind; the next start sweeps them: the sockets that
 * refuse connections, and a job's files after an hour. A socket that does not listen yet refuses
 * connections as a dead one does. So a socket gets its name so-RANDOM once it listens. If it was
 * swept before, its owner makes another one.
 */
#include "ipc/directory.h"

#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"
#include "ipc/channel.h"
#include "ipc/random.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    PREFIX_LENGTH = 3,
    NAME_LENGTH = PREFIX_LENGTH + 16, /* of a socket after "DIRECTORY/" */
    OLD_S = 3600,
    ATTEMPTS = 100, /* to make a socket while others sweep */
};

static enum tutti_status directory_check(const char *path, int fd)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return error_errno("fstat(%s)", path);
    if (info.st_uid != geteuid())
        return error_set(
            TUTTI_ERR_SYSTEM,
            "directory %s belongs to user %u, not to %u: remove it, or set TUTTI_DIR to "
            "a private one of your own",
            path, info.st_uid, geteuid());
    if ((info.st_mode & 077) != 0)
        return error_set(TUTTI_ERR_SYSTEM,
                         "directory %s is open to others (mode %04o, expected 0700): chmod it or "
                         "set TUTTI_DIR",
                         path, info.st_mode & 07777U);
    return TUTTI_OK;
}

/* True if a process listens there, or might: only a refused connection proves that none does. */
static bool is_listening(int directory, const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length =
        snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", directory, name);
    if (length < 0 || (size_t)length >= sizeof address.sun_path)
        return true;
    int fd = fd_lift(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0)
        return true;
    bool refused =
        connect(fd, (struct sockaddr *)&address, sizeof address) != 0 && errno == ECONNREFUSED;
    close(fd);
    return !refused;
}

/* Whether a file is what a crashed process left behind. */
static bool is_stale(int directory, const char *name)
{
    struct stat info;
    if (fstatat(directory, name, &info, AT_SYMLINK_NOFOLLOW) != 0 || info.st_uid != geteuid())
        return false;
    const bool old = (int64_t)time(NULL) - info.st_mtime > OLD_S;
    if (S_ISREG(info.st_mode))
        return strncmp(name, "job-", 4) == 0 && old;
    return S_ISSOCK(info.st_mode) &&
           (strncmp(name, "so-", PREFIX_LENGTH) == 0 || strncmp(name, "bd-", PREFIX_LENGTH) == 0) &&
           !is_listening(directory, name);
}

static void sweep(const char *path, int fd)
{
    int copy = fd_lift(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    DIR *folder = copy >= 0 ? fdopendir(copy) : NULL;
    if (!folder) {
        fd_drop(&copy);
        return;
    }
    const struct dirent *entry;
    while ((entry = readdir(folder)) != NULL) {
        if (!is_stale(fd, entry->d_name))
            continue;
        /* Names are random and used once, so this cannot hit a newer file. */
        if (unlinkat(fd, entry->d_name, 0) == 0)
            log_write(TUTTI_LOG_INFO, -1, "removed %s/%s, left by a process that died", path,
                      entry->d_name);
    }
    closedir(folder);
}

enum tutti_status directory_open(const char *path, bool sweeps)
{
    size_t limit = sizeof(struct sockaddr_un) - offsetof(struct sockaddr_un, sun_path) - 1;
    if (strlen(path) + 1 + NAME_LENGTH > limit)
        return error_set(TUTTI_ERR_INVALID,
                         "directory %s is too long by %zu bytes for the path of a socket: set "
                         "TUTTI_DIR to a shorter one",
                         path, strlen(path) + 1 + NAME_LENGTH - limit);
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return error_errno("cannot create directory %s%sset TUTTI_DIR to one that you may write",
                           path, error_full());
    int fd = fd_lift(open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (fd < 0)
        return errno == ELOOP || errno == ENOTDIR
                   ? error_set(TUTTI_ERR_SYSTEM,
                               "%s is a link or no directory: set TUTTI_DIR to a private directory",
                               path)
                   : error_errno("cannot open directory %s (if it belongs to another user, remove "
                                 "it, or set TUTTI_DIR to a private one of your own)",
                                 path);
    enum tutti_status status = directory_check(path, fd);
    if (status == TUTTI_OK && sweeps)
        sweep(path, fd);
    close(fd);
    return status;
}

/* Whether this user may make a directory there and owns it. With `sudo -E`, root would leave
 * in a user's directory one that the user cannot open. */
static bool is_own(const char *path)
{
    struct stat info;
    return path && *path && stat(path, &info) == 0 && info.st_uid == geteuid() &&
           access(path, W_OK | X_OK) == 0;
}

enum tutti_status channel_directory(char *path, size_t size, bool sweeps)
{
    const char *chosen = getenv("TUTTI_DIR");
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    int length;
    if (chosen && *chosen)
        length = snprintf(path, size, "%s", chosen);
    else if (is_own(runtime))
        length = snprintf(path, size, "%s/tutti", runtime);
    else
        length = snprintf(path, size, "/tmp/tutti-%u", geteuid());
    if (length < 0 || (size_t)length >= size)
        return error_set(TUTTI_ERR_INVALID,
                         "the path of the sockets' directory has %d bytes, of which %zu fit: set "
                         "TUTTI_DIR to a shorter one",
                         length, size - 1);
    return directory_open(path, sweeps);
}

/* One attempt. *swept: another start has taken the socket for a dead one; then no error is set. */
static enum tutti_status listen_once(const char *directory, struct socket_path *path, int *fd,
                                     bool *swept)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    uint64_t random;
    path->text[0] = 0;
    *swept = false;
    enum tutti_status status = random_fill(&random, sizeof random);
    if (status != TUTTI_OK)
        return status;
    int length =
        snprintf(address.sun_path, sizeof address.sun_path, "%s/bd-%016" PRIx64, directory, random);
    if (length < 0 || (size_t)length >= sizeof address.sun_path)
        return error_set(TUTTI_ERR_INVALID,
                         "directory %s is too long for the path of a socket (%zu bytes at most)",
                         directory, sizeof address.sun_path - NAME_LENGTH - 2);
    int listener = fd_lift(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (listener < 0)
        return error_errno("cannot create a Unix-domain socket");
    snprintf(path->text, sizeof path->text, "%s/so-%016" PRIx64, directory, random);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0) {
        status = error_errno("cannot bind a socket to %s%sset TUTTI_DIR to another directory",
                             address.sun_path, error_full());
    } else if (listen(listener, SOMAXCONN) != 0 || rename(address.sun_path, path->text) != 0) {
        *swept = errno == ENOENT;
        status = *swept ? TUTTI_ERR_SYSTEM : error_errno("cannot listen at %s", path->text);
        unlink(address.sun_path);
    }
    if (status == TUTTI_OK) {
        *fd = listener;
        return TUTTI_OK;
    }
    path->text[0] = 0;
    close(listener);
    return status;
}

enum tutti_status directory_listen(const char *directory, struct socket_path *path, int *fd)
{
    bool swept = true;
    enum tutti_status status = TUTTI_OK;
    for (int i = 0; i < ATTEMPTS && swept; i++)
        status = listen_once(directory, path, fd, &swept);
    return swept ? error_set(TUTTI_ERR_SYSTEM,
                             "cannot listen in %s: other processes have removed %d sockets there "
                             "before they listened: set TUTTI_DIR to another directory",
                             directory, ATTEMPTS)
                 : status;
}

enum tutti_status directory_connect(const struct socket_path *path, int *fd)
{
    *fd = -1;
    int connection = fd_lift(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (connection < 0)
        return error_errno("cannot create a Unix-domain socket");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path->text, sizeof address.sun_path);
    if (connect(connection, (struct sockaddr *)&address, sizeof address) == 0) {
        *fd = connection;
        return TUTTI_OK;
    }
    const int code = errno;
    fd_drop(&connection);
    if (code == EAGAIN || code == EINTR)
        return TUTTI_OK;
    enum tutti_status status = TUTTI_ERR_SYSTEM;
    if (code == EACCES)
        status = error_errno("cannot connect to %s, which belongs to another user: start all ranks "
                             "as one user",
                             path->text);
    else if (code != ENOENT)
        status = error_errno("cannot connect to %s", path->text);
    errno = code;
    return status;
}
