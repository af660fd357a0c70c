/* SPDX-License-Identifier: MIT */
/*
 * tutti dump: dump.c has the command line and writes the files, dump_read.c reads recorders,
 * dump_json.c makes JSON of a page. base/record.h describes the bytes.
 */
#ifndef TUTTI_TOOL_DUMP_H
#define TUTTI_TOOL_DUMP_H

#include "base/record.h"

#include <jansson.h>
#include <stdbool.h>

/* Whether a file begins as a page does. */
bool dump_is_raw(const void *bytes, size_t size);
/*
 * Copies a page from untrusted bytes. In the copy strings are terminated, and indices are in range.
 * Its entries and marks are sorted, oldest first; invalid ones are 0 and stand last. Returns NULL,
 * with the cause in `problem`, if the bytes are not a page of this version; else the page, which
 * the caller frees with free().
 */
struct record_page *dump_page_parse(const void *bytes, size_t size, char *problem,
                                    size_t problem_size);

/* Called with each page. Returns false after a message. */
typedef bool dump_page_fn(void *context, const struct record_page *page);
/* Reads all recorders of a process of this user, which may be running, stopped or stuck. Returns
 * false, after messages, if one cannot be read, if fn returned false, or if the process has none;
 * it still reads the other recorders. */
bool dump_read_process(int pid, dump_page_fn *fn, void *context);

/* The members that tutti-dump(1) describes. Takes a page of dump_page_parse(). NULL if there is no
 * memory. */
json_t *dump_page_to_json(const struct record_page *page);

#endif
