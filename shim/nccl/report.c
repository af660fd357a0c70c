/* SPDX-License-Identifier: MIT */
#include "../report.h"

#include "shim.h"

static const struct report_text text = {
    .variable = "TUTTI_NCCL_REPORT",
    .title = "NCCL",
    .unit = "host us",
    .servers = {"tutti", "nvidia"},
    .functions = symbol_names,
    .count = SYMBOLS,
};

void report_end(enum symbol symbol, enum server server, size_t bytes, int64_t begin)
{
    if (__builtin_expect(begin != 0, 0))
        report_add((int)symbol, (int)server, bytes, begin);
}
