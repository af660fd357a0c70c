/* SPDX-License-Identifier: MIT */
#include "topology/topology_file.h"

#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES = 64 << 10 };

/* ---- words ----------------------------------------------------------------------------------- */

/* The position in the text. Lines and columns count from 1. */
struct reader {
    const char *at, *end, *line_begin;
    int line;
    const char *source;
};

struct word {
    const char *text;
    size_t length; /* 0: there are no more words in the line */
};

static enum tutti_status parse_error(const struct reader *reader, struct word word,
                                     const char *what)
{
    return error_set(TUTTI_ERR_INVALID, "topology file %s, line %d, column %d: %s", reader->source,
                     reader->line, (int)(word.text - reader->line_begin) + 1, what);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Return the next word of the line. */
static struct word word_next(struct reader *reader)
{
    while (reader->at < reader->end && is_blank(*reader->at))
        reader->at++;
    struct word word = {reader->at, 0};
    while (reader->at < reader->end && !is_blank(*reader->at) && *reader->at != '\n' &&
           *reader->at != '#')
        reader->at++;
    word.length = (size_t)(reader->at - word.text);
    return word;
}

/* Return the first word of the next line that has one; a word of length 0 at the end of the text.
 */
static struct word line_next(struct reader *reader)
{
    for (;;) {
        struct word word = word_next(reader);
        if (word.length)
            return word;
        const char *stop = memchr(reader->at, '\n', (size_t)(reader->end - reader->at));
        if (!stop) {
            reader->at = reader->end;
            return (struct word){reader->end, 0};
        }
        reader->at = reader->line_begin = stop + 1;
        reader->line++;
    }
}

/* Return an error with this text if the line has another word. */
static enum tutti_status line_end(struct reader *reader, const char *what)
{
    struct word word = word_next(reader);
    return word.length ? parse_error(reader, word, what) : TUTTI_OK;
}

static bool is_text(struct word word, const char *text)
{
    return word.length == strlen(text) && memcmp(word.text, text, word.length) == 0;
}

static bool number_read(struct word word, int least, int most, int *number)
{
    int value = 0;
    for (size_t i = 0; i < word.length; i++) {
        if (word.text[i] < '0' || word.text[i] > '9' || (value == 0 && i > 0))
            return false;
        value = value * 10 + (word.text[i] - '0');
        if (value > most)
            return false;
    }
    *number = value;
    return word.length > 0 && value >= least;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static enum tutti_status row_read(struct reader *reader, struct word word, int row,
                                  struct topology_matrix *matrix)
{
    for (int column = 0; column < matrix->size; column++) {
        int count = TOPOLOGY_UNKNOWN_LINKS;
        if (column)
            word = word_next(reader);
        if (!word.length)
            return parse_error(reader, word,
                               "the row is too short: expected a count for each column");
        if (row == column && is_text(word, "X"))
            count = 0;
        else if (!is_text(word, "?") && !number_read(word, 0, TOPOLOGY_LINKS_MOST, &count))
            return parse_error(reader, word,
                               "expected a count from 0 to 999, or ? where it is not known; the "
                               "diagonal may be X");
        matrix->links[row][column] = (int16_t)(row == column ? 0 : count);
    }
    return line_end(reader, "the row is too long: expected a count for each column");
}

static enum tutti_status text_read(struct reader *reader, struct topology_file *file)
{
    struct word word = line_next(reader);
    if (!is_text(word, "tutti-topology") || !is_text(word_next(reader), "1"))
        return parse_error(reader, word, "expected the first line to be: tutti-topology 1");
    enum tutti_status status = line_end(reader, "expected nothing after tutti-topology 1");
    if (status != TUTTI_OK)
        return status;

    word = line_next(reader);
    if (!is_text(word, "ranks"))
        return parse_error(reader, word, "expected a line: ranks N");
    word = word_next(reader);
    if (!number_read(word, 1, TUTTI_MAX_RANKS, &file->matrix.size))
        return parse_error(reader, word, "expected a number of ranks from 1 to 64");
    status = line_end(reader, "expected nothing after the number of ranks");
    for (int row = 0; row < file->matrix.size && status == TUTTI_OK; row++) {
        word = line_next(reader);
        if (!word.length)
            return parse_error(reader, word, "rows are missing: expected as many rows as columns");
        status = row_read(reader, word, row, &file->matrix);
    }
    if (status != TUTTI_OK)
        return status;
    word = line_next(reader);
    return word.length ? parse_error(reader, word, "expected nothing after the last row")
                       : TUTTI_OK;
}

enum tutti_status topology_parse(const char *text, size_t length, const char *source,
                                 struct topology_file *file)
{
    struct reader reader = {text, text + length, text, 1, source};
    memset(file, 0, sizeof *file);
    size_t from = strlen(source);
    from = from < sizeof file->source ? 0 : from - sizeof file->source + 1;
    memcpy(file->source, source + from, strlen(source + from));
    return text_read(&reader, file);
}

enum tutti_status topology_file_load(const char *path, struct topology_file *file)
{
    size_t length = 0;
    ssize_t got = 1;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return error_errno("TUTTI_TOPOLOGY_FILE=%s: open", path);
    enum tutti_status status;
    char *text = malloc(FILE_BYTES);
    while (text && got > 0 && length < FILE_BYTES) {
        got = read(fd, text + length, FILE_BYTES - length);
        length += got > 0 ? (size_t)got : 0;
        if (got < 0 && errno == EINTR)
            got = 1;
    }
    if (!text)
        status = error_set(TUTTI_ERR_NO_MEMORY, "no memory for %d bytes", FILE_BYTES);
    else if (got < 0)
        status = error_errno("TUTTI_TOPOLOGY_FILE=%s: read", path);
    else if (length == FILE_BYTES)
        status = error_set(TUTTI_ERR_INVALID,
                           "TUTTI_TOPOLOGY_FILE=%s: the file has %d bytes or more: expected a few "
                           "KiB of text whose first line is tutti-topology 1: name a file as in "
                           "TOPOLOGY of tutti(7), or unset it",
                           path, FILE_BYTES);
    else
        status = topology_parse(text, length, path, file);
    free(text);
    close(fd);
    return status;
}
