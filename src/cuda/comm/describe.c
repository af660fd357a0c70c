/* SPDX-License-Identifier: MIT */
/* Describes a CUDA communicator: device, memory, plan. */
#include "base/text.h"
#include "cuda/comm/fabric.h"

#include <inttypes.h>
#include <stdio.h>

/* The beginning of a line about one kernel, up to a number of bytes. */
static void kernel_describe(const char *key, int kernel, uint64_t bytes, char *text, size_t size,
                            int *length)
{
    char limit[40] = "any size";
    if (bytes != CUDA_TABLE_REST)
        snprintf(limit, sizeof limit, "%" PRIu64 " bytes", bytes);
    text_append(text, size, length, "%s: %s up to %s", key, cuda_kernel_rows[kernel].name, limit);
}

/* The key of an all-reduce is "plan": tutti tune reads these lines. */
static void choice_describe(int collective, const struct cuda_choice *choice, uint64_t bytes,
                            char *text, size_t size, int *length)
{
    char key[64] = "plan";
    if (collective != TUTTI_COLLECTIVE_ALL_REDUCE)
        snprintf(key, sizeof key, "plan of %s",
                 tutti_collective_name((enum tutti_collective)collective));
    kernel_describe(key, choice->kernel, bytes, text, size, length);
    text_append(text, size, length, ", %d threads, %d blocks, %d units\n", (int)choice->threads,
                (int)choice->blocks, (int)choice->units);
}

/* The kernels of all-reduces that a row of a tuning file may name, for floats, and how they are
 * cut. */
static void kernels_describe(const struct cuda_plan *plan, char *text, size_t size, int *length)
{
    for (int k = 0; k < CUDA_KERNELS; k++) {
        const struct cuda_kernel_row *row = &cuda_kernel_rows[k];
        if (!cuda_kernel_is_tuned(row) || !(row->collectives >> TUTTI_COLLECTIVE_ALL_REDUCE & 1) ||
            !cuda_kernel_has(row, plan->size, plan->on_host, TUTTI_FLOAT32, CUDA_ANY))
            continue;
        kernel_describe("kernel", k, cuda_kernel_capacity(row, plan->size), text, size, length);
        text_append(text, size, length, ", units of %d bytes in %u parts, %d blocks\n",
                    (int)row->unit_bytes, cuda_kernel_parts(row, plan->size), (int)row->blocks);
    }
}

int cuda_group_describe(const void *opaque, char *text, size_t size)
{
    const struct cuda_group *group = opaque;
    const struct cuda_device *device = &group->device;
    const enum tutti_algo links_algo = choice_by_links(&group->rules->paths);
    const bool by_links = links_algo != TUTTI_ALGO_NONE;
    int length = 0;
    text_append(text, size, &length,
                "device_name: %s\ndevice_ordinal: %d\ndevice_uuid: ", device->name,
                device->ordinal);
    for (int i = 0; i < CUDA_UUID_BYTES; i++)
        text_append(text, size, &length, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
                    device->uuid[i]);
    text_append(text, size, &length,
                "\ncompute_capability: %d.%d\narena: %s%s\ndevice_arena_bytes: %zu\n"
                "programmatic_launch: %s\n",
                device->major, device->minor,
                cuda_is_alone(group) ? "none, for the rank is alone"
                : group->fabric      ? "none: "
                : group->proxied     ? "none, for a host thread stages: "
                : group->on_host     ? "in the host's memory: "
                                     : "on the device",
                group->why, group->resources->arenas[group->launch.rank].bytes,
                group->programmatic && cuda_has_kernels(group) ? "on" : "off");
    if (group->max_blocks && cuda_has_kernels(group))
        text_append(text, size, &length, "max_blocks: %d\n", group->max_blocks);
    if (cuda_is_alone(group))
        text_append(text, size, &length,
                    "plan: reduce_alone for floats, bool and premul_sum if reduced, else a copy\n");
    if (!cuda_has_kernels(group) && group->proxy)
        text_append(
            text, size, &length,
            "staging_bytes: %zu\nplan: host_staged up to any size, by a host thread, pieces "
            "of %d bytes\n",
            sizeof(struct cuda_proxy_page), CUDA_PROXY_PIECE_BYTES);
    if (group->fabric)
        text_append(text, size, &length,
                    "plan: one_shot up to %d bytes, two_shot beyond, by the fabric, pieces of %zu "
                    "bytes for each rank\n",
                    CUDA_FABRIC_ONE_HOP_BYTES, group->fabric->slot_bytes);
    const size_t used = (size_t)length < size ? (size_t)length : size;
    if (group->many_hosts)
        length += group->hosts.backend->describe(group->hosts.group, text ? text + used : NULL,
                                                 size - used);
    if (!cuda_has_kernels(group))
        return length;
    if (group->rules->kernel)
        text_append(text, size, &length, "forced_kernel: %s\n",
                    cuda_kernel_rows[group->rules->kernel - 1].name);
    kernels_describe(&group->plan, text, size, &length);
    for (int k = 0; k < CUDA_KERNELS; k++)
        if (by_links && links_algo == cuda_kernel_rows[k].algo)
            choice_describe(TUTTI_COLLECTIVE_ALL_REDUCE, &group->plan.choices[CUDA_PLAN_ROWS + k],
                            CUDA_TABLE_REST, text, size, &length);
    for (int i = 0; i < group->plan.count && !by_links; i++)
        choice_describe(group->plan.collectives[i], &group->plan.choices[i], group->plan.bytes[i],
                        text, size, &length);
    return length;
}
