/* SPDX-License-Identifier: MIT */
/* Libraries that this process has loaded, by whatever module. Those that Python has loaded are not
 * visible to dlsym(RTLD_DEFAULT). */
#ifndef TUTTI_LOADED_H
#define TUTTI_LOADED_H

enum { LOADED_PATH_BYTES = 4096 };

/* Finds the libraries whose file names begin with one of `names`, which NULL ends. Writes their
 * paths, in the order of loading. Returns their number, at most `most`. */
int loaded_find(const char *const *names, char (*paths)[LOADED_PATH_BYTES], int most);

#endif
