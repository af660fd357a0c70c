/* SPDX-License-Identifier: MIT */
/* What a comparison found: a table for people, JSON for programs, columns for gnuplot. */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include "comparison.h"

#include <stdio.h>

/* Writes the table: each library's best setting at each size and placement. */
void report_table(const struct comparison *comparison, FILE *out);
/* Writes bench/results' format. [in] command  how this run was started. Returns -1, having said
 * why. */
int report_json(const struct comparison *comparison, const char *command, const char *path);
/* Prints JSON files of that format as columns; "?" where a value is absent. Returns -1, having said
 * why. */
int report_columns(char *const *paths, int count, FILE *out);

#endif
