/* SPDX-License-Identifier: MIT */
/* What can be asked without doing anything. */
#include "base/error.h"
#include "base/text.h"
#include "comm/comm.h"
#include "cuda/runtime/group.h"
#include "cuda/runtime/nvml.h"

#include <inttypes.h>
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

static size_t least(size_t size, int length)
{
    return (size_t)length < size ? (size_t)length : size;
}

static void topology_describe(const struct tutti_comm *comm, char *text, size_t size, int *length)
{
    static const char *const names[] = {
        [TUTTI_TOPOLOGY_UNKNOWN] = "unknown",
        [TUTTI_TOPOLOGY_FULLY_CONNECTED] = "fully_connected",
        [TUTTI_TOPOLOGY_HYBRID_CUBE_MESH] = "hybrid_cube_mesh",
    };
    text_append(text, size, length, "topology: %s\ntopology_reason: %s\n",
                names[comm->topology.kind], comm->topology.reason);
    if (!comm->links)
        return;
    const struct topology_matrix *matrix = &comm->links->matrix;
    text_append(text, size, length, "topology_source: %s\n", comm->links->source);
    for (int i = 0; i < matrix->size; i++) {
        text_append(text, size, length, "links:");
        for (int j = 0; j < matrix->size; j++)
            if (i == j)
                text_append(text, size, length, " X");
            else if (matrix->links[i][j] < 0)
                text_append(text, size, length, " ?");
            else
                text_append(text, size, length, " %d", matrix->links[i][j]);
        text_append(text, size, length, "\n");
    }
}

int tutti_comm_describe(const tutti_comm_t *comm, char *text, size_t size)
{
    int length = 0;
    if (size)
        text[0] = 0;
    if (!comm)
        return 0;
    text_append(text, size, &length, "name: %s\n", comm->name);
    text_append(text, size, &length, "state: %s\n",
                comm->ready       ? "ready"
                : comm->reason[0] ? "failed"
                                  : "new");
    if (comm->reason[0])
        text_append(text, size, &length, "reason: %s\n", comm->reason);
    text_append(text, size, &length, "rank: %d\nworld_size: %d\ndevice: %s\n", comm->rank,
                comm->world_size, comm->config.device == TUTTI_DEVICE_CUDA ? "cuda" : "cpu");
    text_append(text, size, &length, "leaf_order:");
    for (int leaf = 0; leaf < comm->world_size; leaf++)
        text_append(text, size, &length, " %d", (int)comm->config.leaf_order[leaf]);
    text_append(text, size, &length, "\nbuffer_size: %" PRIu64 "\nstrict: %s\nalgorithm: %s\n",
                comm->config.buffer_size, comm->config.strict ? "on" : "off",
                comm->config.algo ? tutti_algo_name((enum tutti_algo)comm->config.algo)
                                  : "measured");
    text_append(text, size, &length, "timeout_ms: %" PRId64 "\nisa: %s\n", comm->timeout_ms,
                comm->isa->name);
    if (!comm->ready)
        return length;
    text_append(text, size, &length, "generation: %" PRId64 "\ncores: %d\n", comm->generation,
                comm->cores);
    topology_describe(comm, text, size, &length);
    text_append(text, size, &length, "ranks_share_process: %s\narena_bytes: %zu\n",
                comm->cpu.one_process ? "yes" : "no", sizeof(struct layout_arena));
    if (comm->cuda)
        length += cuda_group_describe(comm->cuda, text ? text + least(size, length) : NULL,
                                      size - least(size, length));
    return length;
}
