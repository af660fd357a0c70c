/* SPDX-License-Identifier: MIT */
/* The public queries about the library and the machine. */
#include "base/error.h"
#include "comm/comm.h"
#include "cuda/driver/device.h"
#include "cuda/driver/nvml.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static enum tutti_status value_of(const char *key, char *text, size_t size)
{
    struct cuda_device current;
    if (strcmp(key, "symm.backend") == 0)
        return backend_value(text, size);
    if (strcmp(key, "calls") == 0)
        snprintf(text, size, "%" PRIu64, comm_call_count());
    else if (strcmp(key, "cuda.device") == 0)
        snprintf(text, size, "%d",
                 cuda_device_current(&current) == TUTTI_OK ? current.ordinal : -1);
    else if (strcmp(key, "cuda.multicast") == 0) /* a CPU has no multicast objects */
        strcpy(text, cuda_device_current(&current) == TUTTI_OK && current.multicast ? "yes" : "no");
    else if (strcmp(key, "enabled") == 0)
        strcpy(text, comm_is_enabled() ? "yes" : "no");
    else if (strcmp(key, "isa") == 0)
        snprintf(text, size, "%s", reduce_isa_best()->name);
    else
        return error_set(
            TUTTI_ERR_INVALID,
            "tutti_info: key \"%s\" is not known: expected calls, cuda.device, cuda.multicast, "
            "enabled, isa or symm.backend",
            key);
    return TUTTI_OK;
}

enum tutti_status tutti_info(const char *key, char *text, size_t size)
{
    char value[32];
    if (!key || (!text && size))
        return error_set(TUTTI_ERR_INVALID, "tutti_info: %s is NULL", key ? "text" : "key");
    enum tutti_status status = value_of(key, value, sizeof value);
    if (status != TUTTI_OK)
        return status;
    if (strlen(value) >= size)
        return error_set(TUTTI_ERR_INVALID, "tutti_info(%s): text has %zu bytes, it needs %zu", key,
                         size, strlen(value) + 1);
    strcpy(text, value);
    return TUTTI_OK;
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
