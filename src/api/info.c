/* SPDX-License-Identifier: MIT */
/* What can be asked without doing anything. */
#include "base/error.h"
#include "cpu/reduce/reduce.h"
#include "cuda/runtime/group.h"
#include "cuda/runtime/nvml.h"

#include <stdlib.h>
#include <string.h>

const char *tutti_info_isa(void)
{
    return reduce_isa_best()->name;
}

bool tutti_info_multicast(enum tutti_device device)
{
    struct cuda_device current;
    if (device != TUTTI_DEVICE_CUDA) /* no CPU has multicast objects */
        return false;
    return cuda_device_current(&current) == TUTTI_OK && current.multicast;
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

enum tutti_status tutti_info_symm_backend(const char **name)
{
    static const char *const names[] = {"cpu", "cuda"};
    const char *text = getenv("TUTTI_SYMM_BACKEND");
    if (!name)
        return error_set(TUTTI_ERR_INVALID, "tutti_info_symm_backend: name is NULL");
    if (!text || !*text)
        text = names[0];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(text, names[i]) == 0) {
            *name = names[i];
            return TUTTI_OK;
        }
    return error_set(TUTTI_ERR_INVALID,
                     "TUTTI_SYMM_BACKEND=%s is not known: expected cpu or cuda, or unset", text);
}
