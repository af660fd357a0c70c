/* SPDX-License-Identifier: MIT */
/* Environment variables, each read where its object is created. A malformed one is an error that
 * names it. */
#ifndef TUTTI_ENV_H
#define TUTTI_ENV_H

#include "tutti/tutti.h"

/* *value is left alone when the variable is unset or empty. */
enum tutti_status env_int64(const char *name, int64_t least, int64_t *value);
/* 0, 1, off, on, false, true, no, yes. */
enum tutti_status env_bool(const char *name, bool *value);
/* Bytes, with K, M or G behind the number if need be. */
enum tutti_status env_bytes(const char *name, size_t *value);
/* A name of TUTTI_ALGO_MAP. */
enum tutti_status env_algo(const char *name, enum tutti_algo *value);

#endif
