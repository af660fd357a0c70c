/* SPDX-License-Identifier: MIT */
/* Texts that grow: for what returns a length as snprintf does. */
#ifndef TUTTI_TEXT_H
#define TUTTI_TEXT_H

#include "tutti/tutti.h"

#include <stdarg.h>
#include <stdio.h>

/* Appends to text of `size` bytes, or NULL; *length grows by what there would be to say. */
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
