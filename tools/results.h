/* SPDX-License-Identifier: MIT */
/* Results as JSON and as CSV, in files or on the standard output, whose path is "-". */
#ifndef TUTTI_TOOL_RESULTS_H
#define TUTTI_TOOL_RESULTS_H

#include <argp.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* Ends the program with a message if the file cannot be written. */
void results_argument(struct argp_state *state, const char *option, const char *path);

/* If the path is "-", reserves the standard output for the results: from then on everything else
 * that the process prints goes to stderr. The path may be NULL. The caller has no other thread.
 * False after a message. */
bool results_take_output(const char *path);

/* A string of a text from outside, such as a path. If the text is not UTF-8, which JSON needs, its
 * bytes beyond ASCII become question marks. NULL if there is no memory. */
json_t *json_text(const char *text);

/* Prints an object, each of its arrays with one element a line. */
void results_print_json(json_t *object, FILE *out);
/* Writes it to a file. False, with errno, if that fails or if the object is NULL. */
bool results_write_json(json_t *object, const char *path);

/* Writes a line of names, then a line for each object. A nested object has a column "NAME.KEY" for
 * each of its values. The elements of an array are joined by ';'. A missing value or null is empty.
 * False, with errno, if writing fails. */
bool results_write_csv(const json_t *rows, const char *path);

#endif
