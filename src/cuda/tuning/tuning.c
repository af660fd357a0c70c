/* SPDX-License-Identifier: MIT */
/* Finds the tuning file, reads it, and parses it strictly. */
#include "base/error.h"
#include "base/parse.h"
#include "cuda/tuning/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES = 256 << 10 };

/* ---- rows ------------------------------------------------------------------------------------ */

/* Reads the kernel and the collective, which the kernel must serve. */
static bool kernel_read(const char *word, const char *collective, struct cuda_table_row *row)
{
    const enum cuda_kernel kernel = cuda_kernel_find(word);
    const uint32_t served = kernel == CUDA_KERNELS ? 0 : cuda_kernel_rows[kernel].collectives;
    row->choice.kernel = (uint8_t)kernel;
    for (row->collective = 0; served >> row->collective; row->collective++)
        if (served >> row->collective & 1 &&
            strcmp(collective, tutti_collective_name((enum tutti_collective)row->collective)) == 0)
            return true;
    return false;
}

/* Returns NULL, or what is wrong with the row. */
static const char *row_read(const char *line, struct cuda_table_row *row)
{
    char device[8], bytes[24], kernel[32], collective[24] = "all_reduce";
    unsigned ranks, threads, blocks, units;
    int64_t capability = 0, most = 0;
    int end = 0, middle = 0;
    struct cuda_choice *choice = &row->choice;
    if (sscanf(line, "%7s ranks %4u %n", device, &ranks, &middle) != 2 || !middle)
        middle = (int)strlen(line);
    sscanf(line + middle, "collective %23s %n", collective, &end);
    middle += end;
    if (sscanf(line + middle, "bytes %23s kernel %31s threads %4u blocks %4u units %4u %n", bytes,
               kernel, &threads, &blocks, &units, &end) != 5 ||
        line[middle + end])
        return "expected 13 words: sm_XY ranks N bytes N kernel NAME threads N blocks N units N, "
               "or "
               "15, with: collective NAME behind the ranks";
    if (strcmp(device, "any") != 0 &&
        (strncmp(device, "sm_", 3) != 0 || !parse_number(device + 3, 80, 999, &capability)))
        return "expected sm_80 or newer, or any";
    if (ranks < 2 || ranks > CUDA_RANKS)
        return "ranks: expected 2 to 8";
    if (strcmp(bytes, "rest") != 0 && !parse_number(bytes, 1, INT64_MAX, &most))
        return "bytes: expected a number, or rest";
    row->bytes = most ? (uint64_t)most : CUDA_TABLE_REST;
    if (!kernel_read(kernel, collective, row))
        return "kernel: expected one_shot_ll, one_shot_lines, two_shot_lines or "
               "two_shot_pipelined, which serve the collective all_reduce";
    if (threads < 32 || threads > 512 || threads % 32)
        return "threads: expected a multiple of 32 up to 480 (512, of older files, is read as 480)";
    if (blocks < 1 || blocks > cuda_kernel_rows[choice->kernel].blocks)
        return "blocks: expected 1 to 512 (two_shot_pipelined: 128)";
    if (units < 1 || units > 64)
        return "units: expected 1 to 64";
    if (row->bytes > cuda_kernel_capacity(&cuda_kernel_rows[choice->kernel], (int)ranks))
        return "bytes: more than the kernel serves among so many ranks";
    row->capability = (int16_t)capability;
    row->size = (int8_t)ranks;
    choice->units = (uint8_t)units;
    choice->threads = (uint16_t)(threads > CUDA_WORKERS ? CUDA_WORKERS : threads);
    choice->blocks = (uint16_t)blocks;
    return NULL;
}

static bool same_section(const struct cuda_table_row *a, const struct cuda_table_row *b)
{
    return a->capability == b->capability && a->size == b->size && a->collective == b->collective;
}

static void section_drop(struct cuda_table *table, const struct cuda_table_row *of)
{
    int kept = 0;
    for (int i = 0; i < table->count; i++)
        if (!same_section(&table->rows[i], of))
            table->rows[kept++] = table->rows[i];
    table->count = kept;
}

/* Adds a row of the file. `fresh` counts the rows of its section, 0 after the end of a section. A
 * section replaces an earlier one. Returns NULL, or what is wrong. */
static const char *row_add(struct cuda_table *table, const struct cuda_table_row *row, int *fresh)
{
    const struct cuda_table_row *last = &table->rows[table->count - 1];
    if (*fresh && !same_section(last, row))
        return "the rows before lack one for the rest";
    if (*fresh && row->bytes <= last->bytes)
        return "bytes: not more than in the row before";
    if (!*fresh)
        section_drop(table, row);
    if (table->count == CUDA_TABLE_ROWS)
        return "too many rows";
    if (*fresh == CUDA_SECTION_ROWS)
        return "more than 32 rows of one capability, number of ranks and collective";
    table->rows[table->count++] = *row;
    *fresh = row->bytes == CUDA_TABLE_REST ? 0 : *fresh + 1;
    return NULL;
}

/* ---- text ------------------------------------------------------------------------------------ */

enum tutti_status cuda_table_parse(const char *text, size_t length, const char *source,
                                   struct cuda_table *table)
{
    struct parse_lines lines = {.next = text, .end = text + length};
    const char *wrong;
    int version = 0, stop = 0, fresh = 0;
    bool begun = parse_line(&lines, &wrong) &&
                 sscanf(lines.line, " tutti-tuning %d %n", &version, &stop) == 1 && version == 1 &&
                 !lines.line[stop];
    if (!begun && !wrong)
        wrong = "expected the first line to be: tutti-tuning 1";
    while (!wrong && parse_line(&lines, &wrong)) {
        struct cuda_table_row row = {.bytes = 0};
        wrong = row_read(lines.line, &row);
        if (!wrong)
            wrong = row_add(table, &row, &fresh);
    }
    if (!wrong && fresh)
        wrong = "the last rows lack one for the rest";
    if (wrong)
        return error_set(TUTTI_ERR_INVALID, "tuning file %s, line %d: %s", source, lines.number,
                         wrong);
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
    /* The XDG specification: ignore a relative path. */
    if (cache && *cache == '/')
        length = snprintf(path, size, "%s/tutti/tuning", cache);
    else if (home && *home == '/')
        length = snprintf(path, size, "%s/.cache/tutti/tuning", home);
    if (length <= 0 || (size_t)length >= size)
        *path = 0;
}

enum tutti_status cuda_table_load(struct cuda_table *table)
{
    char cache[512], *text;
    size_t length;
    const char *path = getenv("TUTTI_TUNING_FILE");
    const bool named = path && *path;
    cuda_table_built_in(table);
    if (!named) {
        cuda_table_cache_path(cache, sizeof cache);
        path = cache;
        if (access(path, R_OK) != 0) /* a missing cache is no error */
            return TUTTI_OK;
    }
    enum tutti_status status =
        parse_file_read(path, FILE_BYTES,
                        named ? "expected some KiB of text that begin with the line tutti-tuning "
                                "1: let tutti tune write one, or unset TUTTI_TUNING_FILE"
                              : "expected some KiB of text that begin with the line tutti-tuning "
                                "1: let tutti tune write one, or remove it",
                        &text, &length);
    if (status != TUTTI_OK)
        return error_context(status, named ? "TUTTI_TUNING_FILE=%s" : "tuning file %s", path);
    status = cuda_table_parse(text, length, path, table);
    free(text);
    return status;
}
