/* SPDX-License-Identifier: MIT */
#include "base/log.h"

#include "base/fork_mutex.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

static struct fork_mutex lock = FORK_MUTEX(NULL);
static tutti_log_fn *sink;
static void *sink_context;
static enum tutti_log_level threshold, fallback = TUTTI_LOG_WARN;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const char *const level_names[] = {"NONE", "WARN", "INFO", "TRACE"};

static void read_level(void)
{
    const char *text = getenv("TUTTI_DEBUG");
    threshold = fallback;
    if (!text || !*text)
        return;
    for (int level = TUTTI_LOG_NONE; level <= TUTTI_LOG_TRACE; level++) {
        if (strcasecmp(text, level_names[level]) != 0)
            continue;
        threshold = (enum tutti_log_level)level;
        return;
    }
    fprintf(stderr, "TUTTI WARN TUTTI_DEBUG=%s: expected NONE, WARN, INFO or TRACE\n", text);
}

void log_level_default(enum tutti_log_level level)
{
    fallback = level;
}

void tutti_log_set(tutti_log_fn *fn, void *context)
{
    fork_mutex_lock(&lock);
    sink = fn;
    sink_context = context;
    fork_mutex_unlock(&lock);
}

void log_write(enum tutti_log_level level, int rank, const char *format, ...)
{
    pthread_once(&once, read_level);
    if (level > threshold)
        return;

    char host[64] = "?", line[1024];
    gethostname(host, sizeof host - 1);
    int length = snprintf(line, sizeof line, "%s:%d:%d ", host, (int)getpid(), (int)gettid());
    if (rank >= 0)
        length += snprintf(line + length, sizeof line - (size_t)length, "[%d] ", rank);
    length +=
        snprintf(line + length, sizeof line - (size_t)length, "TUTTI %s ", level_names[level]);
    va_list args;
    va_start(args, format);
    vsnprintf(line + length, sizeof line - (size_t)length, format, args);
    va_end(args);

    fork_mutex_lock(&lock);
    if (sink)
        sink(sink_context, level, line);
    else
        fprintf(stderr, "%s\n", line);
    fork_mutex_unlock(&lock);
}
