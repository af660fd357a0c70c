/* SPDX-License-Identifier: MIT */
/* NCCL's result of each failure, and its message: NCCL's function, then what Tutti says. */
#include "shim.h"

#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A thread reads its own last error; one that has none reads the process's. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char last[SHIM_ERROR_BYTES];
static _Thread_local char own[SHIM_ERROR_BYTES];

void error_tell(const char *text)
{
    snprintf(own, sizeof own, "%s", text);
    pthread_mutex_lock(&lock);
    snprintf(last, sizeof last, "%s", text);
    pthread_mutex_unlock(&lock);
}

void outcome_keep(struct outcome *outcome, ncclResult_t result)
{
    outcome->result = result;
    snprintf(outcome->error, sizeof outcome->error, "%s", own);
}

ncclResult_t outcome_tell(const struct outcome *outcome)
{
    if (outcome->result != ncclSuccess)
        error_tell(outcome->error);
    return outcome->result;
}

ncclResult_t fail(ncclResult_t result, enum symbol symbol, const char *format, ...)
{
    char text[SHIM_ERROR_BYTES];
    va_list arguments;
    log_start();
    const int length = snprintf(text, sizeof text, "%s: ", symbol_names[symbol]);
    va_start(arguments, format);
    vsnprintf(text + length, sizeof text - (size_t)length, format, arguments);
    va_end(arguments);
    error_tell(text);
    log_write(TUTTI_LOG_WARN, -1, "NCCL: %s", text);
    return result;
}

ncclResult_t result_of(enum tutti_status status)
{
    switch (status) {
    case TUTTI_OK:
        return ncclSuccess;
    case TUTTI_ERR_INVALID:
        return ncclInvalidArgument;
    case TUTTI_ERR_DECLINED:
    case TUTTI_ERR_MISMATCH:
    case TUTTI_ERR_CONCURRENT:
    case TUTTI_ERR_VERSION:
        return ncclInvalidUsage;
    case TUTTI_ERR_TIMEOUT:
    case TUTTI_ERR_PEER_DEAD:
    case TUTTI_ERR_ABORTED:
        return ncclRemoteError;
    case TUTTI_ERR_CUDA:
        return ncclUnhandledCudaError;
    case TUTTI_ERR_NO_MEMORY:
    case TUTTI_ERR_SYSTEM:
        return ncclSystemError;
    }
    return ncclInternalError;
}

ncclResult_t fail_status(enum tutti_status status, enum symbol symbol)
{
    return status == TUTTI_OK ? ncclSuccess
                              : fail(result_of(status), symbol, "%s", tutti_last_error());
}

ncclResult_t fail_real(ncclResult_t result, enum symbol symbol)
{
    if (result == ncclSuccess || result == ncclInProgress)
        return result;
    return fail(result, symbol, "by NVIDIA's library: %s",
                REAL(ncclGetLastError) ? REAL(ncclGetLastError)(NULL) : ncclGetErrorString(result));
}

NCCL_DEFINE(const char *, ncclGetErrorString, ncclResult_t result)
{
    /* Programs compare some of these texts, so they are NCCL's. */
    static const char *const texts[] = {
        [ncclSuccess] = "no error",
        [ncclUnhandledCudaError] = "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        [ncclSystemError] = "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        [ncclInternalError] = "internal error - please report this issue to the NCCL developers",
        [ncclInvalidArgument] = "invalid argument (run with NCCL_DEBUG=WARN for details)",
        [ncclInvalidUsage] = "invalid usage (run with NCCL_DEBUG=WARN for details)",
        [ncclRemoteError] = "remote process exited or there was a network error",
        [ncclInProgress] = "NCCL operation in progress",
    };
    const unsigned number = (unsigned)result;
    return number < sizeof texts / sizeof *texts ? texts[number] : "unknown result code";
}

/* Valid until the thread's next error. */
NCCL_DEFINE(const char *, ncclGetLastError, ncclComm_t comm)
{
    (void)comm;
    if (!*own) {
        pthread_mutex_lock(&lock);
        snprintf(own, sizeof own, "%s", last);
        pthread_mutex_unlock(&lock);
    }
    return own;
}

/* ---- the log --------------------------------------------------------------------------------- */

/* Tutti's log has the lines; NCCL_DEBUG sets its level where TUTTI_DEBUG does not. */
static void level_read(void)
{
    const char *text = getenv("NCCL_DEBUG");
    if (!text || !*text)
        return;
    if (!strcasecmp(text, "INFO") || !strcasecmp(text, "ABORT") || !strcasecmp(text, "TRACE"))
        log_level_default(TUTTI_LOG_INFO);
    fprintf(stderr, "NCCL version %d.%d.%d: its calls are served by Tutti %s\n",
            SHIM_NCCL_VERSION / 10000, SHIM_NCCL_VERSION / 100 % 100, SHIM_NCCL_VERSION % 100,
            tutti_version_string());
}

void log_start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, level_read);
}

/* NCCL reads NCCL_DEBUG again; Tutti's level is read once. */
NCCL_DEFINE(void, ncclResetDebugInit, void)
{
}

EXPORT void ncclResetDebugInitInternal(void);
void ncclResetDebugInitInternal(void)
{
}
