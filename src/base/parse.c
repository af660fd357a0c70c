/* SPDX-License-Identifier: MIT */
#include "base/parse.h"

#include "base/error.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Counts downwards, because the least number has no positive counterpart. */
bool parse_number(const char *text, int64_t least, int64_t most, int64_t *number)
{
    const bool negative = *text == '-';
    const char *digit = text + negative;
    int64_t value = 0;
    if (!*digit)
        return false;
    for (; *digit; digit++)
        if (*digit < '0' || *digit > '9' || __builtin_mul_overflow(value, 10, &value) ||
            __builtin_sub_overflow(value, *digit - '0', &value))
            return false;
    if (!negative && __builtin_sub_overflow(0, value, &value))
        return false;
    *number = value;
    return value >= least && value <= most;
}

enum tutti_status parse_file_read(const char *path, size_t most, const char *advice, char **text,
                                  size_t *length)
{
    ssize_t got = 1;
    *length = 0;
    *text = malloc(most);
    if (!*text)
        return error_errno("malloc of %zu bytes", most);
    enum tutti_status status = TUTTI_OK;
    int fd = fd_lift(open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    while (fd >= 0 && got > 0 && *length < most) {
        got = read(fd, *text + *length, most - *length);
        *length += got > 0 ? (size_t)got : 0;
        if (got < 0 && errno == EINTR)
            got = 1;
    }
    if (fd < 0 || got < 0)
        status = error_errno(fd < 0 ? "open" : "read");
    else if (*length == most)
        status = error_set(TUTTI_ERR_INVALID, "the file has %zu bytes or more: %s", most, advice);
    fd_drop(&fd);
    if (status != TUTTI_OK)
        free(*text);
    return status;
}

bool parse_line(struct parse_lines *lines, const char **wrong)
{
    *wrong = NULL;
    while (lines->next < lines->end) {
        const char *from = lines->next;
        const char *stop = memchr(from, '\n', (size_t)(lines->end - from));
        size_t length = (size_t)((stop ? stop : lines->end) - from);
        const char *comment = memchr(from, '#', length);
        lines->next = stop ? stop + 1 : lines->end;
        lines->number++;
        if (memchr(from, 0, length))
            *wrong = "holds a zero byte";
        if (comment)
            length = (size_t)(comment - from);
        if (length >= sizeof lines->line)
            *wrong = "too long";
        if (*wrong)
            return false;
        memcpy(lines->line, from, length);
        lines->line[length] = 0;
        if (lines->line[strspn(lines->line, " \t\r")])
            return true;
    }
    return false;
}
