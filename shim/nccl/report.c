/* SPDX-License-Identifier: MIT */
/* With TUTTI_NCCL_REPORT=1 a process writes at its end which calls it made, and who served them. */
#include "base/deadline.h"
#include "shim.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    uint64_t calls, bytes, ns; /* relaxed: any thread adds */
} rows[SYMBOLS][SERVERS];

static bool wanted;

int64_t report_begin(void)
{
    return __builtin_expect(wanted, 0) ? deadline_now() : 0;
}

void report_end(enum symbol symbol, enum server server, size_t bytes, int64_t begin)
{
    if (__builtin_expect(!wanted, 1))
        return;
    order_fetch_add_relaxed_u64(&rows[symbol][server].calls, 1);
    order_fetch_add_relaxed_u64(&rows[symbol][server].bytes, bytes);
    order_fetch_add_relaxed_u64(&rows[symbol][server].ns, (uint64_t)(deadline_now() - begin));
}

static void report_write(void)
{
    static const char *const names[] = {"tutti", "nvidia"};
    fprintf(stderr, "NCCL calls of process %d:\n%-28s %-8s %10s %16s %12s\n", (int)getpid(),
            "function", "server", "calls", "bytes", "host us");
    for (int symbol = 0; symbol < SYMBOLS; symbol++)
        for (int server = 0; server < SERVERS; server++)
            if (rows[symbol][server].calls)
                fprintf(stderr, "%-28s %-8s %10" PRIu64 " %16" PRIu64 " %12.1f\n",
                        symbol_names[symbol], names[server], rows[symbol][server].calls,
                        rows[symbol][server].bytes, (double)rows[symbol][server].ns / 1e3);
}

static void read_wanted(void)
{
    const char *text = getenv("TUTTI_NCCL_REPORT");
    wanted = text && strcmp(text, "1") == 0 && atexit(report_write) == 0;
}

void report_start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_wanted);
}
