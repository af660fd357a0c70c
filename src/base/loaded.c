/* SPDX-License-Identifier: MIT */
#include "base/loaded.h"

#include <link.h>
#include <stdio.h>
#include <string.h>

struct search {
    const char *const *names;
    char (*paths)[LOADED_PATH_BYTES];
    int most, count;
};

static int note(struct dl_phdr_info *object, size_t size, void *context)
{
    struct search *search = context;
    const char *path = object->dlpi_name ? object->dlpi_name : "";
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    (void)size;
    for (const char *const *name = search->names; *name && search->count < search->most; name++)
        if (strncmp(base, *name, strlen(*name)) == 0)
            snprintf(search->paths[search->count++], LOADED_PATH_BYTES, "%s", path);
    return 0;
}

int loaded_find(const char *const *names, char (*paths)[LOADED_PATH_BYTES], int most)
{
    struct search search = {names, paths, most, 0};
    dl_iterate_phdr(note, &search);
    return search.count;
}
