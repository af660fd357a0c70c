/* SPDX-License-Identifier: MIT */
/* The URL of a store: what is accepted is whole and within bounds. */
#include "fuzz.h"
#include "store/kind.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct store_url url;
    char *text = fuzz_text(bytes, size);
    if (store_url_parse(text, &url) == TUTTI_OK) {
        fuzz_check(memchr(url.text, 0, sizeof url.text) != NULL);
        fuzz_check(memchr(url.bind, 0, sizeof url.bind) != NULL);
        fuzz_check(url.kind == STORE_ENV || url.text[0] != 0);
        fuzz_check(url.world_size >= 0);
        fuzz_check(url.kind != STORE_TCP || url.server || url.port != 0);
    }
    free(text);
    return 0;
}
