/* SPDX-License-Identifier: MIT */
/* Libraries that are opened at run time, into a struct of function pointers. */
#ifndef TOOLS_LIBRARY_H
#define TOOLS_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

struct library_symbol {
    const char *name;
    size_t offset; /* of its pointer in the table */
    bool optional; /* NULL where the library lacks it */
};

struct library {
    const char *variable; /* of the environment: another file than the usual one */
    const char *file;
    const char *absent;  /* what to do where it cannot be opened */
    const char *lacking; /* what it means that it lacks a symbol; "" if nothing */
    const struct library_symbol *symbols;
    size_t count;
};

/* Fills the table; false with a text in error, where nothing stays open. */
bool library_open(const struct library *library, void *table, char *error, size_t size);

#endif
