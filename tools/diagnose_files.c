/* SPDX-License-Identifier: MIT */
/* Reads the files that `tutti diagnose` is given, and all files in the directories. */
#include "diagnose.h"
#include "tool.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Adds a dump. If there are several dumps of one rank, it keeps the latest one. */
static bool keep(struct dump_set *dumps, struct dump *dump)
{
    for (size_t i = 0; i < dumps->count; i++) {
        struct dump *other = &dumps->all[i];
        if (!same_communicator(other, dump) || other->rank != dump->rank)
            continue;
        if (other->taken_ns < dump->taken_ns) {
            struct dump older = *other;
            *other = *dump;
            *dump = older;
        }
        dump_free(dump);
        return true;
    }
    struct dump *more = realloc(dumps->all, (dumps->count + 1) * sizeof *more);
    if (!more) {
        dump_free(dump);
        return tool_fail_errno("%zu dumps", dumps->count + 1);
    }
    dumps->all = more;
    more[dumps->count++] = *dump;
    return true;
}

static bool file_take(struct dump_set *dumps, const char *path)
{
    char problem[256] = "";
    struct dump dump;
    size_t bytes;
    char *text = tool_read_file(path, &bytes);
    if (!text)
        return false;
    bool parsed = dump_parse(text, bytes, &dump, problem, sizeof problem);
    free(text);
    if (!parsed)
        return tool_fail("%s is no dump of Tutti: %s", path, problem);
    return keep(dumps, &dump);
}

static bool is_directory(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* Reads an entry of a directory. Ignores one that is no ordinary file, and returns true. */
static bool entry_take(struct dump_set *dumps, const char *directory, const char *name, int *files)
{
    struct stat info;
    char *path;
    if (asprintf(&path, "%s/%s", directory, name) < 0)
        return tool_fail_errno("%s", directory);
    bool is_file = stat(path, &info) == 0 && S_ISREG(info.st_mode);
    *files += is_file;
    bool taken = !is_file || file_take(dumps, path);
    free(path);
    return taken;
}

static bool directory_take(struct dump_set *dumps, const char *path)
{
    struct dirent **entries;
    int count = scandir(path, &entries, is_visible, alphasort), files = 0;
    bool taken = true;
    if (count < 0)
        return tool_fail_errno("%s", path);
    for (int i = 0; i < count; i++) {
        taken &= entry_take(dumps, path, entries[i]->d_name, &files);
        free(entries[i]);
    }
    free(entries);
    return files ? taken : tool_fail("%s: there is no file in the directory", path);
}

bool dump_set_read(char **paths, struct dump_set *dumps)
{
    bool read = true;
    *dumps = (struct dump_set){0};
    for (; *paths; paths++)
        read &= is_directory(*paths) ? directory_take(dumps, *paths) : file_take(dumps, *paths);
    return read;
}

void dump_set_free(struct dump_set *dumps)
{
    for (size_t i = 0; i < dumps->count; i++)
        dump_free(&dumps->all[i]);
    free(dumps->all);
    *dumps = (struct dump_set){0};
}
