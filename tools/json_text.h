/* SPDX-License-Identifier: MIT */
/* Texts of others in JSON, and results in files. */
#ifndef TUTTI_TOOL_JSON_TEXT_H
#define TUTTI_TOOL_JSON_TEXT_H

#include <jansson.h>
#include <stdbool.h>

/* A string of a text that comes from outside, such as a path: of one that is no UTF-8, which JSON
 * has not, the bytes beyond ASCII become question marks. NULL if there is no memory. */
json_t *json_text(const char *text);

/* Writes an object to a file, each of its arrays with one element a line. False, with errno, if the
 * file cannot be written, or if the object is NULL. */
bool json_write_rows(json_t *object, const char *path);

#endif
