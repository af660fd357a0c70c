/* SPDX-License-Identifier: MIT */
/* JSON strings of texts from outside. */
#ifndef TUTTI_TOOL_JSON_TEXT_H
#define TUTTI_TOOL_JSON_TEXT_H

#include <jansson.h>

/* A string of a text from outside, such as a path. If the text is not UTF-8, which JSON needs, its
 * bytes beyond ASCII become question marks. NULL if there is no memory. */
json_t *json_text(const char *text);

#endif
