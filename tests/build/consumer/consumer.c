/* SPDX-License-Identifier: MIT */
/* A program of somebody else, with names of its own that the library uses inside. */
#include <stdio.h>
#include <tutti/tutti.h>

int error_set(void);

int error_set(void)
{
    return tutti_version() == TUTTI_VERSION ? 0 : 1;
}

int main(void)
{
    printf("%d %s\n", tutti_version(), tutti_dtype_name(TUTTI_BFLOAT16));
    return error_set();
}
