/* SPDX-License-Identifier: MIT */
/* Libraries that are opened at run time, each with a struct of function pointers. */
#ifndef TOOLS_LIBRARY_H
#define TOOLS_LIBRARY_H

#include "tutti/tutti.h"

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
    bool opened;
};

/* The calling thread's last error with any of the libraries. */
const char *library_error(void);
/* Writes it. Returns false. */
bool library_fail(const char *format, ...) TUTTI_PRINTF(1, 2);
/* Fills the struct, then calls `begin` unless it is NULL. Any thread may call it, any number of
 * times: both happen once. False with library_error(). */
bool library_open(struct library *library, void *table, bool (*begin)(void));

#endif
