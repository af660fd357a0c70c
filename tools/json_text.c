/* SPDX-License-Identifier: MIT */
#include "json_text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

enum { FLAGS = JSON_ENCODE_ANY | JSON_REAL_PRECISION(8) };

static void write_array(const json_t *array, FILE *out)
{
    size_t index;
    json_t *row;
    fputs("[", out);
    json_array_foreach(array, index, row)
    {
        fputs(index ? ",\n  " : "\n  ", out);
        json_dumpf(row, out, FLAGS);
    }
    fputs("\n ]", out);
}

bool json_write_rows(json_t *object, const char *path)
{
    const char *key, *before = "{\n ";
    json_t *value;
    if (!object) {
        errno = ENOMEM;
        return false;
    }
    FILE *out = fopen(path, "w");
    if (!out)
        return false;
    json_object_foreach(object, key, value)
    {
        fprintf(out, "%s\"%s\": ", before, key);
        before = ",\n ";
        if (json_is_array(value))
            write_array(value, out);
        else
            json_dumpf(value, out, FLAGS);
    }
    fputs("\n}\n", out);
    bool ok = !ferror(out);
    return fclose(out) == 0 && ok;
}
