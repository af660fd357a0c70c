/* SPDX-License-Identifier: MIT */
#include "store/map.h"

#include "ipc/random.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* FNV-1a from a random start, so that a peer cannot choose keys that share a bucket. */
static uint64_t hash_key(const struct map *map, const void *key, size_t bytes)
{
    uint64_t hash = map->seed;
    for (const uint8_t *byte = key, *end = byte + bytes; byte < end; byte++)
        hash = (hash ^ *byte) * 0x100000001b3;
    return hash ^ hash >> 32;
}

static struct map_entry **slot_of(const struct map *map, uint64_t hash)
{
    return &map->buckets[hash & (map->bucket_count - 1)];
}

/* Keeps at most one entry a bucket on average. */
static bool grow(struct map *map)
{
    if (map->count < map->bucket_count)
        return true;
    if (!map->seed && random_fill(&map->seed, sizeof map->seed) != TUTTI_OK)
        return false;
    struct map larger = *map;
    larger.bucket_count = map->bucket_count ? map->bucket_count * 2 : 16;
    larger.buckets = calloc(larger.bucket_count, sizeof(struct map_entry *));
    if (!larger.buckets)
        return false;
    for (size_t i = 0; i < map->bucket_count; i++) {
        struct map_entry *next;
        for (struct map_entry *entry = map->buckets[i]; entry; entry = next) {
            struct map_entry **slot = slot_of(&larger, entry->hash);
            next = entry->next;
            entry->next = *slot;
            *slot = entry;
        }
    }
    free(map->buckets);
    *map = larger;
    return true;
}

void map_fini(struct map *map)
{
    for (size_t i = 0; i < map->bucket_count; i++) {
        struct map_entry *next;
        for (struct map_entry *entry = map->buckets[i]; entry; entry = next) {
            next = entry->next;
            free(entry->value);
            free(entry);
        }
    }
    free(map->buckets);
    *map = (struct map){0};
}

struct map_entry *map_find(const struct map *map, const void *key, size_t key_bytes)
{
    if (!map->bucket_count)
        return NULL;
    uint64_t hash = hash_key(map, key, key_bytes);
    for (struct map_entry *entry = *slot_of(map, hash); entry; entry = entry->next)
        if (entry->hash == hash && entry->key_bytes == key_bytes &&
            memcmp(entry->key, key, key_bytes) == 0)
            return entry;
    return NULL;
}

bool map_entry_is(const struct map_entry *entry, const void *value, size_t value_bytes)
{
    if (!entry)
        return value_bytes == 0;
    return entry->value_bytes == value_bytes &&
           (value_bytes == 0 || memcmp(entry->value, value, value_bytes) == 0);
}

/* A new entry with an empty value. */
static struct map_entry *insert(struct map *map, const void *key, size_t key_bytes)
{
    if (!grow(map))
        return NULL;
    struct map_entry *entry = malloc(sizeof *entry + key_bytes);
    if (!entry)
        return NULL;
    struct map_entry **slot;
    *entry = (struct map_entry){.hash = hash_key(map, key, key_bytes), .key_bytes = key_bytes};
    memcpy(entry->key, key, key_bytes);
    slot = slot_of(map, entry->hash);
    entry->next = *slot;
    *slot = entry;
    map->count++;
    map->bytes += key_bytes;
    return entry;
}

/* Makes the value kept + added bytes long and copies the added ones to its end. */
static struct map_entry *store_value(struct map *map, const void *key, size_t key_bytes, bool keep,
                                     const void *value, size_t value_bytes)
{
    struct map_entry *entry = map_find(map, key, key_bytes);
    size_t kept = keep && entry ? entry->value_bytes : 0;
    uint8_t *copy = malloc(kept + value_bytes + 1);
    if (!copy)
        return NULL;
    if (!entry)
        entry = insert(map, key, key_bytes);
    if (!entry) {
        free(copy);
        return NULL;
    }
    if (kept)
        memcpy(copy, entry->value, kept);
    if (value_bytes)
        memcpy(copy + kept, value, value_bytes);
    copy[kept + value_bytes] = 0;
    map->bytes += kept + value_bytes - entry->value_bytes;
    free(entry->value);
    entry->value = copy;
    entry->value_bytes = kept + value_bytes;
    return entry;
}

struct map_entry *map_set(struct map *map, const void *key, size_t key_bytes, const void *value,
                          size_t value_bytes)
{
    return store_value(map, key, key_bytes, false, value, value_bytes);
}

struct map_entry *map_append(struct map *map, const void *key, size_t key_bytes, const void *value,
                             size_t value_bytes)
{
    return store_value(map, key, key_bytes, true, value, value_bytes);
}

bool map_erase(struct map *map, const void *key, size_t key_bytes)
{
    struct map_entry *entry = map_find(map, key, key_bytes);
    if (!entry)
        return false;
    struct map_entry **link = slot_of(map, entry->hash);
    while (*link != entry)
        link = &(*link)->next;
    *link = entry->next;
    map->count--;
    map->bytes -= entry->key_bytes + entry->value_bytes;
    free(entry->value);
    free(entry);
    return true;
}

struct map_entry *map_next(const struct map *map, const struct map_entry *entry)
{
    if (entry && entry->next)
        return entry->next;
    size_t i = entry ? (size_t)(slot_of(map, entry->hash) - map->buckets) + 1 : 0;
    for (; i < map->bucket_count; i++)
        if (map->buckets[i])
            return map->buckets[i];
    return NULL;
}

static bool map_number(const struct map_entry *entry, int64_t *number)
{
    *number = 0;
    if (!entry || entry->value_bytes == 0)
        return true;
    const uint8_t *byte = entry->value, *end = byte + entry->value_bytes;
    bool negative = *byte == '-';
    if (negative)
        byte++;
    if (byte == end)
        return false;
    /* Counting downwards, because the least number has no positive counterpart. */
    int64_t value = 0;
    for (; byte < end; byte++) {
        if (*byte < '0' || *byte > '9' || __builtin_mul_overflow(value, 10, &value) ||
            __builtin_sub_overflow(value, *byte - '0', &value))
            return false;
    }
    if (!negative && __builtin_sub_overflow(0, value, &value))
        return false;
    *number = value;
    return true;
}

size_t map_sum(const struct map_entry *entry, int64_t amount, int64_t *sum,
               char text[MAP_NUMBER_BYTES])
{
    int64_t number;
    if (!map_number(entry, &number) || __builtin_add_overflow(number, amount, sum))
        return 0;
    return (size_t)snprintf(text, MAP_NUMBER_BYTES, "%" PRId64, *sum);
}
