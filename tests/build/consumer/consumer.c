/* SPDX-License-Identifier: MIT */
/* A user's program with functions of its own that have names which the library uses inside. */
#include <stdio.h>
#include <string.h>
#include <tutti/tutti.h>

int error_set(void);

int error_set(void)
{
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", TUTTI_VERSION_MAJOR, TUTTI_VERSION_MINOR,
             TUTTI_VERSION_PATCH);
    return tutti_version() == TUTTI_VERSION && strcmp(tutti_version_string(), text) == 0 ? 0 : 1;
}

int main(void)
{
    printf("%d %s\n", tutti_version(), tutti_dtype_name(TUTTI_BFLOAT16));
    return error_set();
}
