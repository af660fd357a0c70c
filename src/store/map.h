/* SPDX-License-Identifier: MIT */
/* Keys to values, both byte strings: the contents of a store. Not thread-safe. */
#ifndef TUTTI_STORE_MAP_H
#define TUTTI_STORE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct map_entry {
    struct map_entry *next;
    uint64_t hash;
    uint8_t *value;
    size_t value_bytes;
    size_t key_bytes;
    uint8_t key[];
};

/* All zero is an empty map. */
struct map {
    struct map_entry **buckets;
    size_t bucket_count;
    size_t count;
    size_t bytes; /* of all keys and values */
    uint64_t seed;
};

void map_fini(struct map *map);

/* NULL if the key is absent. Valid until the next change of the map. */
struct map_entry *map_find(const struct map *map, const void *key, size_t key_bytes);

/* For compare_set: whether the entry has this value. NULL counts as an empty value. */
bool map_entry_is(const struct map_entry *entry, const void *value, size_t value_bytes);
/* Sets the key to a copy of the value, which lies outside of the map. NULL when there is no memory.
 */
struct map_entry *map_set(struct map *map, const void *key, size_t key_bytes, const void *value,
                          size_t value_bytes);
/* Adds to the end of the value, empty if the key is absent. NULL when there is no memory. */
struct map_entry *map_append(struct map *map, const void *key, size_t key_bytes, const void *value,
                             size_t value_bytes);
/* Whether the key existed. */
bool map_erase(struct map *map, const void *key, size_t key_bytes);
/* Every entry once, in no order: begin with NULL, ends with NULL. */
struct map_entry *map_next(const struct map *map, const struct map_entry *entry);

enum { MAP_NUMBER_BYTES = 24 }; /* room for any 64-bit number as text, its sign and a NUL */

/* The entry as the number that `add` keeps, an absent or empty one as 0, plus an amount; also as
 * text. Returns the length of the text; 0 if the entry is no decimal number of 64 bits, or the sum
 * has more. */
size_t map_sum(const struct map_entry *entry, int64_t amount, int64_t *sum,
               char text[MAP_NUMBER_BYTES]);

#endif
