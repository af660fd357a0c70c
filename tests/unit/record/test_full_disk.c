/* SPDX-License-Identifier: MIT */
/*
 * A file system without free space, such as a full /dev/shm: each part of the library that needs a
 * file there returns an error that says what to do. Skipped where no file system can be mounted.
 */
#include "ipc/directory.h"
#include "record/recorder.h"
#include "tutti/tutti.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char disk[] = "/tmp/tutti-full-XXXXXX";

static int check(const char *what, enum tutti_status status, const char *remedy)
{
    const char *why = tutti_last_error();
    if (status == TUTTI_ERR_SYSTEM && strstr(why, disk) && strstr(why, "its file system is full") &&
        strstr(why, remedy) && strstr(why, "ENOSPC"))
        return 0;
    fprintf(stderr, "%s: %s: %s\n", what, tutti_status_name(status), why);
    return 1;
}

/* One page, and one file beside the root directory: a log that takes both. */
static int fill(const char *url)
{
    static char large[8192];
    tutti_store_t *store;
    if (tutti_store_open(url, 1000, &store) != TUTTI_OK) {
        fprintf(stderr, "%s: %s\n", url, tutti_last_error());
        return 1;
    }
    int failures = check("a store", tutti_store_set(store, "large", large, sizeof large),
                         "give the store another path");
    tutti_store_close(store);
    return failures;
}

static int use_full_disk(void)
{
    char path[256], url[64];
    struct socket_path socket;
    int fd, failures = 0;
    snprintf(url, sizeof url, "file:%s/store", disk);
    failures += fill(url);
    snprintf(path, sizeof path, "%s/deeper", disk);
    failures += check("a directory", directory_open(path, true), "set TUTTI_DIR");
    failures += check("a socket", directory_listen(disk, &socket, &fd), "set TUTTI_DIR");
    snprintf(path, sizeof path, "%s/dump", disk);
    failures += check("a dump", recorder_save(path, "{}", 2), "name another directory");
    snprintf(url, sizeof url, "file:%s/second", disk);
    tutti_store_t *store;
    failures +=
        check("a second store", tutti_store_open(url, 1000, &store), "give the store another path");
    return failures;
}

/* A file system of this process alone. */
static bool mount_disk(void)
{
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
        return false;
    return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("tutti-full", disk, "tmpfs", 0, "size=4k,nr_inodes=2,mode=0700") == 0;
}

int main(void)
{
    int how = -1;
    if (!mkdtemp(disk))
        return 1;
    pid_t child = fork();
    if (child == 0)
        _exit(mount_disk() ? use_full_disk() : 77);
    waitpid(child, &how, 0);
    rmdir(disk);
    if (WIFEXITED(how) && WEXITSTATUS(how) == 77)
        puts("skipped: no file system can be mounted here");
    return WIFEXITED(how) ? WEXITSTATUS(how) : 1;
}
