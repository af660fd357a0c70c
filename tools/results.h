/* SPDX-License-Identifier: MIT */
/* Results as JSON and as CSV, in files or on the standard output, whose name is "-". */
#ifndef TUTTI_TOOL_RESULTS_H
#define TUTTI_TOOL_RESULTS_H

#include <argp.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* Ends the program with a message if the file cannot be written. */
void results_argument(struct argp_state *state, const char *option, const char *path);

/* If the path is "-" (NULL is not), the standard output is kept for the results: all else that the
 * process prints goes to stderr from then on. Call it while there is one thread. False after a
 * message. */
bool results_take_output(const char *path);

/* Prints an object, each of its arrays with one element a line. */
void results_print_json(json_t *object, FILE *out);
/* Writes it to a file. False, with errno, if that fails or if the object is NULL. */
bool results_write_json(json_t *object, const char *path);

/* Writes a line of names, then a line for each of the objects. An object within a row has a column
 * "NAME.KEY" for each of its values; the elements of an array are joined by ';'. A value that a row
 * lacks, or that is null, is empty. False, with errno, if that fails. */
bool results_write_csv(const json_t *rows, const char *path);

#endif
