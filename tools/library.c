/* SPDX-License-Identifier: MIT */
#include "library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool library_open(const struct library *library, void *table, char *error, size_t size)
{
    const char *name = getenv(library->variable);
    name = name && *name ? name : library->file;
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        snprintf(error, size, "%s cannot be opened: %s (%s)", name, library->absent, dlerror());
        return false;
    }
    for (size_t i = 0; i < library->count; i++) {
        const struct library_symbol *symbol = &library->symbols[i];
        void *address = dlsym(handle, symbol->name);
        if (!address && !symbol->optional) {
            snprintf(error, size, "%s has no %s%s", name, symbol->name, library->lacking);
            dlclose(handle);
            return false;
        }
        memcpy((char *)table + symbol->offset, &address, sizeof address);
    }
    return true;
}
