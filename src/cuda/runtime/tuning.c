/* SPDX-License-Identifier: MIT */
/* The tuning file: found, read, parsed strictly. */
#include "base/error.h"
#include "cuda/runtime/table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES = 256 << 10, LINE_BYTES = 160, WORDS = 13 };

/* ---- words ----------------------------------------------------------------------------------- */

/* A whole decimal number within bounds, without a sign or a leading zero. */
static bool number_read(const char *word, uint64_t least, uint64_t most, uint64_t *number)
{
    uint64_t value = 0;
    if (!*word || (*word == '0' && word[1]))
        return false;
    for (; *word; word++) {
        unsigned digit = (unsigned)(*word - '0');
        if (digit > 9 || digit > most || value > (most - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *number = value;
    return value >= least;
}

/* Splits at blanks, in place; returns how many words there are, at most WORDS + 1. */
static int words_split(char *line, char *words[WORDS + 1])
{
    int count = 0;
    char *rest = NULL;
    for (char *word = strtok_r(line, " \t", &rest); word; word = strtok_r(NULL, " \t", &rest)) {
        if (count == WORDS + 1)
            break;
        words[count++] = word;
    }
    return count;
}

/* ---- rows ------------------------------------------------------------------------------------ */

enum field { RANKS, BYTES, KERNEL, THREADS, BLOCKS, UNITS, FIELDS };

static const struct {
    const char *key;
    uint64_t least, most;
    const char *wrong;
} fields[FIELDS] = {
    [RANKS] = {"ranks", 2, CUDA_RANKS, "ranks: expected 2 to 8"},
    [BYTES] = {"bytes", 1, INT64_MAX, "bytes: expected a number, or rest"},
    [KERNEL] = {"kernel", 0, 0,
                "kernel: expected one_shot_ll, one_shot_lines, two_shot_lines or "
                "two_shot_pipelined"},
    [THREADS] = {"threads", 32, 512,
                 "threads: expected a multiple of 32 up to 480 (512, of older files, is read as "
                 "480)"},
    [BLOCKS] = {"blocks", 1, CUDA_BLOCKS, "blocks: expected 1 to 512 (two_shot_pipelined: 128)"},
    [UNITS] = {"units", 1, 64, "units: expected 1 to 64"},
};

static bool field_read(enum field field, const char *word, uint64_t *value)
{
#define KERNEL_NAME(NAME, name, text) [CUDA_##NAME] = #name,
    static const char *const names[CUDA_KERNELS] = {CUDA_KERNEL_MAP(KERNEL_NAME)};
#undef KERNEL_NAME
    *value = CUDA_TABLE_REST;
    if (field == BYTES && strcmp(word, "rest") == 0)
        return true;
    if (field != KERNEL)
        return number_read(word, fields[field].least, fields[field].most, value);
    for (uint64_t k = 0; k < CUDA_TABLE_KERNELS; k++)
        if (strcmp(word, names[k]) == 0)
            *value = k;
    return *value != CUDA_TABLE_REST;
}

/* NULL, or what is wrong with the row. */
static const char *row_read(char *words[WORDS + 1], int count, struct cuda_table_row *row)
{
    uint64_t capability = 0, values[FIELDS];
    if (count != WORDS)
        return "expected 13 words: sm_XY ranks N bytes N kernel NAME threads N blocks N units N";
    if (strcmp(words[0], "any") != 0 &&
        (strncmp(words[0], "sm_", 3) != 0 || !number_read(words[0] + 3, 80, 999, &capability)))
        return "expected sm_80 or newer, or any";
    for (enum field f = 0; f < FIELDS; f++) {
        if (strcmp(words[1 + 2 * f], fields[f].key) != 0)
            return "expected the words ranks, bytes, kernel, threads, blocks, units in this order";
        if (!field_read(f, words[2 + 2 * f], &values[f]))
            return fields[f].wrong;
    }
    if (values[THREADS] % 32)
        return fields[THREADS].wrong;
    if (values[KERNEL] == CUDA_TWO_SHOT_PIPELINED && values[BLOCKS] > CUDA_TILE_BLOCKS)
        return fields[BLOCKS].wrong;
    if (values[BYTES] > cuda_kernel_capacity((enum cuda_kernel)values[KERNEL], (int)values[RANKS]))
        return "bytes: more than the kernel serves among so many ranks";
    const uint64_t threads = values[THREADS] > CUDA_WORKERS ? CUDA_WORKERS : values[THREADS];
    *row = (struct cuda_table_row){
        .capability = (int16_t)capability,
        .size = (int16_t)values[RANKS],
        .bytes = values[BYTES],
        .choice = {(uint8_t)values[KERNEL], (uint8_t)values[UNITS], (uint16_t)threads,
                   (uint16_t)values[BLOCKS]},
    };
    return NULL;
}

static bool same_group(const struct cuda_table_row *a, const struct cuda_table_row *b)
{
    return a->capability == b->capability && a->size == b->size;
}

static void group_drop(struct cuda_table *table, const struct cuda_table_row *of)
{
    int kept = 0;
    for (int i = 0; i < table->count; i++)
        if (!same_group(&table->rows[i], of))
            table->rows[kept++] = table->rows[i];
    table->count = kept;
}

/* Adds a row of the file. `fresh` counts the rows of its group, 0 after the end of a group. Returns
 * NULL, or what is wrong. */
static const char *row_add(struct cuda_table *table, const struct cuda_table_row *row, int *fresh,
                           uint64_t seen[1000])
{
    struct cuda_table_row *last = table->count ? &table->rows[table->count - 1] : NULL;
    if (*fresh && !same_group(last, row))
        return "the rows before lack one for the rest";
    if (!*fresh) {
        if (seen[row->capability] >> row->size & 1)
            return "rows of this capability and number of ranks stand above: keep them together";
        seen[row->capability] |= UINT64_C(1) << row->size;
        group_drop(table, row);
    } else if (row->bytes <= last->bytes) {
        return "bytes: not more than in the row before";
    }
    if (table->count == CUDA_TABLE_ROWS)
        return "too many rows";
    if (*fresh == CUDA_PLAN_ROWS)
        return "more than 32 rows of one capability and number of ranks";
    table->rows[table->count++] = *row;
    *fresh = row->bytes == CUDA_TABLE_REST ? 0 : *fresh + 1;
    return NULL;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Copies the next line without its comment; NULL, or what is wrong with it. */
static const char *line_next(const char **text, const char *end, char line[LINE_BYTES])
{
    const char *stop = memchr(*text, '\n', (size_t)(end - *text));
    size_t length = (size_t)((stop ? stop : end) - *text);
    const char *from = *text, *comment = memchr(from, '#', length);
    *text = stop ? stop + 1 : end;
    if (memchr(from, 0, length))
        return "holds a zero byte";
    if (comment)
        length = (size_t)(comment - from);
    if (length >= LINE_BYTES)
        return "too long";
    memcpy(line, from, length);
    line[length] = 0;
    return NULL;
}

enum tutti_status cuda_table_parse(const char *text, size_t length, const char *source,
                                   struct cuda_table *table)
{
    uint64_t seen[1000] = {0};
    const char *end = text + length, *wrong = NULL;
    bool begun = false;
    int number = 0, fresh = 0;
    while (text < end && !wrong) {
        char line[LINE_BYTES], *words[WORDS + 1];
        struct cuda_table_row row = {.bytes = 0};
        number++;
        wrong = line_next(&text, end, line);
        int count = wrong ? 0 : words_split(line, words);
        if (!count)
            continue;
        if (!begun) {
            begun =
                count == 2 && strcmp(words[0], "tutti-tuning") == 0 && strcmp(words[1], "1") == 0;
            wrong = begun ? NULL : "expected the first line to be: tutti-tuning 1";
            continue;
        }
        wrong = row_read(words, count, &row);
        if (!wrong)
            wrong = row_add(table, &row, &fresh, seen);
    }
    if (!wrong && fresh)
        wrong = "the last rows lack one for the rest";
    if (!wrong && !begun)
        wrong = "expected a line: tutti-tuning 1";
    if (wrong)
        return error_set(TUTTI_ERR_INVALID, "tuning file %s, line %d: %s", source, number, wrong);
    size_t from = strlen(source);
    from = from < sizeof table->source ? 0 : from - sizeof table->source + 1;
    snprintf(table->source, sizeof table->source, "%s", source + from);
    cuda_table_hash(table);
    return TUTTI_OK;
}

/* ---- file ------------------------------------------------------------------------------------ */

void cuda_table_cache_path(char *path, size_t size)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length = 0;
    /* The convention: a relative path is to be ignored. */
    if (cache && *cache == '/')
        length = snprintf(path, size, "%s/tutti/tuning", cache);
    else if (home && *home == '/')
        length = snprintf(path, size, "%s/.cache/tutti/tuning", home);
    if (length <= 0 || (size_t)length >= size)
        *path = 0;
}

/* `named`: the path comes from TUTTI_TUNING_FILE. */
static enum tutti_status file_parse(const char *path, int fd, bool named, struct cuda_table *table)
{
    char *text = malloc(FILE_BYTES);
    size_t length = 0;
    ssize_t got = 1;
    if (!text)
        return error_set(TUTTI_ERR_NO_MEMORY, "no memory for %d bytes", FILE_BYTES);
    while (got > 0 && length < FILE_BYTES) {
        got = read(fd, text + length, FILE_BYTES - length);
        length += got > 0 ? (size_t)got : 0;
        if (got < 0 && errno == EINTR)
            got = 1;
    }
    enum tutti_status status;
    if (got < 0)
        status = error_errno("tuning file %s: read", path);
    else if (length == FILE_BYTES)
        status = error_set(TUTTI_ERR_INVALID,
                           "tuning file %s: %d bytes or more: expected some KiB of text that begin "
                           "with the line tutti-tuning 1: let tutti tune write one, or %s",
                           path, FILE_BYTES, named ? "unset TUTTI_TUNING_FILE" : "remove it");
    else
        status = cuda_table_parse(text, length, path, table);
    free(text);
    return status;
}

enum tutti_status cuda_table_load(struct cuda_table *table)
{
    char cache[512];
    const char *path = getenv("TUTTI_TUNING_FILE");
    bool named = path && *path;
    cuda_table_built_in(table);
    if (!named) {
        cuda_table_cache_path(cache, sizeof cache);
        path = cache;
    }
    int fd = *path ? open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK) : -1;
    if (fd < 0) /* no cache is no error */
        return named ? error_errno("TUTTI_TUNING_FILE=%s: open", path) : TUTTI_OK;
    enum tutti_status status = file_parse(path, fd, named, table);
    close(fd);
    return status;
}
