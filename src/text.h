/* SPDX-License-Identifier: MIT */
/* Builds a text piece by piece, for functions that return a length as snprintf() does. */
#ifndef TUTTI_TEXT_H
#define TUTTI_TEXT_H

#include "tutti/tutti.h"

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

#endif
