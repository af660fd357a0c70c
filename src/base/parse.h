/* SPDX-License-Identifier: MIT */
/* Numbers, and the text files that users write: a file is read whole, then line by line. A '#'
 * starts a comment. */
#ifndef TUTTI_PARSE_H
#define TUTTI_PARSE_H

#include "tutti/tutti.h"

enum { PARSE_LINE_BYTES = 512 };

/* Reads a whole number in plain decimal digits, with a minus sign if it is negative. Returns false
 * for any other text, and for a number below `least` or above `most`. */
bool parse_number(const char *text, int64_t least, int64_t most, int64_t *number);

/* Reads a file of fewer than `most` bytes into *text, which the caller frees. `advice` follows the
 * error of a longer file. Returns SYSTEM, NO_MEMORY, INVALID. */
enum tutti_status parse_file_read(const char *path, size_t most, const char *advice, char **text,
                                  size_t *length);

/* Before the first line: the text and its end, and 0. */
struct parse_lines {
    const char *next, *end;
    int number;                  /* of the line */
    char line[PARSE_LINE_BYTES]; /* without its comment */
};
/* Reads the next line that has a word. Returns false at the end of the text, and if *wrong is set
 * to what is wrong with the line. */
bool parse_line(struct parse_lines *lines, const char **wrong);

#endif
