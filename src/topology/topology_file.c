/* SPDX-License-Identifier: MIT */
#include "topology/topology_file.h"

#include "base/error.h"
#include "base/parse.h"

#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES = 64 << 10 };

struct reader {
    struct parse_lines lines;
    char *begin, *rest; /* of the line: what strtok_r() needs */
    const char *wrong;  /* what is wrong with the form of a line */
};

static bool line_next(struct reader *reader)
{
    reader->begin = reader->lines.line;
    return parse_line(&reader->lines, &reader->wrong);
}

/* Returns the next word of the line; "" if there is none. */
static const char *word_next(struct reader *reader)
{
    const char *word = strtok_r(reader->begin, " \t\r", &reader->rest);
    reader->begin = NULL;
    return word ? word : "";
}

static bool word_is(struct reader *reader, const char *text)
{
    return strcmp(word_next(reader), text) == 0;
}

/* Returns NULL, or what is wrong with the row. */
static const char *row_read(struct reader *reader, int row, struct topology_matrix *matrix)
{
    for (int column = 0; column < matrix->size; column++) {
        int64_t count = TOPOLOGY_UNKNOWN_LINKS;
        const char *word = word_next(reader);
        if (!*word)
            return "the row is too short: expected a count for each column";
        if (strcmp(word, "?") != 0 && !(row == column && strcmp(word, "X") == 0) &&
            !parse_number(word, 0, TOPOLOGY_LINKS_MOST, &count))
            return "expected a count from 0 to 999, or ? where it is not known; the diagonal may "
                   "be X";
        matrix->links[row][column] = (int16_t)(row == column ? 0 : count);
    }
    return word_is(reader, "") ? NULL : "the row is too long: expected a count for each column";
}

/* Returns NULL, or what is wrong with the text. */
static const char *matrix_read(struct reader *reader, struct topology_matrix *matrix)
{
    const char *wrong = NULL;
    int64_t ranks;
    if (!line_next(reader) || !word_is(reader, "tutti-topology") || !word_is(reader, "1") ||
        !word_is(reader, ""))
        return "expected the first line to be: tutti-topology 1";
    if (!line_next(reader) || !word_is(reader, "ranks") ||
        !parse_number(word_next(reader), 1, NODE_RANKS, &ranks) || !word_is(reader, ""))
        return "expected a line: ranks N, for 1 to 64 ranks";
    matrix->size = (int32_t)ranks;
    for (int row = 0; row < matrix->size && !wrong; row++)
        wrong = line_next(reader) ? row_read(reader, row, matrix)
                                  : "rows are missing: expected as many rows as columns";
    if (!wrong && line_next(reader))
        wrong = "expected nothing after the last row";
    return wrong;
}

enum tutti_status topology_parse(const char *text, size_t length, const char *source,
                                 struct topology_file *file)
{
    struct reader reader = {.lines = {.next = text, .end = text + length}};
    memset(file, 0, sizeof *file);
    size_t from = strlen(source);
    from = from < sizeof file->source ? 0 : from - sizeof file->source + 1;
    memcpy(file->source, source + from, strlen(source + from));
    const char *wrong = matrix_read(&reader, &file->matrix);
    if (reader.wrong)
        wrong = reader.wrong;
    return wrong ? error_set(TUTTI_ERR_INVALID, "topology file %s, line %d: %s", source,
                             reader.lines.number, wrong)
                 : TUTTI_OK;
}

enum tutti_status topology_file_load(const char *path, struct topology_file *file)
{
    size_t length;
    char *text;
    enum tutti_status status =
        parse_file_read(path, FILE_BYTES,
                        "expected a few KiB of text whose first line is tutti-topology 1: name a "
                        "file as in TOPOLOGY of tutti(7), or unset it",
                        &text, &length);
    if (status != TUTTI_OK)
        return error_context(status, "TUTTI_TOPOLOGY_FILE=%s", path);
    status = topology_parse(text, length, path, file);
    free(text);
    return status;
}
