/* SPDX-License-Identifier: MIT */
#include "ipc/memory_limit.h"

#include "base/fd.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The number after `key` in a file of "key number" lines, or `other`. */
static uint64_t read_field(const char *path, const char *key, uint64_t other)
{
    FILE *file = fd_open_stream(path);
    if (!file)
        return other;
    char line[256];
    uint64_t value = other;
    while (fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0 &&
            sscanf(line + strlen(key), " %" SCNu64, &value) == 1)
            break;
    fclose(file);
    return value;
}

/* One level of a control group hierarchy: what it leaves, its reclaimable file pages included. */
static void look_at_group(const char *folder, const char *max, const char *current, uint64_t *least,
                          char *name, size_t size)
{
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", folder, max);
    uint64_t limit = read_field(path, "", UINT64_MAX); /* "max" is no number */
    if (limit == UINT64_MAX)
        return;
    snprintf(path, sizeof path, "%s/%s", folder, current);
    uint64_t used = read_field(path, "", 0);
    if (limit > used && limit - used >= *least)
        return;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    uint64_t files = read_field(path, "inactive_file", 0) + read_field(path, "active_file", 0);
    used -= files < used ? files : used;
    uint64_t left = limit > used ? limit - used : 0;
    if (left >= *least)
        return;
    *least = left;
    snprintf(name, size, "the control group's %s of %" PRIu64 " bytes", max, limit);
}

/* Looks at a group and all that enclose it. */
static void look_at_groups(char *group, bool v2, uint64_t *least, char *name, size_t size)
{
    group[strcspn(group, "\n")] = 0;
    for (;;) {
        char folder[PATH_MAX + 32];
        snprintf(folder, sizeof folder, "/sys/fs/cgroup%s%s", v2 ? "" : "/memory", group);
        if (v2)
            look_at_group(folder, "memory.max", "memory.current", least, name, size);
        else
            look_at_group(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", least, name,
                          size);
        char *slash = strrchr(group, '/');
        if (!slash)
            return;
        *slash = 0;
    }
}

uint64_t memory_limit(char *name, size_t size)
{
    uint64_t kib = read_field("/proc/meminfo", "MemAvailable:", UINT64_MAX / 1024);
    uint64_t swap = read_field("/proc/meminfo", "SwapFree:", 0);
    uint64_t least = kib < UINT64_MAX / 1024 ? (kib + swap) * 1024 : UINT64_MAX;
    snprintf(name, size, "the machine's available memory and swap");

    FILE *file = fd_open_stream("/proc/self/cgroup");
    if (!file)
        return least;
    char line[PATH_MAX];
    while (fgets(line, sizeof line, file)) {
        /* "0::PATH" is version 2, "N:controllers:PATH" version 1. */
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        bool v2 = group == controllers + 1;
        *group++ = 0;
        if (v2 || strstr(controllers, "memory"))
            look_at_groups(group, v2, &least, name, size);
    }
    fclose(file);
    return least;
}
