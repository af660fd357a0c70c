/* SPDX-License-Identifier: MIT */
/* The table of tutti bench: a head, then a row for each size, or with --long for each size and
 * place. */
#ifndef TUTTI_TOOL_BENCH_TABLE_H
#define TUTTI_TOOL_BENCH_TABLE_H

#include "bench.h"

/* `ready`: the ranks' first records. `nccl`: its version, "" if it is not measured. */
void table_begin(const struct bench_config *config, const struct bench_record *ready,
                 const char *nccl);
void table_row(const struct bench_config *config, const struct bench_result *result);

bool bench_is_gpu(const struct bench_config *config);
/* In GB/s, 1e9 bytes a second. */
double bench_busbw(const struct bench_config *config, const struct bench_row *row,
                   const struct bench_timing *timing);
/* The library's time divided by that of the fastest rival; 0: there is no rival. */
double bench_ratio(const struct bench_timing *timing);

#endif
