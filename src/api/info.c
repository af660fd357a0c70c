/* SPDX-License-Identifier: MIT */
/* The public queries about the library and the machine. */
#include "base/error.h"
#include "base/text.h"
#include "comm/comm.h"
#include "cuda/runtime/group.h"
#include "cuda/runtime/nvml.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum tutti_status yes_or_no(bool yes, char *text, size_t size)
{
    snprintf(text, size, "%s", yes ? "yes" : "no");
    return TUTTI_OK;
}

static enum tutti_status enabled_value(char *text, size_t size)
{
    return yes_or_no(comm_is_enabled(), text, size);
}

static enum tutti_status isa_value(char *text, size_t size)
{
    snprintf(text, size, "%s", reduce_isa_best()->name);
    return TUTTI_OK;
}

static enum tutti_status calls_value(char *text, size_t size)
{
    snprintf(text, size, "%" PRIu64, comm_call_count());
    return TUTTI_OK;
}

/* A CPU has no multicast objects. */
static enum tutti_status multicast_value(char *text, size_t size)
{
    struct cuda_device current;
    return yes_or_no(cuda_device_current(&current) == TUTTI_OK && current.multicast, text, size);
}

static enum tutti_status device_value(char *text, size_t size)
{
    struct cuda_device current;
    snprintf(text, size, "%d", cuda_device_current(&current) == TUTTI_OK ? current.ordinal : -1);
    return TUTTI_OK;
}

static enum tutti_status backend_value(char *text, size_t size)
{
    const char *named = getenv("TUTTI_SYMM_BACKEND");
    if (!named || !*named)
        named = "cpu";
    if (strcmp(named, "cpu") != 0 && strcmp(named, "cuda") != 0)
        return error_set(TUTTI_ERR_INVALID,
                         "TUTTI_SYMM_BACKEND=%s is not known: expected cpu or cuda, or unset",
                         named);
    snprintf(text, size, "%s", named);
    return TUTTI_OK;
}

enum tutti_status tutti_info(const char *key, char *text, size_t size)
{
    static const struct {
        const char *key;
        enum tutti_status (*value)(char *text, size_t size);
    } rows[] = {{"calls", calls_value},
                {"cuda.device", device_value},
                {"cuda.multicast", multicast_value},
                {"enabled", enabled_value},
                {"isa", isa_value},
                {"symm.backend", backend_value}};
    char value[32];
    if (!key || (!text && size))
        return error_set(TUTTI_ERR_INVALID, "tutti_info: %s is NULL", key ? "text" : "key");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(key, rows[i].key) != 0)
            continue;
        enum tutti_status status = rows[i].value(value, sizeof value);
        if (status != TUTTI_OK)
            return status;
        if (strlen(value) >= size)
            return error_set(TUTTI_ERR_INVALID, "tutti_info(%s): text has %zu bytes, it needs %zu",
                             key, size, strlen(value) + 1);
        strcpy(text, value);
        return TUTTI_OK;
    }
    return error_set(
        TUTTI_ERR_INVALID,
        "tutti_info: key \"%s\" is not known: expected calls, cuda.device, cuda.multicast, "
        "enabled, isa or symm.backend",
        key);
}

enum tutti_status tutti_info_links(const char *const *bus_ids, int count, int *links)
{
    if (!bus_ids || !links || count < 1)
        return error_set(TUTTI_ERR_INVALID,
                         "tutti_info_links: %s: expected the bus ids of at least one device",
                         !bus_ids ? "bus_ids is NULL"
                         : !links ? "links is NULL"
                                  : "count is less than 1");
    return nvml_links(bus_ids, count, links);
}
