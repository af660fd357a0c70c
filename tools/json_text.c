/* SPDX-License-Identifier: MIT */
#include "json_text.h"

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
