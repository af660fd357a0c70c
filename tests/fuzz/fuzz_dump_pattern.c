/* SPDX-License-Identifier: MIT */
/* TUTTI_DUMP, and the names in a page that another process has filled: the path that comes of them
 * is whole, and no name leads to another directory than the pattern's. Names before a zero byte,
 * the pattern behind it. */
#include "base/record_path.h"
#include "fuzz.h"

#include <string.h>

static size_t count_slashes(const char *text)
{
    size_t count = 0;
    for (; *text; text++)
        count += *text == '/';
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static struct record_page page;
    const uint8_t *zero = memchr(bytes, 0, size);
    size_t names = zero ? (size_t)(zero - bytes) : 0;
    char path[512], *pattern = calloc(1, size - names + 1);
    if (!pattern)
        return 0;
    memcpy(pattern, bytes + names + (zero != NULL), size - names - (zero != NULL));
    memset(&page, 0, sizeof page);
    memcpy(page.name, bytes, names < sizeof page.name ? names : sizeof page.name - 1);
    memcpy(page.host, page.name, sizeof page.host);
    page.rank = size ? bytes[0] % 64 : 0;
    if (record_path(pattern, ".raw", &page, path, sizeof path)) {
        fuzz_check(memchr(path, 0, sizeof path) && strlen(path) > 0);
        size_t slashes = count_slashes(path), given = count_slashes(pattern);
        fuzz_check(slashes == given || slashes == given + 1); /* one more in a directory */
    }
    free(pattern);
    return 0;
}
