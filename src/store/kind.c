/* SPDX-License-Identifier: MIT */
#include "store/kind.h"

#include "base/error.h"
#include "ipc/fork.h"

#include <stdlib.h>

int64_t store_call_pause(const struct store_call *call)
{
    if (!call->interrupt)
        return call->deadline;
    int64_t soon = deadline_after(INTERRUPT_MS);
    return deadline_min(call->deadline, soon > call->grace ? soon : call->grace);
}

enum tutti_status store_call_check(const struct store_call *call)
{
    return deadline_passed(call->grace) ? interrupt_ask(call->interrupt) : TUTTI_OK;
}

enum tutti_status store_create(const struct store_kind *kind, void *context, int64_t timeout_ms,
                               char *url, tutti_store_t **store)
{
    uint32_t epoch;
    enum tutti_status status = fork_epoch(&epoch);
    tutti_store_t *handle = status == TUTTI_OK ? malloc(sizeof *handle) : NULL;
    if (status == TUTTI_OK && !handle)
        status = error_errno("opening a store");
    if (!handle) {
        kind->close(context);
        free(url);
        return status;
    }
    *handle = (struct tutti_store){.kind = kind,
                                   .context = context,
                                   .timeout_ms = timeout_ms,
                                   .epoch = epoch,
                                   .url = url,
                                   .deadline = DEADLINE_NEVER};
    *store = handle;
    return TUTTI_OK;
}

enum tutti_status store_timed_out(const struct store_call *call, const char *key, size_t count)
{
    return error_set(TUTTI_ERR_TIMEOUT,
                     "%s: key \"%.200s\" (of %zu) does not exist after %lld ms: the rank that sets "
                     "it is late, has ended or uses another store",
                     call->name, key + 1, count, (long long)call->timeout_ms);
}

enum tutti_status store_no_number(const char *key)
{
    return error_set(TUTTI_ERR_INVALID,
                     "tutti_store_add(%s): the value is no 64-bit decimal number, or the sum "
                     "would not be",
                     key + (*key == '/'));
}
