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

/* What stands between a path that could not be written and the remedy: ": ", or, if errno says that
 * there is no room, that its file system is full. Static; errno stays. */
const char *error_full(void);

/* Puts "prefix: " before the message that is already there; returns status. */
enum tutti_status error_context(enum tutti_status status, const char *format, ...)
    TUTTI_PRINTF(2, 3);

/* The status that another process has told: SYSTEM if there is none of that number. */
static inline enum tutti_status error_told(int32_t code)
{
    return code >= TUTTI_OK && code <= TUTTI_ERR_VERSION ? (enum tutti_status)code
                                                         : TUTTI_ERR_SYSTEM;
}

#endif
