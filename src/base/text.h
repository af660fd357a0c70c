/* SPDX-License-Identifier: MIT */
/* Builds a text piece by piece, for functions that return a length as snprintf() does. Writes lists
 * of ranks. */
#ifndef TUTTI_TEXT_H
#define TUTTI_TEXT_H

#include "base/rank_set.h"

#include <stdarg.h>
#include <stdio.h>

/* Appends to `text`, which has `size` bytes and may be NULL. *length grows by the length of the
 * whole appended text, also where it did not fit. */
static inline void text_append(char *text, size_t size, int *length, const char *format, ...)
    TUTTI_PRINTF(4, 5);

static inline void text_append(char *text, size_t size, int *length, const char *format, ...)
{
    size_t used = (size_t)*length < size ? (size_t)*length : size;
    va_list args;
    va_start(args, format);
    *length += vsnprintf(text ? text + used : NULL, size - used, format, args);
    va_end(args);
}

/* Writes the ranks of a set: "rank 1, rank 4", or, for three or more in a row, "ranks 1 to 3".
 * Returns text. */
static inline const char *text_ranks(struct rank_set ranks, char *text, size_t size)
{
    int length = 0;
    *text = 0;
    for (int first = rank_set_next(ranks, -1), last; first >= 0;
         first = rank_set_next(ranks, last)) {
        last = first;
        while (rank_set_next(ranks, last) == last + 1)
            last++;
        if (last - first < 2)
            last = first;
        text_append(text, size, &length, last > first ? "%sranks %d to %d" : "%srank %d",
                    length ? ", " : "", first, last);
    }
    return text;
}

#endif
