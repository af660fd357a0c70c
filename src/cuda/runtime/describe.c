/* SPDX-License-Identifier: MIT */
/* Describes a CUDA communicator: device, memory, plan. */
#include "base/text.h"
#include "cuda/runtime/group_internal.h"

static void choice_describe(const struct cuda_choice *choice, uint64_t bytes, char *text,
                            size_t size, int *length)
{
    text_append(text, size, length, "plan: %s up to ",
                tutti_algo_name(cuda_kernel_algo((enum cuda_kernel)choice->kernel)));
    if (bytes == CUDA_TABLE_REST)
        text_append(text, size, length, "any size");
    else
        text_append(text, size, length, "%llu bytes", (unsigned long long)bytes);
    text_append(text, size, length, ", %d threads, %d blocks, %d units\n", (int)choice->threads,
                (int)choice->blocks, (int)choice->units);
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
                cuda_is_proxied(group) ? "none, for a host thread stages: "
                : group->staged        ? "in the host's memory: "
                                       : "on the device",
                group->why, group->resources->arenas[group->launch.rank].bytes,
                group->programmatic && !cuda_is_proxied(group) ? "on" : "off");
    if (cuda_is_proxied(group)) {
        text_append(
            text, size, &length,
            "staging_bytes: %zu\nplan: host_staged up to any size, by a host thread, pieces "
            "of %d bytes\n",
            sizeof(struct cuda_proxy_page), CUDA_PROXY_PIECE_BYTES);
        return length;
    }
    for (int k = CUDA_TABLE_KERNELS; k < CUDA_KERNELS; k++)
        if (by_links && links_algo == cuda_kernel_algo((enum cuda_kernel)k))
            choice_describe(cuda_plan_forced(&group->plan, (enum cuda_kernel)k), CUDA_TABLE_REST,
                            text, size, &length);
    for (int i = 0; i < group->plan.count && !by_links; i++)
        choice_describe(&group->plan.choices[i], group->plan.bytes[i], text, size, &length);
    return length;
}
