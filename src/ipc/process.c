/* SPDX-License-Identifier: MIT */
/* A process number may pass to a new process. The time at which a process started tells the two
 * apart, so both are compared. */
#include "ipc/process.h"

#include "base/fd.h"
#include "base/fork_mutex.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What /proc/PID/task/PID/stat, of the first thread, says of a process. qemu-user answers for
 * /proc/PID/stat of its own process itself, with another start time. */
struct stat_line {
    char state;
    long parent;
    long threads;
    unsigned long long start;
};

/* Reads a small file as a text; false if it cannot be read. */
static bool text_read(const char *path, char *text, size_t size)
{
    int fd = fd_lift(open(path, O_RDONLY | O_CLOEXEC));
    if (fd < 0)
        return false;
    ssize_t bytes = read(fd, text, size - 1);
    close(fd);
    text[bytes > 0 ? bytes : 0] = 0;
    return bytes > 0;
}

static bool stat_read(int64_t pid, struct stat_line *line)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%lld/task/%lld/stat", (long long)pid, (long long)pid);
    if (!text_read(path, text, sizeof text))
        return false;
    /* The name in parentheses may hold anything; the last parenthesis closes it. */
    const char *rest = strrchr(text, ')');
    return rest && sscanf(rest + 1,
                          " %c %ld %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld "
                          "%*d %llu",
                          &line->state, &line->parent, &line->threads, &line->start) == 4;
}

/* FNV-1a, never 0. */
static uint64_t hash(uint64_t value, const void *bytes, size_t size)
{
    const unsigned char *next = bytes;
    for (size_t i = 0; i < size; i++)
        value = (value ^ next[i]) * UINT64_C(0x100000001b3);
    return value ? value : 1;
}

static const uint64_t HASH_START = UINT64_C(0xcbf29ce484222325);

bool process_boot_id(char *text, size_t size)
{
    const char *given = getenv("TUTTI_HOST_ID");
    if (given && *given) {
        snprintf(text, size, "%016" PRIx64 " of TUTTI_HOST_ID",
                 hash(HASH_START, given, strlen(given)));
        return true;
    }
    if (!text_read("/proc/sys/kernel/random/boot_id", text, size))
        return false;
    text[strcspn(text, "\n")] = 0;
    return true;
}

uint64_t process_namespace(const char *name)
{
    char path[64];
    struct stat about;
    snprintf(path, sizeof path, "/proc/self/ns/%s", name);
    return stat(path, &about) == 0 ? (uint64_t)about.st_ino : 0;
}

static void identify(struct process *process)
{
    char text[64];
    struct stat_line line;
    memset(process, 0, sizeof *process);
    process->pid = getpid();
    /* Processes of two time namespaces read different start times of one process. */
    const uint64_t spaces[] = {process_namespace("pid"), process_namespace("time")};
    if (spaces[0])
        process->spaces = hash(HASH_START, spaces, sizeof spaces);
    if (process_boot_id(text, sizeof text))
        process->host = hash(HASH_START, text, strlen(text));
    if (stat_read(process->pid, &line))
        process->start = line.start;
}

/* What stays the same for all threads of a process is read once. */
static struct process known;

static void forget(void)
{
    known.pid = 0;
}

static struct fork_mutex lock = FORK_MUTEX(forget);

void process_identify(struct process *process)
{
    fork_mutex_lock(&lock);
    if (known.pid != getpid())
        identify(&known);
    *process = known;
    fork_mutex_unlock(&lock);
    process->tid = gettid();
}

bool process_has_ended(const struct process *process, const struct process *self)
{
    struct stat_line line;
    if (process->pid <= 0 || process->pid > INT32_MAX || process->pid == self->pid ||
        !process->host || process->host != self->host || !process->spaces ||
        process->spaces != self->spaces)
        return false;
    if (kill((pid_t)process->pid, 0) != 0 && errno == ESRCH)
        return true;
    if (!stat_read(process->pid, &line))
        return false;
    if (process->start && line.start != process->start)
        return true;
    /* The first thread of a process may end long before the others. */
    return (line.state == 'Z' || line.state == 'X') && line.threads <= 1;
}

bool process_parent(int64_t pid, int64_t *parent, uint64_t *start)
{
    struct stat_line line;
    if (!stat_read(pid, &line))
        return false;
    *parent = line.parent;
    *start = line.start;
    return true;
}

bool process_differs(const struct process *a, const struct process *b)
{
    return a->host != b->host || a->spaces != b->spaces || a->pid != b->pid ||
           a->start != b->start || a->tid != b->tid;
}
