/* SPDX-License-Identifier: MIT */
/* Reads a matrix of links from a text file. The matrix replaces what the machine reports: for
 * tests, and for machines that report it wrong. */
#ifndef TUTTI_TOPOLOGY_FILE_H
#define TUTTI_TOPOLOGY_FILE_H

#include "topology/topology.h"

enum { TOPOLOGY_SOURCE_BYTES = 96, TOPOLOGY_LINKS_MOST = 999 };

/* The contents of a topology file. */
struct topology_file {
    struct topology_matrix matrix;
    char source[TOPOLOGY_SOURCE_BYTES]; /* the file's path; only its end if it is longer */
};

/*
 * Parse a text of these lines; '#' starts a comment:
 *   tutti-topology 1
 *   ranks N             1 to 64
 *   N rows of N counts  row i has the links from rank i: 0 to 999, or "?" where the count is
 *                       unknown. The diagonal may be "X"
 * The bytes come from outside, so this parser has a fuzzer. Returns INVALID; the message names the
 * line.
 */
enum tutti_status topology_parse(const char *text, size_t length, const char *source,
                                 struct topology_file *file);
/* Read and parse a file. Returns INVALID, SYSTEM, NO_MEMORY. */
enum tutti_status topology_file_load(const char *path, struct topology_file *file);

#endif
