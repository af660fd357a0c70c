/* SPDX-License-Identifier: MIT */
/* Texts of others in JSON. */
#ifndef TUTTI_TOOL_JSON_TEXT_H
#define TUTTI_TOOL_JSON_TEXT_H

#include <jansson.h>

/* A string of a text that comes from outside, such as a path: of one that is no UTF-8, which JSON
 * has not, the bytes beyond ASCII become question marks. NULL if there is no memory. */
json_t *json_text(const char *text);

#endif
