/* SPDX-License-Identifier: MIT */
#include "../report.h"

#include "shim.h"

static const struct report_text text = {
    .variable = "TUTTI_NCCL_REPORT",
    .title = "NCCL",
    .unit = "host us",
    .servers = {"tutti", "nvidia", "shim"},
    .functions = symbol_names,
    .count = SYMBOLS,
};

enum server { SERVER_TUTTI, SERVER_REAL, SERVER_SHIM };

static bool is_local(enum symbol symbol)
{
    enum { TUTTI, BOTH, LOCAL, REAL };
    static const uint8_t servers[] = {
#define SYMBOL_SERVER(name, server) server,
        SYMBOL_MAP(SYMBOL_SERVER)
#undef SYMBOL_SERVER
    };
    return servers[symbol] == LOCAL;
}

void report_end(enum symbol symbol, bool by_real, size_t bytes, int64_t begin)
{
    if (__builtin_expect(begin != 0, 0))
        report_add((int)symbol,
                   is_local(symbol) ? SERVER_SHIM
                   : by_real        ? SERVER_REAL
                                    : SERVER_TUTTI,
                   bytes, begin);
}

void report_call(enum symbol symbol, bool by_real)
{
    const bool creates = symbol >= SYMBOL_ncclCommInitRank && symbol <= SYMBOL_ncclCommGrow;
    const bool is_call = symbol >= SYMBOL_ncclAllReduce && symbol <= SYMBOL_ncclRecv;
    if (!creates && !is_call && symbol != SYMBOL_ncclDevCommCreate)
        report_end(symbol, by_real, 0, report_begin());
}
