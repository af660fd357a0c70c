/* SPDX-License-Identifier: MIT */
/* The paths of dumps. The library uses them for TUTTI_DUMP, the program `tutti` for --output. */
#ifndef TUTTI_RECORD_PATH_H
#define TUTTI_RECORD_PATH_H

#include "base/record.h"
#include "base/text.h"

#include <inttypes.h>
#include <sys/stat.h>

enum { RECORD_PATH_BYTES = 4096 };

/* The error of record_path(), for printf(). */
#define RECORD_PATH_WRONG                                                                          \
    "\"%.200s\" gives no path, or one longer than 4095 bytes: expected a directory that exists, "  \
    "or a path with %%r (rank), %%p (process), %%n (name), %%g (generation), %%h (host) or %%%%"

/* Appends a name. Characters that may have a meaning in a path become _. */
static inline void record_path_name(char *path, size_t size, int *length, const char *name)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.";
    for (; *name; name++)
        text_append(path, size, length, "%c", strchr(plain, *name) ? *name : '_');
}

static inline bool record_path_append(char *path, size_t size, int *length, const char *pattern,
                                      const struct record_page *page)
{
    for (; *pattern; pattern++) {
        if (*pattern != '%')
            text_append(path, size, length, "%c", *pattern);
        else if (*++pattern == 'r')
            text_append(path, size, length, "%d", (int)page->rank);
        else if (*pattern == 'p')
            text_append(path, size, length, "%d", (int)page->pid);
        else if (*pattern == 'g')
            text_append(path, size, length, "%" PRId64, page->generation);
        else if (*pattern == 'n')
            record_path_name(path, size, length, page->name);
        else if (*pattern == 'h')
            record_path_name(path, size, length, page->host);
        else if (*pattern == '%')
            text_append(path, size, length, "%%");
        else
            return false;
    }
    return true;
}

/*
 * Writes the path that a pattern gives for this page. In a directory the file's name is
 * tutti-NAME-GENERATION-rRANK-pPID and the suffix. Returns false if the pattern is empty or has an
 * unknown letter behind %, or if the path does not fit.
 */
static inline bool record_path(const char *pattern, const char *suffix,
                               const struct record_page *page, char *path, size_t size)
{
    struct stat info;
    int length = 0;
    bool known;
    *path = 0;
    if (stat(pattern, &info) == 0 && S_ISDIR(info.st_mode)) {
        text_append(path, size, &length, "%s/", pattern);
        known = record_path_append(path, size, &length, "tutti-%n-%g-r%r-p%p", page);
        text_append(path, size, &length, "%s", suffix);
    } else {
        known = record_path_append(path, size, &length, pattern, page);
    }
    return known && length > 0 && (size_t)length < size;
}

#endif
