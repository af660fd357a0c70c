/* SPDX-License-Identifier: MIT */
#include "library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char error[512];

const char *library_error(void)
{
    return error;
}

bool library_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(error, sizeof error, format, args);
    va_end(args);
    return false;
}

static bool load(const struct library *library, void *table)
{
    const char *name = getenv(library->variable);
    name = name && *name ? name : library->file;
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return library_fail("%s cannot be opened: %s (%s)", name, library->absent, dlerror());
    for (size_t i = 0; i < library->count; i++) {
        const struct library_symbol *symbol = &library->symbols[i];
        void *address = dlsym(handle, symbol->name);
        if (!address && !symbol->optional) {
            dlclose(handle);
            return library_fail("%s has no %s%s", name, symbol->name, library->lacking);
        }
        memcpy((char *)table + symbol->offset, &address, sizeof address);
    }
    return true;
}

bool library_open(struct library *library, void *table, bool (*begin)(void))
{
    static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&opening);
    library->opened = library->opened || (load(library, table) && (!begin || begin()));
    bool ok = library->opened;
    pthread_mutex_unlock(&opening);
    return ok;
}
