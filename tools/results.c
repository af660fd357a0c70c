/* SPDX-License-Identifier: MIT */
#include "results.h"

#include "tool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { JSON_FLAGS = JSON_ENCODE_ANY | JSON_REAL_PRECISION(8) };

static int output = -1; /* the original standard output */

static bool is_output(const char *path)
{
    return path && strcmp(path, "-") == 0;
}

void results_argument(struct argp_state *state, const char *option, const char *path)
{
    if (!is_output(path) && !access_for_writing(path))
        argp_error(state, "%s: '%s' cannot be written: %s", option, path, strerror(errno));
}

bool results_take_output(const char *path)
{
    if (!is_output(path) || output >= 0)
        return true;
    fflush(stdout);
    output = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (output < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
        return tool_fail_errno("cannot keep the standard output for the results");
    return true;
}

static FILE *open_results(const char *path)
{
    if (!is_output(path))
        return fopen(path, "we");
    int fd = fcntl(output, F_DUPFD_CLOEXEC, 0);
    FILE *out = fd < 0 ? NULL : fdopen(fd, "w");
    if (!out && fd >= 0)
        close(fd);
    return out;
}

static bool close_results(FILE *out)
{
    bool ok = !ferror(out);
    return fclose(out) == 0 && ok;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

json_t *json_text(const char *text)
{
    json_t *string = json_string(text);
    char *plain = string ? NULL : strdup(text);
    for (char *at = plain; at && *at; at++)
        if (*at & 0x80)
            *at = '?';
    if (plain)
        string = json_string(plain);
    free(plain);
    return string;
}

static void write_array(const json_t *array, FILE *out)
{
    size_t index;
    json_t *row;
    fputs("[", out);
    json_array_foreach(array, index, row)
    {
        fputs(index ? ",\n  " : "\n  ", out);
        json_dumpf(row, out, JSON_FLAGS);
    }
    fputs("\n ]", out);
}

void results_print_json(json_t *object, FILE *out)
{
    const char *key, *before = "{\n ";
    json_t *value;
    json_object_foreach(object, key, value)
    {
        fprintf(out, "%s\"%s\": ", before, key);
        before = ",\n ";
        if (json_is_array(value))
            write_array(value, out);
        else
            json_dumpf(value, out, JSON_FLAGS);
    }
    fputs("\n}\n", out);
}

bool results_write_json(json_t *object, const char *path)
{
    if (!object) {
        errno = ENOMEM;
        return false;
    }
    FILE *out = open_results(path);
    if (!out)
        return false;
    results_print_json(object, out);
    return close_results(out);
}

/* ---- CSV ------------------------------------------------------------------------------------- */

/* Quotes the text only if it contains a character that has a meaning in CSV (RFC 4180). */
static void write_text(const char *text, FILE *out)
{
    bool quoted = strpbrk(text, ",\"\r\n") != NULL;
    if (quoted)
        fputc('"', out);
    for (; *text; text++) {
        if (*text == '"')
            fputc('"', out);
        fputc(*text, out);
    }
    if (quoted)
        fputc('"', out);
}

static void write_array_cell(const json_t *array, FILE *out)
{
    size_t index;
    json_t *element;
    json_array_foreach(array, index, element)
    {
        if (index)
            fputc(';', out);
        write_text(json_is_string(element) ? json_string_value(element) : "", out);
    }
}

static void write_cell(const json_t *value, FILE *out)
{
    if (!value || json_is_null(value))
        return;
    if (json_is_string(value))
        write_text(json_string_value(value), out);
    else if (json_is_array(value))
        write_array_cell(value, out);
    else
        json_dumpf(value, out, JSON_FLAGS);
}

/* Collects the names of all columns as keys: {"bytes": null, "rivals": {"gloo ring": null}}. */
static bool add_columns(json_t *columns, json_t *row)
{
    const char *key;
    json_t *value;
    bool ok = true;
    json_object_foreach(row, key, value)
    {
        json_t *known = json_object_get(columns, key);
        if (!known || (json_is_null(known) && json_is_object(value))) {
            known = json_is_object(value) ? json_object() : json_null();
            ok &= json_object_set_new(columns, key, known) == 0;
        }
        if (ok && json_is_object(value))
            ok &= add_columns(known, value);
    }
    return ok;
}

/* Writes the line of names if row is NULL, else the line of the row. */
static void write_line(json_t *columns, const json_t *row, FILE *out)
{
    const char *key, *inner, *before = "";
    json_t *column, *unused;
    char name[128];
    json_object_foreach(columns, key, column)
    {
        const json_t *value = row ? json_object_get(row, key) : NULL;
        if (!json_is_object(column)) {
            fputs(before, out);
            before = ",";
            if (row)
                write_cell(value, out);
            else
                write_text(key, out);
            continue;
        }
        json_object_foreach(column, inner, unused)
        {
            fputs(before, out);
            before = ",";
            snprintf(name, sizeof name, "%s.%s", key, inner);
            if (row)
                write_cell(json_object_get(value, inner), out);
            else
                write_text(name, out);
        }
    }
    fputs("\n", out);
}

bool results_write_csv(const json_t *rows, const char *path)
{
    size_t index;
    json_t *row, *columns = json_object();
    bool ok = columns != NULL;
    json_array_foreach(rows, index, row) ok = ok && add_columns(columns, row);
    FILE *out = ok ? open_results(path) : NULL;
    if (!ok)
        errno = ENOMEM;
    if (!out)
        goto err_columns;
    write_line(columns, NULL, out);
    json_array_foreach(rows, index, row) write_line(columns, row, out);
    ok = close_results(out);

err_columns:
    json_decref(columns);
    return ok && out;
}
