/* SPDX-License-Identifier: MIT */
/* How a store is opened by a URL. */
#include "base/error.h"
#include "store/kind.h"

#include <stdlib.h>

enum tutti_status tutti_store_open(const char *url, int64_t timeout_ms, tutti_store_t **store)
{
    static enum tutti_status (*const openers[])(const struct store_url *, int64_t,
                                                tutti_store_t **) = {
        [STORE_MEMORY] = memory_open,
        [STORE_FILE] = file_open,
        [STORE_TCP] = tcp_open,
        [STORE_ENV] = env_open,
    };
    if (store)
        *store = NULL;
    if (!url || !store)
        return error_set(TUTTI_ERR_INVALID, "tutti_store_open: %s is NULL", url ? "store" : "url");
    struct store_url *parsed = malloc(sizeof *parsed);
    if (!parsed)
        return error_errno("tutti_store_open(%s)", url);
    enum tutti_status status = store_url_parse(url, parsed);
    if (status == TUTTI_OK)
        status = store_default_timeout(&timeout_ms);
    if (status == TUTTI_OK)
        status = openers[parsed->kind](parsed, timeout_ms, store);
    free(parsed);
    return status == TUTTI_OK ? status : error_context(status, "tutti_store_open(%s)", url);
}
