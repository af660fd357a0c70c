/* SPDX-License-Identifier: MIT */
/* The calling thread's last error: written once, where it is detected. */
#ifndef TUTTI_ERROR_H
#define TUTTI_ERROR_H

#include "tutti/tutti.h"

/* Writes the message and returns status, so that a function can end with `return error_set(...)`.
 * Say what was wrong, what was expected and what to do. */
enum tutti_status error_set(enum tutti_status status, const char *format, ...) TUTTI_PRINTF(2, 3);

/* error_set(TUTTI_ERR_SYSTEM) (NO_MEMORY for ENOMEM) with ": strerror (ERRNO_NAME)" of errno
 * appended. */
enum tutti_status error_errno(const char *format, ...) TUTTI_PRINTF(1, 2);

/* For a message about a path that could not be written: the text between the path and the remedy.
 * It says that the file system is full if errno says so; else it is ": ". Keeps errno. */
const char *error_full(void);

/* Puts "prefix: " before the message that is already there; returns status. */
enum tutti_status error_context(enum tutti_status status, const char *format, ...)
    TUTTI_PRINTF(2, 3);

/* Returns the status for a number that another process has sent; SYSTEM for an unknown number. */
static inline enum tutti_status error_told(int32_t code)
{
    return code >= TUTTI_OK && code <= TUTTI_ERR_VERSION ? (enum tutti_status)code
                                                         : TUTTI_ERR_SYSTEM;
}

#endif
