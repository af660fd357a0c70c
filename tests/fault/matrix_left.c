/* SPDX-License-Identifier: MIT */
/* Counts what the process of a rank holds, as the kernel reports it. */
#include "matrix.h"

#include "device.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* On a GPU the driver opens files of its own whenever it likes: what can be the library's is memory
 * files, pidfds and sockets. */
static bool counts(const char *target)
{
    return !device_is_gpu() || strstr(target, "memfd:tutti-") || strstr(target, "pidfd") ||
           strncmp(target, "socket:", 7) == 0;
}

static int count_descriptors(void)
{
    char path[64], target[256];
    int count = 0;
    DIR *stream = opendir("/proc/self/fd");
    for (struct dirent *entry; stream && (entry = readdir(stream));) {
        snprintf(path, sizeof path, "/proc/self/fd/%.16s", entry->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        target[length > 0 ? length : 0] = 0;
        count += entry->d_name[0] != '.' && counts(target);
    }
    if (stream)
        closedir(stream);
    return count;
}

/* Shared memory: arenas, what groups show, recorders. */
static int count_mappings(void)
{
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && fgets(line, sizeof line, maps))
        count += strstr(line, "/memfd:tutti-") || strstr(line, "/dev/shm/");
    if (maps)
        fclose(maps);
    return count;
}

struct holdings matrix_holdings(void)
{
    return (struct holdings){.descriptors = count_descriptors(), .mappings = count_mappings()};
}

void matrix_left(const struct holdings *before, char *text, size_t size)
{
    struct holdings now = matrix_holdings();
    for (int i = 0; i < 500; i++) {
        if (now.descriptors <= before->descriptors && now.mappings <= before->mappings)
            break;
        usleep(1000);
        now = matrix_holdings();
    }
    text[0] = 0;
    if (now.descriptors > before->descriptors || now.mappings > before->mappings)
        snprintf(text, size, "%d descriptors, %d mappings", now.descriptors - before->descriptors,
                 now.mappings - before->mappings);
}
