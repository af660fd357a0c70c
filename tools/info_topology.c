/* SPDX-License-Identifier: MIT */
/* The description of a communicator as an object, and its links as a printed matrix. */
#include "info.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

json_t *describe_comm(const tutti_comm_t *comm)
{
    size_t size = (size_t)tutti_comm_describe(comm, NULL, 0) + 1;
    char *text = malloc(size), *rest = NULL;
    json_t *object = json_object(), *links = json_array();
    if (text)
        tutti_comm_describe(comm, text, size);
    for (char *line = text ? strtok_r(text, "\n", &rest) : NULL; line;
         line = strtok_r(NULL, "\n", &rest)) {
        char *value = strstr(line, ": ");
        if (!value)
            continue;
        *value = 0;
        if (strcmp(line, "links") == 0) {
            json_array_append_new(links, json_string(value + 2));
            continue;
        }
        const char *former = json_string_value(json_object_get(object, line));
        json_object_set_new(object, line,
                            former ? json_sprintf("%s; %s", former, value + 2)
                                   : json_string(value + 2));
    }
    free(text);
    if (json_array_size(links))
        json_object_set(object, "links", links);
    json_decref(links);
    return object;
}

/* In the style of nvidia-smi topo -m: NV2 means two links, - means none. */
static void print_cell(const char *cell)
{
    char text[16];
    if (*cell >= '1' && *cell <= '9')
        snprintf(text, sizeof text, "NV%.8s", cell);
    else
        snprintf(text, sizeof text, "%.8s", strcmp(cell, "0") == 0 ? "-" : cell);
    printf(" %-6s", text);
}

void print_links(const json_t *rows, int indent)
{
    char line[1024];
    size_t index;
    const json_t *row;
    printf("%*s%-6s", indent, "", "");
    for (size_t i = 0; i < json_array_size(rows); i++)
        printf(" R%-5zu", i);
    printf("\n");
    json_array_foreach(rows, index, row)
    {
        char *rest = NULL;
        snprintf(line, sizeof line, "%s", json_string_value(row));
        printf("%*sR%-5zu", indent, "", index);
        for (char *cell = strtok_r(line, " ", &rest); cell; cell = strtok_r(NULL, " ", &rest))
            print_cell(cell);
        printf("\n");
    }
    printf("%*sX: itself, NV#: so many links, -: none, ?: not known\n", indent, "");
}
