/* SPDX-License-Identifier: MIT */
/* Descriptors of the library. A program may have closed its descriptors 0 to 2. Then the kernel
 * gives these numbers to the next files that are opened, and what the program prints would go into
 * a file of the library. So every file that the library opens or receives goes through fd_lift(),
 * and has such a number only for a moment. */
#ifndef TUTTI_FD_H
#define TUTTI_FD_H

#include <stdio.h>

/* Returns the descriptor, or, if it is 0 to 2, a duplicate above these; the descriptor is closed
 * then. Returns -1, with errno, if the descriptor is -1 or cannot be duplicated. The duplicate is
 * closed on exec. */
int fd_lift(int fd);
/* fopen(path, "re"), with such a descriptor. */
FILE *fd_open_stream(const char *path);
/* Closes *fd unless it is negative, and makes it -1. Keeps errno. */
void fd_drop(int *fd);

#endif
