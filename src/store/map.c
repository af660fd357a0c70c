/* SPDX-License-Identifier: MIT */
#include "store/map.h"

#include "base/parse.h"

#include <inttypes.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
    const struct map_entry *left = a, *right = b;
    if (left->key_bytes != right->key_bytes)
        return left->key_bytes < right->key_bytes ? -1 : 1;
    return memcmp(left->key, right->key, left->key_bytes);
}

static void entry_free(void *entry)
{
    free(((struct map_entry *)entry)->value);
    free(entry);
}

void map_fini(struct map *map)
{
    tdestroy(map->root, entry_free);
    *map = (struct map){0};
}

struct map_entry *map_find(const struct map *map, const void *key, size_t key_bytes)
{
    const struct map_entry wanted = {.key = key, .key_bytes = key_bytes};
    struct map_entry *const *found = tfind(&wanted, &map->root, compare);
    return found ? *found : NULL;
}

bool map_entry_is(const struct map_entry *entry, const void *value, size_t value_bytes)
{
    if (!entry)
        return value_bytes == 0;
    return entry->value_bytes == value_bytes &&
           (value_bytes == 0 || memcmp(entry->value, value, value_bytes) == 0);
}

/* A new entry without a value. */
static struct map_entry *insert(struct map *map, const void *key, size_t key_bytes)
{
    struct map_entry *entry = malloc(sizeof *entry + key_bytes);
    if (!entry)
        return NULL;
    *entry = (struct map_entry){.key = (uint8_t *)(entry + 1), .key_bytes = key_bytes};
    memcpy(entry + 1, key, key_bytes);
    if (!tsearch(entry, &map->root, compare)) {
        free(entry);
        return NULL;
    }
    map->count++;
    map->bytes += key_bytes;
    return entry;
}

struct map_entry *map_put(struct map *map, const void *key, size_t key_bytes, bool keep,
                          const void *value, size_t value_bytes)
{
    struct map_entry *entry = map_find(map, key, key_bytes);
    const size_t kept = keep && entry ? entry->value_bytes : 0;
    uint8_t *copy = malloc(kept + value_bytes + 1);
    if (copy && !entry)
        entry = insert(map, key, key_bytes);
    if (!copy || !entry) {
        free(copy);
        return NULL;
    }
    if (kept)
        memcpy(copy, entry->value, kept);
    if (value_bytes)
        memcpy(copy + kept, value, value_bytes);
    map->bytes += kept + value_bytes - entry->value_bytes;
    free(entry->value);
    entry->value = copy;
    entry->value_bytes = kept + value_bytes;
    return entry;
}

bool map_erase(struct map *map, const void *key, size_t key_bytes)
{
    struct map_entry *entry = map_find(map, key, key_bytes);
    if (!entry)
        return false;
    tdelete(entry, &map->root, compare);
    map->count--;
    map->bytes -= entry->key_bytes + entry->value_bytes;
    entry_free(entry);
    return true;
}

struct walk {
    void (*visit)(const struct map_entry *entry, void *context);
    void *context;
};

static void walk_node(const void *node, VISIT which, void *closure)
{
    const struct walk *walk = closure;
    if (which == preorder || which == leaf)
        walk->visit(*(struct map_entry *const *)node, walk->context);
}

void map_walk(const struct map *map, void (*visit)(const struct map_entry *entry, void *context),
              void *context)
{
    twalk_r(map->root, walk_node, &(struct walk){visit, context});
}

size_t map_sum(const struct map_entry *entry, int64_t amount, int64_t *sum,
               char text[MAP_NUMBER_BYTES])
{
    int64_t number = 0;
    const size_t bytes = entry ? entry->value_bytes : 0;
    if (bytes >= MAP_NUMBER_BYTES)
        return 0;
    text[bytes] = 0;
    if (bytes)
        memcpy(text, entry->value, bytes);
    if ((bytes && !parse_number(text, INT64_MIN, INT64_MAX, &number)) || strlen(text) != bytes ||
        __builtin_add_overflow(number, amount, sum))
        return 0;
    return (size_t)snprintf(text, MAP_NUMBER_BYTES, "%" PRId64, *sum);
}
