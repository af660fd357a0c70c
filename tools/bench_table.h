/* SPDX-License-Identifier: MIT */
/* The table of tutti bench: a head, then a row a size, or with --long a row a size and place. */
#ifndef TUTTI_TOOL_BENCH_TABLE_H
#define TUTTI_TOOL_BENCH_TABLE_H

#include "bench.h"

/* ready are the ranks' first records, nccl is the version measured beside or "". */
void table_begin(const struct bench_config *config, const struct bench_record *ready,
                 const char *nccl);
void table_row(const struct bench_config *config, const struct bench_result *result);

bool bench_is_gpu(const struct bench_config *config);
/* In GB/s, 1e9 bytes a second. */
double bench_busbw(const struct bench_config *config, const struct bench_row *row,
                   const struct bench_timing *timing);
/* The library's time divided by the fastest rival's; 0 if there is none. */
double bench_ratio(const struct bench_timing *timing);

#endif
