/* SPDX-License-Identifier: MIT */
/*
 * A shim's report, for its file report.c alone, which defines `text`: with the variable set to 1
 * the process writes at its end which calls it made, and who served them.
 */
#ifndef SHIM_REPORT_H
#define SHIM_REPORT_H

#include "base/deadline.h"
#include "base/order.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REPORT_MOST = 128, REPORT_SERVERS = 3 }; /* functions; at most so many serve them */

static const struct report_text {
    const char *variable, *title, *unit, *servers[REPORT_SERVERS];
    const char *const *functions;
    int count; /* of functions */
} text;

static struct {
    uint64_t calls, bytes, ns; /* relaxed: any thread adds */
} rows[REPORT_MOST][REPORT_SERVERS];

static bool wanted;

static void report_write(void)
{
    fprintf(stderr, "%s calls of process %d:\n%-28s %-8s %10s %16s %12s\n", text.title,
            (int)getpid(), "function", "server", "calls", "bytes", text.unit);
    for (int f = 0; f < text.count; f++)
        for (int server = 0; server < REPORT_SERVERS; server++)
            if (rows[f][server].calls)
                fprintf(stderr, "%-28s %-8s %10" PRIu64 " %16" PRIu64 " %12.1f\n",
                        text.functions[f], text.servers[server], rows[f][server].calls,
                        rows[f][server].bytes, (double)rows[f][server].ns / 1e3);
}

static void read_wanted(void)
{
    const char *value = getenv(text.variable);
    wanted = value && strcmp(value, "1") == 0 && atexit(report_write) == 0;
}

int64_t report_begin(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_wanted);
    return __builtin_expect(wanted, 0) ? deadline_now() : 0;
}

static void report_add(int function, int server, uint64_t bytes, int64_t begin)
{
    order_fetch_add_relaxed_u64(&rows[function][server].calls, 1);
    order_fetch_add_relaxed_u64(&rows[function][server].bytes, bytes);
    order_fetch_add_relaxed_u64(&rows[function][server].ns, (uint64_t)(deadline_now() - begin));
}

#endif
