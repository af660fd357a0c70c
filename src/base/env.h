/* SPDX-License-Identifier: MIT */
/* Environment variables. Each is read when the object that it configures is created. A malformed
 * value is INVALID; the message names the variable. */
#ifndef TUTTI_ENV_H
#define TUTTI_ENV_H

#include "tutti/tutti.h"

/* Reads a whole number. Here and below *value keeps its value if the variable is unset or empty. */
enum tutti_status env_int64(const char *name, int64_t *value);
/* Reads 0, 1, off, on, false, true, no or yes. */
enum tutti_status env_bool(const char *name, bool *value);
/* Reads a number of bytes, with or without the suffix K, M or G. */
enum tutti_status env_bytes(const char *name, size_t *value);
/* Reads a name of TUTTI_ALGO_MAP. */
enum tutti_status env_algo(const char *name, enum tutti_algo *value);

#endif
