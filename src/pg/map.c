/* SPDX-License-Identifier: MIT */
#include "pg/map.h"

#include <stdlib.h>
#include <string.h>

static size_t size_of(const struct pg_map *map)
{
    return map->grown ? map->size : PG_BUCKETS;
}

static size_t index_of(const struct pg_map *map, uint32_t tag, uint64_t sequence)
{
    /* Successive sequences of a tag use neighbouring buckets; different tags begin far apart. */
    return (sequence + tag * UINT64_C(0x9e3779b1)) % size_of(map);
}

static struct pg_key **buckets_of(struct pg_map *map)
{
    return map->grown ? map->grown : map->few;
}

static struct pg_key *take(struct pg_map *map, struct pg_key **link)
{
    struct pg_key *key = *link;
    *link = key->next;
    map->count--;
    return key;
}

static void put(struct pg_map *map, struct pg_key *key)
{
    const size_t index = index_of(map, key->tag, key->sequence);
    struct pg_key **bucket = &buckets_of(map)[index];
    key->next = *bucket;
    *bucket = key;
    if (index < map->lowest)
        map->lowest = index;
}

/* Without memory the map stays as it is: it is slower then. */
static void grow(struct pg_map *map)
{
    struct pg_map larger = {.size = 4 * size_of(map), .count = map->count};
    larger.grown = calloc(larger.size, sizeof(struct pg_key *));
    if (!larger.grown)
        return;
    for (struct pg_key *key; (key = pg_map_take_any(map));)
        put(&larger, key);
    free(map->grown);
    map->grown = larger.grown;
    map->size = larger.size;
    map->count = larger.count;
    map->lowest = 0;
}

struct pg_key *pg_map_find(const struct pg_map *map, uint32_t tag, uint64_t sequence)
{
    struct pg_key *const *buckets = map->grown ? map->grown : map->few;
    struct pg_key *key = buckets[index_of(map, tag, sequence)];
    while (key && (key->tag != tag || key->sequence != sequence))
        key = key->next;
    return key;
}

void pg_map_insert(struct pg_map *map, struct pg_key *key)
{
    if (map->count >= 2 * size_of(map))
        grow(map);
    put(map, key);
    map->count++;
}

struct pg_key *pg_map_take(struct pg_map *map, uint32_t tag, uint64_t sequence)
{
    struct pg_key **link = &buckets_of(map)[index_of(map, tag, sequence)];
    while (*link && ((*link)->tag != tag || (*link)->sequence != sequence))
        link = &(*link)->next;
    return *link ? take(map, link) : NULL;
}

struct pg_key *pg_map_take_any(struct pg_map *map)
{
    struct pg_key **buckets = buckets_of(map);
    if (!map->count)
        return NULL;
    while (!buckets[map->lowest])
        map->lowest++;
    return take(map, &buckets[map->lowest]);
}

void pg_map_clear(struct pg_map *map)
{
    free(map->grown);
    memset(map, 0, sizeof *map);
}

void pg_map_each(const struct pg_map *map, void (*fn)(void *context, struct pg_key *key),
                 void *context)
{
    struct pg_key *const *buckets = map->grown ? map->grown : map->few;
    if (!map->count)
        return;
    for (size_t i = 0; i < size_of(map); i++)
        for (struct pg_key *key = buckets[i]; key; key = key->next)
            fn(context, key);
}

/* ---- lines ----------------------------------------------------------------------------------- */

struct pg_member *pg_line_first(const struct pg_map *lines, uint32_t tag, uint64_t sequence)
{
    return (struct pg_member *)pg_map_find(lines, tag, sequence);
}

void pg_line_append(struct pg_map *lines, struct pg_member *member)
{
    struct pg_member *first = pg_line_first(lines, member->key.tag, member->key.sequence);
    member->next = NULL;
    member->before = first ? first->last : NULL;
    if (first)
        first->last = first->last->next = member;
    else
        pg_map_insert(lines, &member->key);
    (first ? first : member)->last = member;
}

void pg_line_remove(struct pg_map *lines, struct pg_member *member)
{
    struct pg_member *next = member->next;
    if (next)
        next->before = member->before;
    if (member->before) {
        member->before->next = next;
        if (!next)
            pg_line_first(lines, member->key.tag, member->key.sequence)->last = member->before;
        return;
    }
    pg_map_take(lines, member->key.tag, member->key.sequence);
    if (next) {
        next->last = member->last;
        pg_map_insert(lines, &next->key);
    }
}
