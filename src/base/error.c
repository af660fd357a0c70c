/* SPDX-License-Identifier: MIT */
#include "base/error.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE_BYTES = 1024 };

/* A key, not _Thread_local: with a TLS block this large dlopen() may fail, or the library needs
 * the dynamic linker as a library. */
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_key(void)
{
    if (pthread_key_create(&key, free) != 0)
        abort();
}

/* Returns NULL if there is no memory, or if the thread has no error yet and `create` is false. */
static char *message_get(bool create)
{
    pthread_once(&once, make_key);
    char *message = pthread_getspecific(key);
    if (!message && create) {
        message = calloc(1, MESSAGE_BYTES);
        pthread_setspecific(key, message);
    }
    return message;
}

enum tutti_status error_set(enum tutti_status status, const char *format, ...)
{
    char *message = message_get(true);
    if (!message)
        return status;
    va_list args;
    va_start(args, format);
    vsnprintf(message, MESSAGE_BYTES, format, args);
    va_end(args);
    return status;
}

enum tutti_status error_errno(const char *format, ...)
{
    int code = errno;
    enum tutti_status status = code == ENOMEM ? TUTTI_ERR_NO_MEMORY : TUTTI_ERR_SYSTEM;
    char *message = message_get(true);
    if (!message)
        return status;
    va_list args;
    va_start(args, format);
    int length = vsnprintf(message, MESSAGE_BYTES, format, args);
    va_end(args);
    if (length >= 0 && (size_t)length < MESSAGE_BYTES) {
        const char *name = strerrorname_np(code);
        snprintf(message + length, MESSAGE_BYTES - (size_t)length, ": %s (%s)",
                 strerrordesc_np(code) ? strerrordesc_np(code) : "unknown error",
                 name ? name : "?");
    }
    return status;
}

const char *error_full(void)
{
    return errno == ENOSPC || errno == EDQUOT ? ": its file system is full: free room there, or "
                                              : ": ";
}

enum tutti_status error_context(enum tutti_status status, const char *format, ...)
{
    char *message = message_get(true);
    if (!message)
        return status;
    char old[MESSAGE_BYTES];
    memcpy(old, message, sizeof old);
    va_list args;
    va_start(args, format);
    int length = vsnprintf(message, MESSAGE_BYTES, format, args);
    va_end(args);
    if (length >= 0 && (size_t)length < MESSAGE_BYTES)
        snprintf(message + length, MESSAGE_BYTES - (size_t)length, ": %.*s",
                 (int)(MESSAGE_BYTES - (size_t)length - 3), old);
    return status;
}

const char *tutti_last_error(void)
{
    const char *message = message_get(false);
    return message ? message : "";
}
