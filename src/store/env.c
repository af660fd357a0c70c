/* SPDX-License-Identifier: MIT */
#include "error.h"
#include "store/store.h"
enum tutti_status env_open(const struct store_url *url, int64_t timeout_ms, tutti_store_t **store)
{
    (void)url, (void)timeout_ms, (void)store;
    return error_set(TUTTI_ERR_INVALID, "env: is not there yet");
}
