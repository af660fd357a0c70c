/* SPDX-License-Identifier: MIT */
/* What can be asked without doing anything. */
#include "comm.h"
#include "error.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *tutti_info_isa(void)
{
    return reduce_isa_best()->name;
}

bool tutti_info_multicast(enum tutti_device device)
{
    (void)device; /* no CPU has multicast objects */
    return false;
}

enum tutti_status tutti_info_symm_backend(const char **name)
{
    const char *text = getenv("TUTTI_SYMM_BACKEND");
    if (!name)
        return error_set(TUTTI_ERR_INVALID, "tutti_info_symm_backend: name is NULL");
    if (text && *text && strcmp(text, "cpu") != 0)
        return error_set(TUTTI_ERR_INVALID,
                         "TUTTI_SYMM_BACKEND=%s is not known: expected cpu, or unset", text);
    *name = "cpu";
    return TUTTI_OK;
}

/* Appends as snprintf does; *length grows by what there would be to say. */
static void append(char *text, size_t size, int *length, const char *format, ...)
    TUTTI_PRINTF(4, 5);

static void append(char *text, size_t size, int *length, const char *format, ...)
{
    size_t used = (size_t)*length < size ? (size_t)*length : size;
    va_list args;
    va_start(args, format);
    *length += vsnprintf(text ? text + used : NULL, size - used, format, args);
    va_end(args);
}

int tutti_comm_describe(const tutti_comm_t *comm, char *text, size_t size)
{
    int length = 0;
    if (size)
        text[0] = 0;
    if (!comm)
        return 0;
    append(text, size, &length, "name: %s\n", comm->name);
    append(text, size, &length, "state: %s\n",
           comm->ready       ? "ready"
           : comm->reason[0] ? "failed"
                             : "new");
    if (comm->reason[0])
        append(text, size, &length, "reason: %s\n", comm->reason);
    append(text, size, &length, "rank: %d\nworld_size: %d\ndevice: cpu\n", comm->rank,
           comm->world_size);
    append(text, size, &length, "leaf_order:");
    for (int leaf = 0; leaf < comm->world_size; leaf++)
        append(text, size, &length, " %d", (int)comm->config.leaf_order[leaf]);
    append(text, size, &length, "\nbuffer_size: %" PRIu64 "\nstrict: %s\nalgorithm: %s\n",
           comm->config.buffer_size, comm->config.strict ? "on" : "off",
           comm->config.algo ? tutti_algo_name((enum tutti_algo)comm->config.algo) : "measured");
    append(text, size, &length, "timeout_ms: %" PRId64 "\nisa: %s\n", comm->timeout_ms,
           comm->isa->name);
    if (!comm->ready)
        return length;
    append(text, size, &length, "generation: %" PRId64 "\ncores: %d\ntopology: fully_connected\n",
           comm->generation, comm->cores);
    append(text, size, &length, "ranks_share_process: %s\narena_bytes: %zu\n",
           comm->cpu.one_process ? "yes" : "no", sizeof(struct layout_arena));
    return length;
}
