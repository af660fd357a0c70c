/* SPDX-License-Identifier: MIT */
/* What becomes of a recorder's page: a copy that stands still, its text, a file. */
#ifndef TUTTI_RECORDER_INTERNAL_H
#define TUTTI_RECORDER_INTERNAL_H

#include "base/record.h"
#include "tutti/tutti.h"

enum { RECORDER_PATH_BYTES = 4096 };

/* A page as it was at one time. Strings end, and numbers that index are in range, whatever the page
 * holds. */
struct recorder_snapshot {
    const char *cause;        /* static: who asked */
    struct record_page page;  /* `entries` are those that count, oldest first */
    int count;                /* of them */
    int marks;                /* the same of `device_trace` */
    struct tutti_fault fault; /* status is OK if there is none */
    uint64_t ticks;           /* the clocks when it was taken */
    int64_t monotonic_ns;
    int64_t realtime_ns;
};

/* recorder_read.c: copies a page, be its process running or not. Returns INVALID (it is none, or
 * nonsense), VERSION, NO_MEMORY; *snapshot is freed with free(). */
enum tutti_status recorder_read(const struct record_page *page, const char *cause,
                                struct recorder_snapshot **snapshot);

/* recorder_json.c: the snapshot as a JSON text, to be freed with free(). Returns NO_MEMORY. */
enum tutti_status recorder_json(const struct recorder_snapshot *snapshot, char **text,
                                size_t *bytes);

/*
 * recorder_file.c: the path that a pattern means for this rank. A directory gets a file of its own
 * name; else %r is the rank, %p the process, %n the communicator's name, %g its generation, %h the
 * host, %% a percent sign. Returns INVALID (another letter, too long).
 */
enum tutti_status recorder_path(const char *pattern, const struct record_page *page, char *path,
                                size_t size);
/* Whether dumps of several ranks can go there. Returns INVALID. */
enum tutti_status recorder_pattern_check(const char *pattern, const struct record_page *page);
/* Writes a private file in one piece: who reads it finds all of it, or a former one. Returns
 * SYSTEM. */
enum tutti_status recorder_save(const char *path, const char *text, size_t bytes);
/* The files that one call has written; zeroed at first, to be freed with recorder_paths_fini(). */
struct recorder_paths {
    char **all;
    size_t count;
};
void recorder_paths_fini(struct recorder_paths *paths);
/* All of these: reads, and writes to where the pattern says. A file that is among `written` is
 * refused (INVALID), any other is added to them; NULL: any is replaced. */
enum tutti_status recorder_dump(const struct record_page *page, const char *cause,
                                const char *pattern, struct recorder_paths *written, char *path,
                                size_t size);

#endif
