/* SPDX-License-Identifier: MIT */
/* Opens a library at run time and fills a struct of function pointers. */
#ifndef TOOLS_LIBRARY_H
#define TOOLS_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

struct library_symbol {
    const char *name;
    size_t offset; /* of its pointer in the struct */
    bool optional; /* may be missing: the pointer is NULL then */
};

struct library {
    const char *variable; /* environment variable that names another file */
    const char *file;
    const char *absent;  /* what the user should do if it cannot be opened */
    const char *lacking; /* what a missing symbol means; "": nothing */
    const struct library_symbol *symbols;
    size_t count;
};

/* Fills the struct. False with a text in `error`; then the library is closed again. */
bool library_open(const struct library *library, void *table, char *error, size_t size);

#endif
